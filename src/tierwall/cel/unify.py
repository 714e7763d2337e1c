"""Whether one type fits another, and what that says about type variables (cel-go 0.29, checker/types.go).

A type variable is a `Param`; a `Mapping` holds what is known about the variables so far. `assignable` may leave a
mapping half changed when it answers no, so callers give it a copy.
"""

from __future__ import annotations

from tierwall.cel.types import DYN, Object, Param, Type

Mapping = dict[str, Type]

_ANYTHING = ("dyn", "error")
_PLAIN = frozenset(("bool", "int", "uint", "double", "string", "bytes"))
_NOT_NULLABLE = _PLAIN | {"list", "map", "type"}


def assignable(mapping: Mapping, given: Type, wanted: Type) -> bool:
    """Whether `given` fits where `wanted` is expected; records what the variables in both have to be."""
    if type(wanted) is Param:
        valid, known = _substitutable(mapping, given, wanted)
        if valid:
            return True
        if known:
            return False
    if type(given) is Param:
        return _substitutable(mapping, wanted, given)[0]
    one, other = given.name, wanted.name
    if one in _ANYTHING or other in _ANYTHING:
        return True
    if one == "null_type":
        return _nullable(wanted)
    if other == "null_type":
        return _nullable(given)
    if one == "type":
        return other == "type"
    if type(given) is Object or type(wanted) is Object:
        return given == wanted
    return one == other and assignable_all(mapping, given.params, wanted.params)


def assignable_all(mapping: Mapping, given: tuple[Type, ...], wanted: tuple[Type, ...]) -> bool:
    """Whether each of `given` fits its place in `wanted`."""
    if len(given) != len(wanted):
        return False
    for one, other in zip(given, wanted, strict=True):
        # A plain type against itself is the usual case.
        if not (one is other and type(one) is Type and not one.params) and not assignable(mapping, one, other):
            return False
    return True


def _nullable(other: Type) -> bool:
    """Null compares with null, times, opaque values and objects, but not with plain values, lists and maps."""
    return other.name not in _NOT_NULLABLE


def _substitutable(mapping: Mapping, candidate: Type, variable: Type) -> tuple[bool, bool]:
    """Whether `variable` may stand for `candidate`, and whether something was known about `variable` before."""
    if candidate == variable:
        return True, True
    known = mapping.get(variable.name)
    if known is not None:
        if candidate == known:
            return True, True
        if not assignable(mapping, candidate, known):
            return False, True
        general = most_general(candidate, known)
        if not _occurs(mapping, variable, general):
            mapping[variable.name] = general
        return True, True
    if _occurs(mapping, variable, candidate):
        return False, False
    mapping[variable.name] = candidate
    return True, False


def _occurs(mapping: Mapping, variable: Type, within: Type) -> bool:
    if variable == within:
        return True
    if type(within) is Param:
        known = mapping.get(within.name)
        return known is not None and _occurs(mapping, variable, known)
    return any(_occurs(mapping, variable, param) for param in within.params)


def most_general(one: Type, other: Type) -> Type:
    """The less specific of two types that fit each other."""
    return one if _less_specific(one, other) else other


def _less_specific(one: Type, other: Type) -> bool:
    if one.name == "dyn" or type(one) is Param:
        return True
    if other.name == "dyn" or type(other) is Param:
        return False
    if one.name != other.name or len(one.params) != len(other.params):
        return False
    if one.name == "type":
        return True
    return all(_less_specific(a, b) for a, b in zip(one.params, other.params, strict=True))


def substitute(mapping: Mapping, given: Type, free: Type | None = None) -> Type:
    """`given` with its known variables replaced, and the unknown ones by `free` if that is given."""
    if type(given) is Param:
        known = mapping.get(given.name)
        if known is not None:
            return substitute(mapping, known, free)
        return given if free is None else free
    if not given.params:
        return given
    return Type(given.name, tuple([substitute(mapping, param, free) for param in given.params]))


def resolved(mapping: Mapping, given: Type) -> Type:
    """`given` with every variable gone: those of which nothing is known are dyn."""
    return substitute(mapping, given, DYN)


def is_ground(given: Type) -> bool:
    """Whether there are no variables in `given`."""
    return type(given) is not Param and all(is_ground(param) for param in given.params)

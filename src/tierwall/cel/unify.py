"""Whether one type fits another, and what that says about type variables (cel-go 0.29, checker/types.go).

A type variable is a `Param`; `Bindings` hold what is known about the variables so far. What a failed attempt found out
is forgotten again.
"""

from __future__ import annotations

from tierwall.cel.types import DYN, Object, Param, Type

_ANYTHING = ("dyn", "error")
_PLAIN = frozenset(("bool", "int", "uint", "double", "string", "bytes"))
_NOT_NULLABLE = _PLAIN | {"list", "map", "type"}


# Types with more parts than this are refused: `[1].map(a, {a: a}).map(b, {b: b})…` doubles its type at every step.
MAX_SIZE = 1000
# Steps that all comparisons and substitutions of one check may take: variables can hide the doubling.
MAX_STEPS = 3_000_000


class OversizedType(Exception):
    """A type that is too large to write down, or types that are too large to compare."""


class Bindings:
    """What is known about type variables, with a trail to go back on, and the steps that are left."""

    __slots__ = ("_floor", "_trail", "known", "steps")

    def __init__(self) -> None:
        self.known: dict[str, Type] = {}
        self.steps = MAX_STEPS
        self._floor = 0
        self._trail: list[tuple[str, Type | None]] = []

    def step(self) -> None:
        """Count one step of a comparison."""
        self.steps -= 1
        if self.steps < 0:
            raise OversizedType

    def substitute(self, given: Type, free: Type | None = None) -> Type:
        """`given` with its known variables replaced, and the unknown ones by `free` if that is given."""
        if type(given) is not Param and not given.params:
            return given
        self._floor = max(0, self.steps - MAX_SIZE)
        return self._substituted(given, free)

    def _substituted(self, given: Type, free: Type | None) -> Type:
        self.steps -= 1
        if self.steps < self._floor:
            raise OversizedType
        if type(given) is Param:
            found = self.known.get(given.name)
            if found is not None:
                return self._substituted(found, free)
            return given if free is None else free
        if not given.params:
            return given
        return Type(given.name, tuple([self._substituted(param, free) for param in given.params]))

    def resolve(self, given: Type) -> Type:
        """`given` with every variable gone: those of which nothing is known are dyn."""
        return self.substitute(given, DYN)

    def bind(self, name: str, given: Type) -> None:
        """From now on the variable stands for `given`."""
        self._trail.append((name, self.known.get(name)))
        self.known[name] = given

    def fits(self, given: tuple[Type, ...], wanted: tuple[Type, ...]) -> bool:
        """Whether each of `given` fits its place in `wanted`; if not, nothing is bound."""
        if assignable_all(self, given, wanted):
            self._trail.clear()
            return True
        while self._trail:
            name, before = self._trail.pop()
            if before is None:
                del self.known[name]
            else:
                self.known[name] = before
        return False


def assignable(bindings: Bindings, given: Type, wanted: Type) -> bool:
    """Whether `given` fits where `wanted` is expected; records what the variables in both have to be."""
    bindings.step()
    if type(wanted) is Param:
        valid, known = _substitutable(bindings, given, wanted)
        if valid:
            return True
        if known:
            return False
    if type(given) is Param:
        return _substitutable(bindings, wanted, given)[0]
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
    return one == other and assignable_all(bindings, given.params, wanted.params)


def assignable_all(bindings: Bindings, given: tuple[Type, ...], wanted: tuple[Type, ...]) -> bool:
    """Whether each of `given` fits its place in `wanted`."""
    if len(given) != len(wanted):
        return False
    for one, other in zip(given, wanted, strict=True):
        # A plain type against itself is the usual case.
        if not (one is other and type(one) is Type and not one.params) and not assignable(bindings, one, other):
            return False
    return True


def _nullable(other: Type) -> bool:
    """Null compares with null, times, opaque values and objects, but not with plain values, lists and maps."""
    return other.name not in _NOT_NULLABLE


def _substitutable(bindings: Bindings, candidate: Type, variable: Type) -> tuple[bool, bool]:
    """Whether `variable` may stand for `candidate`, and whether something was known about `variable` before."""
    if candidate == variable:
        return True, True
    known = bindings.known.get(variable.name)
    if known is not None:
        if candidate == known:
            return True, True
        if not assignable(bindings, candidate, known):
            return False, True
        general = most_general(candidate, known)
        if not _occurs(bindings, variable, general):
            bindings.bind(variable.name, general)
        return True, True
    if _occurs(bindings, variable, candidate):
        return False, False
    bindings.bind(variable.name, candidate)
    return True, False


def _occurs(bindings: Bindings, variable: Type, within: Type) -> bool:
    bindings.step()
    if variable == within:
        return True
    if type(within) is Param:
        known = bindings.known.get(within.name)
        return known is not None and _occurs(bindings, variable, known)
    return any(_occurs(bindings, variable, param) for param in within.params)


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


def instantiate(fresh: dict[str, Type], given: Type) -> Type:
    """A type of an overload with its own variables replaced by fresh ones."""
    if type(given) is Param:
        return fresh[given.name]
    if not given.params:
        return given
    return Type(given.name, tuple([instantiate(fresh, param) for param in given.params]))


def is_oversized(given: Type) -> bool:
    """Whether a type has so many parts that it has to be refused."""
    size = 0
    rest = [given]
    while rest and size <= MAX_SIZE:
        size += 1
        rest.extend(rest.pop().params)
    return size > MAX_SIZE


def is_ground(given: Type) -> bool:
    """Whether there are no variables in `given`."""
    return type(given) is not Param and all(is_ground(param) for param in given.params)

"""The overloads that a call may reach, and its type (cel-go 0.29, checker/checker.go and checker/types.go).

`Bindings` tell whether one type fits another, and what that means for type variables (`TypeParam`); a failed attempt
leaves nothing behind. `Inference` tries the overloads of a call: all that fit the arguments count, and where their
results differ the call has type dyn. A call on types without variables has the same type each time, so the environment
remembers it. Where nothing fits, `no_overload` and `unknown_function` write the message.
"""

from __future__ import annotations

from tierwall.cel.environment import Environment, Function, first_releases
from tierwall.cel.errors import did_you_mean
from tierwall.cel.library.table import EXTENSION, Overload
from tierwall.cel.types import DYN, ObjectType, Type, TypeParam

_ANYTHING = ("dyn", "error")
_PLAIN = frozenset(("bool", "int", "uint", "double", "string", "bytes"))
_NOT_NULLABLE = _PLAIN | {"list", "map", "type"}


# Types with more parts than this are refused: `[1].map(a, {a: a}).map(b, {b: b})…` doubles its type at every step.
MAX_SIZE = 1000
# Steps that all comparisons and substitutions of one check may take: variables can hide the doubling.
MAX_STEPS = 3_000_000
# Calls that one environment remembers before it forgets them all.
_REMEMBERED = 4096
_SHOWN = 4


class OversizedType(Exception):
    """A type that is too large to write down, or types that are too large to compare."""


class Bindings:
    """The known type variables, a trail to undo bindings, and the number of steps that are left."""

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
        """Return `given` with its known variables replaced, and the unknown ones by `free` if that is given."""
        if type(given) is not TypeParam and not given.params:
            return given
        self._floor = max(0, self.steps - MAX_SIZE)
        return self._substituted(given, free)

    def _substituted(self, given: Type, free: Type | None) -> Type:
        self.steps -= 1
        if self.steps < self._floor:
            raise OversizedType
        if type(given) is TypeParam:
            bound = self.known.get(given.name)
            if bound is not None:
                return self._substituted(bound, free)
            return given if free is None else free
        if not given.params:
            return given
        return Type(given.name, tuple([self._substituted(param, free) for param in given.params]))

    def bind(self, name: str, given: Type) -> None:
        """Bind the variable to `given`."""
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
    if type(wanted) is TypeParam:
        fits, was_known = _substitutable(bindings, given, wanted)
        if fits:
            return True
        if was_known:
            return False
    if type(given) is TypeParam:
        return _substitutable(bindings, wanted, given)[0]
    name, wanted_name = given.name, wanted.name
    if name in _ANYTHING or wanted_name in _ANYTHING:
        return True
    if name == "null_type":
        return _nullable(wanted)
    if wanted_name == "null_type":
        return _nullable(given)
    if name == "type":
        return wanted_name == "type"
    if type(given) is ObjectType or type(wanted) is ObjectType:
        return given == wanted
    return name == wanted_name and assignable_all(bindings, given.params, wanted.params)


def assignable_all(bindings: Bindings, given: tuple[Type, ...], wanted: tuple[Type, ...]) -> bool:
    """Whether each of `given` fits its place in `wanted`."""
    if len(given) != len(wanted):
        return False
    for given_type, wanted_type in zip(given, wanted, strict=True):
        # A plain type against itself is the usual case.
        is_same = given_type is wanted_type and type(given_type) is Type and not given_type.params
        if not is_same and not assignable(bindings, given_type, wanted_type):
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
    if type(within) is TypeParam:
        known = bindings.known.get(within.name)
        return known is not None and _occurs(bindings, variable, known)
    return any(_occurs(bindings, variable, param) for param in within.params)


def most_general(left: Type, right: Type) -> Type:
    """Return the less specific of two types that fit each other."""
    return left if _less_specific(left, right) else right


def _less_specific(left: Type, right: Type) -> bool:
    if left.name == "dyn" or type(left) is TypeParam:
        return True
    if right.name == "dyn" or type(right) is TypeParam:
        return False
    if left.name != right.name or len(left.params) != len(right.params):
        return False
    if left.name == "type":
        return True
    return all(_less_specific(a, b) for a, b in zip(left.params, right.params, strict=True))


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
    return type(given) is not TypeParam and all(is_ground(param) for param in given.params)


class Inference:
    """Type variables and overloads, within the check of one expression."""

    __slots__ = ("_counter", "bindings", "environment", "open")

    def __init__(self, environment: Environment) -> None:
        self.environment = environment
        self.bindings = Bindings()
        # Whether a type with a variable has been given to any node.
        self.open = False
        self._counter = 0

    def _variable(self) -> Type:
        self._counter += 1
        return TypeParam(f"_{self._counter}")

    def new_variable(self) -> Type:
        """Return a new type variable, such as the element type of `[]`."""
        self.open = True
        return self._variable()

    def assign(self, given: Type, wanted: Type) -> bool:
        """Whether `given` fits where `wanted` is expected."""
        return given is wanted or self.bindings.fits((given,), (wanted,))

    def with_known_variables(self, given: Type) -> Type:
        """Return `given` with its known variables replaced."""
        return self.bindings.substitute(given) if self.open else given

    def without_variables(self, given: Type) -> Type:
        """Return `given` without variables, for results and messages: a variable of which nothing is known is dyn."""
        return self.bindings.substitute(given, DYN)

    def apply(self, function: Function, candidates: tuple[Overload, ...], given: tuple[Type, ...]) -> Type | None:
        """Return the type of a call, or None where no overload fits."""
        if self.open and not all(map(is_ground, given)):
            return self._fitting(candidates, given)
        remembered = self.environment.known_calls
        key = (function.name, candidates is function.members, given)
        known = remembered.get(key)
        if known is None:
            known = self._fitting(candidates, given)
            if known is not None and is_ground(known):
                if len(remembered) >= _REMEMBERED:
                    remembered.clear()
                remembered[key] = known
        return known

    def _fitting(self, candidates: tuple[Overload, ...], given: tuple[Type, ...]) -> Type | None:
        result: Type | None = None
        for overload in candidates:
            if len(overload.params) != len(given):
                continue
            fresh: dict[str, Type] = {}
            params = tuple([self._instantiated(param, fresh) for param in overload.params])
            if not self.bindings.fits(given, params):
                continue
            outcome = self.bindings.substitute(self._instantiated(overload.result, fresh))
            if result is None:
                result = outcome
            elif result.name != "dyn" and result != outcome:
                result = DYN
        if result is not None and not is_ground(result):
            self.open = True
        return result

    def _instantiated(self, given: Type, fresh: dict[str, Type]) -> Type:
        """Return a type of an overload with its own variables replaced by fresh ones."""
        if type(given) is TypeParam:
            if given.name not in fresh:
                fresh[given.name] = self._variable()
            return fresh[given.name]
        if not given.params:
            return given
        return Type(given.name, tuple([self._instantiated(param, fresh) for param in given.params]))


def unknown_function(name: str, environment: Environment) -> str | None:
    """Return a hint for a function that the environment does not have."""
    since = first_releases(name)
    if since == EXTENSION:
        return f"`{name}` is an extension that Kubernetes does not offer"
    if since is not None and since > environment.release:
        return f"`{name}` needs Kubernetes 1.{since} or later; this environment is 1.{environment.release}"
    names = sorted(name for name in environment.functions.names() if name[0].isalpha())
    last = name.rpartition(".")[2]
    return did_you_mean(name, names) or did_you_mean(last, names)


def no_overload(
    function: Function, candidates: tuple[Overload, ...], given: tuple[Type, ...]
) -> tuple[str, str | None]:
    """Return the message and the hint for a call that no overload fits."""
    name = written_name(function.name)
    given_types = _listed(given)
    if not candidates:
        member = bool(function.members)
        style = f"value.{name}(…)" if member else f"{name}(…)"
        return f"`{name}` cannot be called like this: expected `{style}`", None
    if function.name in ("_==_", "_!=_"):
        return f"expected two values of one type in `{name}`, found {given_types}", _conversion(given)
    fitting = [overload for overload in candidates if len(overload.params) == len(given)] or list(candidates)
    closer = [overload for overload in fitting if given and overload.params[:1] == given[:1]]
    shown = list(dict.fromkeys(_listed(overload.params) for overload in closer or fitting))
    expected = " or ".join(shown[:_SHOWN]) + (" …" if len(shown) > _SHOWN else "")
    return f"expected {expected} as arguments of `{name}`, found {given_types}", _conversion(given)


def _listed(given: tuple[Type, ...]) -> str:
    return f"({', '.join(map(str, given))})"


def _conversion(given: tuple[Type, ...]) -> str | None:
    names = {arg_type.name for arg_type in given}
    if len(given) == 2 and len(names) == 2 and names <= {"int", "uint", "double"}:
        return f"convert one side, such as `{given[0].name}(…)`"
    return None


def written_name(function: str) -> str:
    """Return an operator as it is written, any other function by its name."""
    if function == "@in":
        return "in"
    return function.replace("_", "") if function.startswith("_") or function in ("!_", "-_") else function

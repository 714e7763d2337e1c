"""Finds the overload of a call by the types its arguments turn out to have (cel-spec, "Functions").

Evaluation does not need a checked tree: as in cel-go, an unchecked call finds its overload at run time, and a member
function may be called like a plain one and the other way round.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec import structs

from tierwall.cel.environment import Environment, Function
from tierwall.cel.errors import CostExceeded
from tierwall.cel.library.operators import index_list, index_map
from tierwall.cel.library.optionals import optional_index
from tierwall.cel.library.table import Overload
from tierwall.cel.syntax.ast import INDEX
from tierwall.cel.types import Type, TypeParam
from tierwall.cel.values import NONE, OptionalValue, no_such_overload, type_name

# Choosing among the overloads of a few types is cached; a caller cannot fill the cache with new types.
_MAX_CACHED = 256
_MISSING = object()


class Meter:
    """The cost of one call of an expression so far, and its limit."""

    __slots__ = ("cost", "limit")

    def __init__(self, limit: int) -> None:
        self.cost = 0
        self.limit = limit

    def charge(self, amount: int) -> None:
        """Add to the cost, or end the call."""
        self.cost += amount
        if self.cost > self.limit:
            raise cost_exceeded(self.limit)


def cost_exceeded(limit: int) -> CostExceeded:
    """Return the failure of a call that costs too much."""
    return CostExceeded(f"operation cancelled: actual cost limit exceeded ({limit})")


class Dispatcher:
    """The overloads of one function that have the same number of arguments."""

    __slots__ = ("_chosen", "function", "overloads")

    def __init__(self, function: str, overloads: Sequence[Overload]) -> None:
        self.function = function
        self.overloads = tuple(overloads)
        self._chosen: dict[tuple[type, ...], Overload] = {}

    def with_cost(self, cost: Callable[..., int]) -> Dispatcher:
        """Return the same function at another cost."""
        return Dispatcher(self.function, [structs.replace(overload, cost=cost) for overload in self.overloads])

    def overload(self, args: Sequence[object]) -> Overload:
        """Return the overload for these arguments."""
        kinds = tuple(map(type, args))
        chosen = self._chosen.get(kinds)
        if chosen is None:
            chosen = next((overload for overload in self.overloads if all(map(_accepts, overload.params, args))), None)
            if chosen is None:
                raise no_such_overload(self.function, *args)
            if len(self._chosen) < _MAX_CACHED:
                self._chosen[kinds] = chosen
        return chosen

    def invoke(self, meter: Meter, *args: object) -> object:
        """Charge for the call, then make it."""
        overload = self.overload(args)
        meter.cost += 1 if overload.cost is None else overload.cost(*args)
        if meter.cost > meter.limit:
            raise cost_exceeded(meter.limit)
        return overload.call(*args)


class IndexDispatcher(Dispatcher):
    """`_[_]` and `_[?_]`, where container and key may be of any types."""

    __slots__ = ()

    def invoke(self, meter: Meter, *args: object) -> object:
        """Charge for the access, then make it."""
        meter.charge(1)
        return index(*args) if self.function == "_[_]" else optional_index(*args)


def index(container: object, key: object) -> object:
    """`container[key]`."""
    kind = type(container)
    if kind is dict:
        return index_map(container, key)  # type: ignore[arg-type]
    if kind is list:
        return index_list(container, key)  # type: ignore[arg-type]
    if kind is OptionalValue:
        return optional_index(container, key)
    raise no_such_overload("_[_]", container, key)


def _accepts(param: Type, value: object) -> bool:
    # Only the outermost type is looked at: the function itself looks at elements.
    name = param.name
    return type(param) is TypeParam or name == "dyn" or name == type_name(value)


def find_dispatcher(environment: Environment, function: str, count: int) -> Dispatcher | None:
    """Return the dispatcher of a function with that many arguments, counting the target, or None."""
    declared: Function | None = environment.lookup(function)
    if declared is None:
        return None
    overloads = [overload for overload in (*declared.plain, *declared.members) if len(overload.params) == count]
    if not overloads:
        return None
    return (IndexDispatcher if function in INDEX else Dispatcher)(function, overloads)


def optional_field(value: object, field: str) -> OptionalValue:
    """`value.?field`, and `value.field` of an optional value."""
    if type(value) is OptionalValue:
        if not value.present:
            return NONE
        value = value.value
    if type(value) is dict:
        field_value = value.get(field, _MISSING)
        if field_value is not _MISSING:
            return OptionalValue(field_value)
    elif type(value) is list:
        raise no_such_overload("select", value)
    return NONE


def has_field(value: object, field: str) -> bool:
    """`has(value.field)`; false for a value without fields, except for a list, which is an error, as in cel-go."""
    if type(value) is OptionalValue:
        value = value.value
    if type(value) is list:
        raise no_such_overload("has", value)
    return type(value) is dict and field in value

"""The signatures of functions: an `Overload` holds its types, its meaning, its cost and the release that brought it.

The checker reads the types, the evaluators call the meaning, and the cost model reads the cost: whoever adds a function
adds an overload to the `OVERLOADS` of its library, and its name to `LIBRARIES`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from tierwall.cel.errors import EvaluationError
from tierwall.cel.types import Type

# The `since` of functions that CEL's extension libraries define but no Kubernetes release offers.
EXTENSION = 1_000_000


class Overload(msgspec.Struct, frozen=True, gc=False):
    """One signature of a function. A member overload's first parameter is its target."""

    function: str
    params: tuple[Type, ...]
    result: Type
    call: Callable[..., object]
    member: bool = False
    # Cost of one call given its arguments, known before it is made; None: the model's default of 1.
    cost: Callable[..., int] | None = None
    # The Kubernetes minor release (1.N) whose environment first offers it; EXTENSION: none does.
    since: int = 0


def member_overloads(target: Type, since: int = 0) -> Callable[..., Overload]:
    """Return a declarer of member functions of a type: it takes name, parameters after the target, result, call."""

    def declare(function: str, params: tuple[Type, ...], result: Type, call: Any, **more: Any) -> Overload:
        return Overload(function, (target, *params), result, call, True, **{"since": since, **more})

    return declare


def is_parsed_by(parse: Callable[..., object]) -> Callable[..., bool]:
    """Return a predicate that is true where `parse` succeeds: `isIP`, `isURL` and the like."""

    def is_read(*args: object) -> bool:
        try:
            parse(*args)
        except EvaluationError:
            return False
        return True

    return is_read

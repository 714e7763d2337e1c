"""The one function table: every function and operator with its types, meaning, cost and the release that brought it.

The checker reads the types, the evaluators call the meaning, and the cost model reads the cost. A library is a
tuple of overloads; an environment is the libraries of one Kubernetes release.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from tierwall.cel.types import Type

# The `since` of functions that CEL's extension libraries define but no Kubernetes release offers.
EXTENSION = 1_000_000


class Overload(msgspec.Struct, frozen=True, gc=False):
    """One signature of a function. A member overload's first parameter is its target."""

    function: str
    id: str
    params: tuple[Type, ...]
    result: Type
    call: Callable[..., object]
    member: bool = False
    # Cost of one call given its arguments, known before it is made; None: the model's default of 1.
    cost: Callable[..., int] | None = None
    # The Kubernetes minor release (1.N) whose environment first offers it; EXTENSION: none does.
    since: int = 0

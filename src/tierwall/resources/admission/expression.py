"""One CEL expression over `self`, as a schema types it."""

from collections.abc import Callable
from typing import Any

from tierwall.resources.schema import Schema


class Failed(Exception):
    """The expression could not be evaluated."""


Evaluate = Callable[[Any, Any], Any]


def compile_expression(expression: str, schema: Schema, each: str = "") -> Evaluate:
    """A function of `self` and, for a rule on each item, of `item`."""

    def evaluate(value: Any, item: Any) -> Any:
        return True

    return evaluate

"""What partial evaluation gives: a value, a failure, or what is left of the expression.

Inside the evaluator a result is the CEL value itself, a `Failed`, or a `Residual`. `Partial` is the same for callers,
with the unknowns that remain and the outcomes still possible.
"""

from __future__ import annotations

from functools import cached_property
from typing import TypeAlias

import msgspec

from tierwall.cel.ast import Call, Expr, Literal, MapExpr
from tierwall.cel.partial import outcomes
from tierwall.cel.partial.names import Unknowns
from tierwall.cel.printer import to_text
from tierwall.cel.types import Type


class Failed(msgspec.Struct, frozen=True, gc=False):
    """A part that fails whatever the unknowns are."""

    message: str


class Residual(msgspec.Struct, frozen=True, gc=False):
    """What is left of a part that needs an unknown."""

    expr: Expr
    # The outcomes still possible, as `partial.outcomes` has them.
    can: int
    # The number of nodes of `expr`: what bounds the growth of residuals.
    size: int
    # The type as far as it is certain without checking; None: dyn.
    type: Type | None = None


# A CEL value, a Failed or a Residual.
Result: TypeAlias = object

_NO_SUCH_KEY = "no such key: "


def failing(message: str) -> Expr:
    """A constant expression that always fails and keeps the message: `{}["nope"]` fails with `no such key: nope`."""
    return Call("_[_]", None, (MapExpr(()), Literal(message.removeprefix(_NO_SUCH_KEY))))


FAILING_SIZE = 3


class PartialError(Exception):
    """A residual that cannot be written: too large, or with a constant that CEL has no notation for."""


class Partial:
    """The outcome of a partial evaluation: exactly one of a value (`decided`), `error` and `residual`.

    Of a condition (`boolean`) only the outcomes true, false and error are reported: a value that is no bool is an error.
    """

    __slots__ = ("__dict__", "_unknown", "error", "outcomes", "residual", "value")

    def __init__(self, result: Result, unknown: Unknowns, boolean: bool) -> None:
        self._unknown = unknown
        self.value: object = None
        self.error: str | None = None
        self.residual: Expr | None = None
        kind = type(result)
        if kind is Residual:
            self.residual = result.expr  # type: ignore[attr-defined]
            self.outcomes: int = result.can  # type: ignore[attr-defined]
        elif kind is Failed:
            self.error = result.message  # type: ignore[attr-defined]
            self.outcomes = outcomes.ERROR
        else:
            self.value = result
            self.outcomes = outcomes.of_value(result)
        if boolean:
            self.outcomes = outcomes.strict(self.outcomes)

    @property
    def decided(self) -> bool:
        """Whether there is a value: nothing unknown is needed."""
        return self.residual is None and self.error is None

    @property
    def can_be_true(self) -> bool:
        """Whether some completion may make it true."""
        return bool(self.outcomes & outcomes.TRUE)

    @property
    def can_be_false(self) -> bool:
        """Whether some completion may make it false."""
        return bool(self.outcomes & outcomes.FALSE)

    @property
    def can_fail(self) -> bool:
        """Whether some completion may make it fail."""
        return bool(self.outcomes & outcomes.ERROR)

    @cached_property
    def text(self) -> str | None:
        """The residual as text."""
        return None if self.residual is None else to_text(self.residual)

    @cached_property
    def unknowns(self) -> frozenset[str]:
        """The unknowns that the residual still names."""
        return frozenset() if self.residual is None else self._unknown.named_in(self.residual)

    def __repr__(self) -> str:
        what = self.residual if self.residual is not None else self.error if self.error is not None else self.value
        return f"Partial({what!r}, {'|'.join(outcomes.words(self.outcomes))})"

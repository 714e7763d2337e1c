"""What a part of an expression comes to: the CEL value itself, a `Failed`, or a `Residual`."""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from tierwall.cel.ast import Call, Expr, Literal, MapExpr
from tierwall.cel.types import Type


class Failed(msgspec.Struct, frozen=True, gc=False):
    """A part that fails whatever the unknowns are."""

    message: str
    # Only the operators beside an unknown show it, as in `unknown ? 1 / 0 : 1 / 0`; no operand fails for certain.
    late: bool = False


class Residual(msgspec.Struct, frozen=True, gc=False):
    """What is left of a part that needs an unknown."""

    expr: Expr
    # The outcomes still possible, as `partial.outcomes` has them.
    can: int
    # About how many characters `expr` prints as: what bounds the growth of residuals.
    size: int
    # The type as far as it is certain without checking; None: dyn.
    type: Type | None = None


# A CEL value, a Failed or a Residual.
Result: TypeAlias = object

_NO_SUCH_KEY = "no such key: "
# A message may hold a key as long as the input; nobody reads so far.
_LONGEST_MESSAGE = 500


def failing(message: str) -> Expr:
    """A constant expression that always fails and keeps the message: `{}["nope"]` fails with `no such key: nope`."""
    text = message.removeprefix(_NO_SUCH_KEY)[:_LONGEST_MESSAGE].encode("utf-8", "replace").decode()
    return Call("_[_]", None, (MapExpr(()), Literal(text)))


def is_failing(expr: Expr) -> bool:
    """Whether the expression is a constant that always fails."""
    if type(expr) is Call and expr.function == "_[_]" and type(nothing := expr.args[0]) is MapExpr:
        return not nothing.entries and nothing.at == _MADE
    return False


_MADE = MapExpr(()).at
FAILING_SIZE = 6


class PartialError(Exception):
    """A residual that cannot be written: too large, or with a constant that CEL has no notation for."""

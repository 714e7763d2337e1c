"""Results of the parts of an expression: a CEL value, a `CertainFailure`, or a `Residual` and its possible outcomes.

The outcomes of an expression are true, false, another value and an error (cel-spec, "Logical Operators"). A set of them
is a small int of four bits, and errs on the large side: an outcome whose bit is not set is proven impossible for every
completion of the unknowns. For `&&`, `||`, `!` and the condition of `?:` a value that is not a bool is an error, as
`strict` computes in bits.
"""

from __future__ import annotations

from typing import Final, TypeAlias

import msgspec

from tierwall.cel.syntax.ast import Call, Expr, Literal, MapExpr
from tierwall.cel.types import Type
from tierwall.cel.values import no_such_overload

TRUE: Final = 1
FALSE: Final = 2
ERROR: Final = 4
# A value that is not a bool.
OTHER: Final = 8

BOOL: Final = TRUE | FALSE | ERROR
VALUE: Final = OTHER | ERROR
ANY: Final = TRUE | FALSE | ERROR | OTHER

_WORDS: Final = ((TRUE, "true"), (FALSE, "false"), (ERROR, "error"), (OTHER, "other"))
_NO_SUCH_KEY = "no such key: "
# A message may hold a key as long as the input; readers do not need all of it.
_MAX_MESSAGE = 500
FAILING_SIZE = 6


def outcome_words(outcomes: int) -> tuple[str, ...]:
    """Return the outcomes by name, always in the same order."""
    return tuple(word for bit, word in _WORDS if outcomes & bit)


def condition_outcomes(outcomes: int) -> int:
    """Return the outcomes where a bool is needed: any other value is an error."""
    return (outcomes & ~OTHER) | ERROR if outcomes & OTHER else outcomes


def connective(operands: list[int], settling: int) -> int:
    """Return the outcomes of `&&`, which FALSE settles, or `||`, which TRUE settles; settling absorbs errors."""
    every, some = ANY, 0
    for outcomes in operands:
        outcomes = condition_outcomes(outcomes)
        every &= outcomes
        some |= outcomes
    return (every & (TRUE | FALSE) & ~settling) | (some & (settling | ERROR))


def negation(outcomes: int) -> int:
    """Return the outcomes of `!`: true and false change places."""
    outcomes = condition_outcomes(outcomes)
    return (outcomes & ERROR) | (TRUE if outcomes & FALSE else 0) | (FALSE if outcomes & TRUE else 0)


def choice(condition: int, then: int, other: int) -> int:
    """Return the outcomes of `condition ? then : other`."""
    condition = condition_outcomes(condition)
    return (condition & ERROR) | (then if condition & TRUE else 0) | (other if condition & FALSE else 0)


def of_value(value: object) -> int:
    """Return the one outcome of a value."""
    if value is True:
        return TRUE
    return FALSE if value is False else OTHER


class CertainFailure(msgspec.Struct, frozen=True, gc=False):
    """A part that fails whatever the unknowns are."""

    message: str
    # Only the operators around an unknown make it fail, as in `unknown ? 1 / 0 : 1 / 0`; no known part fails by itself.
    late: bool = False


class Residual(msgspec.Struct, frozen=True, gc=False):
    """The expression that is left of a part that needs an unknown."""

    expr: Expr
    # The outcomes still possible, in the bits above.
    possible: int
    # About how many characters `expr` prints as; bounds the growth of residuals.
    size: int
    # The type as far as it is certain without checking; None: dyn.
    type: Type | None = None


# A CEL value, a Failed or a Residual.
Result: TypeAlias = object


def as_condition(result: Result, function: str) -> Result:
    """Return the result where `function` needs a bool: a bool, a failure, or a residual that may be a bool."""
    if type(result) is Residual:
        return result if result.possible & (TRUE | FALSE) else CertainFailure(f"no such overload: {function}", True)
    if type(result) is bool or type(result) is CertainFailure:
        return result
    return CertainFailure(str(no_such_overload(function, result)))


def failing_expression(message: str) -> Expr:
    """Return a constant that always fails and keeps the message: `{}["nope"]` fails with `no such key: nope`."""
    text = message.removeprefix(_NO_SUCH_KEY)[:_MAX_MESSAGE].encode("utf-8", "replace").decode()
    return Call("_[_]", None, (MapExpr(()), Literal(text)))


def is_failing(expr: Expr) -> bool:
    """Whether the expression is a constant that always fails."""
    if type(expr) is Call and expr.function == "_[_]" and type(nothing := expr.args[0]) is MapExpr:
        return not nothing.entries and nothing.at == _MADE
    return False


_MADE = MapExpr(()).at


class PartialError(Exception):
    """A residual that cannot be written: too large, or with a constant that CEL has no notation for."""

"""What can go wrong while an expression is evaluated (cel-spec, "Evaluation" and "Runtime Errors").

An `EvaluationError` is a CEL error: `&&`, `||`, `all` and `exists` may absorb it. A `CostExceeded` is not: it ends the
call, whatever surrounds it, because a limit that an expression could absorb would be none.
"""

from __future__ import annotations

from tierwall.errors import TierwallError


class Failure(TierwallError):
    """An evaluation that gave no value."""


class EvaluationError(Failure):
    """A CEL error, with CEL's words for it."""


class CostExceeded(Failure):
    """The call used more than its limit of cost, or would have used more memory than the limit stands for."""


def no_such_key(key: object) -> EvaluationError:
    """The error of a missing map key or field."""
    return EvaluationError(f"no such key: {key}")

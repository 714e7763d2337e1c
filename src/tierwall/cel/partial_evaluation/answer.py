"""What partial evaluation tells its callers: a value, an error or a residual, with all that is known about it."""

from __future__ import annotations

from functools import cached_property

from tierwall.cel.ast import Expr
from tierwall.cel.encode import encode
from tierwall.cel.partial_evaluation import outcomes
from tierwall.cel.partial_evaluation.constant import constant
from tierwall.cel.partial_evaluation.names import Unknowns
from tierwall.cel.partial_evaluation.residual import Failed, Residual, Result, failing
from tierwall.cel.printer import to_text


class Partial:
    """The outcome of a partial evaluation: exactly one of a value (`decided`), `error` and `residual`.

    Of a condition (`boolean`) only the outcomes true, false and error are reported: a value that is no bool is one.
    """

    __slots__ = ("__dict__", "_unknown", "error", "fails_late", "outcomes", "residual", "value")

    def __init__(self, result: Result, unknown: Unknowns, boolean: bool) -> None:
        self._unknown = unknown
        self.value: object = None
        self.error: str | None = None
        # Whether only the operators beside an unknown show that it fails, and not a part that is known.
        self.fails_late = False
        self.residual: Expr | None = None
        kind = type(result)
        if kind is Residual:
            self.residual = result.expr  # type: ignore[attr-defined]
            self.outcomes: int = result.can  # type: ignore[attr-defined]
        elif kind is Failed:
            self.error = result.message  # type: ignore[attr-defined]
            self.fails_late = result.late  # type: ignore[attr-defined]
            self.outcomes = outcomes.ERROR
        else:
            self.value = result
            self.outcomes = outcomes.of_value(result)
        if boolean:
            self.outcomes = outcomes.strict(self.outcomes)

    @property
    def expr(self) -> Expr:
        """What is left as a tree, whatever it is; raises `PartialError` for a value without notation."""
        if self.residual is not None:
            return self.residual
        return failing(self.error) if self.error is not None else constant(self.value)

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
    def text(self) -> str:
        """What is left as an expression: the residual, the value's constant, or a constant that always fails."""
        return to_text(self.expr)

    @cached_property
    def unknowns(self) -> frozenset[str]:
        """The unknowns that the residual still names."""
        return frozenset() if self.residual is None else self._unknown.named_in(self.residual)

    def __repr__(self) -> str:
        what = self.residual if self.residual is not None else self.error if self.error is not None else self.value
        return f"Partial({what!r}, {'|'.join(outcomes.words(self.outcomes))})"


def report(left: Partial) -> dict[str, object]:
    """The whole answer as JSON."""
    answer: dict[str, object] = {"outcomes": list(outcomes.words(left.outcomes)), "unknowns": sorted(left.unknowns)}
    if left.residual is not None:
        return {"residual": left.text, **answer}
    return {"error": left.error, **answer} if left.error is not None else {"value": encode(left.value), **answer}

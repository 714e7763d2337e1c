"""CEL expressions of rules: compiled once a text, asked about calls (docs/semantics.md#expressions-match-calls-only).

An expression that fails (a header that is missing, say), exceeds its cost or gives no bool does not match.
"""

from __future__ import annotations

from functools import lru_cache

from tierwall.attach.acceptance import ENVIRONMENT
from tierwall.cel.errors import Failure
from tierwall.cel.evaluate.program import Program, compile
from tierwall.tool.request import Request


class Condition:
    """An expression that is known to parse; equal texts are one condition."""

    __slots__ = ("program", "text")

    def __init__(self, text: str) -> None:
        self.text = text
        self.program: Program = compile(text, ENVIRONMENT)

    def holds(self, request: Request) -> bool:
        """Whether the expression is true of a request."""
        try:
            return self.program.evaluate(request.variables()) is True
        except Failure:
            return False

    def why_not(self, request: Request) -> str:
        """Why the expression does not hold: it is false, it fails, or it gives something else."""
        outcome = self.program.outcome(request.variables())
        if isinstance(outcome, Failure):
            return f"the expression fails: {outcome}"
        return "the expression is false" if outcome is False else "the expression gives no bool"

    def __str__(self) -> str:
        return f"`{self.text}`"


@lru_cache(maxsize=4096)
def condition(text: str) -> Condition:
    """The condition of an expression; ParseError if the text is not CEL."""
    return Condition(text)

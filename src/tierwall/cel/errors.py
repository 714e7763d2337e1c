"""Errors of expressions: in their text, or in their evaluation.

A `SourceError` is a syntax or type error. It reports every problem of the text, in order, each with its place, its line
and a hint. Lines and columns count from 1, columns in code points (as cel-go counts them).

A `Failure` ends an evaluation (cel-spec, "Evaluation" and "Runtime Errors"). An `EvaluationError` is a CEL error: `&&`,
`||`, `all` and `exists` may absorb it. A `CostExceeded` is not: it ends the call, whatever surrounds it, because an
expression could otherwise absorb its own limit.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from tierwall.errors import TierwallError

# A line of source longer than this is cut around the caret.
MAX_SNIPPET = 100


class Failure(TierwallError):
    """An evaluation that gave no value."""


class EvaluationError(Failure):
    """A CEL error, with the message that CEL gives it."""


class CostExceeded(Failure):
    """The call exceeded its cost limit, or would have used more memory than the limit stands for."""


def no_such_key(key: object) -> EvaluationError:
    """Return the error of a missing map key or field."""
    return EvaluationError(f"no such key: {key}")


class SourceProblem(msgspec.Struct, frozen=True, gc=False):
    """One thing that is wrong, and where."""

    message: str
    line: int
    column: int
    # The line of source and a caret under the place, without the hint.
    snippet: str
    hint: str | None = None

    def __str__(self) -> str:
        hint = f" ({self.hint})" if self.hint else ""
        return f"{self.line}:{self.column}: {self.message}{hint}"


class SourceError(TierwallError):
    """An expression that cannot be used. `problems` holds at least one, sorted by place."""

    def __init__(self, problems: Sequence[SourceProblem]) -> None:
        self.problems = tuple(sorted(problems, key=lambda problem: (problem.line, problem.column)))
        first = self.problems[0]
        self.message = first.message
        self.line = first.line
        self.column = first.column
        self.hint = first.hint
        super().__init__("\n".join(map(str, self.problems)))

    def render(self) -> str:
        """Return every problem with its source line, a caret and its hint, for a person."""
        blocks = []
        for problem in self.problems:
            block = f"{problem.line}:{problem.column}: {problem.message}\n{problem.snippet}"
            blocks.append(block + (f"\n hint: {problem.hint}" if problem.hint else ""))
        return "\n".join(blocks)


class ParseError(SourceError):
    """The text is not a CEL expression."""


class CheckError(SourceError):
    """The expression parses, but its names or types do not fit the environment."""


def problem_at(source: str, offset: int, message: str, hint: str | None = None) -> SourceProblem:
    """Return a problem at an offset of `source`; -1, the offset of a generated node, means the start."""
    offset = min(max(offset, 0), len(source))
    start = source.rfind("\n", 0, offset) + 1
    end = source.find("\n", offset)
    text = source[start : len(source) if end < 0 else end].expandtabs(1)
    column = offset - start
    return SourceProblem(message, source.count("\n", 0, offset) + 1, column + 1, _snippet(text, column), hint)


def _snippet(text: str, column: int) -> str:
    if len(text) > MAX_SNIPPET:
        left = max(0, min(column - MAX_SNIPPET // 2, len(text) - MAX_SNIPPET))
        text, column = text[left : left + MAX_SNIPPET], column - left
    text = "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in text)
    return f" | {text}\n | {' ' * column}^"


def did_you_mean(name: str, known: Iterable[str]) -> str | None:
    """Return a hint naming the known names nearest to `name`, or none."""
    import difflib

    near = difflib.get_close_matches(name[:100], sorted(set(known)), n=3, cutoff=0.6)
    if not near:
        return None
    return "did you mean " + " or ".join(f"`{suggestion}`" for suggestion in near) + "?"

"""Plain text for people: diagnostics with the offending line, and policy test results one line a case.

Colour and the caret under the offending text are for terminals only; in a pipe each problem is one line.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeAlias

from tierwall.core.answer import Step, spelled
from tierwall.core.diagnostics import Diagnostic
from tierwall.policytest.report import CaseResult
from tierwall.render.words import phrase

# Gives a line of a file as it was read, or None.
Lines: TypeAlias = Callable[[str, int], str | None]

_COLOURS = {"error": "31", "warning": "33", "note": "36", "ok": "32", "FAIL": "31", "skip": "33"}


def paint(word: str, name: str, colour: bool) -> str:
    """A word in the colour of its meaning, if colour is wanted."""
    return f"\x1b[1;{_COLOURS[name]}m{word}\x1b[0m" if colour else word


def diagnostics(findings: Iterable[Diagnostic], lines: Lines, terminal: bool, colour: bool) -> Iterator[str]:
    """Each problem: where, how bad, code, message; then the line with a caret and the hint (or all on one line)."""
    for finding in findings:
        place = f"{finding.at}: " if finding.at else ""
        head = f"{place}{paint(finding.severity, finding.severity, colour)}[{finding.code}]: {finding.message}"
        if not terminal:
            yield head + (f" ({finding.hint})" if finding.hint else "")
            continue
        yield head
        if finding.at is not None and (text := lines(finding.at.file, finding.at.line)) is not None:
            yield from _snippet(finding.at.line, finding.at.column, text)
        for word, at in finding.related:
            yield f"      = {word}: {at}" if at else f"      = {word}"
        if finding.hint:
            yield f"      = hint: {finding.hint}"


def _snippet(line: int, column: int, text: str) -> Iterator[str]:
    text = text.rstrip("\r\n")
    start = min(column - 1, len(text))
    width = _extent(text[start:])
    if len(text) > 160:  # a JSON document on one line: show the neighbourhood
        cut = max(0, start - 60)
        text, start = text[cut : cut + 140], start - cut
    gutter = f"{line:>5}"
    yield f"{gutter} | {text}".replace("\t", " ")
    yield f"{' ' * len(gutter)} | {' ' * start}{'^' * max(1, min(width, len(text) - start))}"


def _extent(rest: str) -> int:
    """How many characters of the rest of the line the caret underlines: a quoted text, or a word."""
    if rest[:1] in ("'", '"'):
        end = rest.find(rest[0], 1)
        return end + 1 if end > 0 else len(rest)
    for index, character in enumerate(rest):
        if character in ":,]} \t#" and index:
            return index
    return len(rest)


def case_lines(result: CaseResult, colour: bool) -> Iterator[str]:
    """One line for a case; below a failure what was expected and got, and the trace."""
    word = {True: "ok", False: "FAIL", None: "skip"}[result.ok]
    yield f"{paint(f'{word:4}', word, colour)} {result.test}: {result.case}"
    if result.ok is None:
        yield f"       {result.skipped}"
    elif not result.ok:
        yield f"       at {result.file}" + (f":{result.line}" if result.line is not None else "")
        yield from (f"       {line}" for line in result.mismatches)
        if result.error:
            yield f"       error: {result.error}"
        if result.answer is not None:
            yield from (f"         {line}" for line in trace(result.answer.steps))
            if (shadow := getattr(result.answer.detail, "shadow", None)) is not None:
                yield f"         {shadow.sentence}"


def trace(steps: Iterable[Step]) -> Iterator[str]:
    """One line for each step: direction if it has one, tier, policy and rule, what it says, note, and where."""
    for step in steps:
        subject = spelled(step.policy or "", step.rule, step.name).strip()
        note = f" ({step.note})" if step.note else ""
        at = step.at
        place = f"  {at.file}:{at.line}" if at is not None else ""
        tier = f"{step.direction} {step.tier}" if step.direction else step.tier
        yield f"{tier}: {subject + ' ' if subject else ''}{phrase(step.verdict, step.reason)}{note}{place}"


def shortened(text: str, most: int = 100) -> str:
    """A line that fits beside others, with `…` where it was cut."""
    return text if len(text) <= most else f"{text[: most - 1]}…"


def count(number: int, noun: str) -> str:
    """`1 error`, `2 errors`."""
    return f"{number} {noun}" + ("" if number == 1 else "s")

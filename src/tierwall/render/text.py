"""Plain text for people: diagnostics with the offending line, and policy test results one line a case.

Colour and the caret under the offending text are for terminals only; in a pipe each problem is one line.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeAlias

from tierwall.core.answer import Reason
from tierwall.core.diagnostics import Diagnostic
from tierwall.core.verdict import StepVerdict
from tierwall.render.words import phrase

# Gives a line of a file as it was read, or None.
Lines: TypeAlias = Callable[[str, int], str | None]

_COLOURS = {"error": "31", "warning": "33", "note": "36", "ok": "32", "FAIL": "31", "skip": "33"}


def paint(word: str, name: str, colour: bool) -> str:
    """A word in the colour of its meaning, if colour is wanted."""
    return f"\x1b[1;{_COLOURS[name]}m{word}\x1b[0m" if colour else word


def diagnostics(found: Iterable[Diagnostic], lines: Lines, terminal: bool, colour: bool) -> Iterator[str]:
    """Each problem: where, how bad, code, message; then the line with a caret and the hint (or all on one line)."""
    for one in found:
        place = f"{one.position}: " if one.position else ""
        head = f"{place}{paint(one.level, one.level, colour)}[{one.code}]: {one.message}"
        if not terminal:
            yield head + (f" ({one.hint})" if one.hint else "")
            continue
        yield head
        if one.position is not None and (text := lines(one.position.file, one.position.line)) is not None:
            yield from _snippet(one.position.line, one.position.column, text)
        for word, at in one.related:
            yield f"      = {word}: {at}" if at else f"      = {word}"
        if one.hint:
            yield f"      = hint: {one.hint}"


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


def cases(results: Iterable[Mapping[str, Any]], colour: bool) -> Iterator[str]:
    """One line a case; below a failure what was expected and got, and the trace."""
    for result in results:
        word = {True: "ok", False: "FAIL", None: "skip"}[result["ok"]]
        yield f"{paint(f'{word:4}', word, colour)} {result['test']}: {result['case']}"
        if result["ok"] is None:
            yield f"       {result['skipped']}"
        elif not result["ok"]:
            yield f"       at {result['file']}" + (f":{result['line']}" if "line" in result else "")
            yield from (f"       {line}" for line in result.get("mismatches", ()))
            if "error" in result:
                yield f"       error: {result['error']}"
            yield from (f"         {line}" for line in trace(result["got"].get("trace") or ()))
            if "shadow" in result["got"]:
                yield f"         {result['got']['shadow']['sentence']}"


def trace(steps: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """One line a step: direction if it has one, tier, policy and rule, outcome, note, and where it is written."""
    for step in steps:
        subject = " ".join(str(step[key]) for key in ("policy", "rule") if step.get(key))
        if name := step.get("name"):
            subject = f"{subject} ({name})".strip()
        note = f" ({step['note']})" if step.get("note") else ""
        source = step.get("source")
        place = f"  {source['file']}:{source['line']}" if source else ""
        tier = f"{step['direction']} {step['tier']}" if step.get("direction") else step["tier"]
        word = step["outcome"] if "outcome" in step else phrase(StepVerdict(step["verdict"]), Reason(step["reason"]))
        yield f"{tier}: {subject + ' ' if subject else ''}{word}{note}{place}"


def shortened(text: str, most: int = 100) -> str:
    """A line that fits beside others, with `…` where it was cut."""
    return text if len(text) <= most else f"{text[: most - 1]}…"


def count(number: int, noun: str) -> str:
    """`1 error`, `2 errors`."""
    return f"{number} {noun}" + ("" if number == 1 else "s")

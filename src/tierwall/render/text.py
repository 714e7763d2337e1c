"""Plain text for people: what all planes share, and the words for verdicts and reasons.

Colour and the caret under the offending text are for terminals only; in a pipe each problem is one line.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Iterator

from tierwall.core.answer import Answer, Reason, Step, format_decider
from tierwall.core.diagnostics import Diagnostic, shown
from tierwall.core.unprintable import PrintableLine, escape_unprintable, printable_line
from tierwall.core.verdict import StepVerdict
from tierwall.core.words import with_hint
from tierwall.render.formats import LineLookup, View
from tierwall.render.quotation import quotation

# The most lines of a rule in a cluster that are shown with a problem.
MAX_SNIPPET = 6
_COLOURS = {"error": "31", "warning": "33", "note": "36", "ok": "32", "FAIL": "31", "skip": "33"}


def paint(word: str, name: str, colour: bool) -> str:
    """Paint a word in the colour of its meaning, if colour is wanted."""
    return f"\x1b[1;{_COLOURS[name]}m{word}\x1b[0m" if colour else word


def diagnostics(findings: Iterable[Diagnostic], lines: LineLookup, terminal: bool, colour: bool) -> Iterator[str]:
    """Write each problem: place, severity, code, message; on a terminal also the line with a caret, and the hint.

    Of very many problems the first are written, then their number.
    """
    chosen = shown(findings)
    for finding in chosen.diagnostics:
        place = printable_line(f"{finding.at}: ") if finding.at else ""
        words = escape_unprintable(finding.message if terminal else with_hint(finding.message, finding.hint))
        yield PrintableLine(f"{place}{paint(finding.severity, finding.severity, colour)}[{finding.code}]: {words}")
        if not terminal:
            continue
        if finding.at is not None and finding.at.is_in_cluster:
            yield from (f"      | {line}" for line in quotation(finding.at, lines, MAX_SNIPPET))
        elif finding.at is not None and (text := lines(finding.at.file, finding.at.line)) is not None:
            yield from _snippet(finding.at.line, finding.at.column, text)
        for word, at in finding.related:
            yield f"      = {word}: {at}" if at else f"      = {word}"
        if finding.hint:
            yield f"      = hint: {finding.hint}"
    yield from chosen.lines


def _snippet(line: int, column: int, text: str) -> Iterator[str]:
    # Each character keeps its column.
    text = "".join(
        character if character.isprintable() else " " if character == "\t" else "\ufffd"
        for character in text.rstrip("\r\n")
    )
    start = min(column - 1, len(text))
    width = _extent(text[start:])
    if len(text) > 160:  # a JSON document on one line: show the neighbourhood
        cut = max(0, start - 60)
        text, start = text[cut : cut + 140], start - cut
    gutter = f"{line:>5}"
    yield f"{gutter} | {text}"
    yield f"{' ' * len(gutter)} | {' ' * start}{'^' * max(1, min(width, len(text) - start))}"


def _extent(rest: str) -> int:
    """Count the characters that the caret underlines: a quoted string, or a word."""
    if rest[:1] in ("'", '"'):
        end = rest.find(rest[0], 1)
        return end + 1 if end > 0 else len(rest)
    for index, character in enumerate(rest):
        if character in ":,]} \t#" and index:
            return index
    return len(rest)


def trace(steps: Iterable[Step]) -> Iterator[str]:
    """Write one line for each step: direction, tier, policy and rule, verdict, note and place."""
    for step in steps:
        subject = format_decider(step.policy or "", step.rule, step.name).strip()
        note = f" ({step.note})" if step.note else ""
        at = step.at
        place = f"  {at.beside_object}" if at is not None else ""
        tier = f"{step.direction} {step.tier}" if step.direction else step.tier
        yield f"{tier}: {subject + ' ' if subject else ''}{phrase(step.verdict, step.reason)}{note}{place}"


def quoted_rule(step: Step, source: LineLookup) -> Iterator[str]:
    """Quote the rule of a step: its line in a file; of a cluster, where a rule takes many lines, only if it counted."""
    at = step.at
    if at is not None and not (at.is_in_cluster and step.verdict in _SILENT):
        yield from quotation(at, source)


def explanation(answer: Answer, view: View) -> Iterator[str]:
    """Explain an answer; the module of its plane knows the order and the words."""
    lines: Iterator[str] = importlib.import_module(f"tierwall.render.{answer.plane}").explanation(answer, view.line)
    return lines


def explanations(answers: Iterable[Answer], view: View) -> Iterator[str]:
    """Explain several answers, with an empty line between them."""
    for number, answer in enumerate(answers):
        if number:
            yield ""
        yield from explanation(answer, view)


_VERDICTS = {
    StepVerdict.ALLOW: "allowed",
    StepVerdict.DENY: "denied",
    StepVerdict.CONDITIONAL: "conditional",
    StepVerdict.NO_OPINION: "no opinion",
    StepVerdict.PASS: "passed",
    StepVerdict.NO_MATCH: "no match",
    StepVerdict.NOT_APPLICABLE: "not under policy",
}
_SILENT = frozenset({StepVerdict.NO_MATCH, StepVerdict.NOT_APPLICABLE})
# Reasons that say more than the verdict alone.
_REASONS = {
    Reason.FAILS_CLOSED: "fails closed",
    Reason.POD_ENDED: "the pod has ended",
    Reason.NOT_SELECTED: "not asked",
    Reason.AUTHORIZER_ALLOWED: "allowed by its authorizer",
    Reason.AUTHORIZER_DENIED: "denied by its authorizer",
    Reason.OBJECT_REFUSED: "refused",
    Reason.SELECTORS_SUFFICE: "allowed: the selectors imply its conditions",
    Reason.SELECTORS_SHOW_MORE: "refused: the selectors do not imply its conditions",
    Reason.SETS_FIELD: "in force",
    Reason.JOINS_UNION: "in force, as part of a union",
    Reason.LESS_SPECIFIC: "beaten",
    Reason.LOSES_TIE: "beaten",
    Reason.LOCKED_BY_OVERRIDE: "locked out",
    Reason.LEAST_SPECIFIC_KEPT: "beaten",
    Reason.NO_ENTRY_SELECTED: "sets nothing",
}
# Reasons that are added to the verdict.
_BESIDE = {
    Reason.AUTHORIZER_UNREACHABLE: "its authorizer cannot be reached",
    Reason.NOT_READ_AS_MCP: "the request is not read as MCP",
    Reason.EXPRESSION_FAILED: "its expression failed",
}
_MAY = {StepVerdict.ALLOW: "may allow", StepVerdict.DENY: "may deny", StepVerdict.PASS: "may pass"}


def phrase(verdict: StepVerdict, reason: Reason) -> str:
    """Put a verdict and its reason into words: `denied`, `allowed by its authorizer`, `may allow`."""
    if reason is Reason.DOMAIN_MAY_MATCH:
        return _MAY[verdict]
    if reason in _BESIDE:
        return f"{_VERDICTS[verdict]}, {_BESIDE[reason]}"
    return _REASONS.get(reason) or _VERDICTS[verdict]

"""Answers of the tool plane as text: what `explain tool` and `tools` print."""

from __future__ import annotations

from collections.abc import Iterator

from tierwall.core.answer import Answer
from tierwall.core.verdict import Verdict
from tierwall.render.formats import Lines, View
from tierwall.render.text import phrase, shortened
from tierwall.tool.grants import Grants, Permit


def lines(answer: Answer, source: Lines) -> Iterator[str]:
    """The sentence, then every policy that was evaluated, with the lines of the manifests from `source`."""
    yield answer.sentence
    yield ""
    for step in answer.steps:
        subject = f"{step} " if step.policy is not None else ""
        yield f"{step.tier + ':':9}{subject}{phrase(step.verdict, step.reason)}"
        if step.note:
            yield f"         {step.note}"
        if (at := step.at) is not None:
            yield f"         {at}: {shortened((source(at.file, at.line) or '').strip())}"


def tools(listed: tuple[Grants, bool], view: View) -> Iterator[str]:
    """What a caller may use: a block for each way, a line for each tool, its conditions below.

    Tools that are denied are left out unless `everything` is wanted, and so are ways without a tool.
    """
    grants, everything = listed
    first = True
    for rows in grants.ways:
        shown = [row for row in rows if everything or row.verdict is not Verdict.DENY]
        if not shown:
            continue
        if not first:
            yield ""
        first = False
        yield f"{rows[0].backend} through {rows[0].gateway}#{rows[0].listener}"
        permits: list[tuple[str, Permit]] = [(row.tool, row) for row in shown]
        if shown[0].initialize.verdict is Verdict.DENY:
            permits.insert(0, ("(initialize)", shown[0].initialize))
        yield from _block(permits)


def _block(permits: list[tuple[str, Permit]]) -> Iterator[str]:
    width = max(len(name) for name, _ in permits)
    for name, permit in permits:
        yield f"  {name.ljust(width)}  {permit.verdict:11}  {', '.join(decider.short for decider in permit.decided_by)}"
        for number, condition in enumerate(permit.conditions):
            yield f"  {' ' * width}  {'and if' if number else 'if':>11}  {condition}"

"""What a caller may use as text: a block for each way, a line for each tool, its conditions below."""

from __future__ import annotations

from collections.abc import Iterator

from tierwall.core.verdict import Verdict
from tierwall.tool.grants import Grants, Permit


def lines(grants: Grants, everything: bool) -> Iterator[str]:
    """The lines; tools that are denied are left out unless `everything` is wanted, and so are ways without a tool."""
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

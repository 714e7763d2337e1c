"""The output of `tools --from-log`: calls by way and caller, and tools that nobody called, as text and as JSON."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from typing import Any

from tierwall.core.words import count_noun
from tierwall.render.formats import View
from tierwall.render.json import decider_documents, non_empty, omission_documents
from tierwall.tool.usage import CalledTool, CalledWay, CallReport


def text(usage: CallReport, view: View) -> Iterator[str]:
    """Yield a line about the log, then a block for each way, by caller."""
    span = f" from {usage.first} to {usage.last}" if usage.calls else ""
    skipped = f"; {count_noun(usage.skipped, 'other line')}" if usage.skipped else ""
    yield f"{count_noun(usage.calls, 'call')} of tools{span}{skipped}"
    for way in usage.ways:
        if way.uses or way.uncalled:
            yield ""
            yield f"{way.way.backend} through Gateway/{way.way.gateway}#{way.way.listener}"
            yield from _block(way)


def _block(way: CalledWay) -> Iterator[str]:
    width = max((len(use.tool) for use in way.uses), default=0)
    for caller, uses in groupby(way.uses, lambda use: use.caller):
        yield f"  {caller or 'callers without an identity'}"
        for use in uses:
            yield f"    {use.tool.ljust(width)}  {_count(use):24}  {_verdict(use)}"
    if way.uncalled:
        yield f"  nobody called: {', '.join(way.uncalled)}"


def _count(use: CalledTool) -> str:
    if not use.calls:
        return "never called"
    calls = count_noun(use.calls, "call")
    return f"{calls}, {use.denied} denied" if use.denied else calls


def _verdict(use: CalledTool) -> str:
    if use.permit is None:
        return "no route leads there now"
    return f"{use.permit.verdict:11}  {', '.join(decider.short for decider in use.permit.decided_by)}"


def document(usage: CallReport, view: View) -> dict[str, Any]:
    """Return the document of `tools --from-log FILE -o json`."""
    return {
        **non_empty(calls=usage.calls, otherLines=usage.skipped, first=usage.first or None, last=usage.last or None),
        "ways": [
            {
                "gateway": way.way.gateway,
                "listener": way.way.listener,
                "backend": way.way.backend,
                "uses": [_use(use) for use in way.uses],
                "uncalled": list(way.uncalled),
            }
            for way in usage.ways
        ],
        "notConsidered": omission_documents(view.not_considered),
    }


def _use(use: CalledTool) -> dict[str, Any]:
    return non_empty(
        caller=use.caller,
        tool=use.tool,
        allowed=use.allowed,
        denied=use.denied,
        last=use.last or None,
        verdict=str(use.permit.verdict) if use.permit is not None else None,
        decidedBy=decider_documents(use.permit.decided_by) if use.permit is not None else None,
    )

"""The tool plane as text and as JSON: what `explain tool` and `tools` print.

The keys of its documents: docs/reference/decision-document.md#keys-of-one-plane.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from tierwall.core.answer import Answer
from tierwall.core.verdict import Verdict
from tierwall.render.formats import LineLookup, View
from tierwall.render.json import decider_documents, non_empty, omission_documents
from tierwall.render.text import phrase, quoted_rule
from tierwall.tool.detail import RequestDetail, ToolDetail
from tierwall.tool.grants import Grants, Permit, ToolRow


def explanation(answer: Answer, source: LineLookup) -> Iterator[str]:
    """Explain an answer: the sentence, then every policy that was evaluated, with its rule as it is written."""
    yield answer.sentence
    yield ""
    for step in answer.steps:
        subject = f"{step} " if step.policy is not None else ""
        yield f"{step.tier + ':':9}{subject}{phrase(step.verdict, step.reason)}"
        if step.note:
            yield f"         {step.note}"
        if (at := step.at) is None:
            continue
        if at.is_in_cluster:
            yield f"         {at.beside_object}"
            yield from (f"           {line}" for line in quoted_rule(step, source))
        else:
            yield f"         {at}: {next(quoted_rule(step, source), '')}"


def detail_document(detail: ToolDetail) -> dict[str, Any]:
    """Return `level`, `evaluated` and `request`; `response` where a real proxy answered."""
    document: dict[str, Any] = {
        "level": str(detail.level),
        "evaluated": [str(reference) for reference in detail.evaluated],
        "request": _request(detail.request),
    }
    return document if detail.status is None else document | {"response": {"status": detail.status}}


def _request(request: RequestDetail) -> dict[str, str]:
    entries = {
        "gateway": f"{request.gateway.namespace}/{request.gateway.name}",
        "listener": request.listener,
        "backend": str(request.backend),
        "caller": request.caller,
        "method": request.method,
        "tool": request.tool,
        "uri": request.uri,
        "http": f"{request.http_method} {request.path}",
    }
    return {key: value for key, value in entries.items() if value is not None}


def tools(listed: tuple[Grants, bool], view: View) -> Iterator[str]:
    """List what a caller may use: a block for each way, a line for each tool, its conditions below.

    Denied tools are left out unless `everything` is wanted, and so are ways without a tool.
    """
    grants, everything = listed
    first = True
    for rows in grants.ways:
        listed_rows = _listed_rows(rows, everything)
        if not listed_rows:
            continue
        if not first:
            yield ""
        first = False
        of_set = f" (ListenerSet/{rows[0].listener_set})" if rows[0].listener_set is not None else ""
        yield f"{rows[0].backend} through {rows[0].gateway}#{rows[0].listener}{of_set}"
        permits: list[tuple[str, Permit]] = [(row.tool, row) for row in listed_rows]
        if listed_rows[0].initialize.verdict is Verdict.DENY:
            permits.insert(0, ("(initialize)", listed_rows[0].initialize))
        yield from _block(permits)


def _listed_rows(rows: Sequence[ToolRow], everything: bool) -> list[ToolRow]:
    return [row for row in rows if everything or row.verdict is not Verdict.DENY]


def _block(permits: list[tuple[str, Permit]]) -> Iterator[str]:
    width = max(len(name) for name, _ in permits)
    for name, permit in permits:
        yield f"  {name.ljust(width)}  {permit.verdict:11}  {', '.join(decider.short for decider in permit.decided_by)}"
        for number, condition in enumerate(permit.conditions):
            yield f"  {' ' * width}  {'and if' if number else 'if':>11}  {condition}"


def tools_document(listed: tuple[Grants, bool], view: View) -> dict[str, Any]:
    """Return the document of `tools -o json`; denied tools are left out unless `everything` is wanted."""
    grants, everything = listed
    return {
        "caller": grants.caller,
        "ways": [
            {
                "gateway": f"{rows[0].gateway.namespace}/{rows[0].gateway.name}",
                "listener": rows[0].listener,
                **non_empty(listenerSet=rows[0].listener_set),
                "backend": str(rows[0].backend),
                "initialize": _permit(rows[0].initialize),
                "tools": [{"tool": row.tool, **_permit(row)} for row in _listed_rows(rows, everything)],
            }
            for rows in grants.ways
        ],
        "notConsidered": omission_documents(view.not_considered),
    }


def _permit(permit: Permit) -> dict[str, Any]:
    return non_empty(
        verdict=str(permit.verdict),
        decidedBy=decider_documents(permit.decided_by),
        conditions=list(permit.conditions) or None,
    )

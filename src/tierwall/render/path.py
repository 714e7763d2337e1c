"""Paths as text and as JSON: what `explain path` prints.

The keys of its documents: docs/reference/decision-document.md#keys-of-one-plane.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import Any

from tierwall.core.answer import Answer
from tierwall.core.verdict import Verdict
from tierwall.core.words import join_names
from tierwall.network.detail import NetworkDetail
from tierwall.path.detail import PathDetail
from tierwall.render.formats import LineLookup
from tierwall.render.json import answer_document
from tierwall.tool.detail import RequestDetail, ToolDetail

_INDENT = "    "


def explanation(answer: Answer, source: LineLookup) -> Iterator[str]:
    """Explain an answer: the sentence, a picture of the hops, then each hop as its plane explains it."""
    detail: PathDetail = answer.detail
    yield answer.sentence
    yield ""
    yield from _picture(detail)
    for number, hop in enumerate(detail.hops, 1):
        yield ""
        yield f"hop {number}, {hop.plane}: {hop.verdict}"
        if hop.detail is None:
            yield f"{_INDENT}{hop.sentence}"
            continue
        plane = importlib.import_module(f"tierwall.render.{hop.plane}")
        yield from (f"{_INDENT}{line}" if line else "" for line in plane.explanation(hop, source))


def _picture(detail: PathDetail) -> Iterator[str]:
    to_gateway, call, to_backend = detail.hops
    yield _station(detail.source, detail.caller)
    yield from _arrow(to_gateway)
    yield _station(str(detail.gateway), join_names(detail.gateway_pods))
    yield f"  {'✗' if call.verdict == Verdict.DENY else '│'}  {_label(call)}"
    yield from _arrow(to_backend)
    yield _station(str(detail.backend), detail.leads_to if detail.leads_to != str(detail.backend) else "")


def _station(name: str, behind: str) -> str:
    return f"{name} ({behind})" if behind else name


def _arrow(hop: Answer) -> Iterator[str]:
    yield f"  │  {_label(hop)}"
    yield "  ✗" if hop.verdict == Verdict.DENY else "  ▼"


def _label(hop: Answer) -> str:
    """`network TCP 8443: Allow (NetworkPolicy/prod/gw ingress[0])`."""
    deciders = join_names([decider.short for decider in hop.decided_by])
    return f"{hop.plane} {_what(hop.detail)}: {hop.verdict} ({deciders})" if hop.detail else f"network: {hop.verdict}"


def _what(detail: NetworkDetail | ToolDetail) -> str:
    if isinstance(detail, NetworkDetail):
        ports = detail.target_ports or (detail.port,)
        return f"{detail.protocol} {join_names([str(port) for port in ports])}"
    request: RequestDetail = detail.request
    if request.method is None:
        return f"{request.http_method} {request.path}"
    return " ".join(word for word in (request.method, request.tool or request.uri) if word)


def detail_document(detail: PathDetail) -> dict[str, Any]:
    """Return `hops`, a list of decision documents."""
    return {"hops": [answer_document(hop) for hop in detail.hops]}

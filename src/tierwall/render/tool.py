"""What only documents of the tool plane have (docs/reference/decision-document.md#keys-of-one-plane)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tierwall.core.verdict import Verdict
from tierwall.render.formats import View
from tierwall.render.json import decider_document, omission_documents
from tierwall.tool.detail import RequestDetail, ToolDetail
from tierwall.tool.grants import Grants, Permit, ToolRow


def detail_document(detail: ToolDetail) -> dict[str, Any]:
    """`level`, `evaluated` and `request`; `response` where a real proxy answered."""
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


def tools_document(listed: tuple[Grants, bool], view: View) -> dict[str, Any]:
    """What `tierwall tools -o json` prints; tools that are denied are left out unless `everything` is wanted."""
    grants, everything = listed
    return {
        "caller": grants.caller,
        "ways": [_way(rows, everything) for rows in grants.ways],
        "notConsidered": omission_documents(view.not_considered),
    }


def _way(rows: Sequence[ToolRow], everything: bool) -> dict[str, Any]:
    first = rows[0]
    return {
        "gateway": f"{first.gateway.namespace}/{first.gateway.name}",
        "listener": first.listener,
        "backend": str(first.backend),
        "initialize": _permit(first.initialize),
        "tools": [{"tool": row.tool, **_permit(row)} for row in rows if everything or row.verdict is not Verdict.DENY],
    }


def _permit(permit: Permit) -> dict[str, Any]:
    document: dict[str, Any] = {
        "verdict": str(permit.verdict),
        "decidedBy": [decider_document(decider) for decider in permit.decided_by],
    }
    return document | ({"conditions": list(permit.conditions)} if permit.conditions else {})

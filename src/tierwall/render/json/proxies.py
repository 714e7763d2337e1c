"""The status page of `tierwall run` as JSON: whether the proxies obey what is in force (docs/run.md)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from tierwall.core.diagnostics import Diagnostic
from tierwall.render.json import diagnostic_document

if TYPE_CHECKING:
    from tierwall.engines.envoy.control.server import Condition, Standing


def proxies_document(
    programmed: Condition, standings: Iterable[Standing], diagnostics: Iterable[Diagnostic], time: str
) -> dict[str, Any]:
    """The condition as Kubernetes writes it, each proxy, and what is wrong with the last load."""
    return {
        "conditions": [
            {
                "type": "Programmed",
                "status": programmed.status,
                "reason": programmed.reason,
                "message": programmed.message,
            }
        ],
        "proxies": [
            {
                "proxy": standing.proxy.id,
                "version": standing.proxy.version,
                "current": standing.is_current,
                "refused": list(standing.refusals),
            }
            for standing in standings
        ],
        "diagnostics": [diagnostic_document(diagnostic) for diagnostic in diagnostics],
        "time": time,
    }

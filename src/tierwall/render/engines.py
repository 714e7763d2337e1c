"""What engines report, as JSON.

The decision logs of Envoy and the authorizer (docs/run.md, docs/authorizer.md), the audit trail of the kernel
(docs/enforce-network.md#audit), and the status page of `tierwall run`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import TYPE_CHECKING, Any

import msgspec

from tierwall.core.diagnostics import Diagnostic
from tierwall.core.protocols import Event
from tierwall.network.detail import ConnectionSeen, Hits, Seen
from tierwall.render.formats import View
from tierwall.render.json import decider_document, diagnostic_document, given, line
from tierwall.tool.request import RequestSeen

if TYPE_CHECKING:
    from tierwall.engines.envoy.control.server import Condition, Standing


def request_document(event: Event) -> dict[str, Any]:
    """A request to a tool; what is not known is left out."""
    request: RequestSeen = event.detail
    (decider,) = event.decided_by
    return given(
        time=time_text(event.time),
        plane=event.plane,
        caller=request.caller,
        gateway=request.gateway,
        listener=request.listener,
        backend=request.backend,
        method=request.method,
        tool=request.tool,
        uri=request.uri,
        http=request.http,
        status=request.status,
        verdict=str(event.verdict),
        level=request.level,
        policy=str(decider.policy),
        # Of a request that no policy was asked about, what was wrong with it.
        rule=request.said if request.refused else decider.rule,
        name=decider.name,
        detail=request.said,
        seconds=request.seconds,
    )


def review_document(record: msgspec.Struct, time: datetime, seconds: float) -> dict[str, Any]:
    """A request to the authorizer, which keeps of it what the log shows; what is empty is left out."""
    return {
        "time": time.isoformat(timespec="microseconds"),
        **msgspec.to_builtins(record),
        "seconds": round(seconds, 6),
    }


def time_text(time: datetime) -> str:
    """A time as logs have it: UTC, to the millisecond."""
    return time.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def event_document(event: Event) -> dict[str, Any]:
    """One line of `tierwall audit -o json`."""
    connection: ConnectionSeen = event.detail
    return given(
        time=time_text(event.time),
        verdict=str(event.verdict),
        mode=_mode(event.shadow),
        direction=str(connection.direction),
        decidedBy=[decider_document(decider) for decider in event.decided_by],
    ) | {
        "from": _end(connection.source),
        "to": _end(connection.destination),
        "protocol": connection.protocol,
    }


def events(events: Iterable[Event], view: View) -> Iterator[str]:
    """What `tierwall audit -o json` prints: a document a line, as decisions come."""
    return (line(event_document(event)) for event in events)


def hits(hits: Iterable[Hits], view: View) -> str:
    """What `tierwall audit --hits -o json` prints, on one line."""
    return line({"hits": [_hit(hit) for hit in hits]})


def _hit(hit: Hits) -> dict[str, Any]:
    rule = hit.decided_by[0]
    return given(
        policies=[str(decider.policy) for decider in hit.decided_by],
        rule=rule.rule,
        name=rule.name,
        direction=str(hit.direction),
        mode=_mode(hit.shadow),
        action=str(hit.action),
        packets=hit.packets,
        bytes=hit.bytes,
    )


def _mode(shadow: bool) -> str | None:
    return "shadow" if shadow else None


def _end(end: Seen) -> dict[str, Any]:
    return given(node=end.node, namespace=end.namespace, pod=end.pod, ip=end.ip, port=end.port or None)


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

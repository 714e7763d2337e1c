"""The audit trail of the network plane as JSON: what an engine did, and how often each rule was hit."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tierwall.core.event import Event
from tierwall.network.event import ConnectionSeen, Hits, Seen
from tierwall.render.json import decider_document, given
from tierwall.render.json.decisions import time_text


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


def hits_document(hits: Iterable[Hits]) -> dict[str, Any]:
    """What `tierwall audit --hits -o json` prints."""
    return {"hits": [_hit(hit) for hit in hits]}


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

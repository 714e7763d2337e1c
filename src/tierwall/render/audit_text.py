"""The audit trail of the network plane as text: one line a decision, one line a rule."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from tierwall.core.event import Event
from tierwall.network.event import ConnectionSeen, Hits, Seen
from tierwall.render.json.decisions import time_text


def event_line(event: Event) -> str:
    """`<time> Deny ingress TCP shop/web-0 (…) -> data/db-0 (…) by NetworkPolicy/data/deny-all spec`."""
    connection: ConnectionSeen = event.detail
    what = f"would {event.verdict.lower()}" if event.shadow else str(event.verdict)
    ends = f"{_end(connection.source)} -> {_end(connection.destination)}"
    by = ", ".join(map(str, event.decided_by))
    return f"{time_text(event.time)} {what} {connection.direction} {connection.protocol} {ends} by {by}"


def hits_lines(hits: Iterable[Hits]) -> Iterator[str]:
    """A heading, then how often each rule was hit."""
    yield f"{'packets':>10} {'bytes':>14}  rule"
    for hit in hits:
        mode = " (shadow)" if hit.shadow else ""
        by = ", ".join(map(str, hit.decided_by))
        yield f"{hit.packets:>10} {hit.bytes:>14}  {hit.action}{mode}  {by}"


def _end(end: Seen) -> str:
    place = f"[{end.ip}]" if ":" in end.ip else end.ip
    where = f"{place}:{end.port}" if end.port else place
    if end.pod:
        return f"{end.namespace}/{end.pod} ({where})"
    return f"node:{end.node} ({where})" if end.node else where

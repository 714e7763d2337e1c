"""The audit trail of the network plane as text, and how often each rule was hit, for people and for Prometheus."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from tierwall.core.protocols import Event
from tierwall.network.detail import ConnectionSeen, Hits, Seen
from tierwall.render.formats import View
from tierwall.render.json.engines import time_text

_METRICS: tuple[tuple[str, str, Callable[[Hits], int]], ...] = (
    ("tierwall_rule_packets_total", "Packets of new connections that a policy rule settled.", lambda hit: hit.packets),
    ("tierwall_rule_bytes_total", "Bytes of those packets.", lambda hit: hit.bytes),
)


def events(events: Iterable[Event], view: View) -> Iterator[str]:
    """A line for each decision, as it comes."""
    return map(event_line, events)


def event_line(event: Event) -> str:
    """`<time> Deny ingress TCP shop/web-0 (…) -> data/db-0 (…) by NetworkPolicy/data/deny-all spec`."""
    connection: ConnectionSeen = event.detail
    what = f"would {event.verdict.lower()}" if event.shadow else str(event.verdict)
    ends = f"{_end(connection.source)} -> {_end(connection.destination)}"
    by = ", ".join(map(str, event.decided_by))
    return f"{time_text(event.time)} {what} {connection.direction} {connection.protocol} {ends} by {by}"


def hits(hits: Iterable[Hits], view: View) -> Iterator[str]:
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


def metrics(hits: Sequence[Hits], view: View) -> str:
    """How often each rule was hit, in the text format of Prometheus (for the node exporter's textfile collector)."""
    lines = []
    for name, help_text, value in _METRICS:
        lines += [f"# HELP {name} {help_text}", f"# TYPE {name} counter"]
        lines += [f"{name}{{{_labels(hit)}}} {value(hit)}" for hit in hits]
    return "\n".join(lines)


def _labels(hit: Hits) -> str:
    rule = hit.decided_by[0]
    labels = {
        "policy": ", ".join(str(decider.policy) for decider in hit.decided_by),
        "rule": rule.rule or "",
        "name": rule.name or "",
        "direction": str(hit.direction),
        "action": str(hit.action),
        "mode": "shadow" if hit.shadow else "enforced",
    }
    return ",".join(f'{key}="{_escaped(value)}"' for key, value in labels.items())


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")

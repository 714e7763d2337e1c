"""The reports of engines, as text, JSON and metrics.

The audit trail of the kernel and how often each rule was hit (docs/enforce-network.md#audit), the decision logs of
Envoy and the authorizer (docs/run.md, docs/authorizer.md), and the status page of `tierwall run`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import msgspec

from tierwall.core.diagnostics import Diagnostic, shown
from tierwall.core.protocols import DecisionEvent
from tierwall.network.detail import ObservedConnection, ObservedEndpoint, RuleHits
from tierwall.render.formats import View
from tierwall.render.json import decider_documents, diagnostic_document, json_line, more_documents, non_empty
from tierwall.tool.request import ObservedRequest

if TYPE_CHECKING:
    from tierwall.engines.envoy.control.proxies import GatewayCondition, ProxyStatus

_encode = msgspec.json.Encoder().encode
_METRICS: tuple[tuple[str, str, Callable[[RuleHits], int]], ...] = (
    ("tierwall_rule_packets_total", "Packets of new connections that a policy rule decided.", lambda hit: hit.packets),
    ("tierwall_rule_bytes_total", "Bytes of those packets.", lambda hit: hit.bytes),
)


def events(events: Iterable[DecisionEvent], view: View) -> Iterator[str]:
    """Write one line for each decision as it comes."""
    return map(event_line, events)


def events_json(events: Iterable[DecisionEvent], view: View) -> Iterator[str]:
    """Write one line of JSON for each decision as it comes."""
    return (json_line(event_document(event)) for event in events)


def event_line(event: DecisionEvent) -> str:
    """`<time> Deny ingress TCP shop/web-0 (…) -> data/db-0 (…) by NetworkPolicy/data/deny-all spec`."""
    connection: ObservedConnection = event.detail
    what = f"would {event.verdict.lower()}" if event.shadow else str(event.verdict)
    endpoints = f"{_endpoint(connection.source)} -> {_endpoint(connection.destination)}"
    by = ", ".join(map(str, event.decided_by))
    return f"{_time(event.time)} {what} {connection.direction} {connection.protocol} {endpoints} by {by}"


def _endpoint(endpoint: ObservedEndpoint) -> str:
    host = f"[{endpoint.ip}]" if ":" in endpoint.ip else endpoint.ip
    address = f"{host}:{endpoint.port}" if endpoint.port else host
    if endpoint.pod:
        return f"{endpoint.namespace}/{endpoint.pod} ({address})"
    return f"node:{endpoint.node} ({address})" if endpoint.node else address


def event_document(event: DecisionEvent) -> dict[str, Any]:
    """Return one decision of the kernel."""
    connection: ObservedConnection = event.detail
    return non_empty(
        time=_time(event.time),
        verdict=str(event.verdict),
        mode="shadow" if event.shadow else None,
        direction=str(connection.direction),
        decidedBy=decider_documents(event.decided_by),
    ) | {
        "from": _endpoint_document(connection.source),
        "to": _endpoint_document(connection.destination),
        "protocol": connection.protocol,
    }


def _endpoint_document(endpoint: ObservedEndpoint) -> dict[str, Any]:
    return non_empty(
        node=endpoint.node, namespace=endpoint.namespace, pod=endpoint.pod, ip=endpoint.ip, port=endpoint.port or None
    )


def _time(time: datetime) -> str:
    """Format a time as logs have it: UTC, in milliseconds."""
    return time.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def hits(hits: Iterable[RuleHits], view: View) -> Iterator[str]:
    """Write a heading, then how often each rule was hit."""
    yield f"{'packets':>10} {'bytes':>14}  rule"
    for hit in hits:
        mode = " (shadow)" if hit.shadow else ""
        by = ", ".join(map(str, hit.decided_by))
        yield f"{hit.packets:>10} {hit.bytes:>14}  {hit.action}{mode}  {by}"


def hits_json(hits: Iterable[RuleHits], view: View) -> str:
    """Write one line of JSON: how often each rule was hit."""
    return json_line({"hits": [_hit_document(hit) for hit in hits]})


def _hit_document(hit: RuleHits) -> dict[str, Any]:
    rule = hit.decided_by[0]
    return non_empty(
        policies=[str(decider.policy) for decider in hit.decided_by],
        rule=rule.rule,
        name=rule.name,
        direction=str(hit.direction),
        mode="shadow" if hit.shadow else None,
        action=str(hit.action),
        packets=hit.packets,
        bytes=hit.bytes,
    )


def metrics(hits: Sequence[RuleHits], view: View) -> str:
    """Write rule hits in the text format of Prometheus, for the textfile collector of the node exporter."""
    lines = []
    for name, help_text, value in _METRICS:
        lines += [f"# HELP {name} {help_text}", f"# TYPE {name} counter"]
        lines += [f"{name}{{{_labels(hit)}}} {value(hit)}" for hit in hits]
    return "\n".join(lines)


def _labels(hit: RuleHits) -> str:
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


def request_document(event: DecisionEvent) -> dict[str, Any]:
    """Return one request to a tool, without what is not known."""
    request: ObservedRequest = event.detail
    (decider,) = event.decided_by
    return non_empty(
        time=_time(event.time),
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
        # A request that was refused before any policy was asked: what was wrong with it.
        rule=request.reply_details if request.refused else decider.rule,
        name=decider.name,
        detail=request.reply_details,
        seconds=request.seconds,
    )


def review_line(record: msgspec.Struct, time: float, seconds: float) -> bytes:
    """Write one request to the authorizer as JSON: the record has the fields of the log and leaves out empty ones.

    `time` is in seconds since 1970. The parts are put together as bytes, because every review pays for its line.
    """
    whole = int(time)
    moment = b"%b.%06d+00:00" % (_second(whole), int((time - whole) * 1e6))
    return b'{"time":"%b",%b,"seconds":%.6f}' % (moment, _encode(record)[1:-1], seconds)


@lru_cache(maxsize=2)
def _second(time: int) -> bytes:
    return datetime.fromtimestamp(time, UTC).strftime("%Y-%m-%dT%H:%M:%S").encode()


def proxies_document(
    programmed: GatewayCondition, statuses: Iterable[ProxyStatus], diagnostics: Iterable[Diagnostic], time: str
) -> dict[str, Any]:
    """Return the condition in Kubernetes form, each proxy, and the problems of the last load."""
    given = tuple(diagnostics)
    chosen = shown(given)
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
                "proxy": status.proxy.id,
                "version": status.proxy.version,
                "current": status.is_current,
                "refused": list(status.refusals),
            }
            for status in statuses
        ],
        "diagnostics": [diagnostic_document(diagnostic) for diagnostic in chosen.diagnostics],
        **({"more": more_documents(chosen, given)} if chosen.more else {}),
        "time": time,
    }

"""How often each rule was hit, in the text format of Prometheus (for the textfile collector of the node exporter)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tierwall.network.event import Hits

_METRICS: tuple[tuple[str, str, Callable[[Hits], int]], ...] = (
    ("tierwall_rule_packets_total", "Packets of new connections that a policy rule settled.", lambda hit: hit.packets),
    ("tierwall_rule_bytes_total", "Bytes of those packets.", lambda hit: hit.bytes),
)


def hits_metrics(hits: Sequence[Hits]) -> str:
    """What `tierwall audit --hits -o prometheus` prints."""
    lines = []
    for name, help_text, value in _METRICS:
        lines += [f"# HELP {name} {help_text}", f"# TYPE {name} counter"]
        lines += [f"{name}{{{_labels(hit)}}} {value(hit)}" for hit in hits]
    return "\n".join(lines) + "\n"


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

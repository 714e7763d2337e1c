"""How often each rule of each policy was hit: the table's counters in the words of the policies."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from tierwall.engines.nftables.held import counts
from tierwall.engines.nftables.parts import SHADOW


class Hits(NamedTuple):
    """One rule and what hit it. Where isolation drops, `rule` is `spec` and every isolating policy is named."""

    policies: tuple[str, ...]
    rule: str
    direction: str
    action: str
    shadow: bool
    packets: int
    bytes: int

    def document(self) -> dict[str, Any]:
        """As JSON output shows it."""
        out: dict[str, Any] = {"policies": list(self.policies), "rule": self.rule, "direction": self.direction}
        if self.shadow:
            out["mode"] = "shadow"
        return out | {"action": self.action, "packets": self.packets, "bytes": self.bytes}

    def __str__(self) -> str:
        mode = " (shadow)" if self.shadow else ""
        return f"{self.packets:>10} {self.bytes:>14}  {self.action}{mode}  {', '.join(self.policies)} {self.rule}"


class Told(NamedTuple):
    """What a counter's comment or a log prefix says: `Deny egress[0] AdminNetworkPolicy/x`."""

    action: str
    shadow: bool
    direction: str
    rule: str
    policies: tuple[str, ...]


def told(what: str, place: str, policies: str) -> Told:
    """The words of a comment or prefix, taken apart."""
    direction, _, rule = place.partition(":")
    if not rule:
        direction, rule = place.partition("[")[0], place
    return Told(what.removeprefix(SHADOW), what.startswith(SHADOW), direction, rule, tuple(policies.split(", ")))


def hits() -> list[Hits]:
    """The counters of the table in this network namespace, in the order of their policies."""
    out = []
    for comment, packets, octets in counts():
        words = comment.split(" ", 2)
        if len(words) == 3:
            action, shadow, direction, rule, policies = told(*words)
            out.append(Hits(policies, rule, direction, action, shadow, packets, octets))
    return sorted(out)


def metrics(found: Iterable[Hits]) -> str:
    """The counters in the text format of Prometheus."""
    lines = []
    for name, what, field in (
        ("tierwall_rule_packets_total", "Packets of new connections that a policy rule settled.", "packets"),
        ("tierwall_rule_bytes_total", "Bytes of those packets.", "bytes"),
    ):
        lines += [f"# HELP {name} {what}", f"# TYPE {name} counter"]
        for one in found:
            labels = {
                "policy": ", ".join(one.policies),
                "rule": one.rule,
                "direction": one.direction,
                "action": one.action,
                "mode": "shadow" if one.shadow else "enforced",
            }
            # INVARIANT: comments hold neither quotes nor backslashes, so neither do these values.
            inner = ",".join(f'{key}="{value}"' for key, value in labels.items())
            lines.append(f"{name}{{{inner}}} {getattr(one, field)}")
    return "\n".join(lines) + "\n"

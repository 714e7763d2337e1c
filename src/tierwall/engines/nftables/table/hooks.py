"""The base chains, one for each hook (docs/enforce-network.md#the-table).

Every hook has one base chain of policies. One run of it sees one generation of the rules, so each packet is judged by
the old table or by the new one, never by a mixture. Where interfaces are guarded (`interfaces.py`), the lines about
them come first: not even the packets of open connections get past them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from tierwall.engines.nftables.table.names import with_digest
from tierwall.engines.nftables.table.options import TableOptions
from tierwall.engines.nftables.table.table import CUT, PODS, RuleChain
from tierwall.network.model.rules import Direction

# Neighbour discovery is how a pod and its node find each other. It is not a connection.
NEIGHBOURS = "icmpv6 type { nd-router-solicit, nd-router-advert, nd-neighbor-solicit, nd-neighbor-advert } accept"
_NOT_SYN = "tcp flags & (fin | syn | rst | ack) != syn"


class HookLines(NamedTuple):
    """The lines before all others in each hook."""

    forward: tuple[str, ...] = ()
    input: tuple[str, ...] = ()
    output: tuple[str, ...] = ()


def base_chains(options: TableOptions, first: HookLines | None = None) -> dict[str, RuleChain]:
    """Return the base chains, each with the lines of `first` before all others."""
    lines = first or HookLines()
    established = "ct state established,related accept"
    guard = []
    for family, ip in ((4, "ip"), (6, "ip6")):
        guard += [f"ct state invalid {ip} {side} @{PODS}{family} drop" for side in ("saddr", "daddr")]
        flow = f"{ip} saddr . tcp sport . {ip} daddr . tcp dport @{CUT}{family}"
        guard.append(f"{_NOT_SYN} {flow} drop")
    judged = (*guard, f"jump {Direction.EGRESS}")
    hook = "type filter hook {} priority filter; policy accept;"
    ingress = f"goto {Direction.INGRESS}"
    out = {"forward": plainly_named((*lines.forward, established, *judged, ingress), "", hook.format("forward"))}
    note = "between this node and its own pods"
    if not options.exempt_own_node:
        out["input"] = plainly_named((*lines.input, established, NEIGHBOURS, *judged), note, hook.format("input"))
    if not (options.exempt_own_node or options.exempt_probes):
        out["output"] = plainly_named(
            (*lines.output, established, NEIGHBOURS, *guard, ingress), note, hook.format("output")
        )
    return out


def plainly_named(rules: Iterable[str], note: str, hook: str = "") -> RuleChain:
    """Build a chain with a plain name, which says nothing about its rules."""
    lines, mark = with_digest(rules)
    return RuleChain(lines, note, hook, mark)

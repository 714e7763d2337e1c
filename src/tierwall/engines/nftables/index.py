"""Many rules of which order does not matter, found by destination port.

NetworkPolicies are a union, so their rules may be asked in any order. Where a pod has many of them, those about one
port stand in a chain of their own that a verdict map leads to, and a connection meets only the rules of its port.
"""

from __future__ import annotations

from collections.abc import Sequence

from tierwall.engines.nftables.matches import Line
from tierwall.engines.nftables.parts import Parts
from tierwall.engines.nftables.table import Verdict, Word

# Fewer lines than this are quicker asked one after the other.
FEW = 16


def by_port(parts: Parts, lines: Sequence[Line], leave: Word, ending: list[str]) -> list[str]:
    """The lines, and `ending` for what none of them matches.

    With `goto` a port's chain has the ending too, so that a `return` in it leaves for good; with `jump` it comes back.
    """
    if sum(line.match.at is not None for line in lines) < FEW:
        return [*map(str, lines), *ending]
    out = [str(line) for line in lines if line.match.at is None]
    ports: dict[str, dict[int, list[str]]] = {}
    for line in lines:
        if line.match.at is not None:
            protocol, port = line.match.at
            ports.setdefault(protocol, {}).setdefault(port, []).append(str(line))
    for protocol, by_number in sorted(ports.items()):
        chains = {
            port: parts.chain("at", [*texts, *(ending if leave is Word.GOTO else ())], f"{protocol} {port}")
            for port, texts in sorted(by_number.items())
        }
        name = parts.sets.of_index({port: Verdict(leave, chain) for port, chain in chains.items()})
        out.append(f"{protocol} dport vmap @{name}")
    return [*out, *ending]

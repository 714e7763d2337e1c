"""Divides ports into cells for the walk of `network`, and finds the rules of each cell.

A cell is a set of ports that no rule tells apart. A policy may have thousands of rules on thousands of ports, of which
each cell has few. So the work grows with the rules of all cells together, not with cells times rules.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TypeAlias

from tierwall.network.model.rules import TieredPolicy
from tierwall.network.reach.membership import MatchedRule
from tierwall.network.reach.spaces import bits, union

# The rules of each policy, by the name of its tier.
MatchedTiers: TypeAlias = Mapping[str, Mapping[TieredPolicy, list[MatchedRule]]]


def cells_with_rules(everything: int, tiers: MatchedTiers) -> Iterator[tuple[int, MatchedTiers]]:
    """Yield each cell of ports with the rules that match some of its connections, in order."""
    ports = {
        rule: rule.ports | union(named for named, _ in rule.named)
        for policies in tiers.values()
        for rules in policies.values()
        for rule in rules
    }
    cells = _cells(everything, {mask for rule in ports for mask in (rule.ports, *(named for named, _ in rule.named))})
    # A rule matches all ports of a cell or none, so the first port of a cell stands for it.
    number_of = {(cell & -cell).bit_length() - 1: number for number, cell in enumerate(cells)}
    firsts = union(1 << bit for bit in number_of)
    in_cells: list[dict[str, dict[TieredPolicy, list[MatchedRule]]]] = [
        {name: {policy: [] for policy in policies} for name, policies in tiers.items()} for _ in cells
    ]
    for name, policies in tiers.items():
        for policy, rules in policies.items():
            for rule in rules:
                for bit in bits(ports[rule] & firsts):
                    in_cells[number_of[bit]][name][policy].append(rule)
    yield from zip(cells, in_cells, strict=True)


def _cells(everything: int, masks: Iterable[int]) -> list[int]:
    """Divide all ports into the largest pieces that each mask has wholly or not at all, in the order of ports."""
    seen: dict[int, list[int]] = {}
    for number, mask in enumerate(sorted(set(masks) - {0, everything})):
        for bit in bits(mask):
            seen.setdefault(bit, []).append(number)
    by_masks: dict[tuple[int, ...], list[int]] = {}
    for bit in sorted(seen):
        by_masks.setdefault(tuple(seen[bit]), []).append(bit)
    pieces = [union(1 << bit for bit in members) for members in by_masks.values()]
    rest = everything & ~union(pieces)
    return [*([rest] if rest else []), *pieces]

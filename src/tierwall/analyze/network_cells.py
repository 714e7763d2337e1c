"""Divides ports into cells for the walk of `network`, finds the rules of each cell, and keeps the widest examples.

A cell is a set of ports that no rule tells apart. A policy may have thousands of rules on thousands of ports, of which
each cell has few. So the work grows with the rules of all cells together, not with cells times rules. Where even that
is too much, the caller says that it was not done.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple, TypeAlias

from msgspec import Struct

from tierwall.core.outcome import RuleEffect
from tierwall.core.stack import Tier
from tierwall.network.model.endpoints import Endpoint
from tierwall.network.model.rules import Direction, NetworkRule, RuleAction, TieredPolicy, TierName, tier_isolates
from tierwall.network.reach.exposure import HypotheticalPod
from tierwall.network.reach.membership import MatchedRule, RuleEffects
from tierwall.network.reach.rows import Rows
from tierwall.network.reach.spaces import bits, union

# The rules of each policy, by the name of its tier.
MatchedTiers: TypeAlias = Mapping[str, Mapping[TieredPolicy, list[MatchedRule]]]


# The most ports of rules, and rules of cells, that are looked at for one subject.
MAX_PAIRS = 3_000_000


class TooManyCells(Exception):
    """The rules of a subject make more cells than are looked at."""


def cells_with_rules(
    everything: int, tiers: MatchedTiers, most: int | None = None
) -> Iterator[tuple[int, MatchedTiers]]:
    """Yield each cell of ports with the rules that match some of its connections, in order; or raise TooManyCells.

    `everything` are the ports that are divided. A policy without a rule in a cell is left out there. With `most`, all
    cells together may have at most so many rules.
    """
    ports = {
        rule: (rule.ports | union(named for named, _ in rule.named)) & everything
        for policies in tiers.values()
        for rules in policies.values()
        for rule in rules
    }
    masks = {mask & everything for rule in ports for mask in (rule.ports, *(named for named, _ in rule.named))}
    cells = _cells(everything, masks)
    # A rule matches all ports of a cell or none, so the first port of a cell stands for it.
    number_of = {(cell & -cell).bit_length() - 1: number for number, cell in enumerate(cells)}
    firsts = union(1 << bit for bit in number_of)
    if sum((mask & firsts).bit_count() for mask in ports.values()) > (MAX_PAIRS if most is None else most):
        raise TooManyCells
    in_cells: list[dict[str, dict[TieredPolicy, list[MatchedRule]]]] = [{name: {} for name in tiers} for _ in cells]
    for name, policies in tiers.items():
        for policy, rules in policies.items():
            for rule in rules:
                for bit in bits(ports[rule] & firsts):
                    in_cells[number_of[bit]][name].setdefault(policy, []).append(rule)
    yield from zip(cells, in_cells, strict=True)


def _cells(everything: int, masks: Iterable[int]) -> list[int]:
    """Divide all ports into the largest pieces that each mask has wholly or not at all, in the order of ports."""
    seen: dict[int, list[int]] = {}
    telling = sorted(set(masks) - {0, everything})
    if sum(mask.bit_count() for mask in telling) > MAX_PAIRS:
        raise TooManyCells
    for number, mask in enumerate(telling):
        for bit in bits(mask):
            seen.setdefault(bit, []).append(number)
    by_masks: dict[tuple[int, ...], list[int]] = {}
    for bit in sorted(seen):
        by_masks.setdefault(tuple(seen[bit]), []).append(bit)
    pieces = [union(1 << bit for bit in members) for members in by_masks.values()]
    rest = everything & ~union(pieces)
    return [*([rest] if rest else []), *pieces]


class ConnectionCell(Struct, frozen=True):
    """Connections of one subject in one direction, on ports that all its rules treat alike."""

    subject: Endpoint
    direction: Direction
    ports: int
    others: int


class Witness(NamedTuple):
    """Connections that are examples of a finding. The widest of several has the most other ends, then ports."""

    width: tuple[int, int]
    cell: ConnectionCell
    others: int

    @classmethod
    def of(cls, cell: ConnectionCell, others: int) -> Witness:
        """Return the connections of a cell with some other ends."""
        return cls((others.bit_count(), cell.ports.bit_count()), cell, others)


def name_connection(rows: Rows, stand_ins: Mapping[tuple[str, str], HypotheticalPod], witness: Witness) -> str:
    """Name one connection of an example, hypothetical pods by what they stand for."""

    def name(endpoint: Endpoint) -> str:
        return str(stand_ins.get((endpoint.namespace, endpoint.name), endpoint))

    cell = witness.cell
    (others,) = rows.classes.members(witness.others & -witness.others)
    other = next((member for member in others.members if member is not cell.subject), others.members[0])
    source, destination = cell.direction.connection(name(cell.subject), name(other))
    first = next(rows.ports.ranges(cell.ports & -cell.ports))
    return f"{source} to {destination} on {first.protocol} {first.first}"


# Rules that affect others, each with its widest example.
Examples: TypeAlias = dict[NetworkRule, Witness]


def add_example(examples: Examples, rule: NetworkRule, cell: ConnectionCell, others: int) -> None:
    """Keep the widest example of a rule."""
    witness = Witness.of(cell, others)
    known = examples.get(rule)
    if known is None or known.width < witness.width:
        examples[rule] = witness


def widest(examples: Examples) -> list[NetworkRule]:
    """Return the rules, those with the widest examples first."""
    return sorted(examples, key=lambda rule: examples[rule].width, reverse=True)


# Rules, each with the bits of the endpoints that it decides.
RuleShares: TypeAlias = list[tuple[NetworkRule, int]]


def rule_shares(rules: list[MatchedRule], ports: int, others: int) -> RuleShares:
    """Return the endpoints that each rule of a policy would decide if it were the only policy."""
    shares: RuleShares = []
    for matched in rules:
        hit = matched.on(ports)[0] & others
        if hit:
            shares.append((matched.rule, hit))
            others &= ~hit
    return shares


class TakenEndpoints:
    """The endpoints that rules of first-match tiers decide on one cell of ports, as recorded during evaluation."""

    def __init__(self, effects: Mapping[str, RuleEffects]) -> None:
        self.rules: set[NetworkRule] = set()
        self._effects = effects
        self._taken: RuleShares = []

    def effects_of(self, tier: Tier[TieredPolicy], policy: TieredPolicy) -> list[RuleEffect]:
        """Return the effects of the rules of a policy."""
        return self._effects[tier.name](tier, policy)

    def record(self, tier: Tier[TieredPolicy], effect: RuleEffect, surely: int, maybe: int) -> None:
        """Record the effect of a rule. Defaults and isolation have no rule."""
        if effect.by is not None and not tier_isolates(tier):
            self.rules.add(effect.by)
            if surely:
                self._taken.append((effect.by, surely))

    def settled_in(self, tier: TierName) -> int:
        """Return the endpoints that a tier allows or denies."""
        return union(mask for rule, mask in self._taken if rule.tier is tier and rule.action is not RuleAction.PASS)

    def by_action(self, action: RuleAction) -> RuleShares:
        """Return the rules with this action and the endpoints that they decide."""
        return [(rule, mask) for rule, mask in self._taken if rule.action is action]

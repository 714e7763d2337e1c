"""What rules claim of all classes at once, for every cell of ports they do not tell apart.

The walk through the tiers is the loop of `core.stack`, whose cases are classes of ends here. What a tier says depends
only on its policies and on what they see of the subject, so it is worked out once for all classes with the same
policies.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from tierwall.core.outcome import Claim, Parts
from tierwall.core.stack import Tier
from tierwall.network.model.matching import covered, domains
from tierwall.network.model.rules import Policy, Rule, claimed


class Matched(NamedTuple):
    """What a rule about one subject matches: ports outright, or ports on some classes only; classes surely or maybe."""

    rule: Rule
    ports: int
    named: tuple[tuple[int, int], ...]
    surely: int
    maybe: int
    # The rule's claim on ports that it matches outright, if no name has a say in it.
    claim: Claim | None

    @classmethod
    def of(cls, rule: Rule, ports: int, named: tuple[tuple[int, int], ...], surely: int, maybe: int) -> Matched:
        """What a rule matches."""
        claim = Claim(rule, claimed(rule.action), surely) if surely and not maybe else None
        return cls(rule, ports, named, surely, maybe, claim)

    def on(self, ports: int) -> tuple[int, int]:
        """The classes it matches, and may match, on a cell of ports."""
        if ports & self.ports:
            return self.surely, self.maybe
        where = 0
        for named, classes in self.named:
            if ports & named:
                where |= classes
        return self.surely & where, self.maybe & where


class Claims:
    """The claims that the rules of one tier make on a cell of ports; for one walk through that tier."""

    def __init__(self, matched: Mapping[Policy, Sequence[Matched]], ports: int) -> None:
        self._matched = matched
        self._ports = ports
        # Which domain names were asked about, for which classes.
        self._asked: list[tuple[tuple[str, ...], int]] = []

    def __call__(self, tier: Tier[Policy], policy: Policy) -> list[Claim]:
        """The claims of one policy, in order."""
        claims = []
        ports = self._ports
        for matched in self._matched[policy]:
            if matched.claim is not None and ports & matched.ports:
                claims.append(matched.claim)
                continue
            surely, maybe = matched.on(ports)
            names: tuple[str, ...] = ()
            if maybe:
                names = domains(matched.rule)
                maybe &= ~self._covered(names)
                self._asked.append((names, maybe))
            if surely or maybe:
                claims.append(Claim(matched.rule, claimed(matched.rule.action), surely, maybe, names))
        return claims

    def _covered(self, names: tuple[str, ...]) -> int:
        """The classes for which every name is covered by a name that an earlier rule asked about."""
        everywhere = -1
        for name in names:
            asked = 0
            for earlier, classes in self._asked:
                if covered(name, earlier):
                    asked |= classes
            everywhere &= asked
        return everywhere if names else 0


def cells(everything: int, rules: Iterable[Matched]) -> list[int]:
    """All ports, cut into the coarsest pieces that each rule holds whole or not at all."""
    pieces = [everything]
    masks = {mask for matched in rules for mask in (matched.ports, *(ports for ports, _ in matched.named))}
    for mask in sorted(masks):
        if mask not in (0, everything):
            pieces = [part for piece in pieces for part in (piece & mask, piece & ~mask) if part]
    return pieces


def in_order(parts: Parts) -> Parts:
    """Parts by verdict and first member, so that what is equal is written alike."""
    if len(parts) < 2:
        return parts
    return tuple(sorted(parts, key=lambda part: (part[0].verdict, part[1] & -part[1])))

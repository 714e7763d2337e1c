"""Chooses what to look at where one policy meets a crowd of others: some ports, and the rules that matter there.

To compare a policy with thousands of others on all their ports takes longer than anybody waits. But two rules that have
a port in common both have the first port of one of them. So a look at these ports sees every pair of rules that meet.
What it sees there is true; about all other ports it says nothing.

A NetworkPolicy is overridden whatever other NetworkPolicies say, so NetworkPolicies can be looked at in parts. What
admin policies open depends on all NetworkPolicies of a pod: those with rules at the ports in question are added.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice

from msgspec import Struct
from msgspec.structs import replace

from tierwall.network.model.endpoints import LAST_PORT
from tierwall.network.model.rules import (
    Direction,
    NamedPort,
    NetworkRule,
    PortRange,
    RuleAction,
    TieredPolicy,
    TierName,
)

# With more policies than this there is a crowd.
CROWD = 500
# The most first ports that a look has of the policy itself, and of others.
MAX_PORTS = 64
# How many NetworkPolicies a first look has, how many a later one, and how many may be added for what they permit.
FIRST, PART, MAX_PERMITTING = 32, 128, 256


class CrowdPart(Struct, frozen=True):
    """Policies, without the rules that match none of these ports, to be compared at these ports.

    `is_whole`: nothing was left out that the policy in question may meet. `has_permitting`: it has all NetworkPolicies
    that permit something at these ports.
    """

    ports: tuple[PortRange, ...]
    policies: tuple[TieredPolicy, ...]
    is_whole: bool
    has_permitting: bool


class CrowdIndex:
    """All policies of some subjects, around the one in question."""

    def __init__(
        self,
        policy: TieredPolicy,
        others: Iterable[TieredPolicy],
        tied: Sequence[TieredPolicy],
        numbers_of: Callable[[str], Iterable[tuple[str, int]]],
    ) -> None:
        """`tied` have the priority of the policy. `numbers_of` returns the ports that pods have by a name."""
        self._policy, self._tied, self._numbers_of = policy, tied, numbers_of
        self._admin: list[TieredPolicy] = []
        self._local: list[TieredPolicy] = []
        # The policies that have a rule for a port alone, and those with other rules.
        self._by_port: dict[PortRange, list[TieredPolicy]] = {}
        self._wide: dict[TieredPolicy, None] = {}
        self._ranges: set[PortRange] = set()
        for other in others:
            (self._local if other.tier is TierName.NAMESPACE else self._admin).append(other)
            for rule in other.all_rules:
                self._enter(other, rule)
        self._unused = next(self._unused_ports(), None)

    def _enter(self, policy: TieredPolicy, rule: NetworkRule) -> None:
        if rule.ports is None:
            self._wide[policy] = None
        for port in rule.ports or ():
            if isinstance(port, PortRange) and port.first == port.last:
                self._by_port.setdefault(port, []).append(policy)
            else:
                self._wide[policy] = None
            if isinstance(port, PortRange) and port.first != port.last:
                self._ranges.add(port)

    def _unused_ports(self) -> Iterator[PortRange]:
        """Yield a port that no policy names."""
        named = [port for rule in self._policy.all_rules for port in rule.ports or () if isinstance(port, PortRange)]
        for number in range(1, LAST_PORT + 1):
            port = PortRange("TCP", number, number)
            if port not in self._by_port and not any(_meet(port, wide) for wide in (*self._ranges, *named)):
                yield port
                return

    def parts(self) -> Iterator[CrowdPart]:
        """Yield what to look at, one part after the other; the first one shows the most."""
        match self._policy.tier:
            case TierName.NAMESPACE:
                yield self._part(self._admin, (), self._local)
            case TierName.BASELINE:
                # Only whether a pod is isolated matters here.
                subjects = {(other.namespaces, other.pods, *_directions(other)): other for other in self._local}
                yield self._part(self._tied, subjects.values(), ())
            case TierName.ADMIN:
                yield self._part((*self._tied, *self._local[:FIRST]), self._local[:FIRST], self._local)
                for first in range(FIRST, len(self._local), PART):
                    chosen = self._local[first : first + PART]
                    yield self._part(chosen, chosen, self._local, PART)

    def _part(
        self,
        met: Iterable[TieredPolicy],
        chosen: Iterable[TieredPolicy],
        permitting: Sequence[TieredPolicy],
        most: int = MAX_PORTS,
    ) -> CrowdPart:
        """Return a look at the ports where the policy meets others: at all admin policies, and at chosen local ones."""
        first, ports_met = dict.fromkeys(self._own_ports()), dict.fromkeys(self._ports_met(met))
        unused = () if self._unused is None else (self._unused,)
        ports = tuple(dict.fromkeys((*islice(first, MAX_PORTS), *unused, *islice(ports_met, most))))
        there = {*self._wide, *(policy for port in ports for policy in self._by_port.get(port, ()))}
        admin = [policy for policy in self._admin if policy in there]
        is_whole = len(first) <= MAX_PORTS and len(ports_met) <= most and len(admin) <= CROWD
        if len(admin) > CROWD and self._policy.tier is not TierName.NAMESPACE:
            # Somebody who comes before the policy would be missing.
            return CrowdPart((), (self._policy,), False, False)
        opens = any(
            rule.action is RuleAction.ALLOW
            for policy in (self._policy, *admin)
            if policy.tier is TierName.ADMIN and (policy is self._policy or self._policy.tier is TierName.NAMESPACE)
            for rule in policy.all_rules
        )
        more = [policy for policy in permitting if policy in there] if opens else []
        has_permitting = len(more) <= MAX_PERMITTING
        local = dict.fromkeys((*chosen, *(more if has_permitting else ())))
        # Admin policies are in order: whatever the first ones settle is settled, whoever comes later.
        kept = (*admin[:CROWD], *local)
        policies = (self._policy, *(_at(policy, ports) for policy in kept))
        return CrowdPart(ports, policies, is_whole and has_permitting, opens and has_permitting)

    def _own_ports(self) -> Iterator[PortRange]:
        for rule in self._policy.all_rules:
            yield from self._first_ports(rule)

    def _ports_met(self, policies: Iterable[TieredPolicy]) -> Iterator[PortRange]:
        """Yield the first ports of rules that the policy meets, or that open what it keeps closed."""
        is_local = self._policy.tier is TierName.NAMESPACE
        for policy in policies:
            for rule in policy.all_rules:
                if self._policy.rules(rule.direction) is None:
                    continue
                opens = is_local and rule.action is RuleAction.ALLOW
                rules = self._policy.rules(rule.direction) or ()
                for port in self._first_ports(rule):
                    if opens or any(_matches(each, port) for each in rules):
                        yield port

    def _first_ports(self, rule: NetworkRule) -> Iterator[PortRange]:
        for port in rule.ports or ():
            if isinstance(port, NamedPort):
                for protocol, number in self._numbers_of(port.name):
                    yield PortRange(protocol, number, number)
            else:
                yield PortRange(port.protocol, port.first, port.first)


def _directions(policy: TieredPolicy) -> tuple[bool, ...]:
    return tuple(policy.rules(direction) is not None for direction in Direction)


def _meet(port: PortRange, other: PortRange) -> bool:
    return port.protocol == other.protocol and port.first <= other.last and other.first <= port.last


def _matches(rule: NetworkRule, port: PortRange) -> bool:
    """Whether a rule may match a port; a name may mean any."""
    if rule.ports is None:
        return True
    return any(isinstance(each, NamedPort) or _meet(each, port) for each in rule.ports)


def _at(policy: TieredPolicy, ports: Sequence[PortRange]) -> TieredPolicy:
    """Return a policy without the rules that match none of these ports."""
    kept: dict[Direction, tuple[NetworkRule, ...] | None] = {}
    for direction in Direction:
        rules = policy.rules(direction)
        if rules is not None:
            rules = tuple(rule for rule in rules if any(_matches(rule, port) for port in ports))
        kept[direction] = rules
    return replace(policy, ingress=kept[Direction.INGRESS], egress=kept[Direction.EGRESS])

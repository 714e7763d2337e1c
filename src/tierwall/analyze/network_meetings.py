"""Finds where one policy meets a crowd of others: it overrides them, they override it, or they disagree.

To divide pods and ports by everything that thousands of policies look at takes longer than anybody waits. But two rules
that have a port in common both have the first port of one of them there, or of the ports that they share. So some
connections are decided, each with all policies that may come before: of a pod that both policies select, at such a
port, with all other ends at once (`network.reach.endpoint_sets`). What is found is true. What a rule does
at other ports only is not seen.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import islice
from typing import NamedTuple, TypeAlias

from tierwall.core.reference import Reference
from tierwall.network.model.endpoints import LAST_PORT
from tierwall.network.model.policies import in_order
from tierwall.network.model.rules import (
    INGRESS,
    Direction,
    NamedPort,
    NetworkRule,
    PortRange,
    RuleAction,
    TieredPolicy,
    TierName,
)
from tierwall.network.reach.endpoint_sets import EndpointSets
from tierwall.network.reach.exposure import HypotheticalPod
from tierwall.network.reach.spaces import union

# The most connections that are decided for one other policy, pods for one port, and ports of two rules.
MAX_TRIES, MAX_PODS, MAX_PORTS = 24, 8, 8


class MeetingWitness(NamedTuple):
    """A connection at which another policy meets the one in question: a pod, an end, a port and a direction.

    `place` is the rule of a NetworkPolicy that allows it, or the direction in which one drops it.
    """

    other: TieredPolicy
    place: str
    pod: int
    end: int
    port: PortRange
    direction: Direction


class _Candidate(NamedTuple):
    """Another policy, the pods that both select, and where rules of both may meet."""

    policy: TieredPolicy
    pods: int
    points: Iterator[tuple[PortRange, Direction]]


RulesAt: TypeAlias = Callable[[str, Direction, PortRange], Iterable[tuple[TieredPolicy, NetworkRule]]]
# A pod, a port and a direction; the policies that come before another one, with their rules.
_Point: TypeAlias = tuple[int, PortRange, Direction]
_Above: TypeAlias = list[tuple[TieredPolicy, list[NetworkRule]]]
# Policies with the pods that they select and those of their rules that may matter.
_Rules: TypeAlias = list[tuple[TieredPolicy, int, list[NetworkRule]]]


class MeetingSearch:
    """The search around one policy. `others` are all that select its pods, in order of precedence."""

    def __init__(
        self,
        policy: TieredPolicy,
        others: Sequence[TieredPolicy],
        sets: EndpointSets,
        wanted: int,
        until: float,
        rules_at: RulesAt,
    ) -> None:
        """`wanted` are the pods to look at. The search ends at `until`, by `time.thread_time`.

        `rules_at` gives the rules of a namespace, or (empty) of cluster-scoped policies, that may match a port.
        """
        self._policy, self._others, self._sets, self._wanted, self._until = policy, others, sets, wanted, until
        self._rules_at = rules_at
        self._known = set(others)
        self._subjects_of: dict[TieredPolicy, int] = {}
        # The policies of its tier and priority that come before it by name.
        tied = [other for other in others if other.tier is policy.tier and other.priority == policy.priority]
        ordered = in_order((policy, *tied))
        self._first = {other.reference for other in ordered[: ordered.index(policy)]}
        self._local: dict[str, list[TieredPolicy]] = {}
        for other in others:
            if other.tier is TierName.NAMESPACE:
                self._local.setdefault(other.resource.namespace, []).append(other)
        self._local_at: dict[tuple[str, PortRange, Direction], list[tuple[int, TieredPolicy, NetworkRule]]] = {}
        self._above = {other for other in others if self._comes_before(other)}
        self._reaches = {direction: self._reach(direction) for direction in Direction}
        self._above_at: dict[tuple[PortRange, Direction], _Rules] = {}
        self._isolated: dict[tuple[str, Direction], int] = {}
        self._local_of: dict[tuple[int, Direction], list[TieredPolicy]] = {}
        self._decided: set[tuple[int, PortRange, Direction]] = set()
        # What was found, by the other policy.
        self.disagreeing: dict[Reference, MeetingWitness] = {}
        self.denied: dict[Reference, MeetingWitness] = {}
        self.opened: dict[Reference, MeetingWitness] = {}
        # Whether there was time for everything.
        self.is_whole = True

    def search(self, candidates: Iterable[TieredPolicy]) -> None:
        """Look for meetings with some of the others, until the time is over."""
        for candidate in map(self._candidate, candidates):
            if time.thread_time() > self._until:
                self.is_whole = False
                return
            self._meet(candidate)

    def found(self, reference: Reference) -> bool:
        """Whether a meeting with a policy was found."""
        return any(reference in meetings for meetings in (self.disagreeing, self.denied, self.opened))

    def example(self, meeting: MeetingWitness, future: Mapping[tuple[str, str], HypotheticalPod]) -> str:
        """Name the connection of a meeting, hypothetical pods by what they stand for."""

        def name(end: int) -> str:
            endpoint = self._sets.endpoint(end)
            return str(future.get((endpoint.namespace, endpoint.name), endpoint))

        source, destination = meeting.direction.connection(name(meeting.pod), name(meeting.end))
        return f"{source} to {destination} on {meeting.port.protocol} {meeting.port.first}"

    def _subjects(self, policy: TieredPolicy) -> int:
        """Return the pods to look at that a policy selects."""
        known = self._subjects_of.get(policy)
        if known is None:
            known = self._subjects_of[policy] = self._sets.subjects(policy) & self._wanted
        return known

    def _reach(self, direction: Direction) -> int:
        """Return the ends that the policy is about."""
        rules = self._policy.rules(direction)
        if rules is not None and self._policy.tier is TierName.NAMESPACE:
            # A NetworkPolicy is also about what it does not allow.
            return self._sets.everything
        return union(map(self._sets.widest, rules or ()))

    def _comes_before(self, other: TieredPolicy) -> bool:
        """Whether a policy of a first-match tier may come before the policy, or has its priority."""
        mine = self._policy
        if other.tier is mine.tier:
            is_before = other.tier is not TierName.NAMESPACE and other.priority <= mine.priority
        else:
            is_before = other.tier is TierName.ADMIN
        return is_before and bool(self._subjects(other) & self._subjects(mine))

    def _candidate(self, other: TieredPolicy) -> _Candidate:
        # Of a tied policy that selects none of the namespaces in question, no pods are known here.
        pods = self._subjects(self._policy) & self._subjects(other) if other in self._known else 0
        return _Candidate(other, pods, self._points(other) if pods else iter(()))

    def _points(self, other: TieredPolicy) -> Iterator[tuple[PortRange, Direction]]:
        """Yield ports at which rules of both policies may meet."""
        is_override = other.tier is not self._policy.tier
        admin, local = (other, self._policy) if self._policy.tier is TierName.NAMESPACE else (self._policy, other)
        for direction in Direction:
            if local.rules(direction) is None:
                continue
            for rule in admin.rules(direction) or ():
                if is_override and rule.action is RuleAction.ALLOW:
                    yield from ((port, direction) for port in islice(self._first_ports(rule), MAX_PORTS))
                for counterpart in local.rules(direction) or ():
                    if is_override and rule.action is not RuleAction.DENY:
                        continue
                    if not is_override and rule.action is counterpart.action:
                        continue
                    if self._sets.widest(rule) & self._sets.widest(counterpart):
                        yield from ((port, direction) for port in self._common_ports(rule, counterpart))

    def _meet(self, candidate: _Candidate) -> None:
        """Decide connections until both policies meet."""
        reference = candidate.policy.reference
        tries = 0
        for port, direction in dict.fromkeys(candidate.points):
            pods = candidate.pods
            for number in range(MAX_PODS):
                if self.found(reference) or not pods:
                    break
                tries += 1
                if tries > MAX_TRIES or time.thread_time() > self._until:
                    self.is_whole = False
                    return
                # The first pods exist; the last ones are hypothetical.
                pod = (pods & -pods).bit_length() - 1 if number % 2 == 0 else pods.bit_length() - 1
                self._decide(pod, port, direction)
                pods &= ~(self._alike(pods, pod, port, direction) | 1 << pod)
            if self.found(reference):
                return

    def _alike(self, pods: int, pod: int, port: PortRange, direction: Direction) -> int:
        """Return the pods for which nothing else would be found: whatever settles it for one does for these, too."""
        for _, subjects, _ in self._before_at(port, direction):
            if subjects >> pod & 1:
                pods &= subjects
        return pods

    def _before_at(self, port: PortRange, direction: Direction) -> _Rules:
        """Return the rules above that match a port for some destination, and an end that the policy is about."""
        known = self._above_at.get((port, direction))
        if known is None:
            sets, reach = self._sets, self._reaches[direction]
            there: dict[TieredPolicy, list[NetworkRule]] = {}
            for policy, rule in self._rules_at("", direction, port):
                if policy in self._above and sets.at_port(rule, port) != 0 and sets.widest(rule) & reach:
                    there.setdefault(policy, []).append(rule)
            known = [(policy, self._subjects(policy), rules) for policy, rules in there.items()]
            self._above_at[port, direction] = known
        return known

    def _decide(self, pod: int, port: PortRange, direction: Direction) -> None:
        """Decide all connections of a pod at a port, and record who meets the policy there."""
        point = pod, port, direction
        if point in self._decided:
            return
        self._decided.add(point)
        others = self._sets.everything
        if not self._sets.is_future(pod):
            others &= ~(1 << pod)
        above = [(policy, rules) for policy, subjects, rules in self._before_at(port, direction) if subjects >> pod & 1]
        if self._policy.tier is TierName.NAMESPACE:
            self._decide_local(point, above, others)
        else:
            self._decide_admin(point, above, others)

    def _decide_local(self, point: _Point, above: _Above, others: int) -> None:
        """Find admin policies that deny what this NetworkPolicy allows, or allow what it drops."""
        permitted: int | None = None
        for policy, rules in above:
            for rule in rules:
                taken = self._match(rule, point) & others
                others &= ~taken
                if not taken or rule.action is RuleAction.PASS:
                    continue
                if rule.action is RuleAction.DENY:
                    for allowing in self._policy.rules(point[2]) or ():
                        self._record(self.denied, policy, allowing.place, point, taken & self._match(allowing, point))
                    continue
                if policy.reference in self.opened:
                    continue
                if permitted is None:
                    mine = [(self._policy, allowing) for allowing in self._policy.rules(point[2]) or ()]
                    permitted = union(self._match(allowing, point) for _, allowing in (*mine, *self._local_here(point)))
                self._record(self.opened, policy, str(point[2]), point, taken & ~permitted)

    def _decide_admin(self, point: _Point, above: _Above, others: int) -> None:
        """Find tied policies that disagree, and NetworkPolicies that this policy overrides."""
        mine = self._policy
        is_isolated = self._is_isolated(point)
        if mine.tier is TierName.BASELINE and is_isolated:
            return
        others &= ~self._settled([pair for pair in above if pair[0].tier is not mine.tier], point, others)
        for policy, rules in above:
            if policy.tier is mine.tier and policy.priority < mine.priority:
                others &= ~union(self._match(rule, point) for rule in rules)
        shares = self._shares(mine.rules(point[2]) or (), point, others)
        first = 0
        for policy, rules in above:
            if policy.tier is mine.tier and policy.priority == mine.priority:
                for rule, mask in self._shares(rules, point, others):
                    disputed = union(share for other, share in shares if other.action is not rule.action) & mask
                    if mine.has_priority and policy.has_priority:
                        self._record(self.disagreeing, policy, rule.place, point, disputed)
                    first |= mask if policy.reference in self._first else 0
        if mine.tier is not TierName.ADMIN or not is_isolated:
            return
        denied, allowed = (
            union(share for rule, share in shares if rule.action is action) & ~first
            for action in (RuleAction.DENY, RuleAction.ALLOW)
        )
        permitted = 0
        for policy, rule in self._local_here(point):
            mask = self._match(rule, point)
            permitted |= mask
            if mask & denied:
                self._record(self.denied, policy, rule.place, point, mask & denied)
        if allowed & ~permitted:
            for policy in self._local_policies(point):
                self._record(self.opened, policy, str(point[2]), point, allowed & ~permitted)

    def _settled(self, above: _Above, point: _Point, others: int) -> int:
        """Return the ends that a tier above allows or denies."""
        left = others
        settled = 0
        for _, rules in above:
            for rule, mask in self._shares(rules, point, left):
                left &= ~mask
                settled |= mask if rule.action is not RuleAction.PASS else 0
        return settled

    def _local_here(self, point: _Point) -> list[tuple[TieredPolicy, NetworkRule]]:
        """Return the rules of other NetworkPolicies that apply to a pod and match a port."""
        pod, port, direction = point
        home = self._sets.endpoint(pod).namespace
        known = self._local_at.get((home, port, direction))
        if known is None:
            known = [
                (self._subjects(policy), policy, rule)
                for policy, rule in self._rules_at(home, direction, port)
                if policy in self._known and self._sets.at_port(rule, port) != 0
            ]
            self._local_at[home, port, direction] = known
        return [(policy, rule) for pods, policy, rule in known if pods >> pod & 1]

    def _is_isolated(self, point: _Point) -> bool:
        """Whether other NetworkPolicies apply to a pod in a direction."""
        pod, _, direction = point
        home = self._sets.endpoint(pod).namespace
        isolated = self._isolated.get((home, direction))
        if isolated is None:
            policies = (policy for policy in self._local.get(home, ()) if policy.rules(direction) is not None)
            isolated = self._isolated[home, direction] = union(map(self._subjects, policies))
        return bool(isolated >> pod & 1)

    def _local_policies(self, point: _Point) -> list[TieredPolicy]:
        """Return the other NetworkPolicies that apply to a pod in a direction."""
        pod, _, direction = point
        known = self._local_of.get((pod, direction))
        if known is None:
            policies = self._local.get(self._sets.endpoint(pod).namespace, ())
            known = [
                policy
                for policy in policies
                if policy.rules(direction) is not None and self._subjects(policy) >> pod & 1
            ]
            self._local_of[pod, direction] = known
        return known

    def _shares(self, rules: Iterable[NetworkRule], point: _Point, others: int) -> list[tuple[NetworkRule, int]]:
        """Return the ends that each rule of a policy decides if nothing comes before the policy."""
        shares = []
        for rule in rules:
            mask = self._match(rule, point) & others
            if mask:
                shares.append((rule, mask))
                others &= ~mask
        return shares

    def _match(self, rule: NetworkRule, point: _Point) -> int:
        """Return the ends that a rule matches at a point."""
        pod, port, direction = point
        there = self._sets.at_port(rule, port)
        if there is None:
            return self._sets.matched(rule, pod)
        if direction is INGRESS:
            return self._sets.matched(rule, pod) if there >> pod & 1 else 0
        return self._sets.matched(rule, pod) & there if there else 0

    def _record(
        self, witnesses: dict[Reference, MeetingWitness], other: TieredPolicy, place: str, point: _Point, ends: int
    ) -> None:
        if ends and other.reference not in witnesses:
            pod, port, direction = point
            witnesses[other.reference] = MeetingWitness(
                other, place, pod, (ends & -ends).bit_length() - 1, port, direction
            )

    def _first_ports(self, rule: NetworkRule) -> Iterator[PortRange]:
        if rule.ports is None:
            yield self._unused_port
        for port in rule.ports or ():
            if isinstance(port, NamedPort):
                numbers = self._sets.numbers_of(port.name)
                yield from (PortRange(protocol, number, number) for protocol, number in numbers)
            else:
                yield PortRange(port.protocol, port.first, port.first)

    def _common_ports(self, rule: NetworkRule, other: NetworkRule) -> Iterator[PortRange]:
        """Yield the first ports that two rules share, as far as these are first ports of one of them."""
        ports = dict.fromkeys((*self._first_ports(rule), *self._first_ports(other)))
        at_port = self._sets.at_port
        common = (port for port in ports if at_port(rule, port) != 0 and at_port(other, port) != 0)
        yield from islice(common, MAX_PORTS)

    @cached_property
    def _unused_port(self) -> PortRange:
        """A port that no rule names if there is one: it shows what rules without ports do."""
        spans = {
            (port.first, port.last)
            for policy in (self._policy, *self._others)
            for rule in policy.all_rules
            for port in rule.ports or ()
            if isinstance(port, PortRange) and port.protocol == "TCP"
        }
        number = 1
        for first, last in sorted(spans):
            if first > number:
                break
            number = max(number, last + 1)
        number = number if number <= LAST_PORT else 1
        return PortRange("TCP", number, number)

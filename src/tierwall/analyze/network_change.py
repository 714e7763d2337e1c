"""Checks one network policy in a large cluster: the findings of `network` that have to do with this policy.

The checks are those of `tierwall check`. They run on a small snapshot that has the policies which matter to the one in
question, and two pods of each sort that these tell apart (`network.reach.pod_index`). Subjects of a policy are looked
at some namespaces at a time, until the time is over: a policy that selects everything overrides as many NetworkPolicies
as there are.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import partial
from math import inf

from msgspec.structs import replace

from tierwall.analyze.network import MAX_STAND_INS, RuleWalk
from tierwall.analyze.network_crowd import CROWD, CrowdIndex, CrowdPart
from tierwall.analyze.network_index import DEFINITION, NetworkIndex, kind_of_change, with_model
from tierwall.analyze.network_opened import opened_to_outside
from tierwall.analyze.network_selection import SelectionCheck
from tierwall.core.diagnostics import Diagnostic
from tierwall.core.reference import Reference
from tierwall.core.words import join_names
from tierwall.network.model.endpoints import Endpoint
from tierwall.network.model.model import network_model
from tierwall.network.model.policies import (
    NETWORK_POLICY,
    fail_closed_warnings,
    in_order,
    is_shadow,
    read_policy,
)
from tierwall.network.model.rules import TIERS, AddressPeer, NetworkRule, Peer, TieredPolicy, TierName
from tierwall.network.reach.exposure import HypotheticalSnapshot, with_stand_ins
from tierwall.network.reach.pod_index import PodIndex
from tierwall.network.reach.spaces import union
from tierwall.resources.resource import Resource
from tierwall.resources.snapshot import Snapshot
from tierwall.resources.validity import is_understood

# The most policies above one that is searched for rules that never count.
MAX_EARLIER_POLICIES = 64
SAME_PRIORITY = "TW216"
# The findings of `network` that have to do with one policy.
CODES = ("TW201", "TW202", "TW203", "TW204", "TW205", "TW207", "TW208", "TW212", "TW213", SAME_PRIORITY, "TW217")
# How many namespaces are looked at closely, and how many are then counted at a time.
FIRST, BATCH = 8, 16
# The most rules, peers and ports of a policy, all together, that is looked at.
MAX_PARTS = 500
# So many pods of different sorts are looked at to see whether a change opens them.
MAX_OPENED = 20


def opened_by_change(
    index: NetworkIndex, old: Resource | None, new: Resource | None, until: float = inf
) -> Iterator[Diagnostic]:
    """Find pods that a change of a NetworkPolicy opens to the outside; TooManyCells if `until` comes before any.

    Only NetworkPolicies of these pods matter: rules of administrators' policies cannot match connections from outside.
    """
    changed = new or old
    if changed is None or kind_of_change(old, new) != NETWORK_POLICY:
        return
    versions = [
        [read_policy(index.snapshot, version)] if version is not None and not is_shadow(version) else []
        for version in (old, new)
    ]
    if any(is_large(policy) for version in versions for policy in version):
        return
    others = [
        _towards_outside(other)
        for other in index.local.get(changed.namespace, {}).values()
        if other.reference != changed.reference and other.ingress is not None
    ]
    before, after = ([_towards_outside(policy) for policy in version] for version in versions)
    candidates = _may_be_opened(index.pods, before, after, others)
    if not candidates:
        return
    others = [other for other in others if index.pods.selected(other.namespaces, other.pods) & candidates]
    pods = index.pods.examples((*others, *before, *after), (), among=candidates)
    fixed = [
        *index.snapshot.of_kind(*DEFINITION),
        *filter(None, (index.snapshot.get("", "Namespace", "", changed.namespace),)),
        *pods[:MAX_OPENED],
    ]

    def side(version: list[TieredPolicy]) -> Snapshot:
        policies = [*others, *version]
        return with_model(Snapshot.of([*fixed, *(policy.resource for policy in policies)]), policies)

    yield from opened_to_outside(side(before), side(after), changed, until, len(pods) > MAX_OPENED)


def _may_be_opened(
    pods: PodIndex, before: list[TieredPolicy], after: list[TieredPolicy], others: list[TieredPolicy]
) -> int:
    """Return the pods that a change may open: those that nothing isolates any more, and those of added rules."""

    def isolated(policies: Iterable[TieredPolicy]) -> int:
        return union(pods.selected(policy.namespaces, policy.pods) for policy in policies if policy.ingress is not None)

    ingress_before = {rule_facts(rule) for policy in before for rule in policy.ingress or ()}
    added = [policy for policy in after for rule in policy.ingress or () if rule_facts(rule) not in ingress_before]
    opened = isolated(before) & ~isolated((*after, *others))
    # A pod that is isolated for the first time is not opened by what is still let in.
    known = isolated((*before, *others))
    if added:
        return opened | (isolated(after) & known)
    # The same rules for other pods.
    return opened | (isolated(after) & known & ~isolated(before) if any(policy.ingress for policy in after) else 0)


def rule_facts(rule: NetworkRule) -> tuple[object, ...]:
    """Return what a rule matches, without its place."""
    return rule.peers, rule.ports


def _towards_outside(policy: TieredPolicy) -> TieredPolicy:
    """Return a NetworkPolicy without what matches no connection from outside."""
    if policy.ingress is None:
        return replace(policy, egress=None)
    rules = []
    for rule in policy.ingress:
        peers = rule.peers and tuple(filter(_is_address, rule.peers))
        if rule.peers is None or peers:
            rules.append(replace(rule, peers=peers))
    return replace(policy, ingress=tuple(rules), egress=None)


def _is_address(peer: Peer) -> bool:
    return isinstance(peer, AddressPeer)


def is_large(policy: TieredPolicy) -> bool:
    """Whether a policy has more rules, peers and ports than are looked at while somebody waits."""
    parts = sum(1 + len(rule.peers or ()) + len(rule.ports or ()) for rule in policy.all_rules)
    return parts > MAX_PARTS


class NetworkChangeCheck:
    """The check of one policy as if it were in the cluster, in place of the one with its name."""

    def __init__(self, index: NetworkIndex, resource: Resource, until: float, end_of_look: float = inf) -> None:
        """`until` is when to stop, by `time.monotonic`; a close look ends at `end_of_look`, by `time.thread_time`."""
        self._index, self._until, self._end_of_look = index, until, end_of_look
        self._policy = read_policy(index.snapshot, resource)
        self._reference = resource.reference
        # The policies that share the tier and the priority.
        self.tied = [other for other in self._others(index.admin.values()) if _are_tied(other, self._policy)]
        # Further NetworkPolicies that the policy overrides, and whether there was time to count them all.
        self.counted: set[Reference] = set()
        self.is_complete = True
        # Whether all policies of its subjects were compared with it.
        self.is_compared = True

    def findings(self) -> Iterator[Diagnostic]:
        """Yield what `tierwall check` would find about the policy, and which other policies have its priority."""
        resource, policy = self._policy.resource, self._policy
        if is_shadow(resource):
            return
        yield from fail_closed_warnings((policy,))
        if is_large(policy):
            self.is_compared = False
            return
        # Nothing but that is certain about policies with unknown parts; what they override is.
        is_known = is_understood(self._index.snapshot, resource)
        if is_known:
            yield from self._selection()
        disputed: set[str] = set()
        for finding in self._compared():
            if finding.code == "TW201":
                disputed |= {str(finding.reference), *finding.related_objects}
            if self._is_certain(finding, is_known):
                yield finding
        if is_known:
            yield from self._same_priority([tied for tied in self.tied if str(tied.reference) not in disputed])
        if is_known and policy.tier is not TierName.NAMESPACE:
            yield from self._shadowed()

    def _is_certain(self, finding: Diagnostic, is_known: bool) -> bool:
        """Whether the policy that a finding is about is understood."""
        about = finding.reference
        if about is None or about == self._reference:
            return is_known
        policies = self._index.local.get(about.namespace, {}) if about.namespace else self._index.admin
        return about not in policies or is_understood(self._index.snapshot, policies[about].resource)

    def _selection(self) -> Iterator[Diagnostic]:
        small = self._index.small([self._policy], (), apart=True)
        every = (namespace for namespace in self._index.snapshot.of_kind("", "Namespace"))
        model = network_model(with_model(small.with_changes(put=every), [self._policy]))
        declared = [namespace.name for namespace in self._index.snapshot.of_kind("", "Namespace")]
        yield from SelectionCheck(model, model.policies, declared).findings()

    def _compared(self) -> Iterator[Diagnostic]:
        """Yield what the policy overrides, is overridden by and disagrees with, some namespaces at a time."""
        index, policy = self._index, self._policy
        if policy.tier is TierName.NAMESPACE:
            yield from self._walked([policy.resource.namespace], False)
            return
        selected = index.pods.names(policy.namespaces)
        tied = frozenset[str]().union(*(index.pods.names(other.namespaces) for other in self.tied))
        local = index.local if policy.tier is TierName.ADMIN else {}
        names = sorted(selected & (tied | {name for name, policies in local.items() if policies}))
        is_new = bool(self.tied) and index.may_select_new(policy.namespaces)
        if names or is_new:
            yield from self._walked(names[:FIRST], is_new)
        self._count(names[FIRST:])

    def _walked(self, namespaces: Collection[str], is_new: bool) -> Iterator[Diagnostic]:
        """Yield what a walk of the subjects in some namespaces finds, and in namespaces that may be created."""
        policies = [self._policy, *self._index.selecting(namespaces, self._reference, is_new)]
        if all(policy.tier is TierName.NAMESPACE for policy in policies):
            return
        if len(policies) <= CROWD:
            yield from self._look(policies, namespaces, is_new)
            return
        parts = self._crowd(policies[1:]).parts()
        first = next(parts)
        self.is_complete, self.is_compared = False, first.is_whole
        yield from self._look(first.policies, namespaces, is_new, first)
        self._count_parts(parts, namespaces)

    def _look(
        self,
        policies: Sequence[TieredPolicy],
        namespaces: Collection[str],
        is_new: bool,
        part: CrowdPart | None = None,
    ) -> Iterator[Diagnostic]:
        """Yield what a close look at some policies finds, on existing and on hypothetical pods."""
        small = self._index.small(policies, namespaces)
        leading = network_model(small).tied_policies
        hypothetical = with_stand_ins(small, True, MAX_STAND_INS, first=namespaces, leading=leading)
        with_model(hypothetical.snapshot, policies)
        known = self._index.pods.namespaces

        def is_wanted(subject: Endpoint) -> bool:
            return subject.namespace in namespaces or (is_new and subject.namespace not in known)

        walk = self._walk(hypothetical, is_wanted, part)
        self.is_compared = self.is_compared and not walk.skipped
        yield from walk.equal_priorities()
        yield from walk.overridden_policies()

    def _walk(
        self, small: HypotheticalSnapshot, is_wanted: Callable[[Endpoint], bool], part: CrowdPart | None = None
    ) -> RuleWalk:
        ports = None if part is None else part.ports
        walk = RuleWalk(small, self._reference, is_wanted, self._end_of_look, ports)
        walk.walk()
        if part is not None and not part.has_permitting:
            # Another NetworkPolicy may permit what seems to be opened.
            walk.opened.clear()
        return walk

    def _crowd(self, others: Sequence[TieredPolicy]) -> CrowdIndex:
        return CrowdIndex(self._policy, in_order(others), self.tied, self._index.pods.numbers_of)

    def _count_parts(self, parts: Iterator[CrowdPart], namespaces: Collection[str]) -> None:
        """Count the NetworkPolicies of a crowd that the policy overrides, as long as there is time."""
        while time.monotonic() <= self._until and (part := next(parts, None)) is not None:
            small = HypotheticalSnapshot(self._index.small(part.policies, namespaces), {})
            walk = self._walk(small, lambda subject: subject.namespace in namespaces, part)
            self.counted |= walk.affected()

    def _count(self, namespaces: Sequence[str]) -> None:
        """Count the NetworkPolicies that the policy overrides in further namespaces, by one pod of each."""
        index, policy = self._index, self._policy
        subjects = index.pods.selected(policy.namespaces, policy.pods)
        for first in range(0, len(namespaces), BATCH):
            if time.monotonic() > self._until:
                self.is_complete = False
                return
            batch = namespaces[first : first + BATCH]
            local = (other for name in batch for other in index.local.get(name, {}).values())
            both = [subjects & index.pods.selected(other.namespaces, other.pods) for other in local]
            wanted = {pod for mask in both for pod in index.pods.names_of(mask & -mask)}
            if not wanted:
                continue
            policies = [policy, *index.selecting(batch, self._reference)]
            if len(policies) > CROWD:
                self.is_complete = False
                self._count_parts(self._crowd(policies[1:]).parts(), batch)
                continue
            small = HypotheticalSnapshot(index.small(policies, batch, wanted=wanted), {})
            walk = self._walk(small, partial(_is_among, wanted))
            self.is_complete = self.is_complete and not walk.skipped
            self.counted |= walk.affected()

    def _same_priority(self, tied: list[TieredPolicy]) -> Iterator[Diagnostic]:
        if not tied:
            return
        names = sorted(str(other.reference) for other in tied)
        verb = "has" if len(names) == 1 else "have"
        message = (
            f"{join_names(names, 3)} {verb} priority {self._policy.priority} of tier {self._policy.tier}, too; they "
            f"contradict {self._reference} nowhere today"
        )
        yield self._policy.resource.diagnostic(
            SAME_PRIORITY,
            message,
            ("spec", "priority"),
            hint="give each policy a priority of its own",
            related_objects=tuple(names),
        )

    def _shadowed(self) -> Iterator[Diagnostic]:
        """Prove that rules of the policy never count. Fewer policies prove less, so the widest ones are enough."""
        index, policy = self._index, self._policy
        selected, is_new = index.pods.names(policy.namespaces), index.may_select_new(policy.namespaces)
        above = [other for other in index.selecting(selected, self._reference, is_new) if _may_settle(other, policy)]
        # NetworkPolicies never apply in a new namespace, so they settle nothing where the policy may select one.
        above = [other for other in above if other.tier is not TierName.NAMESPACE or not is_new]
        above.sort(key=lambda other: -len(index.pods.names(other.namespaces)))
        policies = policy, *above[:MAX_EARLIER_POLICIES]
        small = with_model(Snapshot.of([other.resource for other in policies]), policies)
        yield from RuleWalk(HypotheticalSnapshot(small, {}), self._reference).shadowed()

    def _others(self, policies: Iterable[TieredPolicy]) -> list[TieredPolicy]:
        return [policy for policy in policies if policy.reference != self._reference]


def _is_among(pods: Collection[tuple[str, str]], subject: Endpoint) -> bool:
    return (subject.namespace, subject.name) in pods


def _may_settle(other: TieredPolicy, policy: TieredPolicy) -> bool:
    """Whether a policy comes before another of the Admin or Baseline tier, or has its priority."""
    order = list(TIERS)
    if other.tier is not policy.tier:
        return order.index(other.tier) < order.index(policy.tier)
    return other.priority <= policy.priority or not policy.has_priority


def _are_tied(policy: TieredPolicy, other: TieredPolicy) -> bool:
    return (
        policy.has_priority and other.has_priority and policy.tier is other.tier and policy.priority == other.priority
    )

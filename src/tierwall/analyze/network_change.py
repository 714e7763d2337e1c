"""Checks one network policy in a large cluster: the findings of `network` that have to do with this policy.

The checks are those of `tierwall check`. They run on a small snapshot that has the policies which matter to the one in
question, and two pods of each sort that these tell apart (`network.reach.pod_index`). Subjects of a policy are looked
at some namespaces at a time, until the time is over: a policy that selects everything overrides as many NetworkPolicies
as there are.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from math import inf

from tierwall.analyze.network import MAX_STAND_INS, RuleWalk
from tierwall.analyze.network_index import MAX_NAMESPACES, NetworkIndex, is_large, number_of_parts, with_model
from tierwall.analyze.network_meetings import MeetingSearch, MeetingWitness
from tierwall.analyze.network_selection import SelectionCheck
from tierwall.analyze.selected import SelectedPods
from tierwall.core.diagnostics import Diagnostic
from tierwall.core.reference import Reference
from tierwall.core.words import join_names
from tierwall.network.model.endpoints import Endpoint
from tierwall.network.model.model import network_model
from tierwall.network.model.policies import (
    fail_closed_warnings,
    is_shadow,
    read_policy,
)
from tierwall.network.model.rules import (
    TIERS,
    TieredPolicy,
    TierName,
)
from tierwall.network.reach.endpoint_sets import EndpointSets
from tierwall.network.reach.exposure import HypotheticalPod, HypotheticalSnapshot, with_stand_ins
from tierwall.network.reach.pod_index import PodIndex
from tierwall.resources.resource import Resource
from tierwall.resources.snapshot import Snapshot
from tierwall.resources.validity import is_understood

# The most policies above one that is searched for rules that never count.
MAX_EARLIER_POLICIES = 64
SAME_PRIORITY, SHADOWED = "TW216", "TW207"
# The findings of `network` that have to do with one policy.
CODES = ("TW201", "TW202", "TW203", "TW204", "TW205", SHADOWED, "TW208", "TW212", "TW213", SAME_PRIORITY, "TW217")
# Those that the parts of the check may find.
_OF_SELECTION = frozenset(("TW204", "TW205", "TW213", "TW214"))
_OF_COMPARISON = frozenset(("TW201", "TW202", "TW203", "TW212", SAME_PRIORITY))
# How many namespaces are looked at closely, and the most rules, peers and ports there of all policies together. With
# more there is a crowd.
FIRST, CROWD = 8, 300
# In a crowd: hypothetical pods, the other policies that tell these apart, and NetworkPolicies that are named.
MAX_FUTURE, MAX_LEADING, MAX_NAMED = 60, 16, 8


class NetworkChangeCheck:
    """The check of one policy as if it were in the cluster, in place of the one with its name."""

    def __init__(
        self,
        index: NetworkIndex,
        resource: Resource,
        end_of_look: float = inf,
        end_of_proofs: float = inf,
        among: Collection[str] | None = None,
        codes: Collection[str] = CODES,
    ) -> None:
        """A look at other policies ends at `end_of_look`, by `time.thread_time`, and proofs at `end_of_proofs`.

        In a crowd, only the policies `among` it are looked at. What may find none of these codes is left out.
        """
        self._index, self._end_of_look, self._among = index, end_of_look, among
        self._end_of_proofs, self._codes = end_of_proofs, frozenset(codes)
        self._policy = read_policy(index.snapshot, resource)
        self._reference = resource.reference
        # The policies that share the tier and the priority.
        self.tied = [other for other in self._others(index.admin.values()) if _are_tied(other, self._policy)]
        # Further NetworkPolicies that the policy overrides, and whether there was time to count them all.
        self.counted: set[Reference] = set()
        self.is_complete = True
        # Whether there was time to compare all policies of its subjects with it, and to prove which rules never count.
        self.is_compared = self.is_proved = True

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
        if is_known and self._codes & _OF_SELECTION:
            yield from self._selection()
        disputed: set[str] = set()
        for finding in self._compared() if self._codes & _OF_COMPARISON else ():
            if finding.code == "TW201":
                subject = str(finding.reference)
                disputed |= set(finding.related_objects) if subject == str(self._reference) else {subject}
            if self._is_certain(finding, is_known):
                yield finding
        if is_known:
            yield from self._same_priority([tied for tied in self.tied if str(tied.reference) not in disputed])
        if is_known and policy.tier is not TierName.NAMESPACE and SHADOWED in self._codes:
            yield from self._shadowed()

    def _is_certain(self, finding: Diagnostic, is_known: bool) -> bool:
        """Whether the policy that a finding is about is understood."""
        about = finding.reference
        if about is None or about == self._reference:
            return is_known
        policies = self._index.local.get(about.namespace, {}) if about.namespace else self._index.admin
        return about not in policies or is_understood(self._index.snapshot, policies[about].resource)

    def _selection(self) -> Iterator[Diagnostic]:
        declared = [namespace.name for namespace in self._index.snapshot.of_kind("", "Namespace")]
        yield from SelectionCheck(SelectedPods(self._index, self._policy), [self._policy], declared).findings()

    def _compared(self) -> Iterator[Diagnostic]:
        """Yield what the policy overrides, is overridden by and disagrees with."""
        index, policy = self._index, self._policy
        if policy.tier is TierName.NAMESPACE:
            names, is_new = [policy.resource.namespace], False
        else:
            selected = index.pods.names(policy.namespaces)
            tied = frozenset[str]().union(*map(index.pods.names, {other.namespaces for other in self.tied}))
            local = index.local if policy.tier is TierName.ADMIN else {}
            names = sorted(selected & (tied | {name for name, policies in local.items() if policies}))
            is_new = bool(self.tied) and index.may_select_new(policy.namespaces)
        first = names[:FIRST]
        policies = [policy, *index.selecting(first, self._reference, is_new)]
        if number_of_parts(policies, CROWD) <= CROWD:
            if any(other.tier is not TierName.NAMESPACE for other in policies) and (names or is_new):
                yield from self._look(policies, first, is_new)
            if names[FIRST:]:
                self._count(names[FIRST:])
            return
        yield from self._meet(names, is_new)

    def _look(
        self, policies: Sequence[TieredPolicy], namespaces: Collection[str], is_new: bool
    ) -> Iterator[Diagnostic]:
        """Yield what a close look at some policies finds, on existing and on hypothetical pods."""
        small = self._index.small(policies, namespaces)
        leading = network_model(small).tied_policies
        hypothetical = with_stand_ins(small, True, MAX_STAND_INS, first=namespaces, leading=leading)
        with_model(hypothetical.snapshot, policies)
        known = self._index.pods.namespaces

        def is_wanted(subject: Endpoint) -> bool:
            return subject.namespace in namespaces or (is_new and subject.namespace not in known)

        walk = RuleWalk(hypothetical, self._reference, is_wanted, self._end_of_look)
        walk.walk()
        self.is_compared = self.is_compared and not walk.skipped
        yield from walk.equal_priorities()
        yield from walk.overridden_policies()

    def _count(self, namespaces: Sequence[str]) -> None:
        """Count the NetworkPolicies that the policy overrides in further namespaces."""
        others = self._index.selecting(namespaces, self._reference)
        search = self._search(others, PodIndex(), namespaces)
        search.search(other for other in others if other.tier is TierName.NAMESPACE)
        self.counted |= search.denied.keys() | search.opened.keys()
        self.is_complete = search.is_whole

    def _search(self, others: Sequence[TieredPolicy], future: PodIndex, subjects: Collection[str]) -> MeetingSearch:
        """Begin a search with pods of some namespaces as subjects."""
        sets = EndpointSets(self._index.pods, future, self._index.blocks((self._policy, *others)))
        return MeetingSearch(self._policy, others, sets, sets.inside(subjects), self._end_of_look, self._index.rules_at)

    def _meet(self, namespaces: Sequence[str], is_new: bool) -> Iterator[Diagnostic]:
        """Yield where the policy meets a crowd of others."""
        policy = self._policy
        others = self._index.selecting(namespaces, self._reference, is_new)
        local = [other for other in others if other.tier is TierName.NAMESPACE]
        admin = [other for other in others if other.tier is TierName.ADMIN]
        match policy.tier:
            case TierName.NAMESPACE:
                candidates = admin
            case TierName.BASELINE:
                candidates = self.tied
            case TierName.ADMIN:
                candidates = [*self.tied, *local]
        stand_ins = self._stand_ins(candidates, namespaces[:FIRST])
        future = PodIndex()
        future.update(stand_ins.snapshot)
        new = future.namespaces.keys() - self._index.pods.namespaces.keys() if is_new else ()
        search = self._search(others, future, {*namespaces, *new})
        search.search(other for other in candidates if self._among is None or str(other.reference) in self._among)
        self.is_complete = self.is_compared = search.is_whole
        yield from self._met(search, stand_ins.pods)

    def _stand_ins(self, policies: Sequence[TieredPolicy], namespaces: Sequence[str]) -> HypotheticalSnapshot:
        """Return hypothetical pods that the policy and some others tell apart, and their namespaces; nothing else."""
        known = self._index.pods.namespaces
        chosen = [self._policy, *policies[:MAX_LEADING]]
        homes = known if len(known) <= MAX_NAMESPACES else namespaces
        declared = (self._index.snapshot.get("", "Namespace", "", name) for name in homes)
        small = with_model(Snapshot.of([*filter(None, declared), *(each.resource for each in chosen)]), chosen)
        leading = network_model(small).tied_policies
        made = with_stand_ins(small, True, MAX_FUTURE, first=namespaces, leading=leading)
        # A namespace that exists has the labels that it has.
        pods = {name: pod for name, pod in made.pods.items() if name[0] in homes or name[0] not in known}
        spaces = {name for name, _ in pods}
        return HypotheticalSnapshot(
            Snapshot.of(
                [
                    *(pod for pod in made.snapshot.of_kind("", "Pod") if (pod.namespace, pod.name) in pods),
                    *(space for space in made.snapshot.of_kind("", "Namespace") if space.name in spaces),
                ]
            ),
            pods,
        )

    def _met(self, search: MeetingSearch, future: Mapping[tuple[str, str], HypotheticalPod]) -> Iterator[Diagnostic]:
        """Yield findings about meetings: of overridden NetworkPolicies the first few, and the others are counted."""
        if search.disagreeing:
            yield self._finding("TW201", self._policy, search.disagreeing, search, future)
        if self._policy.tier is TierName.NAMESPACE:
            for meetings in filter(None, (search.denied, search.opened)):
                yield self._finding("TW203", self._policy, meetings, search, future)
            return
        overridden = search.opened | search.denied
        for reference in list(overridden)[:MAX_NAMED]:
            meeting = overridden.pop(reference)
            yield self._finding("TW203", meeting.other, {self._reference: meeting}, search, future)
        self.counted |= overridden.keys()

    def _finding(
        self,
        code: str,
        about: TieredPolicy,
        meetings: Mapping[Reference, MeetingWitness],
        search: MeetingSearch,
        future: Mapping[tuple[str, str], HypotheticalPod],
    ) -> Diagnostic:
        names = tuple(sorted(map(str, meetings)))
        first = meetings[min(meetings, key=str)]
        example = search.example(first, future)
        if code == "TW201":
            message = f"{about.reference} and {join_names(names, 3)} have the same priority and disagree on {example}"
        else:
            message = f"{join_names(names, 3)} overrides part of {about.reference}, such as {example}"
        return about.resource.diagnostic(
            code,
            message,
            ("spec",),
            places=tuple(sorted({meeting.place for meeting in meetings.values()})) if code != "TW201" else (),
            related_objects=names,
            example=example,
        )

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
        walk = RuleWalk(HypotheticalSnapshot(small, {}), self._reference, end_of_proofs=self._end_of_proofs)
        yield from walk.shadowed()
        self.is_proved = not walk.shadows.is_over

    def _others(self, policies: Iterable[TieredPolicy]) -> list[TieredPolicy]:
        return [policy for policy in policies if policy.reference != self._reference]


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

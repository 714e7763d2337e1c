"""How every policy's settings fare at all places that requests can reach, whatever the request (profile docs).

Each place is asked by the merge for any request; a setting takes effect if it may be in force at one of them. The
status of a policy is what attachment says of it, and what merging means for it as a whole (docs/gateway.md#status).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from tierwall.attach.status import MergeStatus, PolicyStatus, ancestors
from tierwall.attach.target import ACCESS_POLICIES, GATEWAY_POLICIES, attachments
from tierwall.core.answer import Reason
from tierwall.core.diagnostics import Diagnostic, input_error
from tierwall.core.stack import Tier
from tierwall.core.words import join_names
from tierwall.gateway.decide import Candidate, LevelSettings, LosingCandidate, MergedField, merger, possible_winners
from tierwall.gateway.model.conditional import ANY_REQUEST
from tierwall.gateway.model.fields import FIELDS, PHASES, Phase, Section
from tierwall.gateway.model.places import LevelName, RequestPlace, levels, prospective_places, reachable_places
from tierwall.gateway.sentence import BEATS
from tierwall.resources.finder import ResourceFinder
from tierwall.resources.once import per_snapshot
from tierwall.resources.resource import Resource
from tierwall.resources.snapshot import Snapshot

# How many others a message of a status names before it counts the rest.
_NAMED = 5


class SettingEffect:
    """What becomes of one setting of one policy, over all places."""

    def __init__(self, candidate: Candidate) -> None:
        self.candidate = candidate
        self.in_force = False
        # By the name of the winner.
        self.beaten_by: dict[str, LosingCandidate] = {}
        # Policies of equal precedence that set the field too, and whether this one comes before them.
        self.rivals: dict[str, tuple[Candidate, bool]] = {}


class FieldOverlap(NamedTuple):
    """Two candidates of a stack that both count (a union), or of which the upper replaces the lower."""

    lower: Candidate
    lower_level: LevelName
    upper: Candidate
    upper_level: LevelName


class PolicyEffects:
    """The fates of all settings of all policies, and what replaced or joined what."""

    def __init__(self, snapshot: Snapshot, places: Iterable[RequestPlace]) -> None:
        self.replaced: dict[tuple[Resource, Resource, str], FieldOverlap] = {}
        self.joined: dict[tuple[Resource, Resource, str], FieldOverlap] = {}
        self._fates: dict[Resource, dict[str, SettingEffect]] = {}
        self._able: dict[tuple[Section, Phase, object], Mapping[str, Tier[Candidate]]] = {}
        merges = [merger(snapshot, "docs", phase, ANY_REQUEST) for phase in PHASES]
        seen: set[object] = set()
        for asked in places:
            for section, there in levels(asked, "docs").items():
                for merging in merges if section == "traffic" else merges[:1]:
                    heard = merging.heard(section, there)
                    # Many ways share their levels; a stack is looked at once.
                    key = section, merging.phase, tuple(level.identity for level, _ in heard)
                    if key not in seen:
                        seen.add(key)
                        for merged in merging.settled(self._contending(heard, section, merging.phase)).values():
                            self._note(merged)

    def of(self, policy: Resource) -> Mapping[str, SettingEffect]:
        """The fate of each setting that was met at some place, by field."""
        return self._fates.get(policy, {})

    def _contending(self, heard: LevelSettings, section: Section, phase: Phase) -> LevelSettings:
        """What can win at its level. What cannot is beaten there already, at every place that has the level."""
        contending: LevelSettings = []
        for level, tiers in heard:
            key = section, phase, level.identity
            if key not in self._able:
                self._able[key] = {path: self._able_to_win(path, tier) for path, tier in tiers.items()}
            contending.append((level, self._able[key]))
        return contending

    def _able_to_win(self, path: str, tier: Tier[Candidate]) -> Tier[Candidate]:
        if FIELDS[path].union or len(tier.policies) == 1:
            return tier
        oldest, *others = tier.policies
        for younger in others:
            self._fate(oldest).rivals.setdefault(str(younger.source), (younger, True))
            self._fate(younger).rivals.setdefault(str(oldest.source), (oldest, False))
        winners = possible_winners(tier.policies)
        for candidate in tier.policies[len(winners) :]:
            self._lost(LosingCandidate(candidate, tier.name, Reason.LOSES_TIE, winners[-1], tier.name))
        return tier._replace(policies=winners)

    def _note(self, merged: MergedField) -> None:
        for candidate in merged.taken:
            self._fate(candidate).in_force = True
        for beaten in merged.beaten():
            self._lost(beaten)
        union, path = merged.field.union, merged.field.path
        overlaps = self.joined if union else self.replaced
        counting = merged.stack[: merged.last + 1]
        for number, tier in enumerate(counting):
            for lower in tier.policies:
                if is_allow(lower) if union else not lower.locks:
                    for above in counting[number + 1 :]:
                        for upper in above.policies:
                            key = lower.resource, upper.resource, path
                            if lower.resource is not upper.resource and key not in overlaps:
                                overlaps[key] = FieldOverlap(lower, LevelName(tier.name), upper, LevelName(above.name))

    def _fate(self, candidate: Candidate) -> SettingEffect:
        fates = self._fates.setdefault(candidate.resource, {})
        path = candidate.written.field.path
        if path not in fates:
            fates[path] = SettingEffect(candidate)
        return fates[path]

    def _lost(self, beaten: LosingCandidate) -> None:
        if beaten.candidate.resource is not beaten.winner.resource:
            self._fate(beaten.candidate).beaten_by.setdefault(str(beaten.winner.source), beaten)


def is_allow(candidate: Candidate) -> bool:
    """Whether a candidate for a union field is an Allow, which is the default action."""
    value = candidate.written.value
    return isinstance(value, dict) and value.get("action", "Allow") == "Allow"


@per_snapshot
def policy_effects(snapshot: Snapshot) -> PolicyEffects:
    """The standings of a snapshot, over all places that a request can reach."""
    return PolicyEffects(snapshot, reachable_places(snapshot))


@per_snapshot
def prospective_effects(snapshot: Snapshot) -> PolicyEffects:
    """The standings over the places that may come."""
    return PolicyEffects(snapshot, prospective_places(snapshot))


def statuses(snapshot: Snapshot, *references: str) -> list[PolicyStatus]:
    """The status of every AgentgatewayPolicy and AccessPolicy, or of those named; InputError for names not found."""
    policies = [
        policy
        for kinds in (GATEWAY_POLICIES, ACCESS_POLICIES)
        for policy in attachments(snapshot, kinds, admitted=False).policies
    ]
    if references:
        problems: list[Diagnostic] = []
        finder = ResourceFinder(snapshot, problems)
        policies = [policy for reference in references for policy in finder.among("policy", reference, policies)]
        if problems:
            raise input_error(problems)
    in_order = sorted(set(policies), key=lambda policy: (policy.kind, policy.namespace, policy.name, policy.group))
    return [PolicyStatus(policy, ancestors(snapshot, policy, merge_standing(snapshot, policy))) for policy in in_order]


def merge_standing(snapshot: Snapshot, policy: Resource) -> MergeStatus:
    """The standing of one policy over all places that requests can reach (profile docs)."""
    fates = policy_effects(snapshot).of(policy)
    conflicts, overridden = {}, {}
    for path in sorted(fates):
        fate = fates[path]
        if fate.rivals:
            others = sorted(fate.rivals)
            before = [name for name in others if not fate.rivals[name][1]]
            if before:
                verb = "comes" if len(before) == 1 else "come"
                conflicts[path] = f"{join_names(before, _NAMED)} {verb} first"
            else:
                conflicts[path] = f"this policy comes before {join_names(others, _NAMED)}"
        if not fate.in_force and fate.beaten_by:
            overridden[path] = "; ".join(
                f"{winner} ({beaten.winner_level}) {BEATS[beaten.reason]}"
                for winner, beaten in sorted(fate.beaten_by.items())[:_NAMED]
            )
    return MergeStatus(conflicts, overridden, bool(fates) and len(overridden) == len(fates))

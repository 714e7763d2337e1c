"""The effects of every policy's settings over all places that requests can reach, for any request, under a profile.

Fields are merged at each place for any request. A setting takes effect if it may be in force at one of the places. The
status of a policy combines its attachment with the result of the merge as a whole (docs/gateway.md#status).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from tierwall.attach.status import MergeStatus, PolicyStatus, StatusCondition, ancestors, bounded_message
from tierwall.attach.target import ACCESS_POLICIES, GATEWAY_POLICIES, attachments
from tierwall.core.answer import Reason
from tierwall.core.stack import Tier
from tierwall.core.words import join_names
from tierwall.gateway.decide import Candidate, LevelSettings, LosingCandidate, MergedField, merger, possible_winners
from tierwall.gateway.model.conditional import ANY_REQUEST
from tierwall.gateway.model.enforcement import settings_of, unenforced_settings
from tierwall.gateway.model.fields import FIELDS, PHASES, Phase, Profile, Section, unread_fields
from tierwall.gateway.model.places import RequestPlace, levels, prospective_places, reachable_places
from tierwall.gateway.sentence import BEATS, UNREAD, UNREAD_BY_DATA_PLANE
from tierwall.resources.once import per_snapshot
from tierwall.resources.resource import Resource
from tierwall.resources.snapshot import Snapshot

# A status message names this many other policies at most, and counts the rest.
_MAX_NAMES = 5


class SettingEffect:
    """The effect of one setting of one policy over all places."""

    def __init__(self, candidate: Candidate) -> None:
        self.candidate = candidate
        self.in_force = False
        # By the winner's reference.
        self.beaten_by: dict[str, LosingCandidate] = {}
        # Policies of equal precedence that also set the field, and whether this one comes before them.
        self.rivals: dict[str, tuple[Candidate, bool]] = {}


class FieldOverlap(NamedTuple):
    """Two candidates of a stack. Both count if the field is a union; otherwise the upper one replaces the lower one."""

    lower: Candidate
    lower_level: str
    upper: Candidate
    upper_level: str


class PolicyEffects:
    """The effects of all settings of all policies, and which candidates replaced or joined which."""

    def __init__(self, snapshot: Snapshot, places: Iterable[RequestPlace], profile: Profile) -> None:
        self.replaced: dict[tuple[Resource, Resource, str], FieldOverlap] = {}
        self.joined: dict[tuple[Resource, Resource, str], FieldOverlap] = {}
        self._effects: dict[Resource, dict[str, SettingEffect]] = {}
        self._winners: dict[tuple[Section, Phase, object], Mapping[str, Tier[Candidate]]] = {}
        mergers = [merger(snapshot, profile, phase, ANY_REQUEST) for phase in PHASES]
        seen: set[object] = set()
        for place in places:
            for section, section_levels in levels(place, profile).items():
                for merging in mergers if section == "traffic" else mergers[:1]:
                    settings = merging.levels_with_settings(section, section_levels)
                    # Many places share their levels; each combination of levels is merged once.
                    key = section, merging.phase, tuple(level.identity for level, _ in settings)
                    if key not in seen:
                        seen.add(key)
                        contending = self._contending(settings, section, merging.phase)
                        for merged in merging.merge_fields(contending).values():
                            self._record(merged)

    def effects_of(self, policy: Resource) -> Mapping[str, SettingEffect]:
        """Return the effect of each setting that applies at some place, by field."""
        return self._effects.get(policy, {})

    def _contending(self, settings: LevelSettings, section: Section, phase: Phase) -> LevelSettings:
        """Keep the candidates that can win their own level. The others lose at every place that has the level."""
        contending: LevelSettings = []
        for level, tiers in settings:
            key = section, phase, level.identity
            if key not in self._winners:
                self._winners[key] = {path: self._keep_winners(path, tier) for path, tier in tiers.items()}
            contending.append((level, self._winners[key]))
        return contending

    def _keep_winners(self, path: str, tier: Tier[Candidate]) -> Tier[Candidate]:
        if FIELDS[path].union or len(tier.policies) == 1:
            return tier
        oldest, *others = tier.policies
        for younger in others:
            self._effect(oldest).rivals.setdefault(str(younger.source), (younger, True))
            self._effect(younger).rivals.setdefault(str(oldest.source), (oldest, False))
        winners = possible_winners(tier.policies)
        for candidate in tier.policies[len(winners) :]:
            self._record_loser(LosingCandidate(candidate, tier.name, Reason.LOSES_TIE, winners[-1], tier.name))
        return tier._replace(policies=winners)

    def _record(self, merged: MergedField) -> None:
        for candidate in merged.in_force:
            self._effect(candidate).in_force = True
        for loser in merged.losers():
            self._record_loser(loser)
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
                                overlaps[key] = FieldOverlap(lower, tier.name, upper, above.name)

    def _effect(self, candidate: Candidate) -> SettingEffect:
        effects = self._effects.setdefault(candidate.resource, {})
        path = candidate.written.field.path
        if path not in effects:
            effects[path] = SettingEffect(candidate)
        return effects[path]

    def _record_loser(self, loser: LosingCandidate) -> None:
        if loser.candidate.resource is not loser.winner.resource:
            self._effect(loser.candidate).beaten_by.setdefault(str(loser.winner.source), loser)


def is_allow(candidate: Candidate) -> bool:
    """Whether a candidate for a union field is an Allow, which is the default action."""
    value = candidate.written.value
    return isinstance(value, dict) and value.get("action", "Allow") == "Allow"


@per_snapshot
def policy_effects(snapshot: Snapshot, profile: Profile) -> PolicyEffects:
    """Return the effects over all places that a request can reach."""
    return PolicyEffects(snapshot, reachable_places(snapshot), profile)


@per_snapshot
def prospective_effects(snapshot: Snapshot) -> PolicyEffects:
    """Return the effects over the places that may be added later (profile docs)."""
    return PolicyEffects(snapshot, prospective_places(snapshot), "docs")


def policies_with_ancestors(snapshot: Snapshot) -> Iterator[Resource]:
    """Yield every AgentgatewayPolicy and AccessPolicy."""
    for kinds in (GATEWAY_POLICIES, ACCESS_POLICIES):
        yield from attachments(snapshot, kinds, admitted=False).policies


def policy_status(snapshot: Snapshot, policy: Resource, profile: Profile) -> PolicyStatus:
    """Return the status of one of these policies."""
    return PolicyStatus(policy, ancestors(snapshot, policy, merge_status(snapshot, policy, profile)))


def merge_status(snapshot: Snapshot, policy: Resource, profile: Profile) -> MergeStatus:
    """Return what merging means for one policy over all places that requests can reach."""
    effects = policy_effects(snapshot, profile).effects_of(policy)
    conflicts, overridden = {}, {}
    for path in sorted(effects):
        effect = effects[path]
        if effect.rivals:
            others = sorted(effect.rivals)
            before = [name for name in others if not effect.rivals[name][1]]
            if before:
                verb = "comes" if len(before) == 1 else "come"
                conflicts[path] = f"{join_names(before, _MAX_NAMES)} {verb} first"
            else:
                conflicts[path] = f"this policy comes before {join_names(others, _MAX_NAMES)}"
        if not effect.in_force and effect.beaten_by:
            overridden[path] = "; ".join(
                f"{winner} ({loser.winner_level}) {BEATS[loser.reason]}"
                for winner, loser in sorted(effect.beaten_by.items())[:_MAX_NAMES]
            )
    unread = {written.field.path: UNREAD for written in unread_fields(policy)}
    if profile != "docs":
        known = policy_effects(snapshot, "docs").effects_of(policy)
        unread |= dict.fromkeys(sorted(known.keys() - effects.keys()), UNREAD_BY_DATA_PLANE)
    overridden |= unread
    settings = effects.keys() | unread.keys()
    is_never_effective = bool(settings) and len(overridden) == len(settings)
    return MergeStatus(conflicts, overridden, is_never_effective, enforced(policy))


def enforced(policy: Resource) -> tuple[StatusCondition, ...]:
    """Return `Enforced` if Envoy does not enforce all of a policy where Tierwall serves the Gateway, or nothing."""
    if (policy.group, policy.kind) not in GATEWAY_POLICIES or not (missing := unenforced_settings(policy)):
        return ()
    is_all = {part.name for part in missing} >= settings_of(policy)
    reason = "NotEnforced" if is_all else "PartiallyEnforced"
    message = bounded_message(list(dict.fromkeys(map(str, missing))))
    return (StatusCondition("Enforced", False, reason, message),)

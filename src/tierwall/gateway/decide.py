"""Merging: the most specific level wins each field, ties go to the oldest policy, Override locks, unions take all.

agentgateway, "Policy merging"; docs/semantics.md#union-fields-add-up and the points after it. Every level that sets a
field is a tier of the field's stack. Its candidates come from the policies there (oldest first, then by name) or from
the inline sections.

The same code merges for one request and for any request. For any request the conditions are unknown, so each
conditional candidate may be present or absent, independently of the others. A candidate is then in force if some
outcome of the conditions puts it in force. A candidate that is present for every request is `certain`; for one request
all candidates are certain.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeAlias, assert_never

from msgspec import Struct

from tierwall.attach.target import GATEWAY_POLICIES, AttachedPolicies, attachments
from tierwall.core.answer import Reason
from tierwall.core.reference import Reference
from tierwall.core.stack import CombiningRule, Stack, Tier, most_specific
from tierwall.gateway.detail import Setting
from tierwall.gateway.model.conditional import ANY_REQUEST, NO_FACTS, NOTHING, RequestFacts, select_value
from tierwall.gateway.model.fields import (
    FIELDS,
    LEAST_SPECIFIC_WINS,
    SECTIONS,
    Phase,
    PolicyField,
    Profile,
    Section,
    WrittenField,
    fields_written_by,
    has_override,
    override_locks,
    written_fields,
)
from tierwall.gateway.model.places import AttachedLevel, InlineLevel, Level, RequestPlace, levels
from tierwall.resources.once import per_snapshot
from tierwall.resources.resource import Resource
from tierwall.resources.snapshot import Snapshot

# Looked up once, because every merge of a field compares with them.
_LESS_SPECIFIC, _LOSES_TIE = Reason.LESS_SPECIFIC, Reason.LOSES_TIE
_LOCKED_BY_OVERRIDE, _LEAST_SPECIFIC_KEPT = Reason.LOCKED_BY_OVERRIDE, Reason.LEAST_SPECIFIC_KEPT
_MOST_SPECIFIC = CombiningRule.MOST_SPECIFIC


class Candidate(Struct, frozen=True):
    """The value that one object offers for one field. Answers name the object by `source`."""

    source: Reference
    resource: Resource
    path: tuple[str | int, ...]
    value: Any
    entry: int | None
    override: bool
    written: WrittenField
    # Whether the object offers the value for every request.
    certain: bool
    # Whether more specific levels are ignored when this candidate wins its own level.
    locks: bool

    @property
    def has_value(self) -> bool:
        """Whether there is a value: false if a conditional list wins and then selects no entry."""
        return self.value is not NOTHING


class LosingCandidate(Struct, frozen=True):
    """A candidate that is not in force, with the winner, the winner's level, and the reason."""

    candidate: Candidate
    level: str
    reason: Reason
    winner: Candidate
    winner_level: str


class MergedField(Struct, frozen=True):
    """The merge of one field at one place. `in_force` are the candidates that count, least specific first.

    `last` is the most specific tier that counts, and `ended_by` is the reason why later tiers do not. `decisive` is the
    tier that certainly sets the field and so replaces the tiers before it, or -1 if no tier is. For one request the
    decisive tier is the last one.
    """

    field: PolicyField
    stack: Stack[Candidate]
    in_force: tuple[Candidate, ...]
    decisive: int
    last: int
    ended_by: Reason | None
    conflict: bool

    @property
    def setting(self) -> Setting | None:
        """The setting in force, or None if the field is not set."""
        winner = self.in_force[0]
        if not winner.has_value:
            return None
        if not self.field.union:
            return Setting(winner.value, (winner.source,))
        values = [candidate.value for candidate in self.in_force]
        return Setting(values, tuple(candidate.source for candidate in self.in_force), union=True)

    def losers(self) -> Iterator[LosingCandidate]:
        """Yield every candidate that is not in force, once for each tier it belongs to."""
        sources = {candidate.source for candidate in self.in_force}
        for number, tier in enumerate(self.stack):
            lost = [candidate for candidate in tier.policies if candidate.source not in sources]
            if lost:
                reason, winner, level = self._winner_over(number)
                yield from (LosingCandidate(candidate, tier.name, reason, winner, level) for candidate in lost)

    def _winner_over(self, number: int) -> tuple[Reason, Candidate, str]:
        """Return why the losers of a tier lose, which candidate wins instead, and its level."""
        if number > self.last and self.ended_by is not None:
            tier = self.stack[self.last]
            return self.ended_by, next(other for other in tier.policies if other.locks and other.certain), tier.name
        if number < self.decisive:
            tier, reason = self.stack[self.decisive], _LESS_SPECIFIC
        else:
            tier, reason = self.stack[number], _LOSES_TIE
        return reason, possible_winners(tier.policies)[-1], tier.name


# The levels of a place that set fields of a section, least specific first, each with one tier per field.
LevelSettings: TypeAlias = list[tuple[Level, Mapping[str, Tier[Candidate]]]]


class _PolicySettings(Struct, frozen=True):
    """The candidates of one section of a policy, and its conditional lists that select no entry."""

    candidates: tuple[Candidate, ...]
    selecting_nothing: tuple[WrittenField, ...]


class Merger:
    """Merges fields under one profile and phase, for one request or for any, and caches the tiers of each level.

    INVARIANT: cached values depend only on the snapshot and the request, so two threads that compute one agree on it.
    """

    def __init__(self, snapshot: Snapshot, profile: Profile, phase: Phase, facts: RequestFacts) -> None:
        self.snapshot = snapshot
        self.profile = profile
        self.phase = phase
        self.facts = facts
        self._override_locks = {section: override_locks(section, profile, phase) for section in SECTIONS}
        self._least_specific_wins = LEAST_SPECIFIC_WINS[profile]
        self._index: AttachedPolicies = attachments(snapshot, GATEWAY_POLICIES, admitted=True)
        self._tiers_by_level: dict[tuple[Section, object], Mapping[str, Tier[Candidate]]] = {}
        self._settings_by_policy: dict[tuple[Resource, Section], _PolicySettings] = {}

    def merge_at(self, place: RequestPlace) -> dict[str, MergedField]:
        """Merge every field that a level of the place sets, in the order of the schema."""
        merged: dict[str, MergedField] = {}
        for section, section_levels in levels(place, self.profile).items():
            merged |= self.merge_fields(self.levels_with_settings(section, section_levels))
        return merged

    def levels_with_settings(self, section: Section, section_levels: Iterable[Level]) -> LevelSettings:
        """Return the levels that set at least one field of a section, with their tiers."""
        with_tiers = [(level, self._tiers(level, section)) for level in section_levels]
        return [(level, tiers) for level, tiers in with_tiers if tiers]

    def merge_fields(self, settings: LevelSettings) -> dict[str, MergedField]:
        """Merge each field of a section over its levels."""
        stacks: dict[str, list[Tier[Candidate]]] = {}
        for _, tiers in settings:
            for path, tier in tiers.items():
                stacks.setdefault(path, []).append(tier)
        return {
            path: self._merge_field(FIELDS[path], tuple(stacks[path]))
            for path in sorted(stacks, key=_ORDER.__getitem__)
        }

    def lists_selecting_nothing(self, place: RequestPlace) -> Iterator[tuple[str, Resource, WrittenField]]:
        """Yield the conditional lists of policies at this place that set nothing, because they select no entry."""
        for section, section_levels in levels(place, self.profile).items():
            for level in section_levels:
                for policy in self._index.at(level.place) if isinstance(level, AttachedLevel) else ():
                    for written in self._by_policy(policy, section).selecting_nothing:
                        yield level.label, policy, written

    def _merge_field(self, field: PolicyField, stack: Stack[Candidate]) -> MergedField:
        last, locked = most_specific(stack, _any_locks if field.union else _winner_locks)
        ended_by = None
        if locked:
            least = field.path in self._least_specific_wins
            ended_by = _LEAST_SPECIFIC_KEPT if least else _LOCKED_BY_OVERRIDE
        if field.union:
            # A policy that is attached at two levels counts once, at the less specific one.
            by_source: dict[Reference, Candidate] = {}
            for tier in stack[: last + 1]:
                for candidate in tier.policies:
                    by_source.setdefault(candidate.source, candidate)
            return MergedField(field, stack, tuple(by_source.values()), 0, last, ended_by, conflict=False)
        in_force: tuple[Candidate, ...] = ()
        decisive = last
        while decisive >= 0:
            winners = possible_winners(stack[decisive].policies)
            in_force = (*winners, *in_force)
            if winners[-1].certain:
                break
            decisive -= 1
        # The decisive tier replaces the tiers before it, except for candidates that lock the field.
        for tier in stack[:decisive] if decisive > 0 else ():
            in_force = (*(candidate for candidate in possible_winners(tier.policies) if candidate.locks), *in_force)
        return MergedField(field, stack, in_force, decisive, last, ended_by, any(map(_several_policies, stack)))

    def _tiers(self, level: Level, section: Section) -> Mapping[str, Tier[Candidate]]:
        key = section, level.identity
        tiers = self._tiers_by_level.get(key)
        if tiers is None:
            by_field: dict[str, list[Candidate]] = {}
            for candidate in self._candidates(level, section):
                by_field.setdefault(candidate.written.field.path, []).append(candidate)
            tiers = self._tiers_by_level[key] = {
                path: Tier(level.label, tuple(candidates), _MOST_SPECIFIC) for path, candidates in by_field.items()
            }
        return tiers

    def _candidates(self, level: Level, section: Section) -> Iterator[Candidate]:
        match level:
            case AttachedLevel():
                for policy in self._index.at(level.place):
                    yield from self._by_policy(policy, section).candidates
            case InlineLevel():
                for inline in level.inline:
                    for written in written_fields(section, inline.value):
                        candidate = self._candidate(written, inline.source, inline.resource, inline.path, False)
                        if candidate is not None:
                            yield candidate
            case _:
                assert_never(level)

    def _by_policy(self, policy: Resource, section: Section) -> _PolicySettings:
        key = policy, section
        settings = self._settings_by_policy.get(key)
        if settings is None:
            override, prefix = has_override(policy), ("spec", section)
            candidates, selecting_nothing = [], []
            for written in fields_written_by(policy, section, self.phase):
                candidate = self._candidate(written, policy.reference, policy, prefix, override)
                if candidate is not None:
                    candidates.append(candidate)
                elif written.entries is not None:
                    selecting_nothing.append(written)
            settings = _PolicySettings(tuple(candidates), tuple(selecting_nothing))
            self._settings_by_policy[key] = settings
        return settings

    def _candidate(
        self,
        written: WrittenField,
        source: Reference,
        resource: Resource,
        prefix: tuple[str | int, ...],
        override: bool,
    ) -> Candidate | None:
        selected = select_value(written, self.facts, self.profile)
        if selected is None:
            return None
        field = written.field
        # If the least specific value wins a field, every candidate for it acts as a lock.
        locks = (override and self._override_locks[field.section]) or field.path in self._least_specific_wins
        path = (*prefix, *written.path)
        value, entry, certain = selected.value, selected.entry, selected.certain
        return Candidate(source, resource, path, value, entry, override, written, certain, locks)


_ORDER = {path: number for number, path in enumerate(FIELDS)}


def possible_winners(candidates: tuple[Candidate, ...]) -> tuple[Candidate, ...]:
    """Return the candidates of a level that can win it: all up to the first certain one. Not for union fields."""
    for number, candidate in enumerate(candidates, 1):
        if candidate.certain:
            return candidates[:number]
    return candidates


def _several_policies(tier: Tier[Candidate]) -> bool:
    return len(tier.policies) > 1 and tier.policies[0].resource is not tier.policies[1].resource


def _winner_locks(tier: Tier[Candidate]) -> bool:
    """Whether the winner of a level certainly locks the field. Age decides first; the loser of a tie locks nothing."""
    for candidate in tier.policies:
        if not candidate.locks:
            return False
        if candidate.certain:
            return True
    return False


def _any_locks(tier: Tier[Candidate]) -> bool:
    """Whether any candidate of a level certainly locks a union field; all of them are in force."""
    return any(candidate.locks and candidate.certain for candidate in tier.policies)


def merger(snapshot: Snapshot, profile: Profile, phase: Phase, facts: RequestFacts = NO_FACTS) -> Merger:
    """Return the merger of a snapshot. Those without facts, and for any request, are cached with the snapshot."""
    cached = facts is NO_FACTS or facts is ANY_REQUEST
    return _cached_merger(snapshot, profile, phase, facts) if cached else Merger(snapshot, profile, phase, facts)


@per_snapshot
def _cached_merger(snapshot: Snapshot, profile: Profile, phase: Phase, facts: RequestFacts) -> Merger:
    return Merger(snapshot, profile, phase, facts)

"""Merging: per field the most specific level wins, ties go to the oldest, Override locks, unions take all.

agentgateway, "Policy merging"; docs/semantics.md#union-fields-add-up and the points after it. A level that says
something about a field is a tier of the field's stack; its candidates are what the policies there (oldest first, then
by name) or the inline sections say.

The same merge answers for one request and for any request. Of any request conditions are not known, so a candidate may
be there or not, each on its own; then what is in force is everything that some outcome of the conditions puts in force.
A candidate that is there whatever the request is `certain`; for one request all are.
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
from tierwall.gateway.model.places import AttachedLevel, InlineLevel, Level, LevelName, RequestPlace, levels
from tierwall.resources.once import per_snapshot
from tierwall.resources.resource import Resource
from tierwall.resources.snapshot import Snapshot

# Looked up here once, because every merge of a field compares with them.
_LESS_SPECIFIC, _LOSES_TIE = Reason.LESS_SPECIFIC, Reason.LOSES_TIE
_LOCKED_BY_OVERRIDE, _LEAST_SPECIFIC_KEPT = Reason.LOCKED_BY_OVERRIDE, Reason.LEAST_SPECIFIC_KEPT
_MOST_SPECIFIC = CombiningRule.MOST_SPECIFIC


class Candidate(Struct, frozen=True):
    """What one object says about one field; `source` is how answers name the object."""

    source: Reference
    resource: Resource
    path: tuple[str | int, ...]
    value: Any
    entry: int | None
    override: bool
    written: WrittenField
    # Whether the object says it whatever the request is.
    certain: bool
    # Whether nothing more specific counts where this one wins at its level.
    locks: bool

    @property
    def sets(self) -> bool:
        """Whether there is a value: not so where a conditional list wins and then selects nothing."""
        return self.value is not NOTHING


class LosingCandidate(Struct, frozen=True):
    """A candidate that is not in force: which one is instead, at which level, and why."""

    candidate: Candidate
    level: str
    reason: Reason
    winner: Candidate
    winner_level: str


class MergedField(Struct, frozen=True):
    """How a field is settled at a place: `taken` are the candidates in force, least specific first.

    `last` is the most specific tier that counts, and `ended_by` why those above it do not. `decisive` is the tier that
    surely says something and so replaces those below it, or -1 where none does; for one request it is the last.
    """

    field: PolicyField
    stack: Stack[Candidate]
    taken: tuple[Candidate, ...]
    decisive: int
    last: int
    ended_by: Reason | None
    conflict: bool

    @property
    def setting(self) -> Setting | None:
        """What is in force, or None where the field is not set."""
        winner = self.taken[0]
        if not winner.sets:
            return None
        if not self.field.union:
            return Setting(winner.value, (winner.source,))
        values = [candidate.value for candidate in self.taken]
        return Setting(values, tuple(candidate.source for candidate in self.taken), union=True)

    def beaten(self) -> Iterator[LosingCandidate]:
        """Every candidate that is not in force, at each tier it stands at."""
        in_force = {candidate.source for candidate in self.taken}
        for number, tier in enumerate(self.stack):
            lost = [candidate for candidate in tier.policies if candidate.source not in in_force]
            if lost:
                reason, winner, level = self._beating(number)
                yield from (LosingCandidate(candidate, tier.name, reason, winner, level) for candidate in lost)

    def _beating(self, number: int) -> tuple[Reason, Candidate, str]:
        """Why what is not in force at a tier is not, what is instead, and at which level."""
        if number > self.last and self.ended_by is not None:
            tier = self.stack[self.last]
            return self.ended_by, next(other for other in tier.policies if other.locks and other.certain), tier.name
        if number < self.decisive:
            tier, reason = self.stack[self.decisive], _LESS_SPECIFIC
        else:
            tier, reason = self.stack[number], _LOSES_TIE
        return reason, possible_winners(tier.policies)[-1], tier.name


# The levels of a place that say something about the fields of a section, least specific first, with a tier a field.
LevelSettings: TypeAlias = list[tuple[Level, Mapping[str, Tier[Candidate]]]]


class _PolicySettings(Struct, frozen=True):
    """What a section of a policy says about its fields, and the lists in it that select nothing."""

    candidates: tuple[Candidate, ...]
    abstaining: tuple[WrittenField, ...]


class Merger:
    """Merging under one profile and phase, for one request or any; what the levels say is remembered.

    INVARIANT: what is remembered follows from the snapshot and the request, so threads that compute it twice agree.
    """

    def __init__(self, snapshot: Snapshot, profile: Profile, phase: Phase, facts: RequestFacts) -> None:
        self.snapshot = snapshot
        self.profile = profile
        self.phase = phase
        self._facts = facts
        self._override_locks = {section: override_locks(section, profile, phase) for section in SECTIONS}
        self._least_specific_wins = LEAST_SPECIFIC_WINS[profile]
        self._index: AttachedPolicies = attachments(snapshot, GATEWAY_POLICIES, admitted=True)
        self._said: dict[tuple[Section, object], Mapping[str, Tier[Candidate]]] = {}
        self._of_policy: dict[tuple[Resource, Section], _PolicySettings] = {}

    def at(self, asked: RequestPlace) -> dict[str, MergedField]:
        """How every field that anything says something about is settled, in the order of the schema."""
        merged: dict[str, MergedField] = {}
        for section, there in levels(asked, self.profile).items():
            merged |= self.settled(self.heard(section, there))
        return merged

    def heard(self, section: Section, there: Iterable[Level]) -> LevelSettings:
        """Those of the levels of a place that say something about a section."""
        said = [(level, self._tiers(level, section)) for level in there]
        return [(level, tiers) for level, tiers in said if tiers]

    def settled(self, heard: LevelSettings) -> dict[str, MergedField]:
        """How each field of a section is settled by what is heard about it."""
        stacks: dict[str, list[Tier[Candidate]]] = {}
        for _, tiers in heard:
            for path, tier in tiers.items():
                stacks.setdefault(path, []).append(tier)
        return {
            path: self._settle(FIELDS[path], tuple(stacks[path])) for path in sorted(stacks, key=_ORDER.__getitem__)
        }

    def abstaining(self, asked: RequestPlace) -> Iterator[tuple[LevelName, Resource, WrittenField]]:
        """What policies at this place write without setting anything, because their list selects no entry."""
        for section, there in levels(asked, self.profile).items():
            for level in there:
                for policy in self._index.at(level.place) if isinstance(level, AttachedLevel) else ():
                    for said in self._by_policy(policy, section).abstaining:
                        yield level.name, policy, said

    def _settle(self, field: PolicyField, stack: Stack[Candidate]) -> MergedField:
        last, locked = most_specific(stack, _any_locks if field.union else _winner_locks)
        ended_by = None
        if locked:
            least = field.path in self._least_specific_wins
            ended_by = _LEAST_SPECIFIC_KEPT if least else _LOCKED_BY_OVERRIDE
        if field.union:
            # A policy that is attached at two levels counts once, at the lower.
            once: dict[Reference, Candidate] = {}
            for tier in stack[: last + 1]:
                for candidate in tier.policies:
                    once.setdefault(candidate.source, candidate)
            return MergedField(field, stack, tuple(once.values()), 0, last, ended_by, conflict=False)
        taken: tuple[Candidate, ...] = ()
        decisive = last
        while decisive >= 0:
            able = possible_winners(stack[decisive].policies)
            taken = (*able, *taken)
            if able[-1].certain:
                break
            decisive -= 1
        # Of what the decisive tier replaces, only a lock may still be in force.
        for tier in stack[:decisive] if decisive > 0 else ():
            taken = (*(candidate for candidate in possible_winners(tier.policies) if candidate.locks), *taken)
        return MergedField(field, stack, taken, decisive, last, ended_by, any(map(_several_policies, stack)))

    def _tiers(self, level: Level, section: Section) -> Mapping[str, Tier[Candidate]]:
        key = section, level.identity
        tiers = self._said.get(key)
        if tiers is None:
            said: dict[str, list[Candidate]] = {}
            for candidate in self._read(level, section):
                said.setdefault(candidate.written.field.path, []).append(candidate)
            tiers = self._said[key] = {path: Tier(level.name, tuple(said[path]), _MOST_SPECIFIC) for path in said}
        return tiers

    def _read(self, level: Level, section: Section) -> Iterator[Candidate]:
        match level:
            case AttachedLevel():
                for policy in self._index.at(level.place):
                    yield from self._by_policy(policy, section).candidates
            case InlineLevel():
                for inline in level.inline:
                    for said in written_fields(section, inline.value):
                        candidate = self._candidate(said, inline.source, inline.resource, inline.path, False)
                        if candidate is not None:
                            yield candidate
            case _:
                assert_never(level)

    def _by_policy(self, policy: Resource, section: Section) -> _PolicySettings:
        key = policy, section
        said = self._of_policy.get(key)
        if said is None:
            override, prefix = has_override(policy), ("spec", section)
            candidates, abstaining = [], []
            for writing in fields_written_by(policy, section, self.phase):
                candidate = self._candidate(writing, policy.reference, policy, prefix, override)
                if candidate is not None:
                    candidates.append(candidate)
                elif writing.entries is not None:
                    abstaining.append(writing)
            said = self._of_policy[key] = _PolicySettings(tuple(candidates), tuple(abstaining))
        return said

    def _candidate(
        self, said: WrittenField, source: Reference, resource: Resource, prefix: tuple[str | int, ...], override: bool
    ) -> Candidate | None:
        choice = select_value(said, self._facts, self.profile)
        if choice is None:
            return None
        field = said.field
        # The least specific of a field that keeps it is as good as locked.
        locks = (override and self._override_locks[field.section]) or field.path in self._least_specific_wins
        path = (*prefix, *said.path)
        return Candidate(source, resource, path, choice.value, choice.entry, override, said, choice.certain, locks)


_ORDER = {path: number for number, path in enumerate(FIELDS)}


def possible_winners(candidates: tuple[Candidate, ...]) -> tuple[Candidate, ...]:
    """Those of a level that can win there, unless the field is a union: all up to the first that is certain."""
    for number, candidate in enumerate(candidates, 1):
        if candidate.certain:
            return candidates[:number]
    return candidates


def _several_policies(tier: Tier[Candidate]) -> bool:
    return len(tier.policies) > 1 and tier.policies[0].resource is not tier.policies[1].resource


def _winner_locks(tier: Tier[Candidate]) -> bool:
    """Whether the winner of a level surely locks. It is settled by age first; the loser of a tie locks nothing."""
    for candidate in tier.policies:
        if not candidate.locks:
            return False
        if candidate.certain:
            return True
    return False


def _any_locks(tier: Tier[Candidate]) -> bool:
    """Of a union every policy of the level is in force, so any of them locks."""
    return any(candidate.locks and candidate.certain for candidate in tier.policies)


def merger(snapshot: Snapshot, profile: Profile, phase: Phase, facts: RequestFacts = NO_FACTS) -> Merger:
    """The merge of a snapshot; without facts, and for any request, it is the same each time."""
    kept = facts is NO_FACTS or facts is ANY_REQUEST
    return _merge(snapshot, profile, phase, facts) if kept else Merger(snapshot, profile, phase, facts)


@per_snapshot
def _merge(snapshot: Snapshot, profile: Profile, phase: Phase, facts: RequestFacts) -> Merger:
    return Merger(snapshot, profile, phase, facts)

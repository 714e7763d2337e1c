"""Merging: per field the most specific level wins, ties go to the oldest, Override locks, unions take all.

agentgateway, "Policy merging"; docs/semantics.md#union-fields-add-up and the points after it. A level that says
something about a field is a tier of the field's stack; its candidates are what the policies there (oldest first, then
by name) or the inline sections say.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, assert_never

from tierwall.attach.index import GATEWAY_POLICIES, Attachments, attachments
from tierwall.attach.place import Place
from tierwall.core.reference import Reference
from tierwall.core.stack import Combining, Stack, Tier, most_specific
from tierwall.gateway.detail import Setting
from tierwall.gateway.model.conditional import NOTHING, Facts, choose
from tierwall.gateway.model.fields import FIELDS, SECTIONS, Field, Written, by_field, has_override, written, written_by
from tierwall.gateway.model.levels import Asked, AttachedLevel, Inline, InlineLevel, Level, LevelName, levels
from tierwall.gateway.model.profile import Phase, Profile, Section, least_specific_wins, override_locks
from tierwall.resources.once import per_snapshot
from tierwall.resources.resource import Resource
from tierwall.resources.snapshot import Snapshot


class Candidate(NamedTuple):
    """What one object says about one field, for one request; `source` is how answers name the object."""

    source: Reference
    resource: Resource
    path: tuple[str | int, ...]
    value: Any
    entry: int | None
    override: bool
    written: Written

    @property
    def sets(self) -> bool:
        """Whether there is a value: not so where a conditional list wins and then selects nothing."""
        return self.value is not NOTHING


class Merged(NamedTuple):
    """How a field is settled at a place: `taken` are the candidates in force, the last of them of tier `number`.

    `locked` says that Override ended the walk there, and that nothing more specific was looked at.
    """

    field: Field
    stack: Stack[Candidate]
    taken: tuple[Candidate, ...]
    number: int
    locked: bool
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


class Merge:
    """Merging under one profile and phase, for one request; what the levels say is remembered between questions.

    INVARIANT: what is remembered follows from the snapshot and the request, so threads that compute it twice agree.
    """

    def __init__(self, snapshot: Snapshot, profile: Profile, phase: Phase, facts: Facts) -> None:
        self.snapshot = snapshot
        self.profile = profile
        self.phase = phase
        self._facts = facts
        self._override_locks = {section: override_locks(section, profile, phase) for section in SECTIONS}
        self._least_specific_wins = least_specific_wins(profile)
        self._index: Attachments = attachments(snapshot, GATEWAY_POLICIES, admitted=True)
        self._at_place: dict[tuple[Section, Place], Mapping[str, tuple[Candidate, ...]]] = {}
        self._of_policy: dict[tuple[Resource, Section], tuple[Candidate, ...]] = {}

    def at(self, asked: Asked) -> dict[str, Merged]:
        """How every field that anything says something about is settled, in the order of the schema."""
        merged: dict[str, Merged] = {}
        for section in SECTIONS:
            stacks: dict[str, list[Tier[Candidate]]] = {}
            for level in levels(asked, section, self.profile):
                for path, candidates in self._candidates(level, section).items():
                    stacks.setdefault(path, []).append(Tier(level.name, candidates, Combining.MOST_SPECIFIC))
            for path in sorted(stacks, key=_ORDER.__getitem__):
                merged[path] = self.settle(FIELDS[path], tuple(stacks[path]))
        return merged

    def abstaining(self, asked: Asked) -> Iterator[tuple[LevelName, Resource, Written]]:
        """What policies at this place write without setting anything, because their list selects no entry."""
        for section in SECTIONS:
            for level in levels(asked, section, self.profile):
                for policy in self._policies(level):
                    for said in written_by(policy, section, self.phase):
                        if said.entries is not None and choose(said, self._facts, self.profile) is None:
                            yield level.name, policy, said

    def settle(self, field: Field, stack: Stack[Candidate]) -> Merged:
        """One field, by its stack."""
        number, locked = self._reached(field, stack)
        if field.union:
            # A policy that is attached at two levels counts once, at the lower.
            taken: dict[Reference, Candidate] = {}
            for tier in stack[: number + 1]:
                for candidate in tier.policies:
                    taken.setdefault(candidate.source, candidate)
            return Merged(field, stack, tuple(taken.values()), number, locked, conflict=False)
        conflict = any(map(_several_policies, stack))
        return Merged(field, stack, stack[number].policies[:1], number, locked, conflict)

    def _reached(self, field: Field, stack: Stack[Candidate]) -> tuple[int, bool]:
        """The tier that settles a field, and whether Override ended the walk there."""
        if field.path in self._least_specific_wins:
            return 0, False
        if not self._override_locks[field.section]:
            return len(stack) - 1, False
        return most_specific(stack, _any_locks if field.union else _winner_locks)

    def _candidates(self, level: Level, section: Section) -> Mapping[str, tuple[Candidate, ...]]:
        match level:
            case AttachedLevel():
                key = section, level.place
                candidates = self._at_place.get(key)
                if candidates is None:
                    policies = self._index.at(level.place)
                    candidates = by_field(said for policy in policies for said in self._by_policy(policy, section))
                    self._at_place[key] = candidates
                return candidates
            case InlineLevel():
                return by_field(said for inline in level.inline for said in self._by_inline(inline, section))
            case _:
                assert_never(level)

    def _policies(self, level: Level) -> tuple[Resource, ...]:
        match level:
            case AttachedLevel():
                return self._index.at(level.place)
            case InlineLevel():
                return ()
            case _:
                assert_never(level)

    def _by_policy(self, policy: Resource, section: Section) -> tuple[Candidate, ...]:
        key = policy, section
        candidates = self._of_policy.get(key)
        if candidates is None:
            candidates = self._of_policy[key] = tuple(self._read(policy, section))
        return candidates

    def _read(self, policy: Resource, section: Section) -> Iterator[Candidate]:
        override = has_override(policy)
        for said in written_by(policy, section, self.phase):
            yield from self._candidate(said, policy.reference, policy, ("spec", section), override)

    def _by_inline(self, inline: Inline, section: Section) -> Iterator[Candidate]:
        if section == "backend":
            for said in written(section, inline.value):
                yield from self._candidate(said, inline.source, inline.resource, inline.path, False)

    def _candidate(
        self, said: Written, source: Reference, resource: Resource, prefix: tuple[str | int, ...], override: bool
    ) -> Iterator[Candidate]:
        choice = choose(said, self._facts, self.profile)
        if choice is not None:
            yield Candidate(source, resource, (*prefix, *said.path), choice.value, choice.entry, override, said)


_ORDER = {path: number for number, path in enumerate(FIELDS)}


def _several_policies(tier: Tier[Candidate]) -> bool:
    return len(tier.policies) > 1 and tier.policies[0].resource is not tier.policies[1].resource


def _winner_locks(tier: Tier[Candidate]) -> bool:
    """A level is settled by age first; the loser of a tie locks nothing."""
    return tier.policies[0].override


def _any_locks(tier: Tier[Candidate]) -> bool:
    """Of a union every policy of the level is in force, so any of them locks."""
    return any(candidate.override for candidate in tier.policies)


def merge(snapshot: Snapshot, profile: Profile, phase: Phase, facts: Facts | None = None) -> Merge:
    """The merge of a snapshot; without facts it is the same each time."""
    return _merge(snapshot, profile, phase) if facts is None else Merge(snapshot, profile, phase, facts)


@per_snapshot
def _merge(snapshot: Snapshot, profile: Profile, phase: Phase) -> Merge:
    return Merge(snapshot, profile, phase, Facts())

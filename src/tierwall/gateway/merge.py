"""Merging: per field the most specific level wins, ties go to the oldest, Override locks, unions take all.

agentgateway, "Policy merging"; docs/semantics.md#union-fields-add-up and the points after it. A level's parties are
what its policies (oldest first, then by name) or inline sections say about the field; the levels that say something are
the field's stack.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal, NamedTuple, TypeAlias

from tierwall.attach.index import GATEWAY_POLICIES, Attachments, attachments
from tierwall.attach.place import Place
from tierwall.gateway.conditional import NOTHING, Facts, Profile, choose
from tierwall.gateway.fields import FIELDS, SECTIONS, Field, Setting, settings
from tierwall.gateway.levels import Asked, Inline, Level, levels
from tierwall.resources.once import per_snapshot
from tierwall.resources.resource import Resource
from tierwall.resources.snapshot import Snapshot

Phase: TypeAlias = Literal["PostRouting", "PreRouting"]
PHASES: tuple[Phase, ...] = ("PostRouting", "PreRouting")


class Party(NamedTuple):
    """What one object says about one field, for one request; `source` is how `from` names the object."""

    source: str
    resource: Resource
    path: tuple[str | int, ...]
    value: Any
    entry: int | None
    override: bool
    setting: Setting

    @property
    def set(self) -> bool:
        """Whether there is a value: not so where a conditional list wins and then selects nothing."""
        return self.value is not NOTHING


class Tier(NamedTuple):
    """A level that says something about a field."""

    level: str
    parties: tuple[Party, ...]


class Outcome(NamedTuple):
    """How a field is settled at a place: `taken` are the parties in force, the last of them of tier `number`.

    `locked` says that Override ended the walk there, and that nothing more specific was looked at.
    """

    field: Field
    stack: tuple[Tier, ...]
    taken: tuple[Party, ...]
    number: int
    locked: bool
    conflict: bool

    @property
    def set(self) -> bool:
        """Whether the field has a value here."""
        return bool(self.taken) and self.taken[0].set

    def document(self) -> dict[str, Any] | None:
        """`{value, from}` as a decision document shows it, or None where the field is not set."""
        if not self.set:
            return None
        if self.field.union:
            return {"value": [one.value for one in self.taken], "from": [one.source for one in self.taken]}
        return {"value": self.taken[0].value, "from": self.taken[0].source}


class Merge:
    """Merging under one profile and phase, for one request; what the levels say is remembered between questions."""

    def __init__(self, snapshot: Snapshot, profile: Profile, phase: Phase, facts: Facts) -> None:
        self.snapshot = snapshot
        self.profile = profile
        self.phase = phase
        self._facts = facts
        self._index: Attachments = attachments(snapshot, GATEWAY_POLICIES, admitted=True)
        self._said: dict[tuple[str, Place], Mapping[str, tuple[Party, ...]]] = {}
        self._by_policy: dict[tuple[Resource, str], tuple[Party, ...]] = {}

    def effective(self, asked: Asked) -> dict[str, Outcome]:
        """How every field that anything says something about is settled, in the order of the schema."""
        found: dict[str, Outcome] = {}
        for section in SECTIONS:
            stacks: dict[str, list[Tier]] = {}
            for level in levels(asked, section, self.profile):
                for path, parties in self._parties(level, section).items():
                    stacks.setdefault(path, []).append(Tier(level.name, parties))
            for path in sorted(stacks, key=_ORDER.__getitem__):
                found[path] = self.settle(FIELDS[path], tuple(stacks[path]))
        return found

    def abstaining(self, asked: Asked) -> Iterator[tuple[Level, Resource, Setting]]:
        """The settings of policies at this place that set nothing, because their list selects no entry."""
        for section in SECTIONS:
            for level in levels(asked, section, self.profile):
                for policy in self._index.at(level.place) if level.place is not None else ():
                    if self._in_phase(policy, section):
                        for setting in settings(section, policy.spec.get(section)):
                            if setting.entries is not None and choose(setting, self._facts, self.profile) is None:
                                yield level, policy, setting

    def settle(self, field: Field, stack: tuple[Tier, ...]) -> Outcome:
        """One field, by its stack."""
        conflict = not field.union and any(_several_policies(tier) for tier in stack)
        locks = field.section == "traffic" and not (self.profile == "agentgateway" and self.phase == "PreRouting")
        if field.union:
            return self._union(field, stack, locks)
        if self.profile == "agentgateway" and field.path == "traffic.buffer":
            # Its code fills the field only while it is unset, going up: the least specific stays.
            return Outcome(field, stack, (stack[0].parties[0],), 0, False, conflict)
        for number, tier in enumerate(stack):
            if locks and tier.parties[0].override:
                return Outcome(field, stack, (tier.parties[0],), number, True, conflict)
        return Outcome(field, stack, (stack[-1].parties[0],), len(stack) - 1, False, conflict)

    def _union(self, field: Field, stack: tuple[Tier, ...], locks: bool) -> Outcome:
        taken: dict[str, Party] = {}
        for number, tier in enumerate(stack):
            for party in tier.parties:
                taken.setdefault(party.source, party)  # attached at two levels: once, at the lower
            if locks and any(party.override for party in tier.parties):
                return Outcome(field, stack, tuple(taken.values()), number, True, False)
        return Outcome(field, stack, tuple(taken.values()), len(stack) - 1, False, False)

    def _parties(self, level: Level, section: str) -> Mapping[str, tuple[Party, ...]]:
        if level.place is None:
            return _grouped(party for inline in level.inline for party in self._inline(inline, section))
        key = section, level.place
        said = self._said.get(key)
        if said is None:
            policies = self._index.at(level.place)
            said = _grouped(party for policy in policies for party in self._policy(policy, section))
            self._said[key] = said
        return said

    def _policy(self, policy: Resource, section: str) -> tuple[Party, ...]:
        key = policy, section
        known = self._by_policy.get(key)
        if known is None:
            known = self._by_policy[key] = tuple(self._of_policy(policy, section))
        return known

    def _of_policy(self, policy: Resource, section: str) -> Iterator[Party]:
        if not self._in_phase(policy, section):
            return
        strategy = policy.spec.get("strategy")
        override = isinstance(strategy, dict) and strategy.get("inheritance") == "Override"
        for setting in settings(section, policy.spec.get(section)):
            yield from self._party(setting, str(policy.reference), policy, ("spec", section), override)

    def _in_phase(self, policy: Resource, section: str) -> bool:
        """The phase is the traffic section's alone; the other sections hold in every question."""
        value = policy.spec.get(section)
        return isinstance(value, dict) and (section != "traffic" or (value.get("phase") or "PostRouting") == self.phase)

    def _inline(self, inline: Inline, section: str) -> Iterator[Party]:
        if section == "backend":
            for setting in settings(section, inline.value):
                yield from self._party(setting, inline.source, inline.resource, inline.path, False)

    def _party(
        self, setting: Setting, source: str, resource: Resource, prefix: tuple[str | int, ...], override: bool
    ) -> Iterator[Party]:
        choice = choose(setting, self._facts, self.profile)
        if choice is not None:
            path = (*prefix, *setting.path)
            yield Party(source, resource, path, choice.value, choice.entry, override, setting)


_ORDER = {path: number for number, path in enumerate(FIELDS)}


def _grouped(parties: Iterator[Party]) -> Mapping[str, tuple[Party, ...]]:
    found: dict[str, list[Party]] = {}
    for party in parties:
        found.setdefault(party.setting.field.path, []).append(party)
    return {path: tuple(several) for path, several in found.items()}


def _several_policies(tier: Tier) -> bool:
    return len(tier.parties) > 1 and tier.parties[0].resource is not tier.parties[1].resource


def merge(snapshot: Snapshot, profile: Profile, phase: Phase, facts: Facts | None = None) -> Merge:
    """The merge of a snapshot; without facts it is the same each time."""
    return _merge(snapshot, profile, phase) if facts is None else Merge(snapshot, profile, phase, facts)


@per_snapshot
def _merge(snapshot: Snapshot, profile: Profile, phase: Phase) -> Merge:
    return Merge(snapshot, profile, phase, Facts())

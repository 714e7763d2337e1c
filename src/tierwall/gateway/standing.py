"""How every policy's settings fare at all places that requests can reach, whatever the request (profile docs).

Conditions are not known here: a conditional list may or may not select, so a setting takes effect at a place if it does
for some outcome of all conditions there. A list that has an entry without a condition always selects.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple, assert_never

from tierwall.attach.index import GATEWAY_POLICIES, attachments
from tierwall.attach.place import Place
from tierwall.core.answer import Reason
from tierwall.gateway.model.fields import FIELDS, SECTIONS, Written, by_field, has_override, written, written_by
from tierwall.gateway.model.levels import Asked, AttachedLevel, InlineLevel, Level, LevelName, levels
from tierwall.gateway.model.places import to_come, ways
from tierwall.gateway.model.profile import PHASES, Phase, Section
from tierwall.resources.once import per_snapshot
from tierwall.resources.resource import Resource
from tierwall.resources.snapshot import Snapshot


class Claim(NamedTuple):
    """What an object says about a field: `certain` if it says it whatever the request is."""

    source: str
    resource: Resource
    path: tuple[str | int, ...]
    written: Written
    certain: bool
    override: bool
    policy: bool


class Rank(NamedTuple):
    """The claims on one field at one level that can win there, oldest first: for a union all of them."""

    level: LevelName
    claims: tuple[Claim, ...]


class Loss(NamedTuple):
    """What won over a setting, at which level, and why."""

    winner: Claim
    level: LevelName
    reason: Reason


class Fate:
    """What became of one setting of one policy, over all places."""

    def __init__(self, claim: Claim) -> None:
        self.claim = claim
        self.effective = False
        # By the name of the winner.
        self.beaten_by: dict[str, Loss] = {}
        # Policies of equal precedence that set the field too, and whether this one comes before them.
        self.rivals: dict[str, tuple[Claim, bool]] = {}


class Overlap(NamedTuple):
    """Two claims of a stack that both count (a union), or of which the upper replaces the lower."""

    lower: Claim
    lower_level: LevelName
    upper: Claim
    upper_level: LevelName


class Standings:
    """The fates of all settings of all policies, and what replaced or joined what."""

    def __init__(self, snapshot: Snapshot, places: Iterable[Asked]) -> None:
        self._index = attachments(snapshot, GATEWAY_POLICIES, admitted=True)
        self._said: dict[tuple[Section, Phase, Place], Mapping[str, tuple[Claim, ...]]] = {}
        self.fates: dict[Resource, dict[str, Fate]] = {}
        self.replaced: dict[tuple[Resource, Resource, str], Overlap] = {}
        self.joined: dict[tuple[Resource, Resource, str], Overlap] = {}
        seen: set[object] = set()
        for asked in places:
            for section in SECTIONS:
                for phase in PHASES if section == "traffic" else PHASES[:1]:
                    self._place(asked, section, phase, seen)

    def of(self, policy: Resource) -> Mapping[str, Fate]:
        """The fate of each setting that was met at some place, by field."""
        return self.fates.get(policy, {})

    def _place(self, asked: Asked, section: Section, phase: Phase, seen: set[object]) -> None:
        here = levels(asked, section, "docs")
        told = [(level, said) for level in here if (said := self._claims(level, section, phase))]
        # Many ways share their levels; a stack is looked at once.
        key = section, phase, tuple(_identity(level) for level, _ in told)
        if key in seen:
            return
        seen.add(key)
        stacks: dict[str, list[Rank]] = {}
        for level, said in told:
            for path, claims in said.items():
                stacks.setdefault(path, []).append(Rank(level.name, claims))
        for path, stack in stacks.items():
            (self._union if FIELDS[path].union else self._single)(stack)

    def _claims(self, level: Level, section: Section, phase: Phase) -> Mapping[str, tuple[Claim, ...]]:
        match level:
            case InlineLevel():
                return by_field(
                    Claim(str(inline.source), inline.resource, (*inline.path, *said.path), said, True, False, False)
                    for inline in level.inline
                    if section == "backend"
                    for said in written(section, inline.value)
                )
            case AttachedLevel():
                key = section, phase, level.place
                if key not in self._said:
                    policies = self._index.at(level.place)
                    said = by_field(claim for policy in policies for claim in _of_policy(policy, section, phase))
                    self._said[key] = {path: self._winners(path, claims, level.name) for path, claims in said.items()}
                return self._said[key]
            case _:
                assert_never(level)

    def _winners(self, path: str, claims: tuple[Claim, ...], level: LevelName) -> tuple[Claim, ...]:
        """The claims that can win at their level: all up to the first that is certain. The rest is beaten there."""
        if FIELDS[path].union:
            return claims
        for other in claims[1:]:
            self._fate(claims[0]).rivals.setdefault(other.source, (other, True))
            self._fate(other).rivals.setdefault(claims[0].source, (claims[0], False))
        last = next((number for number, claim in enumerate(claims) if claim.certain), len(claims) - 1)
        for claim in claims[last + 1 :]:
            self._lost(claim, claims[last], level, Reason.LOSES_TIE)
        return claims[: last + 1]

    def _single(self, stack: list[Rank]) -> None:
        reached = len(stack)
        for number, rank in enumerate(stack):
            if rank.claims[-1].certain and all(claim.override for claim in rank.claims):
                reached = number + 1
                break
        for number, rank in enumerate(stack):
            above = next((other for other in reversed(stack[number + 1 : reached]) if other.claims[-1].certain), None)
            for claim in rank.claims:
                if number >= reached:
                    self._lost(
                        claim, stack[reached - 1].claims[-1], stack[reached - 1].level, Reason.LOCKED_BY_OVERRIDE
                    )
                elif claim.override or above is None:
                    self._fate(claim).effective = True
                else:
                    self._lost(claim, above.claims[-1], above.level, Reason.LESS_SPECIFIC)
            for upper in stack[number + 1 : reached]:
                for claim in rank.claims:
                    if not claim.override:
                        _meet(self.replaced, claim, rank.level, upper)

    def _union(self, stack: list[Rank]) -> None:
        locker: tuple[Claim, LevelName] | None = None
        below: list[Rank] = []
        for rank in stack:
            for claim in rank.claims:
                if locker is not None:
                    self._lost(claim, *locker, Reason.LOCKED_BY_OVERRIDE)
                else:
                    self._fate(claim).effective = True
            if locker is not None:
                continue
            for lower in below:
                for claim in lower.claims:
                    if allows(claim):
                        _meet(self.joined, claim, lower.level, rank)
            below.append(rank)
            locking = next((claim for claim in rank.claims if claim.override), None)
            locker = (locking, rank.level) if locking is not None else None

    def _fate(self, claim: Claim) -> Fate:
        if not claim.policy:
            return Fate(claim)
        fates = self.fates.setdefault(claim.resource, {})
        found = fates.get(claim.written.field.path)
        if found is None:
            found = fates[claim.written.field.path] = Fate(claim)
        return found

    def _lost(self, claim: Claim, winner: Claim, level: LevelName, reason: Reason) -> None:
        if claim.resource is not winner.resource:
            self._fate(claim).beaten_by.setdefault(winner.source, Loss(winner, level, reason))


def allows(claim: Claim) -> bool:
    """Whether a claim on a union field is an Allow, which is the default action."""
    value = claim.written.value
    return isinstance(value, dict) and value.get("action", "Allow") == "Allow"


def _meet(table: dict[tuple[Resource, Resource, str], Overlap], lower: Claim, level: LevelName, upper: Rank) -> None:
    for other in upper.claims:
        if lower.resource is not other.resource:
            key = lower.resource, other.resource, lower.written.field.path
            if key not in table:
                table[key] = Overlap(lower, level, other, upper.level)


@per_snapshot
def standings(snapshot: Snapshot) -> Standings:
    """The standings of a snapshot, over all places that a request can reach."""
    return Standings(snapshot, ways(snapshot))


@per_snapshot
def prospects(snapshot: Snapshot) -> Standings:
    """The standings over the places that may come."""
    return Standings(snapshot, to_come(snapshot))


def _identity(level: Level) -> object:
    match level:
        case AttachedLevel():
            return level.place
        case InlineLevel():
            return tuple((inline.resource, inline.path) for inline in level.inline)
        case _:
            assert_never(level)


def _of_policy(policy: Resource, section: Section, phase: Phase) -> Iterator[Claim]:
    override = has_override(policy)
    for said in written_by(policy, section, phase):
        certain = _certain(said)
        if certain is not None:
            path = ("spec", section, *said.path)
            yield Claim(str(policy.reference), policy, path, said, certain, override, True)


def _certain(said: Written) -> bool | None:
    """Whether an object says something about the field for every request; None if for no request."""
    if said.entries is None:
        return True
    part = said.field.part
    has = [not part or part in (entry.get("policy") or {}) for entry in said.entries]
    if not any(has):
        return None
    return all(has) and any(entry.get("condition") is None for entry in said.entries)

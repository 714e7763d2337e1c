"""Provenance: for every field who set it and where, whom it beat and why, and where the two profiles differ."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from tierwall.core.source import Position
from tierwall.gateway.conditional import PROFILES, Facts, Profile
from tierwall.gateway.merge import Merge, Outcome, Party, Phase, Tier, merge
from tierwall.gateway.notes import notes
from tierwall.gateway.question import Question, conflicts, effective, same
from tierwall.resources.snapshot import Snapshot


class Beaten(NamedTuple):
    """A party that does not count for a field, and why."""

    source: str
    level: str
    why: str
    position: Position | None


def beaten(outcome: Outcome, profile: Profile) -> Iterator[Beaten]:
    """Every party that said something about the field and is not in force."""
    number, winner = outcome.number, outcome.taken[-1]
    in_force = {one.source for one in outcome.taken}
    for here, tier in enumerate(outcome.stack):
        for party in tier.parties:
            if party.source in in_force:
                continue
            if here > number and outcome.locked:
                locking = next(one for one in outcome.stack[number].parties if one.override)
                why = f"{locking.source} ({outcome.stack[number].level}) has Override"
            elif here > number:
                why = f"{profile} keeps the least specific value of this field"
            elif here < number:
                why = f"{outcome.stack[number].level} is more specific"
            else:
                why = f"{winner.source} {_senior(winner, party)}"
            yield Beaten(party.source, tier.level, why, _position(party))


def _tier_of(outcome: Outcome, party: Party) -> Tier:
    """The tier that a party counts at: of a union the lowest that has it."""
    if not outcome.field.union:
        return outcome.stack[outcome.number]
    return next(tier for tier in outcome.stack if any(one.source == party.source for one in tier.parties))


def _senior(one: Party, other: Party) -> str:
    older = one.resource.seniority[:3] != other.resource.seniority[:3]
    return "is older" if older else "is as old and comes first by name"


def _position(party: Party) -> Position | None:
    return party.resource.position(party.path, key=True)


def both(snapshot: Snapshot, phase: Phase, facts: Facts | None) -> Mapping[Profile, Merge]:
    """The merges of both profiles, for `explain` at many places."""
    return {name: merge(snapshot, name, phase, facts) for name in PROFILES}


def explain(snapshot: Snapshot, question: Question, merges: Mapping[Profile, Merge] | None = None) -> dict[str, Any]:
    """The document that `tierwall effective` prints."""
    merges = merges or both(snapshot, question.phase, question.facts)
    found = {name: one.effective(question.asked) for name, one in merges.items()}
    outcomes = found[question.profile]
    return {
        "place": str(question.asked),
        "profile": question.profile,
        "phase": question.phase,
        "effective": effective(outcomes),
        "conflicts": conflicts(outcomes),
        "fields": list(_fields(merges[question.profile], question, outcomes)),
        "profilesDiffer": list(differences(found)),
        "notes": list(notes(snapshot, question.asked)),
    }


def _fields(this: Merge, question: Question, outcomes: Mapping[str, Outcome]) -> Iterator[dict[str, Any]]:
    abstained: dict[str, list[Beaten]] = {}
    for level, policy, setting in this.abstaining(question.asked):
        position = policy.position(("spec", setting.field.section, *setting.path), key=True)
        why = "no entry of its conditional list is selected"
        said = Beaten(str(policy.reference), level.name, why, position)
        abstained.setdefault(setting.field.path, []).append(said)
    for path, outcome in outcomes.items():
        out: dict[str, Any] = {"field": path, **(outcome.document() or {"value": None, "from": None})}
        out["set"] = [_set_by(_tier_of(outcome, party), party) for party in outcome.taken]
        out["over"] = [_document(one) for one in (*beaten(outcome, this.profile), *abstained.pop(path, ()))]
        if outcome.conflict:
            out["conflict"] = True
        yield out
    for path, several in abstained.items():
        yield {"field": path, "value": None, "from": None, "set": [], "over": [_document(one) for one in several]}


def _set_by(tier: Tier, party: Party) -> dict[str, Any]:
    out: dict[str, Any] = {"policy": party.source, "level": tier.level}
    if party.override:
        out["inheritance"] = "Override"
    if party.setting.entries is not None:
        out["entry"] = party.entry
        if not party.set:
            out["note"] = "its conditional list wins and selects no entry: the field is not set"
    return out | _place(_position(party))


def _document(one: Beaten) -> dict[str, Any]:
    return {"policy": one.source, "level": one.level, "why": one.why, **_place(one.position)}


def _place(position: Position | None) -> dict[str, Any]:
    if position is None:
        return {}
    return {"source": {"file": position.file, "line": position.line, "column": position.column}}


def differences(found: Mapping[Profile, Mapping[str, Outcome]]) -> Iterator[dict[str, Any]]:
    """The fields that the two profiles settle differently, with both answers."""
    paths = dict.fromkeys(path for outcomes in found.values() for path in outcomes)
    for path in paths:
        docs, code = (found[name].get(path) for name in PROFILES)
        out = {"field": path, "docs": docs and docs.document(), "agentgateway": code and code.document()}
        disputed = docs is not None and docs.conflict, code is not None and code.conflict
        if disputed[0] != disputed[1]:
            yield out | {"conflict": dict(zip(PROFILES, disputed, strict=True))}
        elif not same(out["docs"], out["agentgateway"]):
            yield out

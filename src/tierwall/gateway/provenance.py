"""Provenance: for every field who set it and where, whom it beat and why, and where the two profiles differ.

Each candidate that a question meets becomes a step of the answer, with the level as its tier and the field as its rule.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from msgspec import Struct

from tierwall.attach.backend import backend_refs
from tierwall.attach.place import BACKEND, ROUTES
from tierwall.attach.section import sub_backends
from tierwall.attach.target import GATEWAY_POLICIES
from tierwall.core.answer import Reason, Step
from tierwall.core.source import Path, Position
from tierwall.core.stack import Tier
from tierwall.core.verdict import StepVerdict
from tierwall.gateway import sentence
from tierwall.gateway.decide import Candidate, MergedField, Merger
from tierwall.gateway.detail import FieldDetail, FieldSetter, ProfileDifference, equal_settings
from tierwall.gateway.model.fields import FIELDS, SECTIONS, Profile, Section, written_fields
from tierwall.gateway.model.places import RequestPlace, levels
from tierwall.resources.once import per_resource
from tierwall.resources.resource import Resource

# In force is Allow, heard without counting is Pass, and a list that selects nothing does not match the request.
VERDICTS = {
    Reason.SETS_FIELD: StepVerdict.ALLOW,
    Reason.JOINS_UNION: StepVerdict.ALLOW,
    Reason.LESS_SPECIFIC: StepVerdict.PASS,
    Reason.LOSES_TIE: StepVerdict.PASS,
    Reason.LOCKED_BY_OVERRIDE: StepVerdict.PASS,
    Reason.LEAST_SPECIFIC_KEPT: StepVerdict.PASS,
    Reason.NO_ENTRY_SELECTED: StepVerdict.NO_MATCH,
}


def field_details(merge: Merger, asked: RequestPlace, merged: Mapping[str, MergedField]) -> Iterator[FieldDetail]:
    """Every field that anything at the place is about, those that nothing sets at the end."""
    abstained = _abstained(merge, asked)
    for path, settled in merged.items():
        beaten = (
            _step(path, lost.level, lost.candidate, lost.reason, sentence.losing_note(lost, merge.profile))
            for lost in settled.beaten()
        )
        over = (*beaten, *abstained.pop(path, ()))
        yield FieldDetail(path, settled.setting, tuple(_setters(settled)), over, settled.conflict)
    for path, steps in abstained.items():
        yield FieldDetail(path, None, (), tuple(steps))


def field_steps(asked: RequestPlace, profile: Profile, details: Iterable[FieldDetail]) -> Iterator[Step]:
    """The steps of all fields: field by field, each from the least specific level to the most specific."""
    ranks = {
        section: {str(level.name): number for number, level in enumerate(there)}
        for section, there in levels(asked, profile).items()
    }
    for detail in details:
        rank = ranks[FIELDS[detail.field].section]
        steps = (*(setter.step for setter in detail.set_by), *detail.over)
        yield from sorted(steps, key=lambda step: rank[step.tier])


def profile_differences(merged: Mapping[Profile, Mapping[str, MergedField]]) -> Iterator[ProfileDifference]:
    """The fields that the two profiles settle differently, with both answers."""
    by_docs, by_agentgateway = merged["docs"], merged["agentgateway"]
    for path in dict.fromkeys((*by_docs, *by_agentgateway)):
        docs, agentgateway = by_docs.get(path), by_agentgateway.get(path)
        difference = ProfileDifference(
            path,
            docs.setting if docs is not None else None,
            agentgateway.setting if agentgateway is not None else None,
            docs is not None and docs.conflict,
            agentgateway is not None and agentgateway.conflict,
        )
        if difference.disputed or not equal_settings(difference.docs, difference.agentgateway):
            yield difference


def _setters(settled: MergedField) -> Iterator[FieldSetter]:
    for candidate in settled.taken:
        if not candidate.sets:
            reason = Reason.NO_ENTRY_SELECTED
        elif settled.field.union:
            reason = Reason.JOINS_UNION
        else:
            reason = Reason.SETS_FIELD
        tier = _tier_of(settled, candidate)
        overrides = settled.ended_by is Reason.LOCKED_BY_OVERRIDE and candidate.override
        locks = overrides and tier is settled.stack[settled.last]
        step = _step(settled.field.path, tier.name, candidate, reason, sentence.winning_note(candidate, locks=locks))
        yield FieldSetter(step, candidate.override, candidate.written.entries is not None, candidate.entry)


def _abstained(merge: Merger, asked: RequestPlace) -> dict[str, list[Step]]:
    """By field, the policies whose conditional list selects nothing, so that they set nothing."""
    steps: dict[str, list[Step]] = {}
    for level, policy, said in merge.abstaining(asked):
        step = Step(
            tier=level,
            verdict=VERDICTS[Reason.NO_ENTRY_SELECTED],
            reason=Reason.NO_ENTRY_SELECTED,
            policy=policy.reference,
            rule=said.field.path,
            note=sentence.SELECTS_NOTHING,
            origin=SettingsOrigin(policy),
            path=("spec", said.field.section, *said.path),
        )
        steps.setdefault(said.field.path, []).append(step)
    return steps


def _step(field: str, level: str, candidate: Candidate, reason: Reason, note: str | None) -> Step:
    return Step(
        tier=level,
        verdict=VERDICTS[reason],
        reason=reason,
        policy=candidate.source,
        rule=field,
        note=note,
        origin=SettingsOrigin(candidate.resource),
        path=candidate.path,
    )


def _tier_of(settled: MergedField, candidate: Candidate) -> Tier[Candidate]:
    """The tier that a candidate counts at: of a union the lowest that has its source."""
    if not settled.field.union:
        return settled.stack[settled.last]
    return next(tier for tier in settled.stack if any(other.source == candidate.source for other in tier.policies))


class SettingsOrigin(Struct, frozen=True):
    """An object as the origin of its settings, each of which stands where its key does: at `timeouts:`.

    To find one position is to read the object's text again, and `effective --all` shows the same few settings at every
    place; so all settings of an object are found together, when the first of them is shown.
    """

    resource: Resource

    def position(self, path: Path = (), key: bool = True) -> Position | None:
        """Where the setting at `path` is written."""
        place = tuple(path)
        positions = _positions(self.resource)
        return positions[place] if place in positions else self.resource.position(place, key=True)


@per_resource
def _positions(resource: Resource) -> Mapping[tuple[str | int, ...], Position | None]:
    return {
        path: resource.position(path, key=True)
        for prefix, section, value in _sections(resource)
        for path in dict.fromkeys((*prefix, *said.path) for said in written_fields(section, value))
    }


def _sections(resource: Resource) -> Iterator[tuple[tuple[str | int, ...], Section, object]]:
    """The sections of a policy, and the inline sections of a backend or a route; each with where it stands."""
    kind = resource.group, resource.kind
    if kind in GATEWAY_POLICIES:
        yield from ((("spec", section), section, resource.spec.get(section)) for section in SECTIONS)
    elif kind == BACKEND:
        yield ("spec", "policies"), "backend", resource.spec.get("policies")
        yield from ((sub.path, "backend", sub.policies) for sub in sub_backends(resource))
    elif kind in ROUTES:
        yield from (((*ref.path, "policies"), "backend", ref.value.get("policies")) for ref in backend_refs(resource))

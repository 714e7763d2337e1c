"""Provenance: which object set each field, which objects it beat and why, and where the two profiles differ.

Each candidate at a place becomes a step of the answer, with the level as its tier and the field as its rule.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from msgspec import Struct

from tierwall.attach.backend import backend_refs
from tierwall.attach.model import INLINE_POLICIES
from tierwall.attach.place import BACKEND, MODEL, ROUTES
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

# A candidate in force is Allow, one that loses is Pass, and a list that selects no entry is NoMatch.
VERDICTS = {
    Reason.SETS_FIELD: StepVerdict.ALLOW,
    Reason.JOINS_UNION: StepVerdict.ALLOW,
    Reason.LESS_SPECIFIC: StepVerdict.PASS,
    Reason.LOSES_TIE: StepVerdict.PASS,
    Reason.LOCKED_BY_OVERRIDE: StepVerdict.PASS,
    Reason.LEAST_SPECIFIC_KEPT: StepVerdict.PASS,
    Reason.NO_ENTRY_SELECTED: StepVerdict.NO_MATCH,
}


def field_details(merging: Merger, place: RequestPlace, merged: Mapping[str, MergedField]) -> Iterator[FieldDetail]:
    """Yield the detail of every field that an object at the place writes; fields that are not set come last."""
    selecting_nothing = _steps_selecting_nothing(merging, place)
    for path, merged_field in merged.items():
        losing = (
            _step(path, loser.level, loser.candidate, loser.reason, sentence.losing_note(loser, merging.profile))
            for loser in merged_field.losers()
        )
        over = (*losing, *selecting_nothing.pop(path, ()))
        setters = tuple(_setters(merging, merged_field))
        yield FieldDetail(path, merged_field.setting, setters, over, merged_field.conflict)
    for path, steps in selecting_nothing.items():
        yield FieldDetail(path, None, (), tuple(steps))


def field_steps(place: RequestPlace, profile: Profile, details: Iterable[FieldDetail]) -> Iterator[Step]:
    """Yield the steps of all fields: field by field, each from the least specific level to the most specific."""
    ranks = {
        section: {level.label: number for number, level in enumerate(section_levels)}
        for section, section_levels in levels(place, profile).items()
    }
    for detail in details:
        rank = ranks[FIELDS[detail.field].section]
        steps = (*(setter.step for setter in detail.set_by), *detail.over)
        yield from sorted(steps, key=lambda step: rank[step.tier])


def profile_differences(merged: Mapping[Profile, Mapping[str, MergedField]]) -> Iterator[ProfileDifference]:
    """Yield the fields that the two profiles merge differently, with both results."""
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


def _setters(merging: Merger, merged_field: MergedField) -> Iterator[FieldSetter]:
    for candidate in merged_field.in_force:
        if not candidate.has_value:
            reason = Reason.NO_ENTRY_SELECTED
        elif merged_field.field.union:
            reason = Reason.JOINS_UNION
        else:
            reason = Reason.SETS_FIELD
        tier = _tier_of(merged_field, candidate)
        overrides = merged_field.ended_by is Reason.LOCKED_BY_OVERRIDE and candidate.override
        locks = overrides and tier is merged_field.stack[merged_field.last]
        note = sentence.winning_note(candidate, merging.facts, merging.profile, locks=locks)
        step = _step(merged_field.field.path, tier.name, candidate, reason, note)
        yield FieldSetter(step, candidate.override, candidate.written.entries is not None, candidate.entry)


def _steps_selecting_nothing(merging: Merger, place: RequestPlace) -> dict[str, list[Step]]:
    """Return, by field, the steps of policies that set nothing because their conditional list selects no entry."""
    steps: dict[str, list[Step]] = {}
    for level, policy, written in merging.lists_selecting_nothing(place):
        step = Step(
            tier=level,
            verdict=VERDICTS[Reason.NO_ENTRY_SELECTED],
            reason=Reason.NO_ENTRY_SELECTED,
            policy=policy.reference,
            rule=written.field.path,
            note=sentence.unselected_note(written, merging.facts, merging.profile),
            origin=SettingsOrigin(policy),
            path=("spec", written.field.section, *written.path),
        )
        steps.setdefault(written.field.path, []).append(step)
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


def _tier_of(merged_field: MergedField, candidate: Candidate) -> Tier[Candidate]:
    """Return the tier at which a candidate counts. For a union it is the least specific one with its source."""
    if not merged_field.field.union:
        return merged_field.stack[merged_field.last]
    return next(tier for tier in merged_field.stack if any(other.source == candidate.source for other in tier.policies))


class SettingsOrigin(Struct, frozen=True):
    """An object as the origin of its settings. The position of a setting is that of its key, such as `timeouts:`.

    Finding a position means reading the object's text again, and `effective --all` shows the same few settings at every
    place. So the positions of all settings of an object are found together when the first one is shown.
    """

    resource: Resource

    def position(self, path: Path = (), key: bool = True) -> Position | None:
        """Return where the setting at `path` is written."""
        full_path = tuple(path)
        positions = _positions(self.resource)
        return positions[full_path] if full_path in positions else self.resource.position(full_path, key=True)


@per_resource
def _positions(resource: Resource) -> Mapping[tuple[str | int, ...], Position | None]:
    if (resource.group, resource.kind) == MODEL:
        policies = ("spec", "policies")
        return {
            (*policies, *keys): resource.position((*policies, name), key=True) for name, keys in INLINE_POLICIES.items()
        }
    return {
        path: resource.position(path, key=True)
        for prefix, section, value in _sections(resource)
        for path in dict.fromkeys((*prefix, *written.path) for written in written_fields(section, value))
    }


def _sections(resource: Resource) -> Iterator[tuple[tuple[str | int, ...], Section, object]]:
    """Yield the sections of a policy, or the inline sections of a backend or a route, each with its path."""
    kind = resource.group, resource.kind
    if kind in GATEWAY_POLICIES:
        yield from ((("spec", section), section, resource.spec.get(section)) for section in SECTIONS)
    elif kind == BACKEND:
        yield ("spec", "policies"), "backend", resource.spec.get("policies")
        yield from ((sub.path, "backend", sub.policies) for sub in sub_backends(resource))
    elif kind in ROUTES:
        yield from (((*ref.path, "policies"), "backend", ref.value.get("policies")) for ref in backend_refs(resource))

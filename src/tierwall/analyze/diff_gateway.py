"""Compares the gateway plane: every setting that two snapshots put in force differently at a place.

docs/compare.md#what-is-compared.

Compared are all places that a request can reach in either snapshot, in both phases and under both profiles, or under
one. Of both, the profile `agentgateway` is named only where it changes in another way than `docs`. Nothing is known of
the request: where only the entries of a `conditional` list differ, `before` and `after` have the whole lists.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from tierwall.analyze.difference import Difference
from tierwall.attach.target import GATEWAY_POLICIES, attachments
from tierwall.gateway.decide import MergedField, merger
from tierwall.gateway.detail import Setting, equal_settings
from tierwall.gateway.model.conditional import ANY_REQUEST, NO_FACTS, RequestFacts
from tierwall.gateway.model.fields import CONDITIONAL, FIELDS, PHASES, PROFILES, Phase, Profile
from tierwall.gateway.model.places import AttachedLevel, RequestPlace, levels, reachable_places
from tierwall.gateway.question import GatewayQuestion
from tierwall.resources.resource import Identity
from tierwall.resources.snapshot import Snapshot

# The values of the keys that name a place, which are the same in both snapshots.
_PlaceKey: TypeAlias = tuple[tuple[str, Any], ...]
_Fields: TypeAlias = Mapping[str, MergedField]
_Settings: TypeAlias = tuple[Setting | None, Setting | None]
_NO_FIELDS: _Fields = {}


def gateway_differences(old: Snapshot, new: Snapshot, profiles: Sequence[Profile] = PROFILES) -> Iterator[Difference]:
    """Yield every setting that appears, disappears, or has another value or another source under these profiles."""
    touched = _TouchedPlaces(old, new)
    if not touched.changed:
        return
    places = _places(old), _places(new)
    for key in dict.fromkeys((*places[0], *places[1])):
        then, now = (of_snapshot.get(key) for of_snapshot in places)
        if then is not None and now is not None and not touched.includes(then, now):
            continue
        for phase in PHASES:
            documented: dict[str, _Settings] = {}
            for profile in profiles:
                changed: dict[str, _Settings] = {}
                for facts in (NO_FACTS, ANY_REQUEST):
                    before = _merged(old, then, profile, phase, facts)
                    after = _merged(new, now, profile, phase, facts)
                    changed = {**dict(_changed(before, after, facts is ANY_REQUEST)), **changed}
                for field, settings in changed.items():
                    # Only the traffic section has phases.
                    if phase != PHASES[0] and FIELDS[field].section != "traffic":
                        continue
                    known = documented.setdefault(field, settings)
                    if known is settings or not all(map(equal_settings, known, settings)):
                        yield _difference(key, (then, now), profile, phase, field, settings)


class _TouchedPlaces:
    """The places that a change can touch: those with a part or a policy that differs."""

    def __init__(self, old: Snapshot, new: Snapshot) -> None:
        self.changed = {
            resource.identity
            for before, after in new.changes(old)
            if before is None or after is None or not after.has_same_content(before)
            for resource in (before, after)
            if resource is not None
        }
        # A definition decides which policies are valid, and so which are attached at all.
        self._everything = any(kind == "CustomResourceDefinition" for _, kind, _, _ in self.changed)
        self._attached = [attachments(snapshot, GATEWAY_POLICIES, admitted=True) for snapshot in (old, new)]

    def includes(self, then: RequestPlace, now: RequestPlace) -> bool:
        """Whether a place may have other settings now than then."""
        if self._everything or any(part.identity in self.changed for part in now.objects):
            return True
        before, after = (list(self._policies(index, place)) for index, place in enumerate((then, now)))
        return before != after or any(policy in self.changed for policy in after)

    def _policies(self, index: int, place: RequestPlace) -> Iterator[Identity]:
        for profile in PROFILES:
            for section_levels in levels(place, profile).values():
                for level in section_levels:
                    if isinstance(level, AttachedLevel):
                        yield from (policy.identity for policy in self._attached[index].at(level.place))


def _places(snapshot: Snapshot) -> dict[_PlaceKey, RequestPlace]:
    return {tuple(_question(place).items()): place for place in reachable_places(snapshot)}


def _question(place: RequestPlace) -> dict[str, Any]:
    """Return the keys of a question about a place; rules with a name go by their name."""
    gateway, listener_set, listener, route, rule, backend, section, parents = place
    question: dict[str, Any] = {}
    if gateway is not None:
        question["gateway"] = f"{gateway.namespace}/{gateway.name}"
    if listener_set is not None:
        question["listenerSet"] = f"{listener_set.namespace}/{listener_set.name}"
    if listener is not None:
        question["listener"] = listener.name
    if parents:
        question["parents"] = tuple(f"{parent.route.reference}#{parent.label}" for parent in parents)
    if route is not None:
        question["route"] = str(route.reference)
        if rule is not None:
            question["rule"] = place.rule_name or rule
    if backend is not None:
        question["backend"] = str(backend.reference)
        if section:
            question["backendSection"] = int(section) if section.isdigit() else section
    return question


def _merged(
    snapshot: Snapshot, place: RequestPlace | None, profile: Profile, phase: Phase, facts: RequestFacts
) -> _Fields:
    return _NO_FIELDS if place is None else merger(snapshot, profile, phase, facts).merge_at(place)


def _changed(before: _Fields, after: _Fields, conditional: bool) -> Iterator[tuple[str, _Settings]]:
    """Yield the fields with different settings; `conditional` compares the lists that depend on the request."""
    read = _whole_lists if conditional else _setting
    for field in dict.fromkeys((*before, *after)):
        then, now = read(before.get(field)), read(after.get(field))
        if not equal_settings(then, now):
            yield field, (then, now)


def _setting(merged: MergedField | None) -> Setting | None:
    return merged.setting if merged is not None else None


def _whole_lists(merged: MergedField | None) -> Setting | None:
    """Return everything that may be in force, the conditional lists as they are written; None without such a list."""
    if merged is None or all(candidate.written.entries is None for candidate in merged.in_force):
        return None
    values = [
        {CONDITIONAL: list(candidate.written.entries)} if candidate.written.entries is not None else candidate.value
        for candidate in merged.in_force
    ]
    sources = tuple(candidate.source for candidate in merged.in_force)
    several = len(values) > 1 or merged.field.union
    return Setting(values if several else values[0], sources, union=several)


def _difference(
    key: _PlaceKey,
    places: tuple[RequestPlace | None, RequestPlace | None],
    profile: Profile,
    phase: Phase,
    field: str,
    settings: _Settings,
) -> Difference:
    question = dict(key)
    if profile != GatewayQuestion().profile:
        question["profile"] = profile
    if phase != GatewayQuestion().phase:
        question["phase"] = phase
    before, after = (setting.with_own_value() if setting is not None else None for setting in settings)
    place = next(place for place in places if place is not None)
    where = str(place)
    if places[0] is None:
        where += " (new)"
    elif places[1] is None:
        where += " (gone)"
    terms = [*([f"profile {profile}"] if "profile" in question else []), *([phase] if "phase" in question else [])]
    if terms:
        where += f" ({', '.join(terms)})"
    return Difference(
        plane="gateway",
        change="alters",
        question=question,
        before=before,
        after=after,
        words=(f"{field} {_in_words(before, after)} at", where, ""),
        field=field,
    )


def _in_words(before: Setting | None, after: Setting | None) -> str:
    if before is None and after is not None:
        return f"is set by {_sources(after)}"
    if after is None and before is not None:
        return f"is no longer set, was by {_sources(before)}"
    assert before is not None
    assert after is not None
    if before.sources == after.sources:
        return f"has another value in {_sources(after)}"
    return f"is now set by {_sources(after)}, was by {_sources(before)}"


def _sources(setting: Setting) -> str:
    return ", ".join(map(str, setting.sources))

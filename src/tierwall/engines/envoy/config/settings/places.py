"""The settings in force at the places that Envoy serves, merged as `tierwall effective` merges them.

The gateway plane decides which value counts; nothing is merged again here. What Envoy does not enforce is said, and
where it restricts, the place is closed. So is a place with a policy that takes no part in merges because admission or
Envoy refuses it: nobody knows what it would have restricted.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from tierwall.attach.listener import Listener
from tierwall.attach.meant_targets import may_mean
from tierwall.attach.place import BACKEND, SERVICE, Place
from tierwall.attach.reach import RouteRule
from tierwall.attach.target import GATEWAY_POLICIES, attachments
from tierwall.core.diagnostics import Diagnostic
from tierwall.engines.envoy.config.agentgateway_backends import backend_target
from tierwall.engines.envoy.config.chain_rule import native_setters
from tierwall.engines.envoy.config.model_backends import OF_MODELS
from tierwall.engines.envoy.config.settings.unenforceable import Unenforceable
from tierwall.engines.envoy.config.usable_snapshot import refusal
from tierwall.gateway.decide import Candidate, MergedField, Merger, merger
from tierwall.gateway.model.conditional import ANY_REQUEST
from tierwall.gateway.model.enforcement import UnenforcedSetting, restricts
from tierwall.gateway.model.fields import PHASES, Phase, Profile, Section
from tierwall.gateway.model.places import AttachedLevel, Level, RequestPlace, levels
from tierwall.gateway.unenforced import in_choosing_order, is_chosen, unenforced_in_force
from tierwall.resources.resource import Identity, Resource
from tierwall.resources.snapshot import Snapshot
from tierwall.resources.validity import is_understood, objections
from tierwall.tool.model import BACKENDS

NOT_ENFORCED, CLOSES = "TW662", "TW663"
# An agent's messages to a language model only go to backends that are one.
_ONLY_FOR_MODELS = "backend.ai."
_ONLY_FOR_SERVERS = "backend.mcp."
_OF_FORWARDED = ("traffic.rateLimit.", "traffic.cors")


class EffectiveField(NamedTuple):
    """A field that is set at a place: its value, or the values of a union, and where they come from."""

    path: str
    value: Any
    candidates: tuple[Candidate, ...]
    # The level of each candidate, which tells its targets apart.
    levels: tuple[Level | None, ...]
    # Whether the value depends on the request; each candidate then replaces those before it.
    is_chosen: bool = False

    @property
    def source(self) -> Candidate:
        """The object that sets the field, or the first of a union."""
        return self.candidates[0]

    @property
    def keeps_host(self) -> bool:
        """Whether backends outside the cluster get the client's host, too."""
        return self.path == "traffic.hostRewrite" and self.value.get("mode") == "None"

    @property
    def sources(self) -> list[str]:
        """The names of all of them."""
        return [str(candidate.source) for candidate in self.candidates]

    @property
    def level(self) -> Level | None:
        """The level of that object."""
        return self.levels[0]

    def owner(self, candidate: Candidate) -> str:
        """Return a text that tells an object and its target apart from others."""
        levels = dict(zip((each.source for each in self.candidates), self.levels, strict=True))
        level = levels[candidate.source]
        return f"{candidate.source} {level.identity if level is not None else ''}"


class PlaceSettings(NamedTuple):
    """The settings of one section and phase at a place that Envoy can enforce, and what it cannot."""

    fields: Mapping[str, EffectiveField]
    # Why requests there are refused, or an empty string.
    closed: str
    diagnostics: tuple[Diagnostic, ...]
    # The policies that have a part in it.
    policies: frozenset[Identity]

    @property
    def of_models(self) -> dict[str, Any]:
        """What is set of requests to language models, by the name below `backend.ai`."""
        return {path.split(".")[-1]: field.value for path, field in self.fields.items() if path in OF_MODELS}


NO_SETTINGS = PlaceSettings({}, "", (), frozenset())


class SettingsReader:
    """Reads the settings in force of one snapshot. `refused` are policies that Envoy refuses, with its words."""

    def __init__(self, snapshot: Snapshot, profile: Profile, refused: Mapping[Identity, str]) -> None:
        self._snapshot = snapshot
        self._profile = profile
        self._refused = refused
        self._mergers: dict[Phase, Merger] = {
            phase: merger(snapshot, profile, phase, ANY_REQUEST) for phase in ("PostRouting", "PreRouting")
        }
        every = attachments(snapshot, GATEWAY_POLICIES, admitted=False)
        self._left_out = {
            policy: words for policy in every.policies if (words := self._left_out_words(policy)) is not None
        }

    def _left_out_words(self, policy: Resource) -> str | None:
        """Return why a policy takes no part in merges although it is there, or None if it takes part."""
        if policy.identity in self._refused:
            return refusal(policy, self._refused[policy.identity]).message
        if is_understood(self._snapshot, policy):
            return None
        words = next(iter(objections(self._snapshot, policy)), "it has fields or values that Tierwall does not know")
        return f"{policy.reference} is refused: {words}"

    def at(self, place: RequestPlace, section: Section, phase: Phase = "PostRouting") -> PlaceSettings:
        """Return the settings of a section at a place in a phase."""
        merging = self._mergers[phase]
        section_levels = levels(place, self._profile)[section]
        merged = merging.merge_fields(merging.levels_with_settings(section, section_levels))
        left_out = self._left_out_at(section_levels) if self._left_out else []
        if not merged and not left_out:
            return NO_SETTINGS
        fields: dict[str, EffectiveField] = {}
        problems: dict[Diagnostic, None] = {}
        closed: list[str] = []
        for policy in left_out:
            closed.append(str(policy.reference))
            message = f"{self._left_out[policy]}: requests to {place} are answered with 500"
            problems[policy.diagnostic(CLOSES, message)] = None
        by_label = {level.label: level for level in section_levels}
        # A closed place needs nothing else. What Envoy refuses must not stay in filters that all routes share.
        for path, field in merged.items() if not left_out else ():
            if not _applies(path, place) or not field.in_force[0].has_value:
                continue
            missing = list(unenforced_in_force(field))
            for candidate, part in missing:
                problems[not_enforced(candidate, part, place if part.restricts else None)] = None
                if part.restricts:
                    closed.append(f"{part.name} of {candidate.source}")
            # What closes the place for a part needs nothing else of the field.
            if not any(part.whole or part.restricts for _, part in missing):
                values = [candidate.value for candidate in field.in_force]
                value = values if field.field.union else values[0]
                candidates = in_choosing_order(field) if is_chosen(field) else field.in_force
                in_order = tuple(
                    next((by_label[label] for label in _level_labels(field, each)), None) for each in candidates
                )
                fields[path] = EffectiveField(path, value, candidates, in_order, is_chosen(field))
        policies = {candidate.resource.identity for field in merged.values() for candidate in field.in_force}
        policies |= {policy.identity for policy in left_out}
        return PlaceSettings(fields, ", ".join(closed), tuple(problems), frozenset(policies))

    def of_rule(self, place: RequestPlace) -> list[tuple[Phase, PlaceSettings]]:
        """Return the settings of a rule on a listener, without those of its backends."""
        read: list[tuple[Phase, PlaceSettings]] = [("PostRouting", self.at(place, "frontend"))]
        return [*read, *((phase, self.at(place, "traffic", phase)) for phase in PHASES)]

    def of_backend(
        self, place: RequestPlace, backend: Resource, port: int, target: str = ""
    ) -> tuple[RequestPlace, PlaceSettings]:
        """Return the place of a backend of a rule, or of a server that it joins, and the settings there."""
        section = str(port) if (backend.group, backend.kind) == SERVICE and port else target
        if not section and (backend.group, backend.kind) == BACKEND:
            known = backend_target(backend)
            section = "" if isinstance(known, str) else known.section
        place = place._replace(backend=backend, section=section)
        return place, self.at(place, "backend")

    def _left_out_at(self, section_levels: Iterable[Level]) -> list[Resource]:
        places = [level.place for level in section_levels if isinstance(level, AttachedLevel)]
        return [policy for policy in self._left_out if may_mean(self._snapshot, policy, places)]


def counting(phase: Phase, settings: PlaceSettings, place: RequestPlace) -> Iterator[EffectiveField]:
    """Yield the settings that count beside what the rules of a place set by themselves.

    That beats policies, except those with Override and those of children.
    """
    native = native_setters([*place.parents, place.route_rule]) if place.route_rule is not None else {}
    for path, field in settings.fields.items():
        is_beaten = path in native and not field.source.locks and chain_position(field, place) <= native[path]
        if phase != "PostRouting" or not is_beaten:
            yield field


def overruling(read: Iterable[tuple[Phase, PlaceSettings]], place: RequestPlace) -> frozenset[str]:
    """Return the fields of policies that beat what the rules of a place set by themselves."""
    fields = (field for phase, each in read if phase == "PostRouting" for field in counting(phase, each, place))
    return frozenset(field.path for field in fields)


def is_filtered_at(place: RequestPlace, read: Iterable[tuple[Phase, PlaceSettings]]) -> bool:
    """Whether limits or CORS must see all requests at a place: Envoy runs these only for requests that it forwards."""
    native = native_setters([*place.parents, place.route_rule]) if place.route_rule is not None else {}
    fields = (path for paths in (native, *(each.fields for _, each in read)) for path in paths)
    return any(path.startswith(_OF_FORWARDED) for path in fields)


def _applies(path: str, place: RequestPlace) -> bool:
    """Whether a field means anything for the backend of a place: only some backends are models or MCP servers."""
    if not path.startswith((_ONLY_FOR_MODELS, _ONLY_FOR_SERVERS)):
        return True
    if place.backend is None:
        return False
    if (place.backend.group, place.backend.kind) == BACKEND:
        return path.split(".")[1] in place.backend.spec
    return path.startswith(_ONLY_FOR_SERVERS) and (place.backend.group, place.backend.kind) in BACKENDS


def _level_labels(field: MergedField, in_force: Candidate) -> Iterator[str]:
    """Yield the labels of the levels that an object in force is attached at."""
    return (tier.name for tier in field.stack if any(candidate is in_force for candidate in tier.policies))


def not_enforced(candidate: Candidate, part: UnenforcedSetting, closed: RequestPlace | None) -> Diagnostic:
    """Return the diagnostic of a part that Envoy does not enforce, and of the place that is closed for it, if any."""
    words = f"Envoy does not enforce `{part.name}` of {candidate.source}: {part.words}"
    path = (*candidate.path, *part.path)
    if closed is None:
        return candidate.resource.diagnostic(NOT_ENFORCED, f"{words}; requests pass without it", path, key=True)
    message = f"{words}; requests to {closed} are answered with 500"
    return candidate.resource.diagnostic(CLOSES, message, path, key=True)


def field_not_enforced(field: EffectiveField, error: Unenforceable, place: RequestPlace | None = None) -> Diagnostic:
    """Return the diagnostic of a field whose value Envoy cannot enforce; the place is closed if the field restricts."""
    part = UnenforcedSetting(field.path, error.path, str(error), restricts(field.path))
    return not_enforced(field.source, part, place if part.restricts else None)


def place_of(gateway: Resource, listener: Listener, chain: Sequence[RouteRule] = ()) -> RequestPlace:
    """Return the place of a listener, or of the last rule of a chain there."""
    place = RequestPlace(gateway, None if listener.owner is gateway else listener.owner, listener)
    if not chain:
        return place
    *parents, (route, rule) = chain
    return place._replace(route=route, rule=rule, parents=tuple(parents))


def chain_position(field: EffectiveField, place: RequestPlace) -> int:
    """Return the number of the rule of a chain whose policies set a field, or -1 if they are before all rules."""
    if not isinstance(field.level, AttachedLevel):
        return -1
    chain = [parent.route for parent in place.parents] + ([place.route] if place.route is not None else [])
    owner = field.level.place.whole
    return next((number for number, route in enumerate(chain) if Place.of(route) == owner), -1)

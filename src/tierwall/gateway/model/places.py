"""The places that a request can reach, and the levels of a place, least specific first.

A place is a way from a listener by a route's rule to a backend, as far as it is named. Only the levels that a question
names take part (docs/semantics.md#nothing-about-a-place-is-inferred); their order depends on the section and the
profile (docs/semantics.md#frontend-levels and the points after it). Routes and ListenerSets are written by others than
the owner of a Gateway or of a backend, so settings there are also defaults for places that do not exist yet.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import Any, NamedTuple, TypeAlias, assert_never

from msgspec import Struct

from tierwall.attach.backend import backend_refs
from tierwall.attach.listener import Listener, gateway_listeners, lets_listeners_in
from tierwall.attach.place import BACKEND, INFERENCE_POOL, SERVICE, Place
from tierwall.attach.reach import RequestPath, gateway_graph
from tierwall.attach.section import rule_name, rules, sections, sub_backends
from tierwall.core.reference import Reference
from tierwall.gateway.model.fields import Profile, Section
from tierwall.resources.resource import Resource
from tierwall.resources.snapshot import Snapshot

_BACKENDS = (SERVICE, BACKEND, INFERENCE_POOL)


class BackendKind(StrEnum):
    """The kinds of backends that a question may name."""

    SERVICE = SERVICE[1]
    AGENTGATEWAY_BACKEND = BACKEND[1]
    INFERENCE_POOL = INFERENCE_POOL[1]


class RequestPlace(NamedTuple):
    """The place that a question asks about; what it does not name is None."""

    gateway: Resource | None = None
    listener_set: Resource | None = None
    # Of the ListenerSet, where one is named.
    listener: Listener | None = None
    route: Resource | None = None
    rule: int | None = None
    backend: Resource | None = None
    section: str = ""

    @property
    def rule_name(self) -> str:
        """The name of the rule, if it has one."""
        if self.route is None or self.rule is None:
            return ""
        return rule_name(rules(self.route)[self.rule])

    @property
    def rule_label(self) -> str:
        """The rule as `from` names it: by its name, or by its number if it has none."""
        return self.rule_name or str(self.rule)

    def __str__(self) -> str:
        words = []
        if self.gateway is not None:
            listener = self.listener if self.listener_set is None else None
            words.append(str(Place.of(self.gateway, listener.name if listener else "")))
        if self.listener_set is not None:
            words.append(str(Place.of(self.listener_set, self.listener.name if self.listener else "")))
        if self.route is not None:
            words.append(f"{self.route.reference}" + (f" rule {self.rule_label}" if self.rule is not None else ""))
        if self.backend is not None:
            words.append(str(Place.of(self.backend, self.section)))
        return ", ".join(words)


class LevelName(StrEnum):
    """The levels, as answers name them."""

    GATEWAY = "Gateway"
    GATEWAY_PORT = "Gateway port"
    LISTENER_SET = "ListenerSet"
    LISTENER_SET_LISTENER = "ListenerSet listener"
    GATEWAY_LISTENER = "Gateway listener"
    ROUTE = "Route"
    RULE = "Route rule"
    BACKEND = "Backend"
    BACKEND_SECTION = "Backend section"
    BACKEND_INLINE = "Backend inline"
    SUB_BACKEND_INLINE = "Sub-backend inline"
    BACKEND_REF_INLINE = "backendRef inline"

    @property
    def before_routing(self) -> bool:
        """Whether the level belongs to the owner of the Gateway or of a ListenerSet."""
        return self in _BEFORE_ROUTING


_BEFORE_ROUTING = frozenset(
    (
        LevelName.GATEWAY,
        LevelName.GATEWAY_PORT,
        LevelName.LISTENER_SET,
        LevelName.LISTENER_SET_LISTENER,
        LevelName.GATEWAY_LISTENER,
    )
)


class InlineSettings(Struct, frozen=True):
    """A backend section written in another object than a policy; `source` is how answers name it."""

    source: Reference
    resource: Resource
    value: Mapping[str, Any]
    path: tuple[str | int, ...]


class AttachedLevel(Struct, frozen=True):
    """A level at which the policies on one place take part."""

    name: LevelName
    place: Place

    @property
    def identity(self) -> Place:
        """What tells the level from all others of a snapshot."""
        return self.place


class InlineLevel(Struct, frozen=True):
    """A level at which inline settings take part."""

    name: LevelName
    inline: tuple[InlineSettings, ...]

    @property
    def identity(self) -> tuple[tuple[Resource, tuple[str | int, ...]], ...]:
        """What tells the level from all others of a snapshot."""
        return tuple((inline.resource, inline.path) for inline in self.inline)


Level: TypeAlias = AttachedLevel | InlineLevel


def levels(asked: RequestPlace, profile: Profile) -> Mapping[Section, tuple[Level, ...]]:
    """The levels that each section is merged over, least specific first."""
    there = {level.name: level for level in (*_attached(asked, profile), *_inline(asked))}
    order = _ORDER[profile]
    if profile == "agentgateway" and asked.backend is not None and asked.backend.kind == BACKEND[1]:
        order = _AGENTGATEWAY_BACKEND
    return {section: tuple(there[name] for name in names if name in there) for section, names in order.items()}


def _attached(asked: RequestPlace, profile: Profile) -> Iterator[Level]:
    """The levels that policies attach to, in no order."""
    gateway, listener_set, listener, route, _, backend, section = asked
    if gateway is not None:
        yield AttachedLevel(LevelName.GATEWAY, Place.of(gateway))
        if listener is not None:
            if listener.port:
                yield AttachedLevel(LevelName.GATEWAY_PORT, Place.of(gateway, port=listener.port))
            # docs/semantics.md#gateway-sections-and-listenersets: the data plane goes by the name alone, so that a
            # policy on `Gateway#web` also reaches the listener `web` of a ListenerSet.
            if listener_set is None or profile == "agentgateway":
                yield AttachedLevel(LevelName.GATEWAY_LISTENER, Place.of(gateway, listener.name))
    if listener_set is not None:
        yield AttachedLevel(LevelName.LISTENER_SET, Place.of(listener_set))
        if listener is not None:
            yield AttachedLevel(LevelName.LISTENER_SET_LISTENER, Place.of(listener_set, listener.name))
    if route is not None:
        yield AttachedLevel(LevelName.ROUTE, Place.of(route))
        if name := asked.rule_name:
            yield AttachedLevel(LevelName.RULE, Place.of(route, name))
    if backend is not None:
        yield AttachedLevel(LevelName.BACKEND, Place.of(backend))
        if section:
            yield AttachedLevel(LevelName.BACKEND_SECTION, Place.of(backend, section))


def _inline(asked: RequestPlace) -> Iterator[Level]:
    """The levels of settings that backends, and references to them, have themselves; in no order."""
    backend, section = asked.backend, asked.section
    if backend is None:
        return
    place = Place.of(backend)
    if place.key == BACKEND:
        policies = backend.spec.get("policies")
        if isinstance(policies, dict):
            inline = InlineSettings(backend.reference, backend, policies, ("spec", "policies"))
            yield InlineLevel(LevelName.BACKEND_INLINE, (inline,))
        # Two groups may each have a provider of the name; the first that is written counts.
        sub = next((sub for sub in sub_backends(backend) if sub.name == section), None) if section else None
        if sub is not None:
            inline = InlineSettings(Place.of(backend, section).reference, backend, sub.policies, sub.path)
            yield InlineLevel(LevelName.SUB_BACKEND_INLINE, (inline,))
    if asked.route is None or asked.rule is None:
        return
    # The rule's references to this backend, and for a Service to this port of it.
    source = Reference(asked.route.kind, asked.route.namespace, asked.route.name, asked.rule_label)
    inlines = tuple(
        InlineSettings(source, asked.route, policies, (*ref.path, "policies"))
        for ref in backend_refs(asked.route)
        if ref.rule == asked.rule
        and ref.place == place
        and (place.key != SERVICE or str(ref.port) == section)
        and isinstance(policies := ref.value.get("policies"), dict)
    )
    if inlines:
        yield InlineLevel(LevelName.BACKEND_REF_INLINE, inlines)


_TRAFFIC = (
    LevelName.GATEWAY,
    LevelName.LISTENER_SET,
    LevelName.LISTENER_SET_LISTENER,
    LevelName.GATEWAY_LISTENER,
    LevelName.ROUTE,
    LevelName.RULE,
)
_DOCS: Mapping[Section, tuple[LevelName, ...]] = {
    "frontend": (LevelName.GATEWAY, LevelName.GATEWAY_PORT, LevelName.GATEWAY_LISTENER),
    "traffic": _TRAFFIC,
    "backend": (
        *_TRAFFIC,
        LevelName.BACKEND,
        LevelName.BACKEND_SECTION,
        LevelName.BACKEND_INLINE,
        LevelName.SUB_BACKEND_INLINE,
        LevelName.BACKEND_REF_INLINE,
    ),
}
# docs/semantics.md#backend-levels-as-implemented, which has another order for an AgentgatewayBackend.
_AGENTGATEWAY: Mapping[Section, tuple[LevelName, ...]] = {
    **_DOCS,
    "backend": (
        LevelName.GATEWAY,
        LevelName.GATEWAY_LISTENER,
        LevelName.BACKEND,
        LevelName.BACKEND_SECTION,
        LevelName.ROUTE,
        LevelName.RULE,
        LevelName.BACKEND_REF_INLINE,
    ),
}
_AGENTGATEWAY_BACKEND: Mapping[Section, tuple[LevelName, ...]] = {
    **_DOCS,
    "backend": (
        LevelName.GATEWAY,
        LevelName.GATEWAY_LISTENER,
        LevelName.BACKEND,
        LevelName.ROUTE,
        LevelName.RULE,
        LevelName.BACKEND_INLINE,
        LevelName.BACKEND_REF_INLINE,
        LevelName.BACKEND_SECTION,
        LevelName.SUB_BACKEND_INLINE,
    ),
}
_ORDER: Mapping[Profile, Mapping[Section, tuple[LevelName, ...]]] = {"docs": _DOCS, "agentgateway": _AGENTGATEWAY}


def reachable_places(snapshot: Snapshot) -> Iterator[RequestPlace]:
    """The places, in a fixed order; a listener without routes is a place of its own."""
    used = set()
    for way in gateway_graph(snapshot).request_paths():
        used.add((way.gateway, way.listener.owner, way.listener.number))
        yield from _along(snapshot, way)
    for gateway in gateway_graph(snapshot).gateways_all:
        for listener in gateway_listeners(snapshot, gateway):
            if (gateway, listener.owner, listener.number) not in used:
                yield _at(gateway, listener)


def prospective_places(snapshot: Snapshot) -> Iterator[RequestPlace]:
    """The places of routes and ListenerSets that may be added, with no policy of their own.

    A route at any listener; a listener where a Gateway lets ListenerSets in; a route to a backend, and to any port of
    a Service, by a listener that already leads to it.
    """
    for gateway in gateway_graph(snapshot).gateways_all:
        if lets_listeners_in(gateway):
            yield RequestPlace(gateway)
        for listener in gateway_listeners(snapshot, gateway):
            yield _at(gateway, listener)
    for way in gateway_graph(snapshot).request_paths():
        for asked in _along(snapshot, way):
            if asked.backend is not None:
                here = asked._replace(route=None, rule=None)
                yield here
                if way.backend is not None and way.backend.place.key == SERVICE:
                    yield from (here._replace(section=port) for port in sections(asked.backend))


def _at(gateway: Resource, listener: Listener) -> RequestPlace:
    return RequestPlace(gateway, None if listener.owner is gateway else listener.owner, listener)


def _along(snapshot: Snapshot, way: RequestPath) -> Iterator[RequestPlace]:
    here = _at(way.gateway, way.listener)._replace(route=way.routes[-1], rule=way.rule)
    backend = way.backend.place.resource(snapshot) if way.backend is not None else None
    if way.backend is None or backend is None or way.backend.place.key not in _BACKENDS:
        yield here
        return
    here = here._replace(backend=backend)
    match BackendKind(backend.kind):
        case BackendKind.SERVICE:
            yield here._replace(section=str(way.backend.port) if way.backend.port else "")
        case BackendKind.AGENTGATEWAY_BACKEND:
            yield from (here._replace(section=name) for name in sections(backend) or ("",))
        case BackendKind.INFERENCE_POOL:
            yield here
        case unknown:
            assert_never(unknown)

"""The places that a request can reach, and the levels of a place, least specific first.

A place is a path from a listener through a route rule to a backend; a question may name all of it or a part. Only the
levels that the question names take part (docs/semantics.md#nothing-about-a-place-is-inferred). Their order depends on
the section and the profile (docs/semantics.md#frontend-levels and the points after it). Routes and ListenerSets often
belong to other people than the Gateway or the backend, so settings of those are also defaults for places that do not
exist yet. A chain of delegation adds the levels of each parent route below those of its child.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import Any, NamedTuple, TypeAlias, assert_never

from msgspec import Struct

from tierwall.attach.backend import backend_refs
from tierwall.attach.listener import Listener, admits_listener_sets, gateway_listeners
from tierwall.attach.model import inline_section
from tierwall.attach.place import BACKEND, INFERENCE_POOL, MODEL, SERVICE, Place
from tierwall.attach.reach import RequestPath, RouteRule, gateway_graph
from tierwall.attach.section import sections, sub_backends
from tierwall.core.reference import Reference
from tierwall.gateway.model.fields import Profile, Section
from tierwall.resources.resource import Resource
from tierwall.resources.snapshot import Snapshot

_BACKENDS = (SERVICE, BACKEND, INFERENCE_POOL, MODEL)


class BackendKind(StrEnum):
    """The backend kinds that a question may name."""

    SERVICE = SERVICE[1]
    AGENTGATEWAY_BACKEND = BACKEND[1]
    INFERENCE_POOL = INFERENCE_POOL[1]
    AGENTGATEWAY_MODEL = MODEL[1]


class RequestPlace(NamedTuple):
    """The place that a question asks about; parts that the question does not name are None."""

    gateway: Resource | None = None
    listener_set: Resource | None = None
    # A listener of the ListenerSet if there is one, otherwise of the Gateway.
    listener: Listener | None = None
    route: Resource | None = None
    rule: int | None = None
    backend: Resource | None = None
    section: str = ""
    # The rules of other routes that delegate to this route, outermost first.
    parents: tuple[RouteRule, ...] = ()

    @property
    def objects(self) -> tuple[Resource, ...]:
        """The objects that the question names."""
        parents = (parent.route for parent in self.parents)
        named = self.gateway, self.listener_set, *parents, self.route, self.backend
        return tuple(resource for resource in named if resource is not None)

    @property
    def route_rule(self) -> RouteRule | None:
        """The rule, if the question names one."""
        return RouteRule(self.route, self.rule) if self.route is not None and self.rule is not None else None

    @property
    def rule_name(self) -> str:
        """The name of the rule, or an empty string if it has none."""
        return self.route_rule.name if self.route_rule is not None else ""

    @property
    def rule_label(self) -> str:
        """The rule as `from` writes it: its name, or its number if it has no name."""
        return self.rule_name or str(self.rule)

    def __str__(self) -> str:
        words = []
        if self.gateway is not None:
            listener = self.listener if self.listener_set is None else None
            words.append(str(Place.of(self.gateway, listener.name if listener else "")))
        if self.listener_set is not None:
            words.append(str(Place.of(self.listener_set, self.listener.name if self.listener else "")))
        words += (f"{parent.route.reference} rule {parent.label}" for parent in self.parents)
        if self.route is not None:
            words.append(f"{self.route.reference}" + (f" rule {self.rule_label}" if self.rule is not None else ""))
        if self.backend is not None:
            words.append(str(Place.of(self.backend, self.section)))
        return ", ".join(words)


class LevelName(StrEnum):
    """The levels by the names that answers use."""

    GATEWAY = "Gateway"
    GATEWAY_PORT = "Gateway port"
    LISTENER_SET = "ListenerSet"
    LISTENER_SET_LISTENER = "ListenerSet listener"
    GATEWAY_LISTENER = "Gateway listener"
    PARENT_ROUTE = "Parent route"
    PARENT_RULE = "Parent route rule"
    ROUTE = "Route"
    RULE = "Route rule"
    BACKEND = "Backend"
    BACKEND_SECTION = "Backend section"
    BACKEND_INLINE = "Backend inline"
    SUB_BACKEND_INLINE = "Sub-backend inline"
    BACKEND_REF_INLINE = "backendRef inline"


# The levels that belong to the owner of the Gateway or of a ListenerSet.
_BEFORE_ROUTING: frozenset[str] = frozenset(
    (
        LevelName.GATEWAY,
        LevelName.GATEWAY_PORT,
        LevelName.LISTENER_SET,
        LevelName.LISTENER_SET_LISTENER,
        LevelName.GATEWAY_LISTENER,
    )
)


class InlineSettings(Struct, frozen=True):
    """A backend section inside an object that is not a policy. Answers name it by `source`."""

    source: Reference
    resource: Resource
    value: Mapping[str, Any]
    path: tuple[str | int, ...]


class AttachedLevel(Struct, frozen=True):
    """A level whose settings come from the policies attached to one place."""

    name: LevelName
    place: Place

    @property
    def identity(self) -> tuple[LevelName, Place]:
        """A key that differs from those of all other levels of a snapshot."""
        return self.name, self.place

    @property
    def label(self) -> str:
        """The name in answers. A place may have several parent routes, so theirs say which route it is."""
        if self.name not in (LevelName.PARENT_ROUTE, LevelName.PARENT_RULE):
            return self.name
        rule = f"#{self.place.section}" if self.place.section else ""
        return f"{self.name} {self.place.namespace}/{self.place.name}{rule}"


class InlineLevel(Struct, frozen=True):
    """A level whose settings are inline in a backend or route."""

    name: LevelName
    inline: tuple[InlineSettings, ...]

    @property
    def identity(self) -> tuple[tuple[Resource, tuple[str | int, ...]], ...]:
        """A key that differs from those of all other levels of a snapshot."""
        return tuple((inline.resource, inline.path) for inline in self.inline)

    @property
    def label(self) -> str:
        """The name in answers."""
        return self.name


Level: TypeAlias = AttachedLevel | InlineLevel


_WITH_INLINE_POLICIES = (BACKEND[1], MODEL[1])


def levels(place: RequestPlace, profile: Profile) -> Mapping[Section, tuple[Level, ...]]:
    """Return the levels that each section is merged over, least specific first."""
    by_name: dict[LevelName, tuple[Level, ...]] = {
        level.name: (level,) for level in (*_attached_levels(place, profile), *_inline_levels(place))
    }
    by_name[LevelName.PARENT_ROUTE] = tuple(_parent_levels(place))
    order = _ORDER[profile]
    if profile == "agentgateway" and place.backend is not None and place.backend.kind in _WITH_INLINE_POLICIES:
        order = _AGENTGATEWAY_BACKEND
    return {
        section: tuple(level for name in names for level in by_name.get(name, ())) for section, names in order.items()
    }


def crosses_owners(lower: str, upper: str) -> bool:
    """Whether the higher of two levels, given by their labels, belongs to a route that the lower one leads to."""
    if lower in _BEFORE_ROUTING:
        return upper not in _BEFORE_ROUTING
    return _is_parent(lower) and not _is_parent(upper)


def _is_parent(label: str) -> bool:
    return label.startswith(LevelName.PARENT_ROUTE)


def _parent_levels(place: RequestPlace) -> Iterator[Level]:
    """Yield the levels of the routes that delegate to this one, outermost first: each route, then its rule."""
    for parent in place.parents:
        yield AttachedLevel(LevelName.PARENT_ROUTE, Place.of(parent.route))
        if parent.name:
            yield AttachedLevel(LevelName.PARENT_RULE, Place.of(parent.route, parent.name))


def _attached_levels(place: RequestPlace, profile: Profile) -> Iterator[Level]:
    """Yield the levels that policies attach to, in no particular order."""
    gateway, listener_set, listener, route, _, backend, section, _ = place
    if gateway is not None:
        yield AttachedLevel(LevelName.GATEWAY, Place.of(gateway))
        if listener is not None:
            if listener.port:
                yield AttachedLevel(LevelName.GATEWAY_PORT, Place.of(gateway, port=listener.port))
            # docs/semantics.md#gateway-sections-and-listenersets: the data plane compares only names, so a policy on
            # `Gateway#web` also applies to the listener `web` of a ListenerSet.
            if listener_set is None or profile == "agentgateway":
                yield AttachedLevel(LevelName.GATEWAY_LISTENER, Place.of(gateway, listener.name))
    if listener_set is not None:
        yield AttachedLevel(LevelName.LISTENER_SET, Place.of(listener_set))
        if listener is not None:
            yield AttachedLevel(LevelName.LISTENER_SET_LISTENER, Place.of(listener_set, listener.name))
    if route is not None:
        yield AttachedLevel(LevelName.ROUTE, Place.of(route))
        if name := place.rule_name:
            yield AttachedLevel(LevelName.RULE, Place.of(route, name))
    if backend is not None:
        yield AttachedLevel(LevelName.BACKEND, Place.of(backend))
        if section:
            yield AttachedLevel(LevelName.BACKEND_SECTION, Place.of(backend, section))


def _inline_levels(place: RequestPlace) -> Iterator[Level]:
    """Yield the levels of inline settings of backends and backendRefs, in no particular order."""
    backend, section = place.backend, place.section
    if backend is None:
        return
    target = Place.of(backend)
    if target.key == MODEL and (inline_policies := inline_section(backend)):
        inline = InlineSettings(backend.reference, backend, inline_policies, ("spec", "policies"))
        yield InlineLevel(LevelName.BACKEND_INLINE, (inline,))
    if target.key == BACKEND:
        policies = backend.spec.get("policies")
        if isinstance(policies, dict):
            inline = InlineSettings(backend.reference, backend, policies, ("spec", "policies"))
            yield InlineLevel(LevelName.BACKEND_INLINE, (inline,))
        # Two groups may both have a provider with this name; the first one counts.
        sub = next((sub for sub in sub_backends(backend) if sub.name == section), None) if section else None
        if sub is not None:
            inline = InlineSettings(Place.of(backend, section).reference, backend, sub.policies, sub.path)
            yield InlineLevel(LevelName.SUB_BACKEND_INLINE, (inline,))
    if place.route is None or place.rule is None:
        return
    # The rule's backendRefs to this backend; for a Service, only those to this port.
    source = Reference(place.route.kind, place.route.namespace, place.route.name, place.rule_label)
    inlines = tuple(
        InlineSettings(source, place.route, policies, (*ref.path, "policies"))
        for ref in backend_refs(place.route)
        if ref.rule == place.rule
        and ref.place == target
        and (target.key != SERVICE or str(ref.port) == section)
        and isinstance(policies := ref.value.get("policies"), dict)
    )
    if inlines:
        yield InlineLevel(LevelName.BACKEND_REF_INLINE, inlines)


_TRAFFIC = (
    LevelName.GATEWAY,
    LevelName.LISTENER_SET,
    LevelName.LISTENER_SET_LISTENER,
    LevelName.GATEWAY_LISTENER,
    LevelName.PARENT_ROUTE,  # with the rules of the parents
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
# docs/semantics.md#backend-levels-as-implemented. The order is different for an AgentgatewayBackend.
_AGENTGATEWAY: Mapping[Section, tuple[LevelName, ...]] = {
    **_DOCS,
    "backend": (
        LevelName.GATEWAY,
        LevelName.GATEWAY_LISTENER,
        LevelName.BACKEND,
        LevelName.BACKEND_SECTION,
        LevelName.PARENT_ROUTE,
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
        LevelName.PARENT_ROUTE,
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
    """Yield the places that requests can reach, in a fixed order. A listener without routes is also a place."""
    used = set()
    for path in gateway_graph(snapshot).request_paths():
        used.add((path.gateway, path.listener.owner, path.listener.number))
        yield from _places_along(snapshot, path)
    for gateway in gateway_graph(snapshot).gateways_all:
        for listener in gateway_listeners(snapshot, gateway):
            models = gateway_graph(snapshot).models(gateway, listener)
            yield from (_at_listener(gateway, listener)._replace(backend=model) for model in models)
            if not models and (gateway, listener.owner, listener.number) not in used:
                yield _at_listener(gateway, listener)


def prospective_places(snapshot: Snapshot) -> Iterator[RequestPlace]:
    """Yield the places of routes and ListenerSets that may be added later and have no policies themselves.

    These are routes at any listener, and children of routes that delegate; listeners of Gateways that accept
    ListenerSets; and routes to a backend, or to any port of a Service, at a listener that already leads to it.
    """
    for gateway in gateway_graph(snapshot).gateways_all:
        if admits_listener_sets(gateway):
            yield RequestPlace(gateway)
        for listener in gateway_listeners(snapshot, gateway):
            yield _at_listener(gateway, listener)
    for path in gateway_graph(snapshot).request_paths():
        if path.parents:
            yield _at_listener(path.gateway, path.listener)._replace(parents=path.parents)
        for place in _places_along(snapshot, path):
            if place.backend is not None:
                without_route = place._replace(route=None, rule=None)
                yield without_route
                if path.backend is not None and path.backend.place.key == SERVICE:
                    yield from (without_route._replace(section=port) for port in sections(place.backend))


def _at_listener(gateway: Resource, listener: Listener) -> RequestPlace:
    return RequestPlace(gateway, None if listener.owner is gateway else listener.owner, listener)


def _places_along(snapshot: Snapshot, path: RequestPath) -> Iterator[RequestPlace]:
    place = _at_listener(path.gateway, path.listener)
    place = place._replace(route=path.route, rule=path.rule, parents=path.parents)
    backend = path.backend.place.resource(snapshot) if path.backend is not None else None
    if path.backend is None or backend is None or path.backend.place.key not in _BACKENDS:
        yield place
        return
    place = place._replace(backend=backend)
    match BackendKind(backend.kind):
        case BackendKind.SERVICE:
            yield place._replace(section=str(path.backend.port) if path.backend.port else "")
        case BackendKind.AGENTGATEWAY_BACKEND:
            yield from (place._replace(section=name) for name in sections(backend) or ("",))
        case BackendKind.INFERENCE_POOL | BackendKind.AGENTGATEWAY_MODEL:
            yield place
        case unknown:
            assert_never(unknown)

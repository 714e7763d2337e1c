"""The levels of a place, least specific first, for each section and profile.

docs/semantics.md#frontend-levels and the points after it. Only the levels that the question names take part
(docs/semantics.md#nothing-about-a-place-is-inferred).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Any, NamedTuple, TypeAlias

from tierwall.attach.backend import backend_refs
from tierwall.attach.listener import Listener
from tierwall.attach.place import BACKEND, INFERENCE_POOL, SERVICE, Place
from tierwall.attach.section import rule_name, rules, sub_backends
from tierwall.core.reference import Reference
from tierwall.gateway.model.fields import Profile, Section
from tierwall.resources.resource import Resource


class BackendKind(StrEnum):
    """The kinds of backends that a question may name."""

    SERVICE = SERVICE[1]
    AGENTGATEWAY_BACKEND = BACKEND[1]
    INFERENCE_POOL = INFERENCE_POOL[1]


_BACKEND_KINDS = {str(kind): kind for kind in BackendKind}


class Asked(NamedTuple):
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

    @property
    def backend_kind(self) -> BackendKind | None:
        """The kind of the backend, if one is named."""
        return _BACKEND_KINDS[self.backend.kind] if self.backend is not None else None

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


class Inline(NamedTuple):
    """A backend section written in another object than a policy; `source` is how answers name it."""

    source: Reference
    resource: Resource
    value: Mapping[str, Any]
    path: tuple[str | int, ...]


class AttachedLevel(NamedTuple):
    """A level at which the policies on one place take part."""

    name: LevelName
    place: Place

    @property
    def identity(self) -> Place:
        """What tells the level from all others of a snapshot."""
        return self.place


class InlineLevel(NamedTuple):
    """A level at which inline settings take part."""

    name: LevelName
    inline: tuple[Inline, ...]

    @property
    def identity(self) -> tuple[tuple[Resource, tuple[str | int, ...]], ...]:
        """What tells the level from all others of a snapshot."""
        return tuple((inline.resource, inline.path) for inline in self.inline)


Level: TypeAlias = AttachedLevel | InlineLevel


def _gateway(asked: Asked) -> Level | None:
    return AttachedLevel(LevelName.GATEWAY, Place.of(asked.gateway)) if asked.gateway is not None else None


def _gateway_port(asked: Asked) -> Level | None:
    if asked.gateway is None or asked.listener is None or not asked.listener.port:
        return None
    return AttachedLevel(LevelName.GATEWAY_PORT, Place.of(asked.gateway, port=asked.listener.port))


def _listener_set(asked: Asked) -> Level | None:
    return AttachedLevel(LevelName.LISTENER_SET, Place.of(asked.listener_set)) if asked.listener_set else None


def _listener_set_listener(asked: Asked) -> Level | None:
    if asked.listener_set is None or asked.listener is None:
        return None
    return AttachedLevel(LevelName.LISTENER_SET_LISTENER, Place.of(asked.listener_set, asked.listener.name))


def _gateway_listener(asked: Asked) -> Level | None:
    """A listener of the Gateway itself (docs/semantics.md#gateway-sections-and-listenersets)."""
    return _named_listener(asked) if asked.listener_set is None else None


def _named_listener(asked: Asked) -> Level | None:
    """A listener by its name: a policy on `Gateway#web` also reaches the listener `web` of a ListenerSet."""
    if asked.gateway is None or asked.listener is None:
        return None
    return AttachedLevel(LevelName.GATEWAY_LISTENER, Place.of(asked.gateway, asked.listener.name))


def _route(asked: Asked) -> Level | None:
    return AttachedLevel(LevelName.ROUTE, Place.of(asked.route)) if asked.route is not None else None


def _rule(asked: Asked) -> Level | None:
    if asked.route is None or not (name := asked.rule_name):
        return None
    return AttachedLevel(LevelName.RULE, Place.of(asked.route, name))


def _backend(asked: Asked) -> Level | None:
    return AttachedLevel(LevelName.BACKEND, Place.of(asked.backend)) if asked.backend is not None else None


def _backend_section(asked: Asked) -> Level | None:
    if asked.backend is None or not asked.section:
        return None
    return AttachedLevel(LevelName.BACKEND_SECTION, Place.of(asked.backend, asked.section))


def _backend_inline(asked: Asked) -> Level | None:
    if asked.backend is None or asked.backend_kind is not BackendKind.AGENTGATEWAY_BACKEND:
        return None
    policies = asked.backend.spec.get("policies")
    if not isinstance(policies, dict):
        return None
    inline = Inline(asked.backend.reference, asked.backend, policies, ("spec", "policies"))
    return InlineLevel(LevelName.BACKEND_INLINE, (inline,))


def _sub_backend_inline(asked: Asked) -> Level | None:
    """Two groups may each have a provider of the name; the first that is written counts."""
    if asked.backend is None or asked.backend_kind is not BackendKind.AGENTGATEWAY_BACKEND or not asked.section:
        return None
    for sub in sub_backends(asked.backend):
        if sub.name == asked.section:
            source = Place.of(asked.backend, asked.section).reference
            inline = Inline(source, asked.backend, sub.policies, sub.path)
            return InlineLevel(LevelName.SUB_BACKEND_INLINE, (inline,))
    return None


def _backend_ref_inline(asked: Asked) -> Level | None:
    """The inline policies of the rule's references to this backend, and for a Service to this port of it."""
    if asked.route is None or asked.rule is None or asked.backend is None:
        return None
    place = Place.of(asked.backend)
    source = Reference(asked.route.kind, asked.route.namespace, asked.route.name, asked.rule_label)
    inline = tuple(
        Inline(source, asked.route, policies, (*ref.path, "policies"))
        for ref in backend_refs(asked.route)
        if ref.rule == asked.rule
        and ref.place == place
        and (place.key != SERVICE or str(ref.port) == asked.section)
        and isinstance(policies := ref.value.get("policies"), dict)
    )
    return InlineLevel(LevelName.BACKEND_REF_INLINE, inline) if inline else None


# Finds one level of a place, if the place has it.
_Find: TypeAlias = Callable[[Asked], Level | None]
_LISTENER_SET: tuple[_Find, ...] = (_listener_set, _listener_set_listener)
_ROUTE: tuple[_Find, ...] = (_route, _rule)
_PRECEDENCE: Mapping[tuple[Section, Profile], tuple[_Find, ...]] = {
    ("frontend", "docs"): (_gateway, _gateway_port, _gateway_listener),
    ("frontend", "agentgateway"): (_gateway, _gateway_port, _named_listener),
    ("traffic", "docs"): (_gateway, *_LISTENER_SET, _gateway_listener, *_ROUTE),
    ("traffic", "agentgateway"): (_gateway, *_LISTENER_SET, _named_listener, *_ROUTE),
    ("backend", "docs"): (
        _gateway,
        *_LISTENER_SET,
        _gateway_listener,
        *_ROUTE,
        _backend,
        _backend_section,
        _backend_inline,
        _sub_backend_inline,
        _backend_ref_inline,
    ),
    # docs/semantics.md#backend-levels-as-implemented, which has another order for an AgentgatewayBackend.
    ("backend", "agentgateway"): (
        _gateway,
        _named_listener,
        _backend,
        _backend_section,
        *_ROUTE,
        _backend_ref_inline,
    ),
}
_AGENTGATEWAY_BACKEND: tuple[_Find, ...] = (
    _gateway,
    _named_listener,
    _backend,
    *_ROUTE,
    _backend_inline,
    _backend_ref_inline,
    _backend_section,
    _sub_backend_inline,
)


def levels(asked: Asked, section: Section, profile: Profile) -> tuple[Level, ...]:
    """The levels that a section is merged over, least specific first."""
    order = _PRECEDENCE[section, profile]
    if section == "backend" and profile == "agentgateway" and asked.backend_kind is BackendKind.AGENTGATEWAY_BACKEND:
        order = _AGENTGATEWAY_BACKEND
    return tuple(level for find in order if (level := find(asked)) is not None)

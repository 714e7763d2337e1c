"""The levels of a place, least specific first, for each section and profile.

docs/semantics.md#frontend-levels and the points after it. Only the levels that the question names take part
(docs/semantics.md#nothing-about-a-place-is-inferred).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from tierwall.attach.backend import backend_refs
from tierwall.attach.listener import Listener
from tierwall.attach.place import BACKEND, SERVICE, Place
from tierwall.attach.section import rule_name, rules, sub_backends
from tierwall.core.reference import Reference
from tierwall.gateway.conditional import Profile
from tierwall.resources.resource import Resource


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

    def __str__(self) -> str:
        words = []
        if self.gateway is not None:
            own = self.listener if self.listener_set is None else None
            words.append(str(Place.of(self.gateway, own.name if own else "")))
        if self.listener_set is not None:
            words.append(str(Place.of(self.listener_set, self.listener.name if self.listener else "")))
        if self.route is not None:
            words.append(f"{self.route.reference}" + (f" rule {rule_label(self)}" if self.rule is not None else ""))
        if self.backend is not None:
            words.append(str(Place.of(self.backend, self.section)))
        return ", ".join(words)


class Inline(NamedTuple):
    """A backend section written in another object than a policy; `source` is how output names it."""

    source: str
    resource: Resource
    value: Mapping[str, Any]
    path: tuple[str | int, ...]


class Level(NamedTuple):
    """One level of a place: the place whose policies take part, or inline settings."""

    name: str
    place: Place | None = None
    inline: tuple[Inline, ...] = ()


def rule_label(asked: Asked) -> str:
    """The rule as `from` names it: by its name, or by its number if it has none."""
    return asked.rule_name or str(asked.rule)


def levels(asked: Asked, section: str, profile: Profile) -> tuple[Level, ...]:
    """The levels that a section is merged over, least specific first."""
    if section == "frontend":
        return tuple(_frontend(asked, profile))
    if section == "traffic":
        return (*_gateway(asked, profile), *_route(asked))
    if profile == "docs":
        return (*_gateway(asked, profile), *_route(asked), *_docs_backend(asked))
    return tuple(_agentgateway_backend(asked))


def _listener(asked: Asked, profile: Profile) -> Iterator[Level]:
    """The level of a Gateway's listener.

    agentgateway finds policies by Gateway and listener name, so one on `Gateway#web` also reaches the listener `web` of
    a ListenerSet; docs tells the two apart.
    """
    if asked.gateway is None or asked.listener is None:
        return
    if asked.listener_set is None or profile == "agentgateway":
        yield Level("Gateway listener", Place.of(asked.gateway, asked.listener.name))


def _frontend(asked: Asked, profile: Profile) -> Iterator[Level]:
    if asked.gateway is not None:
        yield Level("Gateway", Place.of(asked.gateway))
        if asked.listener is not None and asked.listener.port:
            yield Level("Gateway port", Place.of(asked.gateway, port=asked.listener.port))
    yield from _listener(asked, profile)


def _gateway(asked: Asked, profile: Profile) -> Iterator[Level]:
    if asked.gateway is not None:
        yield Level("Gateway", Place.of(asked.gateway))
    if asked.listener_set is not None:
        yield Level("ListenerSet", Place.of(asked.listener_set))
        if asked.listener is not None:
            yield Level("ListenerSet listener", Place.of(asked.listener_set, asked.listener.name))
    yield from _listener(asked, profile)


def _route(asked: Asked) -> Iterator[Level]:
    if asked.route is not None:
        yield Level("Route", Place.of(asked.route))
        if asked.rule_name:
            yield Level("Route rule", Place.of(asked.route, asked.rule_name))


def _docs_backend(asked: Asked) -> Iterator[Level]:
    yield from _backend(asked)
    yield from _backend_section(asked)
    yield from _backend_inline(asked)
    yield from _sub_backend_inline(asked)
    yield from _backend_ref_inline(asked)


def _agentgateway_backend(asked: Asked) -> Iterator[Level]:
    if asked.gateway is not None:
        yield Level("Gateway", Place.of(asked.gateway))
    yield from _listener(asked, "agentgateway")
    yield from _backend(asked)
    if asked.backend is not None and (asked.backend.group, asked.backend.kind) == BACKEND:
        yield from _route(asked)
        yield from _backend_inline(asked)
        yield from _backend_ref_inline(asked)
        yield from _backend_section(asked)
        yield from _sub_backend_inline(asked)
    else:
        yield from _backend_section(asked)
        yield from _route(asked)
        yield from _backend_ref_inline(asked)


def _backend(asked: Asked) -> Iterator[Level]:
    if asked.backend is not None:
        yield Level("Backend", Place.of(asked.backend))


def _backend_section(asked: Asked) -> Iterator[Level]:
    if asked.backend is not None and asked.section:
        yield Level("Backend section", Place.of(asked.backend, asked.section))


def _backend_inline(asked: Asked) -> Iterator[Level]:
    if asked.backend is None or (asked.backend.group, asked.backend.kind) != BACKEND:
        return
    policies = asked.backend.spec.get("policies")
    if isinstance(policies, dict):
        inline = Inline(str(asked.backend.reference), asked.backend, policies, ("spec", "policies"))
        yield Level("Backend inline", inline=(inline,))


def _sub_backend_inline(asked: Asked) -> Iterator[Level]:
    """Two groups may each have a provider of the name; the first that is written counts."""
    if asked.backend is None or not asked.section or (asked.backend.group, asked.backend.kind) != BACKEND:
        return
    for sub in sub_backends(asked.backend):
        if sub.name == asked.section:
            source = str(Place.of(asked.backend, asked.section))
            yield Level("Sub-backend inline", inline=(Inline(source, asked.backend, sub.policies, sub.path),))
            return


def _backend_ref_inline(asked: Asked) -> Iterator[Level]:
    """The inline policies of the rule's references to this backend, and for a Service to this port of it."""
    if asked.route is None or asked.rule is None or asked.backend is None:
        return
    place = Place.of(asked.backend)
    source = str(Reference(asked.route.kind, asked.route.namespace, asked.route.name, rule_label(asked)))
    found = tuple(
        Inline(source, asked.route, policies, (*ref.path, "policies"))
        for ref in backend_refs(asked.route)
        if ref.rule == asked.rule
        and ref.place == place
        and (place.key != SERVICE or str(ref.port) == asked.section)
        and isinstance(policies := ref.value.get("policies"), dict)
    )
    if found:
        yield Level("backendRef inline", inline=found)

"""The statuses of routes: one entry for each parentRef to a Gateway of ours, to one of its ListenerSets or routes.

Gateway API, `RouteParentStatus`. A route is accepted if a listener takes it and Envoy has at least one of its rules.
Whether that listener is open is said by the status of the listener, and by the message here. Rules that Envoy does not
support answer 500, so that no wider route gets their requests: `PartiallyInvalid` names them. No listener takes
UDPRoutes (docs/controller.md#gateways-and-routes).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from tierwall.attach.backend import BackendRef, backend_refs
from tierwall.attach.delegation import children
from tierwall.attach.place import GATEWAY, HTTP_ROUTE, ROUTES, SERVICE, STREAM_ROUTES, Place
from tierwall.attach.reach import gateway_graph
from tierwall.attach.route import RefusedParentRef, RouteOnListener, attach_route
from tierwall.attach.section import rules
from tierwall.attach.status import bounded_message
from tierwall.engines.envoy.config.backend_addresses import UnresolvedRef, backend_address, unresolved
from tierwall.engines.envoy.config.listener_problem import ListenerKey, listener_key, served_kinds
from tierwall.engines.envoy.config.mirrors import mirror_refs
from tierwall.engines.envoy.config.options import EnvoyOptions
from tierwall.resources.resource import Identity, Resource, list_of_maps
from tierwall.resources.snapshot import Snapshot
from tierwall.serve.controller.compiled_gateways import (
    GATEWAY_API,
    LISTENER_SETS,
    CompiledGateway,
    CompiledGateways,
    RuleProblem,
    refusal_words,
)
from tierwall.serve.controller.desired import WantedAncestor, WantedCondition, WantedRef

UNSUPPORTED_VALUE = "UnsupportedValue"
# The reasons of `ResolvedRefs`; the first that applies is told.
_REASONS = ("InvalidKind", "RefNotPermitted", "BackendNotFound")


class RouteStatusPlan(NamedTuple):
    """Our entries of `status.parents` of a route, and the listeners that it is attached to and accepted at."""

    entries: tuple[WantedAncestor, ...]
    listeners: frozenset[ListenerKey]


def plan_route(gateways: CompiledGateways, route: Resource) -> RouteStatusPlan:
    """Plan the status of a route."""
    entries: dict[WantedRef, tuple[WantedCondition, ...]] = {}
    listeners: set[ListenerKey] = set()
    for number, parent in enumerate(list_of_maps(route.spec.get("parentRefs"))):
        if _names_route(route, parent):
            conditions = _of_child(gateways, route, parent)
            if conditions:
                entries.setdefault(_ref(parent), conditions)
            continue
        compiled = _gateway_of(gateways, route, parent)
        if compiled is None:
            continue
        attached, refused = attach_route(compiled.snapshot, route)
        at_parent = [entry for entry in attached if entry.parent == number]
        here = [entry for entry in at_parent if (route.group, route.kind) in served_kinds(entry.listener)]
        why = next((entry for entry in refused if entry.parent == number), None)
        if at_parent and not here:
            message = f"{route.kind}s are not served at {at_parent[0].listener}"
            why = RefusedParentRef(route, number, "NotAllowedByListeners", message)
        faults = compiled.faults(here[0]) if here and (route.group, route.kind) in ROUTES else {}
        accepted = _accepted(compiled, route, here, why, faults)
        if accepted.status == "True":
            listeners |= {listener_key(entry.listener) for entry in here}
        entries.setdefault(_ref(parent), _conditions(compiled, route, accepted, faults))
    return RouteStatusPlan(tuple(WantedAncestor(*entry) for entry in entries.items()), frozenset(listeners))


def _conditions(
    compiled: CompiledGateway, route: Resource, accepted: WantedCondition, faults: Mapping[int, RuleProblem]
) -> tuple[WantedCondition, ...]:
    partly = _partially_invalid(faults) if accepted.status == "True" else ()
    return accepted, _resolved(compiled.snapshot, route), *partly


def _names_route(route: Resource, parent: Mapping[str, Any]) -> bool:
    """Whether a parentRef names a route that delegates."""
    key = parent.get("group", GATEWAY_API), parent.get("kind", "Gateway")
    return key == HTTP_ROUTE == (route.group, route.kind)


def _of_child(gateways: CompiledGateways, route: Resource, parent: Mapping[str, Any]) -> tuple[WantedCondition, ...]:
    """Return the conditions at a route that delegates (`attach.delegation`); none if no Gateway of ours leads there."""
    namespace = str(parent.get("namespace") or route.namespace)
    place = Place(*HTTP_ROUTE, namespace, str(parent.get("name")))
    for compiled in gateways.by_gateway.values():
        owner = place.resource(compiled.snapshot)
        reached = gateway_graph(compiled.snapshot).gateways(place) if owner is not None else ()
        if owner is None or Place.of(compiled.gateway) not in reached:
            continue
        refs = (ref for ref in backend_refs(owner) if ref.delegates)
        if not any(child.identity == route.identity for ref in refs for child in children(compiled.snapshot, ref)):
            words = f"{owner.reference} does not delegate to this route"
            return WantedCondition("Accepted", "False", "NoMatchingParent", words), _resolved(compiled.snapshot, route)
        known = compiled.routes.get(route.identity)
        faults = known.faults if known is not None else {}
        fault = _whole_fault(compiled, route, faults)
        accepted = WantedCondition("Accepted", "True", "Accepted", "Route is accepted")
        if fault:
            accepted = WantedCondition("Accepted", "False", UNSUPPORTED_VALUE, fault)
        return _conditions(compiled, route, accepted, faults)
    return ()


def _gateway_of(gateways: CompiledGateways, route: Resource, parent: Mapping[str, Any]) -> CompiledGateway | None:
    """Return the Gateway of ours that a parentRef names, itself or by a ListenerSet that names it."""
    key = parent.get("group", GATEWAY_API), parent.get("kind", "Gateway")
    identity: Identity = (*key, str(parent.get("namespace") or route.namespace), str(parent.get("name")))
    if key == GATEWAY:
        return gateways.by_gateway.get(identity)
    listener_set = gateways.snapshot.get(*identity) if key in LISTENER_SETS else None
    return gateways.by_gateway.get(named_gateway(listener_set)) if listener_set is not None else None


def named_gateway(listener_set: Resource) -> Identity:
    """Return the identity of the Gateway that a ListenerSet names, whether it lets it in or not."""
    parent = listener_set.spec.get("parentRef")
    ref = parent if isinstance(parent, dict) else {}
    key = str(ref.get("group", GATEWAY_API)), str(ref.get("kind", "Gateway"))
    return (*key, str(ref.get("namespace") or listener_set.namespace), str(ref.get("name")))


def _is_served(route: Resource) -> bool:
    """Whether Envoy is given routes of this kind."""
    return (route.group, route.kind) in (*ROUTES, *STREAM_ROUTES)


def _is_stream(route: Resource) -> bool:
    return (route.group, route.kind) in STREAM_ROUTES


def _accepted(
    compiled: CompiledGateway,
    route: Resource,
    here: list[RouteOnListener],
    why: RefusedParentRef | None,
    faults: Mapping[int, RuleProblem],
) -> WantedCondition:
    """Return `Accepted` of a route that is attached to the listeners `here`, or that is refused."""
    if why is not None and (_is_served(route) or why.reason == "NoMatchingParent"):
        return WantedCondition("Accepted", "False", why.reason, bounded_message([_sentence(why.message)]))
    if not _is_served(route):
        words = f"{route.kind}s are not served"
        return WantedCondition("Accepted", "False", "NotAllowedByListeners", words)
    if fault := _whole_fault(compiled, route, faults):
        return WantedCondition("Accepted", "False", UNSUPPORTED_VALUE, fault)
    lines = list(_where_served(compiled, route, here))
    return WantedCondition("Accepted", "True", "Accepted", bounded_message(lines))


def _partially_invalid(faults: Mapping[int, RuleProblem]) -> Iterator[WantedCondition]:
    """Yield the condition of an accepted route that names the rules with parts that Envoy does not support."""
    if words := _fault_words(faults):
        lines = [f"Dropped Rule{'s' if len(words) > 1 else ''} {words[0]}", *words[1:]]
        closing = "Requests that match what is not supported are answered with 500"
        yield WantedCondition("PartiallyInvalid", "True", UNSUPPORTED_VALUE, bounded_message(lines, closing))


def _fault_words(faults: Mapping[int, RuleProblem]) -> list[str]:
    return [f"rules[{rule}]: {', '.join(fault.parts)} is not supported" for rule, fault in faults.items()]


def _whole_fault(compiled: CompiledGateway, route: Resource, faults: Mapping[int, RuleProblem]) -> str:
    """Return why nothing of a route is served, or an empty string."""
    if route.identity in compiled.closed:
        words = refusal_words(compiled.snapshot, compiled.refused, route) or ["It cannot be compiled for Envoy"]
        return bounded_message(words, "Meanwhile its requests are answered with 500")
    if faults and len(faults) == len(rules(route)) and all(fault.is_whole for fault in faults.values()):
        return bounded_message(_fault_words(faults), "Meanwhile its requests are answered with 500")
    return ""


def _where_served(compiled: CompiledGateway, route: Resource, here: list[RouteOnListener]) -> Iterator[str]:
    """Yield lines: that the route is accepted, and at which of its listeners it is not served all the same."""
    yield "Route is accepted"
    known = compiled.routes.get(route.identity)
    for attached in here:
        key = listener_key(attached.listener)
        if key not in compiled.served.listeners_in_force:
            yield f"It is not served at {attached.listener}, which is not open"
        elif known is None or key not in known.listeners:
            owners = "more specific listeners or older routes"
            yield f"It is not served at {attached.listener}: its host names belong to {owners}"


def _resolved(snapshot: Snapshot, route: Resource) -> WantedCondition:
    mirrored = (ref for number, rule in enumerate(rules(route)) for ref in mirror_refs(route, number, rule))
    refs = (*backend_refs(route), *mirrored)
    problems = [problem for ref in refs if (problem := _unresolved(snapshot, ref)) is not None]
    if not problems:
        return WantedCondition("ResolvedRefs", "True", "ResolvedRefs", "All references are resolved")
    problems.sort(key=lambda problem: _REASONS.index(problem.reason))
    lines = list(dict.fromkeys(_sentence(problem.message) for problem in problems))
    closing = "Requests to backends that are not resolved are answered with 500"
    if _is_stream(route):
        closing = "Connections to backends that are not resolved are closed"
    return WantedCondition("ResolvedRefs", "False", problems[0].reason, bounded_message(lines, closing))


def _unresolved(snapshot: Snapshot, ref: BackendRef) -> UnresolvedRef | None:
    resource = ref.place.resource(snapshot)
    problem = unresolved(snapshot, ref)
    if problem is None and _is_stream(ref.route) and ref.place.key != SERVICE:
        return UnresolvedRef("InvalidKind", f"{ref.place}: a backend must be a Service")
    if problem is None and resource is not None and backend_address(resource, ref.port, EnvoyOptions()) is None:
        return UnresolvedRef("BackendNotFound", f"{ref.place} does not give an address")
    return problem


def _sentence(message: str) -> str:
    return message[:1].upper() + message[1:]


def _ref(parent: Mapping[str, Any]) -> WantedRef:
    port = parent.get("port")
    return WantedRef(
        group=str(parent.get("group", GATEWAY_API)),
        kind=str(parent.get("kind") or "Gateway"),
        namespace=str(parent.get("namespace") or ""),
        name=str(parent.get("name") or ""),
        section_name=str(parent.get("sectionName") or ""),
        port=port if type(port) is int else 0,
    )

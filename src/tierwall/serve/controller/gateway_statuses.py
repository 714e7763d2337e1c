"""Plan the statuses of GatewayClasses, Gateways, ListenerSets, routes and BackendTLSPolicies of class `tierwall`.

docs/controller.md#gateways-and-routes. Gateways are compiled again only when an object has changed that they depend on;
policies are not among them. What Envoys say about Gateways changes only the statuses of those.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from tierwall.attach.listener import gateway_listeners, parent_gateway
from tierwall.attach.place import LISTENER_SET
from tierwall.attach.status import MAX_ANCESTORS
from tierwall.engines.envoy.config.backend_tls import BACKEND_TLS_POLICY
from tierwall.engines.envoy.config.listener_problem import ListenerKey, listener_key
from tierwall.resources.resource import Identity, Resource, list_of_maps, nested_map
from tierwall.resources.snapshot import Snapshot
from tierwall.serve.controller.backend_tls_statuses import plan_backend_tls
from tierwall.serve.controller.class_statuses import SUPPORTED_FEATURES, class_conditions
from tierwall.serve.controller.compiled_gateways import (
    LISTENER_SETS,
    RELEVANT,
    ROUTES,
    CompiledGateway,
    CompiledGateways,
    compile_our_gateways,
    refusal_words,
)
from tierwall.serve.controller.desired import (
    CONTROLLER_NAME,
    DesiredStatus,
    WantedAncestor,
    WantedCondition,
    WantedListener,
)
from tierwall.serve.controller.fleet_state import ProgrammedState
from tierwall.serve.controller.gateway_api_version import UNSEEN, GatewayApiVersion
from tierwall.serve.controller.gateway_class import full_name, our_classes, our_gateways
from tierwall.serve.controller.gateway_conditions import Addresses, gateway_conditions, listener_set_conditions
from tierwall.serve.controller.listener_statuses import JudgedListener, judge_listeners
from tierwall.serve.controller.route_statuses import named_gateway, plan_route

MAX_PARENTS = 32
_NO_REFUSALS: Mapping[Identity, str] = {}

# Whether a Gateway, `namespace/name`, is in force in its Envoys; None if nobody knows.
GatewayStates: TypeAlias = Callable[[str], ProgrammedState | None]
# Whether a ListenerSet is.
ListenerSetStates: TypeAlias = Callable[[Resource], ProgrammedState | None]
# What Envoys refuse of a Gateway, `namespace/name`: the objects at fault, with Envoy's words.
EnvoyRefusals: TypeAlias = Callable[[str], Mapping[Identity, str]]


class _Owner(NamedTuple):
    """A Gateway or ListenerSet with its listeners, as far as they do not depend on what Envoys say."""

    owner: Resource
    gateway: Resource
    refusal: tuple[str, ...]
    listeners: tuple[JudgedListener, ...]
    # Whether the Gateway lets a ListenerSet in.
    is_allowed: bool = True


class GatewayStatusPlanner:
    """Plans statuses again and again. INVARIANT: one call at a time; it may be in any thread."""

    def __init__(self) -> None:
        self._before = self._relevant = Snapshot({})
        self._refusals: dict[str, Mapping[Identity, str]] = {}
        self._compiled = CompiledGateways(self._relevant, {})
        self._owners: tuple[_Owner, ...] = ()
        self._attached: Counter[ListenerKey] = Counter()
        self._entries: dict[Identity, tuple[WantedAncestor, ...]] = {}
        self._known: dict[Identity, DesiredStatus] = {}
        # The routes and policies with the entries that their statuses were made of.
        self._seen: dict[Identity, tuple[Resource, tuple[WantedAncestor, ...]]] = {}
        # Counts how often Gateways were compiled.
        self.computed = 0

    def plan(
        self,
        live: Snapshot,
        judged: Snapshot,
        gateways: GatewayStates,
        addresses: Callable[[Resource], Addresses | None],
        affected: Mapping[Identity, WantedCondition],
        listener_sets: ListenerSetStates = lambda _: None,
        refusals: EnvoyRefusals = lambda _: _NO_REFUSALS,
        release: GatewayApiVersion | None = UNSEEN,
    ) -> Mapping[Identity, DesiredStatus]:
        """Return the status of every object of ours. `live` has the objects with their statuses; `judged` counts.

        A status that stays the same is the same value as before. `judged` has the Secrets and ConfigMaps that Gateways
        of ours name; one that is not there does not exist. `release` is that of the Gateway API; None if nobody has
        looked yet: then the statuses of classes stay as they are.
        """
        self._follow(judged, refusals)
        statuses: dict[Identity, DesiredStatus] = {}

        def put(identity: Identity, **parts: Any) -> None:
            resource = live.get(*identity)
            if resource is not None:
                status = DesiredStatus.of(resource, **parts)
                before = self._known.get(identity)
                statuses[identity] = before if before == status else status

        if release is not None:
            for gateway_class in our_classes(judged):
                class_status = class_conditions(gateway_class, release)
                put(gateway_class.identity, conditions=class_status, supported_features=SUPPORTED_FEATURES)
        accepted: dict[Identity, WantedCondition] = {}
        parts: dict[Identity, dict[str, Any]] = {}
        attached: Counter[Identity] = Counter()
        for owner in self._owners:
            identity = owner.owner.identity
            if owner.owner is owner.gateway:
                state, given = gateways(full_name(owner.gateway)), addresses(owner.gateway)
                known = tuple(listener.known_by(state) for listener in owner.listeners)
                conditions = gateway_conditions(owner.gateway, owner.refusal, known, state, given)
                accepted[identity] = conditions[0]
                more = (affected[identity],) if identity in affected else ()
                listeners = self._listeners(known, state)
                parts[identity] = {"conditions": (*conditions, *more), "listeners": listeners, "addresses": given}
            else:
                state = listener_sets(owner.owner)
                is_served = gateways(full_name(owner.gateway)) is not None
                known = tuple(each if is_served else each.known_by(None) for each in owner.listeners)
                refusal = _refusal(owner)
                conditions = listener_set_conditions(accepted[owner.gateway.identity], refusal, known, state)
                put(identity, conditions=conditions, listeners=self._listeners(known, state))
                attached[owner.gateway.identity] += conditions[0].status == "True"
        # Without the kind, no Gateway has the field.
        counts = any(True for _ in judged.of_kind(*LISTENER_SET))
        for identity, wanted in parts.items():
            put(identity, **wanted, attached_listener_sets=attached[identity] if counts else 0)
        for identity, entries in self._entries.items():
            resource = live.get(*identity)
            if resource is None:
                continue
            seen = self._seen.get(identity)
            if seen is not None and seen[0] is resource and seen[1] is entries:
                statuses |= {identity: self._known[identity]} if identity in self._known else {}
                continue
            self._seen[identity] = resource, entries
            is_policy = (resource.group, resource.kind) == BACKEND_TLS_POLICY
            part, most = ("ancestors", MAX_ANCESTORS) if is_policy else ("parents", MAX_PARENTS)
            ours, others = _entries(resource, part)
            kept = entries[: max(most - others, 0)]
            if kept or ours:
                put(identity, **{part: kept})
        self._known = statuses
        return statuses

    def _listeners(self, judged: Sequence[JudgedListener], state: ProgrammedState | None) -> tuple[WantedListener, ...]:
        return tuple(each.status(self._attached[listener_key(each.listener)], state) for each in judged)

    def _follow(self, judged: Snapshot, refusals: EnvoyRefusals) -> None:
        """Compile Gateways again if anything has changed that they depend on."""
        before, self._before = self._before, judged
        changes = [
            (old, new)
            for old, new in judged.changes(before)
            if (either := new or old) and (either.group, either.kind) in RELEVANT
        ]
        if changes:
            self._relevant = self._relevant.with_changes(
                [new for _, new in changes if new is not None],
                [old for old, new in changes if old is not None and (new is None or new.version != old.version)],
            )
        objects = self._relevant
        names = map(full_name, our_gateways(objects))
        refused = {name: words for name in names if (words := refusals(name))}
        if not changes and refused == self._refusals:
            return
        self.computed += 1
        self._refusals = refused
        self._compiled = compiled = compile_our_gateways(objects, refused, self._compiled.by_gateway)
        self._owners = tuple(_owners(compiled))
        self._attached = Counter()
        self._entries = {}
        for route in (route for key in ROUTES for route in objects.of_kind(*key)):
            self._entries[route.identity], listeners = plan_route(compiled, route)
            self._attached.update(listeners)
        self._entries.update(plan_backend_tls(compiled))
        self._seen = {}


def _owners(compiled: CompiledGateways) -> Sequence[_Owner]:
    """Return all Gateways of ours, then the ListenerSets that name one of them."""
    owners = [_owner(each, each.gateway) for each in compiled.by_gateway.values()]
    for key in LISTENER_SETS:
        for listener_set in compiled.snapshot.of_kind(*key):
            gateway = compiled.by_gateway.get(named_gateway(listener_set))
            if gateway is not None:
                is_allowed = parent_gateway(gateway.snapshot, listener_set)[0] is not None
                owner = _owner(gateway, listener_set)
                owners.append(owner if is_allowed else owner._replace(listeners=(), is_allowed=False))
    return owners


def _owner(compiled: CompiledGateway, owner: Resource) -> _Owner:
    snapshot = compiled.snapshot
    rivals = gateway_listeners(snapshot, compiled.gateway)
    refusal = refusal_words(snapshot, compiled.refused, owner)
    judged = judge_listeners(snapshot, compiled, owner, rivals)
    # A Gateway that is refused for the sake of some listeners is served with the others.
    is_served = any(each.problem is None for each in judged)
    return _Owner(owner, compiled.gateway, () if is_served else tuple(refusal), judged)


def _refusal(owner: _Owner) -> tuple[str, str] | None:
    """Return why a ListenerSet is not part of its Gateway, as a reason and words."""
    if not owner.is_allowed:
        namespace = owner.owner.namespace
        return "NotAllowed", f"The Gateway does not allow ListenerSets of namespace {namespace}"
    return ("Invalid", "; ".join(owner.refusal)) if owner.refusal else None


def _entries(route: Resource, part: str) -> tuple[int, int]:
    """Return how many entries of a part of a status are ours, and how many are of other controllers."""
    entries = list_of_maps(nested_map(route.value, "status").get(part))
    ours = sum(entry.get("controllerName") == CONTROLLER_NAME for entry in entries)
    return ours, len(entries) - ours

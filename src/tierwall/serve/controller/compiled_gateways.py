"""The configurations that Envoys get for Gateways of class `tierwall`, as far as statuses depend on them.

Statuses must never say more than Envoy does. So they are read off the same compilation: of one Gateway alone, as its
Envoys get it, without policies, which change no status here (docs/controller.md#gateways-and-routes).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Set
from typing import NamedTuple

from msgspec.structs import replace

from tierwall.attach.place import BACKEND, GATEWAY, LISTENER_SET, SERVICE, X_LISTENER_SET
from tierwall.attach.place import ROUTES as SERVED_ROUTES
from tierwall.attach.route import RouteOnListener
from tierwall.engines.envoy.config.backend_tls import BACKEND_TLS_POLICY
from tierwall.engines.envoy.config.listener_problem import ListenerKey, listener_key
from tierwall.engines.envoy.config.listeners import ServedGateways
from tierwall.engines.envoy.config.listeners import served_gateways as compile_gateways
from tierwall.engines.envoy.config.options import MAX_PROGRAM_SIZE, EnvoyOptions
from tierwall.engines.envoy.config.route_plan import PlannedRoute, RoutePlan, RoutePlanner
from tierwall.engines.envoy.config.usable_snapshot import UsableSnapshot, usable_snapshot
from tierwall.resources.resource import Identity, Resource
from tierwall.resources.snapshot import KindKey, Snapshot
from tierwall.resources.validity import DEFINITION, admission_problems
from tierwall.serve.controller.gateway_class import GATEWAY_CLASS, full_name, our_gateways
from tierwall.tool.model import BACKENDS

GATEWAY_API = GATEWAY[0]
LISTENER_SETS = (LISTENER_SET, X_LISTENER_SET)
ROUTES = tuple((GATEWAY_API, kind) for kind in ("HTTPRoute", "GRPCRoute", "TLSRoute", "TCPRoute", "UDPRoute"))
# Whatever the statuses of Gateways and routes depend on.
RELEVANT: Set[KindKey] = frozenset(
    (
        *(GATEWAY, GATEWAY_CLASS, *LISTENER_SETS, *ROUTES, (GATEWAY_API, "ReferenceGrant"), DEFINITION),
        *(SERVICE, *BACKENDS, BACKEND, BACKEND_TLS_POLICY, ("", "Namespace"), ("", "Secret"), ("", "ConfigMap")),
    )
)
_OPTIONS = EnvoyOptions(max_program_size=MAX_PROGRAM_SIZE)


class RuleProblem(NamedTuple):
    """The parts of a rule that Envoy does not support, and whether nothing of the rule is left."""

    parts: tuple[str, ...]
    is_whole: bool


class CompiledRoute(NamedTuple):
    """A route as Envoy has it: the listeners where it is served, and its rules with faults, by number."""

    listeners: frozenset[ListenerKey] = frozenset()
    faults: Mapping[int, RuleProblem] = {}


class CompiledGateway(NamedTuple):
    """A Gateway as its Envoys have it. `closed` are routes of which nothing is served, `refused` is by Envoy."""

    gateway: Resource
    # Every Gateway, ListenerSet and route, and of all other objects those that Envoy can use.
    snapshot: Snapshot
    served: ServedGateways
    routes: Mapping[Identity, CompiledRoute]
    closed: frozenset[Identity]
    refused: Mapping[Identity, str]

    def faults(self, attached: RouteOnListener) -> Mapping[int, RuleProblem]:
        """Return the faults of a route; those that it would have if its listeners are not open."""
        known = self.routes.get(attached.route.identity)
        if known is None:
            planner = RoutePlanner(self.snapshot, _OPTIONS, self.closed)
            plan = planner.plan(self.gateway, "", [(attached.listener, [attached])])
            known = _routes([plan]).get(attached.route.identity, CompiledRoute())
        return known.faults


class CompiledGateways(NamedTuple):
    """All Gateways of ours, and the objects that they were compiled from."""

    snapshot: Snapshot
    by_gateway: Mapping[Identity, CompiledGateway]


def compile_our_gateways(
    objects: Snapshot, refusals: Mapping[str, Mapping[Identity, str]], before: Mapping[Identity, CompiledGateway]
) -> CompiledGateways:
    """Compile each Gateway of ours; `before` has them as they were, since what is served already stays in conflicts."""
    whole = usable_snapshot(objects, {})
    attachable = _with_owners(objects, whole.snapshot)
    compiled: dict[Identity, CompiledGateway] = {}
    for gateway in our_gateways(objects):
        name = full_name(gateway)
        refused = refusals.get(name, {})
        usable = usable_snapshot(objects, refused) if refused else whole
        known = before.get(gateway.identity)
        served = compile_gateways(
            usable.snapshot,
            replace(_OPTIONS, gateways=frozenset((name,))),
            known.served if known is not None else None,
            objects,
            usable.closed,
        )
        compiled[gateway.identity] = CompiledGateway(
            gateway,
            _with_owners(objects, usable.snapshot) if refused else attachable,
            served,
            {**_routes(served.plans), **_streams(served)},
            _closed(objects, usable),
            refused,
        )
    return CompiledGateways(objects, compiled)


def _with_owners(objects: Snapshot, usable: Snapshot) -> Snapshot:
    """Put the Gateways, ListenerSets and routes that cannot be used back: their statuses say why."""
    owners = (owner for key in (GATEWAY, *LISTENER_SETS, *ROUTES) for owner in objects.of_kind(*key))
    put = [owner for owner in owners if usable.get(*owner.identity) is not owner]
    return usable.with_changes(put) if put else usable


def _routes(plans: Iterable[RoutePlan]) -> dict[Identity, CompiledRoute]:
    listeners: dict[Identity, set[ListenerKey]] = {}
    by_rule: dict[Identity, dict[int, list[PlannedRoute]]] = {}
    for host in (host for plan in plans for host in plan.hosts):
        for planned in host.routes:
            listeners.setdefault(planned.route.identity, set()).add(listener_key(host.listener))
            by_rule.setdefault(planned.route.identity, {}).setdefault(planned.rule, []).append(planned)
    return {
        identity: CompiledRoute(frozenset(listeners[identity]), dict(_faults(planned)))
        for identity, planned in by_rule.items()
    }


def _streams(served: ServedGateways) -> Mapping[Identity, CompiledRoute]:
    listeners: dict[Identity, set[ListenerKey]] = {}
    for chain in (chain for chains in served.streams.values() for chain in chains):
        if chain.route is not None:
            listeners.setdefault(chain.route.identity, set()).add(listener_key(chain.listener))
    return {identity: CompiledRoute(frozenset(keys)) for identity, keys in listeners.items()}


def _faults(by_rule: Mapping[int, Iterable[PlannedRoute]]) -> Iterator[tuple[int, RuleProblem]]:
    for number, planned in sorted(by_rule.items()):
        parts = dict.fromkeys(each.unsupported for each in planned if each.unsupported)
        if parts:
            is_whole = all(each.unsupported and each.message.HasField("direct_response") for each in planned)
            yield number, RuleProblem(tuple(parts), is_whole)


def _closed(objects: Snapshot, usable: UsableSnapshot) -> frozenset[Identity]:
    """Return the routes that answer 500 or are left out."""
    routes = (route for key in SERVED_ROUTES for route in objects.of_kind(*key))
    dropped = {route.identity for route in routes if usable.snapshot.get(*route.identity) is None}
    return usable.closed | dropped


def refusal_words(objects: Snapshot, refused: Mapping[Identity, str], resource: Resource) -> list[str]:
    """Return why admission or Envoy refuses an object; nothing if they do not."""
    if (words := refused.get(resource.identity)) is not None:
        return [f"Envoy refuses it: {words}"]
    return [problem.message for problem in admission_problems(objects, resource).errors]

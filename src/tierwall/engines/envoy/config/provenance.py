"""The objects that a message is made of, to find the one at fault if Envoy refuses the message.

Answers come from the state of a compilation on demand, so that compiling costs nothing more. They name every object
that had a part in a message, never too few: the one at fault is among them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from tierwall.engines.envoy.config.listeners import FilterChain
from tierwall.engines.envoy.config.route_plan import RoutePlan
from tierwall.engines.envoy.config.tls import referenced_identities
from tierwall.resources.resource import Identity

if TYPE_CHECKING:
    from tierwall.engines.envoy.config.compile import CompileState


def contributors(state: CompileState, field: str, name: str) -> frozenset[Identity]:
    """Return the objects that a message is made of; `field` is that of `XdsResources`."""
    chains = [chain for _, chains in state.served.ports.values() for chain in chains] if state.served else []
    identities: Iterable[Identity]
    match field:
        case "extension_configs":
            shard, _ = state.filters.shards.get(name, ((), None))
            identities = (policy.policy for _, policy in shard)
            if name not in state.filters.shards and state.served is not None:
                # The filters of settings hold parts of policies on any route.
                identities = (key for plan in state.served.plans for key in _settings(plan))
        case "routes":
            identities = (key for chain in chains if chain.plan.name == name for key in _routes(state, chain))
        case "listeners":
            _, served = state.served.ports.get(name, (None, ())) if state.served else (None, ())
            streams = state.served.streams.get(name, ()) if state.served else ()
            identities = (
                *(key for chain in served for key in _chain(chain)),
                *(key for stream in streams for key in stream.contributors),
            )
        case "secrets":
            identities = (key for chain in chains if name.endswith(f"/{chain.plan.name}") for key in _chain(chain))
        case "clusters":
            users = state.served.users.get(name, ()) if state.served else ()
            identities = (*_backends(chains, name), *_streams(state, name), *_authorizers(state, name), *users)
        case _:
            identities = ()
    return frozenset(identities)


def _chain(chain: FilterChain) -> Iterator[Identity]:
    """Yield the Gateway and ListenerSets of a filter chain, and the Secrets and ConfigMaps that they refer to."""
    yield chain.plan.gateway.identity
    yield from chain.settings
    for listener in chain.listeners:
        yield listener.owner.identity
        yield from referenced_identities(chain.plan.gateway, listener)


def _routes(state: CompileState, chain: FilterChain) -> Iterator[Identity]:
    """Yield what a RouteConfiguration is made of.

    It holds only the names of most policies and backends, which are safe: it is not made of those. It has the settings
    of authorizers, what policies read, and the host names of backends outside the cluster.
    """
    yield from (listener.owner.identity for listener in chain.listeners)
    yield chain.plan.gateway.identity
    names: set[str] = set()
    for host in chain.plan.hosts:
        for route in host.routes:
            yield from (each.identity for each in (route.route, *route.parents))
            yield from route.settings
            yield from (
                to.backend.identity for to in (*route.backends, *route.mirrors) if to.backend is not None and to.host
            )
            checkpoints, _ = state.routes.by_route.get(route, ((), None))
            names.update(name for each in checkpoints for name in each)
    for name in names & state.filters.passed.keys():
        policies = state.filters.passed[name].policies
        yield from (each.policy for each in policies if each.authorizer is not None or each.arguments or each.headers)


def _settings(plan: RoutePlan) -> Iterator[Identity]:
    return (key for host in plan.hosts for route in host.routes for key in route.settings)


def _backends(chains: Iterable[FilterChain], cluster: str) -> Iterator[Identity]:
    plans: Iterator[RoutePlan] = (chain.plan for chain in chains)
    for route in (route for plan in plans for host in plan.hosts for route in host.routes):
        for to in (*route.backends, *route.mirrors):
            if to.backend is not None and to.cluster == cluster:
                yield to.backend.identity
                yield from to.settings


def _streams(state: CompileState, cluster: str) -> Iterator[Identity]:
    for stream in (stream for streams in state.served.streams.values() for stream in streams) if state.served else ():
        yield from (to.backend.identity for to in stream.backends if to.backend is not None and to.cluster == cluster)


def _authorizers(state: CompileState, cluster: str) -> Iterator[Identity]:
    for entry in state.policies.checkpoints.values():
        if any(service.cluster == cluster for service in entry.services):
            yield from entry.policies
            yield from (service.service.identity for service in entry.services if service.cluster == cluster)

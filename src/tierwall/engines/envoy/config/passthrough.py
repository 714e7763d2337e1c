"""Listeners whose bytes go on as they come: TLSRoutes in mode Passthrough, by server name, and TCPRoutes.

Gateway API, TLSRoute and TCPRoute. No policy can see what goes through. So where any policy is about the Gateway, the
route, the Service, or an XBackend that names this Service, connections are closed instead. The oldest route has a
server name; connections for a name without a route are closed. No definitions of these kinds are built in, so that
types are checked here.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from envoy.config.listener.v3 import listener_components_pb2
from envoy.extensions.filters.network.tcp_proxy.v3 import tcp_proxy_pb2

from tierwall.attach.backend import BackendRef, backend_refs
from tierwall.attach.listener import Listener
from tierwall.attach.meant_targets import may_mean
from tierwall.attach.place import SERVICE, Place
from tierwall.attach.route import RouteOnListener
from tierwall.attach.section import rules
from tierwall.attach.target import GATEWAY_POLICIES, attachments
from tierwall.core.diagnostics import Diagnostic
from tierwall.core.reference import Reference
from tierwall.engines.envoy.config import backend_tls, clusters
from tierwall.engines.envoy.config.backend_addresses import backend_address, unresolved
from tierwall.engines.envoy.config.host_names import most_specific
from tierwall.engines.envoy.config.matchers import packed
from tierwall.engines.envoy.config.names import NOWHERE, stream_cluster_name
from tierwall.engines.envoy.config.options import EnvoyOptions
from tierwall.engines.envoy.config.planned_backends import NO_BACKEND, UNSUPPORTED
from tierwall.resources.resource import Identity, Resource, nested_map
from tierwall.resources.snapshot import Snapshot
from tierwall.resources.validity import is_understood
from tierwall.tool.model import BACKENDS, model

GUARDED_HINT = "use an HTTPRoute on an HTTPS listener, or a Gateway without policies"
# Gateway API, `TLSRouteRule` and `BackendRef`.
MAX_BACKENDS, MAX_WEIGHT = 16, 1_000_000
_HOST = re.compile(r"(\*\.)?[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?(\.[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?)*", re.ASCII)


class StreamBackend(NamedTuple):
    """A share of the connections of a route; without a cluster they are closed."""

    weight: int
    backend: Resource | None = None
    cluster: str = NOWHERE


class StreamChain(NamedTuple):
    """The connections for one server name of a TLS listener (empty: any), or all of a TCP listener."""

    gateway: Resource
    listener: Listener
    server_name: str
    route: Resource | None = None
    backends: tuple[StreamBackend, ...] = ()

    def message(self, port_name: str) -> Any:
        """Return the filter chain."""
        name = f"{port_name}/{self.server_name or '*'}"
        out = listener_components_pb2.FilterChain(name=name)
        if self.listener.protocol == "TLS":
            out.filter_chain_match.transport_protocol = "tls"
            if self.server_name:
                out.filter_chain_match.server_names.append(self.server_name)
        proxy = tcp_proxy_pb2.TcpProxy(stat_prefix=name.replace("/", "."))
        if len(self.backends) > 1:
            for to in self.backends:
                proxy.weighted_clusters.clusters.add(name=to.cluster, weight=to.weight)
        else:
            proxy.cluster = self.backends[0].cluster if self.backends else NOWHERE
        out.filters.add(name="envoy.filters.network.tcp_proxy", typed_config=packed(proxy))
        return out

    @property
    def contributors(self) -> Iterator[Identity]:
        """The objects that it is made of."""
        yield self.gateway.identity
        yield self.listener.owner.identity
        if self.route is not None:
            yield self.route.identity


class StreamPlanner:
    """Makes chains. `clusters` collects the clusters of their backends, `diagnostics` the problems."""

    def __init__(self, snapshot: Snapshot, options: EnvoyOptions) -> None:
        self._snapshot, self._options = snapshot, options
        self.clusters: dict[str, Any] = {}
        self.diagnostics: list[Diagnostic] = []

    def chains(
        self, gateway: Resource, listener: Listener, attached: Sequence[RouteOnListener], on_port: Iterable[Listener]
    ) -> tuple[StreamChain, ...]:
        """Return the chains of a listener with its routes, oldest first; `on_port` are all listeners of its port."""
        on_port = tuple(on_port)
        default = listener.hostname.lower()
        chains = {default: StreamChain(gateway, listener, default)}
        for route, hostnames in ((each.route, each.hostnames) for each in attached):
            backends: tuple[StreamBackend, ...] | None = None
            for name in (each.lower() for each in hostnames or ("",)):
                if name and (not _HOST.fullmatch(name) or most_specific(name, on_port) is not listener):
                    continue
                rival = chains[name].route if name in chains else None
                if rival is not None:
                    what = f"`{name}`" if name else "it"
                    message = f"{route.reference} is not served at {listener}: {rival.reference} has {what}"
                    self.diagnostics.append(route.diagnostic(UNSUPPORTED, message, ("spec", "parentRefs")))
                    continue
                if backends is None:
                    backends = self._backends(gateway, listener, route)
                chains[name] = StreamChain(gateway, listener, name, route, backends)
        return tuple(chains[name] for name in sorted(chains))

    def _backends(self, gateway: Resource, listener: Listener, route: Resource) -> tuple[StreamBackend, ...]:
        refs = [(ref, ref.weight) for ref in backend_refs(route)]
        problem, hint = "", ""
        if len(rules(route)) > 1:
            problem, hint = "has several rules, and nothing tells its connections apart", "leave one rule"
        elif len(refs) > MAX_BACKENDS or any(not 0 <= weight <= MAX_WEIGHT for _, weight in refs):
            problem = f"has more than {MAX_BACKENDS} backends, or a weight that is not between 0 and {MAX_WEIGHT}"
        if problem:
            message = f"{route.reference} {problem}: its connections are closed"
            self.diagnostics.append(route.diagnostic(UNSUPPORTED, message, ("spec", "rules"), hint=hint))
            return ()
        return tuple(self._backend(gateway, listener, ref, weight) for ref, weight in refs if weight)

    def _backend(self, gateway: Resource, listener: Listener, ref: BackendRef, weight: int) -> StreamBackend:
        resource = ref.place.resource(self._snapshot) if unresolved(self._snapshot, ref) is None else None
        located = backend_address(resource, ref.port, self._options) if resource is not None else None
        if resource is None or located is None or ref.place.key != SERVICE:
            message = f"backend {ref.place} of {ref.route.reference} is not a port of a Service: connections are closed"
            self.diagnostics.append(ref.route.diagnostic(NO_BACKEND, message, ref.path))
            return StreamBackend(weight)
        if guard := next(self._guards(gateway, listener, ref.route, resource), None):
            message = f"{guard} cannot see the connections of {ref.route.reference} to {ref.place}: they are closed"
            self.diagnostics.append(ref.route.diagnostic(UNSUPPORTED, message, ref.path, hint=GUARDED_HINT))
            return StreamBackend(weight)
        if listener.protocol == "TCP" and backend_tls.policy_of(self._snapshot, resource, ref.port) is not None:
            message = (
                f"a BackendTLSPolicy wants TLS to {ref.place}, which TCPRoutes do not begin: connections are closed"
            )
            hint = "use an HTTPRoute, or let clients speak TLS and delete the BackendTLSPolicy"
            self.diagnostics.append(ref.route.diagnostic(UNSUPPORTED, message, ref.path, hint=hint))
            return StreamBackend(weight)
        name = stream_cluster_name(resource, ref.port)
        self.clusters[name] = clusters.cluster(name, located[0])
        return StreamBackend(weight, resource, name)

    def _guards(self, gateway: Resource, listener: Listener, route: Resource, service: Resource) -> Iterator[Reference]:
        """Yield the policies that are about a way: what goes past them would not be judged."""
        tools = model(self._snapshot)
        named = (
            backend
            for kind in BACKENDS
            for backend in self._snapshot.in_namespace(*kind, service.namespace)
            if nested_map(backend.spec, "mcp").get("serviceName") == service.name
        )
        for backend in (None, service, *named):
            for tier in tools.stack(gateway, listener, backend):
                yield from (policy.resource.reference for policy in tier.policies)
        for place in map(Place.of, (service, route)):
            yield from (policy.resource.reference for policy in tools.policies_at(place))
        settings = attachments(self._snapshot, GATEWAY_POLICIES, admitted=False)
        places = [Place.of(owner) for owner in (gateway, listener.owner, route, service)]
        for place in places:
            yield from (policy.reference for policy in settings.on(place))
        for policy in settings.policies:
            if not is_understood(self._snapshot, policy) and may_mean(self._snapshot, policy, places, whole=True):
                yield policy.reference

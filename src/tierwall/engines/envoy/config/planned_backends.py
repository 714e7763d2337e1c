"""The backends of a rule: clusters with the settings in force there, or why requests to them are answered with 500.

Mirrors are backends, too: they get copies.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction
from functools import partial
from typing import Any

from envoy.config.core.v3 import base_pb2
from msgspec import Struct, structs

from tierwall.attach.backend import BackendRef, backend_refs
from tierwall.attach.listener import Listener
from tierwall.attach.place import BACKEND
from tierwall.attach.reach import RouteRule
from tierwall.attach.section import rules
from tierwall.core.diagnostics import Diagnostic
from tierwall.engines.envoy.config import (
    app_protocol,
    backend_ref_filters,
    backend_tls,
    clusters,
    joined_backends,
    mirrors,
)
from tierwall.engines.envoy.config.agentgateway_backends import (
    HINT,
    BackendTarget,
    backend_paths,
    backend_target,
    joined_targets,
)
from tierwall.engines.envoy.config.backend_addresses import external_host, unresolved
from tierwall.engines.envoy.config.chain_rule import mirroring_rule
from tierwall.engines.envoy.config.fence import ObjectFence
from tierwall.engines.envoy.config.grpc_routes import is_grpc
from tierwall.engines.envoy.config.header_changes import REFERENCE_HINT, changes_requests, reference_problem
from tierwall.engines.envoy.config.joined_limits import COPIES, DIFFERENT, FILTERS, HINTS, SEVERAL, differ
from tierwall.engines.envoy.config.model_backends import PathChange, provider_of, unusable_routes
from tierwall.engines.envoy.config.names import PLACE, backend_cluster_name, backend_of_cluster
from tierwall.engines.envoy.config.options import EnvoyOptions
from tierwall.engines.envoy.config.settings.compiler import SettingsCompiler
from tierwall.engines.envoy.config.settings.mcp_rules import MessageFilters
from tierwall.engines.envoy.config.settings.model_fields import model_filters
from tierwall.engines.envoy.config.settings.model_headers import header_changes
from tierwall.engines.envoy.config.settings.places import place_of
from tierwall.engines.envoy.config.settings.unenforceable import Unenforceable
from tierwall.engines.envoy.config.unserved_parts import refused_backend
from tierwall.resources.resource import Identity, Resource
from tierwall.resources.snapshot import Snapshot

UNSUPPORTED, NO_BACKEND = "TW655", "TW656"


class RouteBackend(Struct, frozen=True, eq=False):
    """A share of the requests of a route on a listener, and its backend; None if the backend is missing."""

    gateway: Resource
    listener: Listener
    weight: int
    backend: Resource | None = None
    cluster: str | None = None
    # The host that replaces the client's, if any.
    host: str = ""
    # What filters of the reference change for its requests (`backend_ref_filters`).
    changes: Any | None = None
    # What settings make filters do with its requests alone.
    messages: MessageFilters = MessageFilters()
    # The path of an MCP server, whatever the client asks for, or those of a provider of models.
    paths: tuple[PathChange, ...] = (PathChange(),)
    # A part of the reference that is not supported: its requests are answered with 500.
    unsupported: str = ""
    # Whether that is the mistake of a policy, whose status says so: the route itself is as it should be.
    has_policy_mistake: bool = False
    # The policies whose settings it has, and whether these judge or change requests by filters.
    settings: frozenset[Identity] = frozenset()
    judges_requests: bool = False
    # The name of an MCP server, and the servers that a backend joins (`joined_backends`).
    target: str = ""
    targets: tuple[RouteBackend, ...] = ()


# A backend that gets copies, and the share of the requests that are copied.
Mirror = tuple[RouteBackend, Fraction]


class BackendPlanner:
    """Plans backends. `clusters` collects their clusters, `diagnostics` the problems."""

    def __init__(
        self, snapshot: Snapshot, options: EnvoyOptions, settings: SettingsCompiler, fence: ObjectFence
    ) -> None:
        self._snapshot = snapshot
        self._options = options
        self._settings = settings
        self._fence = fence
        self.clusters: dict[str, Any] = {}
        self.diagnostics: list[Diagnostic] = []

    def backends(self, gateway: Resource, listener: Listener, chain: Sequence[RouteRule]) -> tuple[RouteBackend, ...]:
        """Return the backends of the last rule of a chain that get requests."""
        route, number = chain[-1]
        refs = [ref for ref in backend_refs(route) if ref.rule == number and ref.weight]
        backends = tuple(self._backend(gateway, listener, chain, ref) for ref in refs)
        if len(refs) > 1 and any(backend.targets for backend in backends):
            return tuple(self._closed_backend(gateway, listener, ref, SEVERAL, HINTS[SEVERAL]) for ref in refs)
        return backends

    def mirrors(self, gateway: Resource, listener: Listener, chain: Sequence[RouteRule]) -> tuple[Mirror, ...]:
        """Return the backends that get copies of the requests of a chain; a copy that leads nowhere is not made."""
        last = mirroring_rule(chain)
        route, number = chain[last]
        refs = mirrors.mirror_refs(route, number, rules(route)[number])
        return tuple(
            (self._backend(gateway, listener, chain[: last + 1], ref), mirrors.share(ref.value)) for ref in refs
        )

    def _backend(
        self, gateway: Resource, listener: Listener, chain: Sequence[RouteRule], ref: BackendRef
    ) -> RouteBackend:
        resource = ref.place.resource(self._snapshot) if unresolved(self._snapshot, ref) is None else None
        if resource is not None and ref.place.key == BACKEND:
            target = backend_target(resource)
            if isinstance(target, str):
                return self._closed_backend(gateway, listener, ref, target, HINT)
            if servers := joined_targets(resource):
                return self._joined(gateway, listener, chain, ref, resource, servers)
        cluster = self._cluster(resource, ref.port) if resource is not None else None
        if resource is None or cluster is None:
            return self._missing(gateway, listener, ref)
        return self._served(gateway, listener, chain, ref, resource, cluster, external_host(resource))

    def _missing(self, gateway: Resource, listener: Listener, ref: BackendRef) -> RouteBackend:
        effect = "are not made" if isinstance(ref, mirrors.MirrorRef) else "are answered with 500"
        message = f"backend {ref.place} of {ref.route.reference} leads nowhere: requests to it {effect}"
        self.diagnostics.append(ref.route.diagnostic(NO_BACKEND, message, ref.path))
        return RouteBackend(gateway, listener, ref.weight)

    def _joined(
        self,
        gateway: Resource,
        listener: Listener,
        chain: Sequence[RouteRule],
        ref: BackendRef,
        resource: Resource,
        servers: Sequence[BackendTarget],
    ) -> RouteBackend:
        """Return a backend that joins MCP servers, with each of them."""

        def closed(problem: str) -> RouteBackend:
            return self._closed_backend(gateway, listener, ref, problem, HINTS[problem])

        if isinstance(ref, mirrors.MirrorRef):
            return closed(COPIES)
        if unsupported := reference_problem(filters := ref.value.get("filters")):
            return self._closed_backend(gateway, listener, ref, unsupported, REFERENCE_HINT)
        if changes_requests(filters):
            return closed(FILTERS)
        members: list[RouteBackend] = []
        words = "requests to it are answered with 500"
        for server in servers:
            make = partial(clusters.target_cluster, resource, server, self._options)
            cluster = self._fence.guard(resource, words, make)
            if cluster is None:
                return self._missing(gateway, listener, ref)
            host = external_host(resource, server)
            member = self._served(gateway, listener, chain, ref, resource, cluster, host, server)
            if member.cluster is None:
                return member
            members.append(member)
        there = place_of(gateway, listener, chain)
        read = self._settings.reader.of_backend
        if differ([read(there, resource, ref.port, server.section)[1] for server in servers]):
            return closed(DIFFERENT)
        places = {member.target: (member.cluster or "", member.host, member.paths[0].path) for member in members}
        numbers = [number for _, number in chain]
        joining = joined_backends.joining(resource, places, f"{there} {numbers}")
        each = tuple(
            structs.replace(member, messages=member.messages | joined_backends.entering(joining)) for member in members
        )
        name = backend_cluster_name(resource)
        self.clusters[name] = clusters.empty_cluster(name)
        settings = frozenset[Identity]().union(*(member.settings for member in members))
        messages = members[0].messages | joining
        return RouteBackend(
            gateway, listener, ref.weight, resource, name, messages=messages, settings=settings, targets=each
        )

    def _served(
        self,
        gateway: Resource,
        listener: Listener,
        chain: Sequence[RouteRule],
        ref: BackendRef,
        resource: Resource,
        cluster: Any,
        host: str,
        server: BackendTarget | None = None,
    ) -> RouteBackend:
        """Return a backend with the settings in force there, or one of the servers that it joins."""
        if unsupported := reference_problem(ref.value.get("filters")):
            return self._closed_backend(gateway, listener, ref, unsupported, REFERENCE_HINT)
        target = server.section if server is not None else ""
        settings = self._settings.backend(place_of(gateway, listener, chain), resource, ref.port, target)
        if settings.closed:
            return RouteBackend(gateway, listener, ref.weight, unsupported=settings.closed)
        protocol = app_protocol.app_protocol(self._snapshot, resource, ref.port)
        by_protocol = list(app_protocol.protocol_changes(protocol, is_grpc(ref.route)))
        secured = backend_tls.policy_of(self._snapshot, resource, ref.port)
        if secured is not None:
            try:
                by_protocol.append(backend_tls.tls_change(self._snapshot, secured, http2=bool(by_protocol)))
            except Unenforceable as error:
                part, problem = f"{secured.reference} with a mistake", f"{secured.reference} cannot be used ({error})"
                closed = self._closed_backend(gateway, listener, ref, part, backend_tls.HINT, problem)
                return structs.replace(closed, has_policy_mistake=True)
        messages = settings.messages
        paths = backend_paths(resource, settings.model_fields) if server is None else (PathChange(path=server.path),)
        if (provider := provider_of(resource)) is not None:
            if unsupported := unusable_routes(paths, self._options.max_program_size):
                return self._closed_backend(gateway, listener, ref, unsupported, HINT)
            by_protocol += header_changes(provider)
            messages |= model_filters(provider, settings.model_fields)
        policies = settings.policies | ({secured.identity} if secured is not None else set())
        settings._replace(changes=(*by_protocol, *settings.changes)).apply_to_cluster(cluster)
        if unsupported := app_protocol.missing_tls(protocol, cluster):
            return self._closed_backend(gateway, listener, ref, unsupported, app_protocol.HINT)
        self.clusters[cluster.name] = cluster
        return RouteBackend(
            gateway,
            listener,
            ref.weight,
            resource,
            cluster.name,
            host,
            backend_ref_filters.backend_changes(ref.value.get("filters")),
            messages,
            paths,
            settings=policies,
            judges_requests=settings.judges_requests,
            target=target,
        )

    def _closed_backend(
        self,
        gateway: Resource,
        listener: Listener,
        ref: BackendRef,
        unsupported: str,
        hint: str,
        problem: str = "",
    ) -> RouteBackend:
        """Return a backend whose requests are answered with 500, because a part of what it needs is not supported."""
        self.diagnostics.append(refused_backend(ref, unsupported, hint, problem).diagnostic(UNSUPPORTED))
        return RouteBackend(gateway, listener, ref.weight, unsupported=unsupported)

    def _cluster(self, backend: Resource, port: int) -> Any | None:
        words = "requests to it are answered with 500"
        service, _ = app_protocol.service_port(self._snapshot, backend, port) or (None, 0)
        return self._fence.guard(
            backend, words, lambda: clusters.backend_cluster(backend, port, self._options, service)
        )


def backends_of_routes(backends: tuple[RouteBackend, ...]) -> Iterator[tuple[tuple[RouteBackend, ...], PathChange]]:
    """Yield the backends of each route of a rule, and what becomes of paths there.

    Each of joined servers has a route of its own, for the messages that are for it alone; what is left has the last.
    """
    for target in backends[0].targets if len(backends) == 1 else ():
        yield (target,), target.paths[0]
    paths = next((backend.paths for backend in backends if backend.cluster is not None), (PathChange(),))
    yield from ((backends, change) for change in paths)


def place(gateway: Resource, listener: Listener, backends: tuple[RouteBackend, ...]) -> Any:
    """Return route metadata for the decision log: the Gateway, the listener and the backend of a request."""
    out = base_pb2.Metadata()
    about = {"gateway": f"{gateway.namespace}/{gateway.name}", "listener": listener.name}
    # If a route has several backends, the log learns the backend from the cluster that Envoy chose.
    backend = backend_of_cluster(backends[0].cluster or "") if len(backends) == 1 else None
    out.filter_metadata[PLACE].update(about if backend is None else {**about, "backend": backend})
    return out

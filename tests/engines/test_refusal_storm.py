"""Storms of good edits, revocations and bad objects, through the compiler and the exchange with fake Envoys.

A fake Envoy refuses every resource with the word `poison` in it, keeps what it accepted before, and has Envoy's habits:
it acknowledges a filter that it refused if it gets the same again, without taking it. The reference says which of the
bad objects something leads to: those must be closed, no good object may be, and everything must be acknowledged.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from envoy.config.listener.v3 import listener_pb2
from envoy.extensions.filters.network.http_connection_manager.v3 import http_connection_manager_pb2 as hcm_pb2
from envoy.service.discovery.v3 import discovery_pb2
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.labs.envoy_lab import NETWORKING, Object, loaded, policy
from tests.randomness import examples
from tierwall.engines.envoy.config.options import EnvoyOptions
from tierwall.engines.envoy.control.cache import CLUSTER, EXTENSION, LISTENER, ORDER, ROUTE
from tierwall.engines.envoy.control.proxies import SILENT_SECONDS
from tierwall.engines.envoy.control.server import XdsServer
from tierwall.resources.resource import Identity
from tierwall.serve.envoy import EnvoyController

GATEWAY_API = "gateway.networking.k8s.io"
TENANTS = ("red", "green", "blue")
GATEWAY: Object = {
    "apiVersion": f"{GATEWAY_API}/v1",
    "kind": "Gateway",
    "metadata": {"name": "edge", "namespace": "infra"},
    "spec": {
        "gatewayClassName": "tierwall",
        "listeners": [
            {"name": "web", "port": 8080, "protocol": "HTTP", "allowedRoutes": {"namespaces": {"from": "All"}}}
        ],
    },
}


def discovered_filters(listener: bytes) -> set[str]:
    """Return the names of the HTTP filters of a listener that come by ECDS."""
    chains = listener_pb2.Listener.FromString(listener)
    names = set()
    for chain in [*chains.filter_chains, chains.default_filter_chain]:
        for network_filter in chain.filters:
            connections = hcm_pb2.HttpConnectionManager()
            if network_filter.typed_config.Unpack(connections):
                names |= {item.name for item in connections.http_filters if item.HasField("config_discovery")}
    return names


class FakeEnvoy:
    """A proxy that answers everything at once; `has` is what it has accepted, by kind and name."""

    def __init__(self, server: XdsServer) -> None:
        self.stream = server.connect()
        self.refuses = b"poison"
        self.has: dict[str, dict[str, bytes]] = {type_url: {} for type_url in ORDER}
        self._seen: dict[str, bytes] = {}
        self._routes: set[str] = set()
        self._filters: set[str] = set()
        self._ask(CLUSTER)
        self._ask(LISTENER)

    def _ask(self, type_url: str, *names: str, drop: tuple[str, ...] = ()) -> None:
        request = discovery_pb2.DeltaDiscoveryRequest(
            type_url=type_url, resource_names_subscribe=names, resource_names_unsubscribe=drop
        )
        self.stream.receive(request)

    def exchange(self) -> bool:
        """Take and answer what the control plane sends now; return whether there was anything."""
        responses = self.stream.responses()
        for response in responses:
            self._take(response)
        return bool(responses)

    def _take(self, response: Any) -> None:
        request = discovery_pb2.DeltaDiscoveryRequest(type_url=response.type_url, response_nonce=response.nonce)
        accepted = self.has[response.type_url]
        for resource in response.resources:
            content = resource.resource.value
            is_known = response.type_url == EXTENSION and self._seen.get(resource.name) == content
            self._seen[resource.name] = content
            if is_known:
                continue
            if self.refuses in content:
                request.error_detail.message = f"poison in {response.type_url}"
            else:
                accepted[resource.name] = content
        for name in response.removed_resources:
            accepted.pop(name, None)
        self.stream.receive(request)
        if response.type_url == LISTENER:
            wanted = {name for content in accepted.values() for name in discovered_filters(content)}
            self._ask(EXTENSION, *sorted(wanted - self._filters), drop=tuple(sorted(self._filters - wanted)))
            self._filters = wanted
            # Listeners and their routes have the same first part of their names.
            wanted = {f"{name}/5x1+4s9" for name in accepted}
            self._ask(ROUTE, *sorted(wanted - self._routes), drop=tuple(sorted(self._routes - wanted)))
            self._routes = wanted


class Storm:
    """A control plane with fake Envoys. A version of an object is a number; a negative version is bad."""

    def __init__(self, proxies: int) -> None:
        self.server = XdsServer(lambda: self.controller.acknowledge() if self.server.is_acknowledged else None)
        self.controller: Any = EnvoyController(EnvoyOptions(), self.server.publish)
        self.proxies = [FakeEnvoy(self.server) for _ in range(proxies)]
        self.versions: dict[tuple[str, str], int] = {}

    def load(self, versions: dict[tuple[str, str], int]) -> None:
        self.versions = versions
        objects = [GATEWAY, *(made(kind, tenant, version) for (kind, tenant), version in versions.items())]
        source: Any = SimpleNamespace(read=lambda: loaded(objects))
        load = self.controller.next_load(source)
        assert not load.refusal, load.refusal
        self.controller.accept(load)

    def pump(self) -> bool:
        """Let proxies answer, and take a step of the search; return whether anything happened."""
        happened = sum(proxy.exchange() for proxy in self.proxies) > 0
        for proxy in self.proxies:
            contents = [content for kind in proxy.has.values() for content in kind.values()]
            assert not [content for content in contents if proxy.refuses in content]
        if self.controller.next_step(self.server.answers(self.controller.search.at_fault)):
            self.controller.put_again(self.controller.recompile())
            return True
        return happened

    def settle(self) -> None:
        for _ in range(2000):
            if not self.pump():
                return
        raise AssertionError("the search does not end")

    @property
    def must_be_closed(self) -> set[tuple[str, str]]:
        """Return the bad objects that something leads to: a policy needs a good backend, a backend a good route."""
        out = {key for key, version in self.versions.items() if key[0] == "HTTPRoute" and version < 0}
        for tenant in TENANTS:
            if self.versions.get(("HTTPRoute", tenant), -1) < 0:
                continue
            backend = self.versions.get(("XBackend", tenant))
            if backend is not None and backend < 0:
                out.add(("XBackend", tenant))
            elif backend is not None:
                policies = [(f"policy-{number}", tenant) for number in range(2)]
                out |= {key for key in policies if self.versions.get(key, 0) < 0}
        return out


def made(kind: str, tenant: str, version: int) -> Object:
    word = f"poison{-version}" if version < 0 else f"word{version}"
    metadata = {"name": kind.lower(), "namespace": tenant}
    if kind == "XBackend":
        spec: Object = {"mcp": {"serviceName": word, "port": 8080, "path": f"/{tenant}/mcp"}}
        return {"apiVersion": f"{NETWORKING}/v0alpha0", "kind": kind, "metadata": metadata, "spec": spec}
    if kind == "HTTPRoute":
        to = {"group": NETWORKING, "kind": "XBackend", "name": "xbackend", "port": 8080}
        change = {"set": [{"name": "x-word", "value": word}]}
        filters = [{"type": "RequestHeaderModifier", "requestHeaderModifier": change}]
        rules = [{"matches": [{"path": {"value": f"/{tenant}"}}], "filters": filters, "backendRefs": [to]}]
        parent = {"name": "edge", "namespace": "infra"}
        spec = {"parentRefs": [parent], "rules": rules}
        return {"apiVersion": f"{GATEWAY_API}/v1", "kind": kind, "metadata": metadata, "spec": spec}
    out = policy(kind, word, on="XBackend")
    out["metadata"]["namespace"] = tenant
    out["spec"]["targetRefs"][0]["name"] = "xbackend"
    return out


def key(identity: Identity) -> tuple[str, str]:
    _, kind, namespace, name = identity
    return (name if kind == "XAccessPolicy" else kind), namespace


_KEYS = st.tuples(st.sampled_from(["HTTPRoute", "XBackend", "policy-0", "policy-1"]), st.sampled_from(TENANTS))
_STATES = st.dictionaries(_KEYS, st.sampled_from([1, 2, 3, -1, -2]), min_size=4, max_size=12)


@settings(max_examples=examples(60), deadline=None)
@given(st.lists(st.tuples(_STATES, st.integers(0, 8)), min_size=1, max_size=6), st.integers(1, 2))
def test_after_a_storm_everything_good_is_in_force_and_everything_bad_is_closed(
    loads: list[tuple[dict[tuple[str, str], int], int]], proxies: int
) -> None:
    storm = Storm(proxies)
    for versions, pumps in loads:
        storm.load(versions)
        for _ in range(pumps):
            storm.pump()
    storm.settle()
    closed = {key(refused.resource.identity) for refused in storm.controller.search.refused}
    assert storm.must_be_closed <= closed
    assert closed <= {name for name, version in storm.versions.items() if version < 0}
    assert storm.controller.search.number_waiting == 0
    assert {key(identity) for identity in storm.controller._state.refused} == closed
    assert storm.server.programmed.status == "True", storm.server.programmed
    for proxy in storm.proxies:
        for kind in (CLUSTER, EXTENSION, LISTENER, ROUTE):
            in_force = {name: item.wire.resource.value for name, item in storm.server.cache.of(kind).items()}
            assert proxy.has[kind] == in_force


def test_the_newest_version_of_a_good_object_is_in_force_beside_a_bad_one() -> None:
    storm = Storm(1)
    good = {("HTTPRoute", "red"): 1, ("XBackend", "red"): 1, ("policy-0", "red"): 1}
    storm.load(good)
    storm.settle()
    bad = {("HTTPRoute", "blue"): 1, ("XBackend", "blue"): 1, ("policy-0", "blue"): -1, ("HTTPRoute", "green"): -1}
    storm.load({**good, **bad, ("policy-0", "red"): 2})
    storm.settle()
    assert {key(refused.resource.identity) for refused in storm.controller.search.refused} == {
        ("policy-0", "blue"),
        ("HTTPRoute", "green"),
    }
    [proxy] = storm.proxies
    accepted = b"".join(content for kind in proxy.has.values() for content in kind.values())
    assert b"word2" in accepted
    [route] = proxy.has[ROUTE].values()
    assert b"word1" in route


def test_a_proxy_that_never_answers_does_not_hold_up_the_search() -> None:
    storm = Storm(2)
    silent = storm.proxies.pop()
    silent.stream.responses()
    silent.stream.last_message -= 2 * SILENT_SECONDS
    good = {("HTTPRoute", "red"): 1, ("XBackend", "red"): 1, ("policy-0", "red"): 1, ("policy-1", "red"): -1}
    storm.load({**good, ("HTTPRoute", "blue"): -1})
    storm.settle()
    assert {key(refused.resource.identity) for refused in storm.controller.search.refused} == {
        ("policy-1", "red"),
        ("HTTPRoute", "blue"),
    }
    assert storm.controller.search.number_waiting == 0
    assert storm.server.programmed.status == "False", "the silent one has not acknowledged anything"


def test_a_proxy_that_connects_later_and_refuses_an_object_is_served_everything_else() -> None:
    """A newer Envoy may refuse what the others have accepted."""
    storm = Storm(1)
    [old] = storm.proxies
    old.refuses = b"no-such-word"
    red = {("HTTPRoute", "red"): 1, ("XBackend", "red"): 1, ("policy-0", "red"): 1}
    blue = {("HTTPRoute", "blue"): 1, ("XBackend", "blue"): 1, ("policy-0", "blue"): -1}
    storm.load({**red, **blue})
    storm.settle()
    assert storm.controller.search.refused == ()
    storm.proxies.append(FakeEnvoy(storm.server))
    storm.settle()
    assert [key(refused.resource.identity) for refused in storm.controller.search.refused] == [("policy-0", "blue")]
    assert storm.server.programmed.status == "True", storm.server.programmed

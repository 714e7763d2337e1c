"""Incremental xDS: whatever happens, a proxy that answers ends up with exactly its subscriptions in force."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import pytest
from envoy.config.cluster.v3 import cluster_pb2
from envoy.config.core.v3 import extension_pb2
from envoy.config.listener.v3 import listener_pb2
from envoy.config.route.v3 import route_pb2
from envoy.service.discovery.v3 import discovery_pb2
from hypothesis import given, settings
from hypothesis import strategies as st

from examples.agents import certificates
from tests.labs.waiting import PATIENCE_S
from tests.randomness import examples
from tierwall.core.diagnostics import InputError
from tierwall.engines.envoy.config.compile import XdsResources
from tierwall.engines.envoy.config.options import Certificate, MutualTlsAddress
from tierwall.engines.envoy.control.cache import CLUSTER, EXTENSION, LISTENER, ORDER, ROUTE, ResourceCache
from tierwall.engines.envoy.control.proxies import ProxyGroup, ProxyStatus, programmed
from tierwall.engines.envoy.control.server import SERVICE, DiscoveryServer, ProxyNode, UnservedProxyError, XdsServer
from tierwall.engines.envoy.control.stream import MAX_WORDS, Proxy, XdsStream
from tierwall.engines.envoy.control.subscription import MAX_NAMES

_MESSAGES: dict[str, Callable[[str, str], Any]] = {
    CLUSTER: lambda name, text: cluster_pb2.Cluster(name=name, alt_stat_name=text),
    LISTENER: lambda name, text: listener_pb2.Listener(name=name, stat_prefix=text),
    ROUTE: lambda name, text: route_pb2.RouteConfiguration(name=name, internal_only_headers=[text]),
    EXTENSION: lambda name, text: extension(name, text),
}


def extension(name: str, text: str) -> Any:
    out = extension_pb2.TypedExtensionConfig(name=name)
    out.typed_config.Pack(listener_pb2.Listener(stat_prefix=text))
    return out


def resources(state: dict[str, dict[str, str]]) -> XdsResources:
    """Return a configuration in which each resource contains one word."""
    messages = {
        type_url: {name: make(name, text) for name, text in state.get(type_url, {}).items()}
        for type_url, make in _MESSAGES.items()
    }
    return XdsResources(
        clusters=messages[CLUSTER],
        listeners=messages[LISTENER],
        routes=messages[ROUTE],
        extension_configs=messages[EXTENSION],
    )


class ModelProxy:
    """A proxy that follows the protocol. It refuses every response with a resource that contains `bad`."""

    def __init__(self, stream: XdsStream) -> None:
        self.stream = stream
        self.has: dict[str, dict[str, str]] = {type_url: {} for type_url in ORDER}
        self.versions: dict[str, dict[str, str]] = {type_url: {} for type_url in ORDER}
        self.unanswered: list[Any] = []
        self.says = "it says bad"
        self.received: list[tuple[str, list[str], list[str]]] = []

    def ask(self, type_url: str, *names: str, drop: tuple[str, ...] = (), brings: dict[str, str] | None = None) -> None:
        self.stream.receive(
            discovery_pb2.DeltaDiscoveryRequest(
                type_url=type_url,
                resource_names_subscribe=names,
                resource_names_unsubscribe=drop,
                initial_resource_versions=brings or {},
            )
        )

    def receive(self) -> None:
        for response in self.stream.responses():
            assert response.type_url not in {earlier.type_url for earlier in self.unanswered}, (
                "one unacknowledged response per kind"
            )
            self.unanswered.append(response)
            names = [resource.name for resource in response.resources]
            self.received.append((response.type_url, names, list(response.removed_resources)))

    def answer(self) -> None:
        for response in self.unanswered:
            words = {
                resource.name: _word(response.type_url, resource.resource.value) for resource in response.resources
            }
            request = discovery_pb2.DeltaDiscoveryRequest(type_url=response.type_url, response_nonce=response.nonce)
            if "bad" in words.values():
                request.error_detail.message = self.says
            else:
                self.has[response.type_url] |= words
                self.versions[response.type_url] |= {resource.name: resource.version for resource in response.resources}
                for name in response.removed_resources:
                    self.has[response.type_url].pop(name, None)
                    self.versions[response.type_url].pop(name, None)
            self.stream.receive(request)
        self.unanswered = []

    def converge(self) -> None:
        for _ in range(50):
            self.receive()
            if not self.unanswered:
                return
            self.answer()
        raise AssertionError("it never settles")


def _word(type_url: str, content: bytes) -> str:
    if type_url == CLUSTER:
        return str(cluster_pb2.Cluster.FromString(content).alt_stat_name)
    if type_url == LISTENER:
        return str(listener_pb2.Listener.FromString(content).stat_prefix)
    if type_url == EXTENSION:
        inner = extension_pb2.TypedExtensionConfig.FromString(content).typed_config.value
        return str(listener_pb2.Listener.FromString(inner).stat_prefix)
    return str(route_pb2.RouteConfiguration.FromString(content).internal_only_headers[0])


def connect(cache: ResourceCache) -> ModelProxy:
    return ModelProxy(XdsStream(cache, lambda _: None))


def in_step(state: dict[str, dict[str, str]]) -> tuple[ResourceCache, ModelProxy]:
    """Return a proxy that subscribed to a state and has it."""
    cache = ResourceCache()
    proxy = connect(cache)
    for type_url, words in state.items():
        proxy.ask(type_url, *([] if type_url in (CLUSTER, LISTENER) else words))
    cache.publish(resources(state))
    proxy.converge()
    assert proxy.stream.is_acknowledged
    return cache, proxy


_STATES = st.fixed_dictionaries(
    {
        type_url: st.dictionaries(st.sampled_from("abc"), st.sampled_from(["one", "two", "three", "bad"]), max_size=3)
        for type_url in (CLUSTER, EXTENSION, LISTENER, ROUTE)
    }
)
_STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("publish"), _STATES),
        st.tuples(st.sampled_from(["receive", "answer"]), st.none()),
        st.tuples(st.sampled_from(["ask", "drop"]), st.sampled_from("abc")),
    ),
    max_size=25,
)


@settings(max_examples=examples(400), deadline=None)
@given(_STEPS)
def test_a_proxy_that_answers_ends_with_exactly_its_subscriptions_in_force(steps: list[Any]) -> None:
    cache = ResourceCache()
    proxy = connect(cache)
    proxy.ask(CLUSTER)
    proxy.ask(LISTENER)
    proxy.ask(EXTENSION, *"abc")
    state: dict[str, dict[str, str]] = {}
    names: set[str] = set()
    for step, value in steps:
        if step == "publish":
            state = value
            cache.publish(resources(state))
        elif step == "receive" and cache.is_published:
            proxy.receive()
        elif step == "answer":
            proxy.answer()
        elif step == "ask":
            names.add(value)
            proxy.ask(ROUTE, value)
        elif step == "drop" and value in names:
            names.discard(value)
            proxy.ask(ROUTE, drop=(value,))
            proxy.has[ROUTE].pop(value, None)
    # In the end the refused resources are repaired.
    state = {
        type_url: {name: "good" if text == "bad" else text for name, text in those.items()}
        for type_url, those in state.items()
    }
    cache.publish(resources(state))
    proxy.answer()
    proxy.converge()
    assert proxy.has[CLUSTER] == state.get(CLUSTER, {})
    assert proxy.has[EXTENSION] == state.get(EXTENSION, {})
    assert proxy.has[LISTENER] == state.get(LISTENER, {})
    asked = {name: text for name, text in proxy.has[ROUTE].items() if name in names}
    assert asked == {name: text for name, text in state.get(ROUTE, {}).items() if name in names}
    assert proxy.stream.is_current


def test_only_changes_are_sent() -> None:
    cache, proxy = in_step({LISTENER: {"a": "one", "b": "one"}})
    proxy.received.clear()
    cache.publish(resources({LISTENER: {"a": "one", "b": "two"}}))
    proxy.converge()
    assert proxy.received == [(LISTENER, ["b"], [])]


def test_publishing_the_same_again_sends_nothing() -> None:
    cache, proxy = in_step({LISTENER: {"a": "one"}})
    assert cache.publish(resources({LISTENER: {"a": "one"}})) == {}
    assert proxy.stream.responses() == []


def test_referenced_resources_are_added_first_and_removed_last() -> None:
    cache = ResourceCache()
    proxy = connect(cache)
    for type_url in (ROUTE, LISTENER, CLUSTER):
        proxy.ask(type_url, *(["a", "b"] if type_url == ROUTE else []))
    cache.publish(resources({CLUSTER: {"a": "one"}, LISTENER: {"a": "one"}, ROUTE: {"a": "one"}}))
    proxy.receive()
    assert [type_url for type_url, _, _ in proxy.received] == [CLUSTER, LISTENER, ROUTE]
    proxy.answer()
    proxy.converge()
    proxy.received.clear()
    cache.publish(resources({CLUSTER: {"b": "one"}, LISTENER: {"b": "one"}, ROUTE: {"b": "one"}}))
    proxy.converge()
    assert [(type_url, names) for type_url, names, gone in proxy.received if not gone] == [
        (CLUSTER, ["b"]),
        (LISTENER, ["b"]),
        (ROUTE, ["b"]),
    ]
    assert [type_url for type_url, _, gone in proxy.received if gone] == [ROUTE, LISTENER, CLUSTER]


def test_a_refusal_keeps_the_last_good_state_and_reports_the_proxys_message() -> None:
    cache, proxy = in_step({ROUTE: {"a": "one"}})
    cache.publish(resources({ROUTE: {"a": "bad"}}))
    proxy.converge()
    assert proxy.has[ROUTE] == {"a": "one"}
    assert not proxy.stream.is_current
    assert list(map(str, proxy.stream.refusals)) == ["RouteConfiguration a: it says bad"]
    assert proxy.stream.responses() == [], "what was refused is not sent again and again"
    status = ProxyStatus(Proxy("p", "1.40.0"), proxy.stream.is_current, tuple(map(str, proxy.stream.refusals)))
    condition = programmed([status], True)
    assert (condition.status, condition.reason) == ("False", "Invalid")
    assert "it says bad" in condition.message
    cache.publish(resources({ROUTE: {"a": "two"}}))
    proxy.converge()
    assert proxy.has[ROUTE] == {"a": "two"}
    assert proxy.stream.is_current


def test_routes_wait_while_needed_filters_are_refused() -> None:
    cache, proxy = in_step({EXTENSION: {"f": "one", "g": "one"}, ROUTE: {"a": "one"}})
    cache.publish(resources({EXTENSION: {"f": "bad", "g": "one"}, ROUTE: {"a": "two"}}))
    proxy.converge()
    assert proxy.has[ROUTE] == {"a": "one"}
    cache.publish(resources({EXTENSION: {"f": "bad", "g": "two"}, ROUTE: {"a": "three"}}))
    proxy.converge()
    assert proxy.has[EXTENSION] == {"f": "one", "g": "two"}
    assert proxy.has[ROUTE] == {"a": "one"}
    cache.publish(resources({EXTENSION: {"f": "two", "g": "two"}, ROUTE: {"a": "three"}}))
    proxy.converge()
    assert proxy.has[ROUTE] == {"a": "three"}
    assert proxy.stream.is_acknowledged


@pytest.mark.parametrize("kind", [ROUTE, LISTENER])
def test_resources_of_a_refused_response_are_sent_again_in_parts(kind: str) -> None:
    cache = ResourceCache()
    proxy = connect(cache)
    proxy.ask(kind, *([] if kind == LISTENER else "abcd"))
    cache.publish(resources({kind: dict.fromkeys("abc", "one")}))
    proxy.converge()
    cache.publish(resources({kind: {"a": "two", "b": "bad", "c": "two", "d": "bad"}}))
    proxy.converge()
    assert proxy.has[kind] == {"a": "two", "b": "one", "c": "two"}
    kind_name = kind.rpartition(".")[2]
    assert list(map(str, proxy.stream.refusals)) == [f"{kind_name} b: it says bad", f"{kind_name} d: it says bad"]
    cache.publish(resources({kind: {"a": "two", "b": "two", "c": "two"}}))
    proxy.converge()
    assert proxy.has[kind] == {"a": "two", "b": "two", "c": "two"}
    assert proxy.stream.is_current


def test_what_the_message_of_a_refusal_does_not_name_is_sent_again_together() -> None:
    cache = ResourceCache()
    proxy = connect(cache)
    proxy.ask(LISTENER)
    names = [f"gateway/shop/edge/{number}" for number in range(100)]
    proxy.says = f"Error adding/updating listener(s) {names[7]}: it says bad"
    cache.publish(resources({LISTENER: {name: "bad" if name == names[7] else "one" for name in names}}))
    proxy.converge()
    assert set(proxy.has[LISTENER]) == {*names} - {names[7]}
    assert [(refusal.name, refusal.words) for refusal in proxy.stream.refusals] == [(names[7], proxy.says)]
    assert len(proxy.received) == 3


def test_the_message_of_a_refusal_is_one_line_of_bounded_length() -> None:
    cache, proxy = in_step({ROUTE: {"a": "one"}})
    proxy.says = "no such thing:\nerror[TW001] forged\r\n" + 5000 * "x"
    cache.publish(resources({ROUTE: {"a": "bad"}}))
    proxy.converge()
    [refusal] = proxy.stream.refusals
    assert refusal.words.startswith("no such thing: error[TW001] forged xxx")
    assert len(refusal.words) <= MAX_WORDS + 1


def test_a_refused_resource_is_found_among_many_in_few_responses() -> None:
    cache = ResourceCache()
    proxy = connect(cache)
    proxy.ask(LISTENER)
    names = [f"gateway/shop/edge/{number}" for number in range(100)]
    cache.publish(resources({LISTENER: {name: "bad" if name == names[7] else "one" for name in names}}))
    proxy.converge()
    assert set(proxy.has[LISTENER]) == {*names} - {names[7]}
    assert [refusal.name for refusal in proxy.stream.refusals] == [names[7]]
    assert len(proxy.received) < 20


def test_filters_are_sent_one_by_one_so_that_a_refusal_is_about_one_of_them() -> None:
    """Envoy remembers a filter before it refuses it, and acknowledges it when it gets it again."""
    cache, proxy = in_step({EXTENSION: {"f": "one", "g": "one"}, ROUTE: {"a": "one"}})
    proxy.received.clear()
    cache.publish(resources({EXTENSION: {"f": "bad", "g": "two"}, ROUTE: {"a": "two"}}))
    proxy.converge()
    assert proxy.received == [(EXTENSION, ["f"], []), (EXTENSION, ["g"], [])], "neither is sent again"
    assert proxy.has == {**proxy.has, EXTENSION: {"f": "one", "g": "two"}, ROUTE: {"a": "one"}}
    assert [refusal.name for refusal in proxy.stream.refusals] == ["f"]
    assert (proxy.stream.is_settled, proxy.stream.is_current) == (True, False)
    cache.publish(resources({EXTENSION: {"f": "three", "g": "two"}, ROUTE: {"a": "two"}}))
    assert (proxy.stream.is_settled, proxy.stream.is_current) == (False, False)
    proxy.converge()
    assert proxy.has == {**proxy.has, EXTENSION: {"f": "three", "g": "two"}, ROUTE: {"a": "two"}}
    assert proxy.stream.is_acknowledged


def test_refused_resources_that_are_deleted_are_removed() -> None:
    cache, proxy = in_step({LISTENER: {"a": "one", "b": "one"}})
    cache.publish(resources({LISTENER: {"a": "two", "b": "bad"}}))
    proxy.receive()
    proxy.answer()
    cache.publish(resources({LISTENER: {}}))
    proxy.converge()
    assert proxy.has[LISTENER] == {}
    assert proxy.stream.is_current


def test_clusters_of_the_last_good_routes_stay_while_new_routes_are_refused() -> None:
    cache, proxy = in_step({CLUSTER: {"old": "one"}, ROUTE: {"a": "one"}})
    cache.publish(resources({CLUSTER: {"new": "one"}, ROUTE: {"a": "bad"}}))
    proxy.converge()
    assert proxy.has[CLUSTER] == {"old": "one", "new": "one"}
    cache.publish(resources({CLUSTER: {"new": "one"}, ROUTE: {"a": "two"}}))
    proxy.converge()
    assert proxy.has[CLUSTER] == {"new": "one"}
    assert proxy.stream.is_acknowledged


def test_a_new_proxy_gets_filters_before_routes_whatever_it_asks_for_first() -> None:
    """Else its listeners could open with filters that deny everything, because others are still on their way."""
    cache = ResourceCache()
    cache.publish(resources({EXTENSION: {"f": "one", "g": "one"}, ROUTE: {"a": "one"}}))
    proxy = connect(cache)
    proxy.ask(ROUTE, "a")
    proxy.receive()
    assert proxy.received == []
    proxy.ask(EXTENSION, "f", "g")
    proxy.converge()
    assert [kind for kind, _, _ in proxy.received] == [EXTENSION, EXTENSION, ROUTE]
    assert proxy.stream.is_acknowledged


def test_a_reconnecting_proxy_gets_filters_before_routes() -> None:
    cache = ResourceCache()
    before = connect(cache)
    before.ask(ROUTE, "a")
    before.ask(EXTENSION, "f")
    cache.publish(resources({EXTENSION: {"f": "one"}, ROUTE: {"a": "one"}}))
    before.converge()
    cache.publish(resources({EXTENSION: {"f": "two"}, ROUTE: {"a": "two"}}))
    proxy = connect(cache)
    proxy.ask(ROUTE, "a", brings=before.versions[ROUTE])
    proxy.receive()
    assert proxy.received == []
    proxy.ask(EXTENSION, "f", brings=before.versions[EXTENSION])
    proxy.converge()
    assert [kind for kind, _, _ in proxy.received] == [EXTENSION, ROUTE]
    assert proxy.stream.is_acknowledged


def test_a_proxy_is_acknowledged_only_after_it_subscribed_to_everything() -> None:
    cache = ResourceCache()
    proxy = connect(cache)
    cache.publish(resources({CLUSTER: {"c": "one"}, EXTENSION: {"f": "one"}, ROUTE: {"a": "one"}}))
    proxy.ask(CLUSTER)
    proxy.converge()
    assert proxy.stream.is_current
    assert not proxy.stream.is_acknowledged
    proxy.ask(EXTENSION, "f")
    proxy.ask(ROUTE, "a")
    assert not proxy.stream.is_acknowledged
    proxy.converge()
    assert proxy.stream.is_acknowledged


def test_a_silent_proxy_is_sent_one_response_per_kind_however_much_changes() -> None:
    cache = ResourceCache()
    silent, other = connect(cache), connect(cache)
    for proxy in (silent, other):
        proxy.ask(ROUTE, "a")
    for number in range(200):
        cache.publish(resources({ROUTE: {"a": f"word {number}"}}))
        silent.receive()
        other.converge()
        assert other.has[ROUTE] == {"a": f"word {number}"}
    assert len(silent.received) == 1
    silent.answer()
    silent.converge()
    assert silent.has[ROUTE] == {"a": "word 199"}


def test_a_reconnecting_proxy_is_sent_only_what_it_lacks() -> None:
    before = ResourceCache()
    proxy = connect(before)
    proxy.ask(LISTENER)
    before.publish(resources({LISTENER: {"a": "one", "b": "one", "c": "one"}}))
    proxy.converge()
    # Another control plane, without the state of the exchange.
    cache = ResourceCache()
    again = connect(cache)
    again.ask(LISTENER, brings=proxy.versions[LISTENER])
    assert not cache.is_published
    cache.publish(resources({LISTENER: {"a": "one", "b": "two"}}))
    again.converge()
    assert again.received == [(LISTENER, ["b"], []), (LISTENER, [], ["c"])]


def test_a_proxy_of_another_control_plane_keeps_what_it_has_until_this_one_has_caught_up() -> None:
    newer, older, fresh = ResourceCache(), ResourceCache(), [False]
    newer.publish(resources({CLUSTER: {"x": "one"}, LISTENER: {"a": "two", "b": "one"}}))
    older.publish(resources({CLUSTER: {"x": "one"}, LISTENER: {"a": "one", "c": "one"}}))
    proxy = connect(newer)
    proxy.ask(CLUSTER)
    proxy.ask(LISTENER)
    proxy.converge()
    again = ModelProxy(XdsStream(older, lambda _: None, lambda moment: fresh[0]))
    again.ask(CLUSTER, brings=proxy.versions[CLUSTER])
    # What is the same everywhere is answered at once, and changes nothing.
    again.converge()
    assert again.received == [(CLUSTER, [], [])]
    again.ask(LISTENER, brings=proxy.versions[LISTENER])
    again.converge()
    assert again.received == [(CLUSTER, [], [])]
    assert again.stream.is_held
    # A proxy that has nothing gets everything: it could not be set back.
    empty = ModelProxy(XdsStream(older, lambda _: None, lambda moment: fresh[0]))
    empty.ask(LISTENER)
    empty.converge()
    assert empty.has[LISTENER] == {"a": "one", "c": "one"}
    # The news arrive here, too: now both have the same, and nothing needs to be sent.
    older.publish(resources({CLUSTER: {"x": "one"}, LISTENER: {"a": "two", "b": "one"}}))
    again.converge()
    assert again.received[1:] == [(LISTENER, [], [])]
    older.publish(resources({CLUSTER: {"x": "one"}, LISTENER: {"a": "three"}}))
    again.converge()
    assert len(again.received) == 2
    fresh[0] = True
    again.converge()
    assert again.received[2:] == [(LISTENER, ["a"], []), (LISTENER, [], ["b"])]


def test_an_unknown_name_is_answered_at_once() -> None:
    cache = ResourceCache()
    proxy = connect(cache)
    cache.publish(resources({}))
    proxy.ask(ROUTE, "a")
    proxy.converge()
    assert proxy.received == [(ROUTE, [], ["a"])]


def test_an_answer_to_an_older_response_is_ignored() -> None:
    cache = ResourceCache()
    proxy = connect(cache)
    proxy.ask(ROUTE, "a")
    cache.publish(resources({ROUTE: {"a": "one"}}))
    proxy.receive()
    proxy.stream.receive(discovery_pb2.DeltaDiscoveryRequest(type_url=ROUTE, response_nonce="99"))
    assert not proxy.stream.is_current
    proxy.answer()
    assert proxy.stream.is_current


def test_the_number_of_names_that_a_proxy_can_subscribe_to_is_bounded() -> None:
    proxy = connect(ResourceCache())
    with pytest.raises(OverflowError, match="more than"):
        proxy.ask(ROUTE, *(f"r{number}" for number in range(MAX_NAMES + 1)))


def test_an_unknown_kind_is_ignored() -> None:
    proxy = connect(ResourceCache())
    proxy.ask("type.googleapis.com/unknown", "a")
    assert proxy.stream.subscriptions == {}


@pytest.mark.parametrize(
    ("statuses", "published", "status", "reason"),
    [
        ([], False, "False", "Pending"),
        ([], True, "False", "Pending"),
        ([ProxyStatus(Proxy("p", ""), False, ())], True, "False", "Pending"),
        ([ProxyStatus(Proxy("p", ""), True, ())], True, "True", "Programmed"),
        ([ProxyStatus(Proxy("p", ""), True, ()), ProxyStatus(Proxy("q", ""), False, ())], True, "False", "Pending"),
        (
            [ProxyStatus(Proxy("p", ""), True, ()), ProxyStatus(Proxy("q", ""), False, ("no",))],
            True,
            "False",
            "Invalid",
        ),
    ],
)
def test_programmed_is_true_only_when_every_proxy_obeys(
    statuses: list[ProxyStatus], published: bool, status: str, reason: str
) -> None:
    condition = programmed(statuses, published)
    assert (condition.status, condition.reason) == (status, reason)


def ask_with_tls(authority: certificates.Authority, port: int, client: certificates.Pair | None) -> str:
    """The name of the first listener that a proxy with this certificate gets."""
    key, chain = (client.key, client.certificate) if client is not None else (None, None)
    credentials = grpc.ssl_channel_credentials(authority.pem, key, chain)
    with grpc.secure_channel(f"localhost:{port}", credentials) as channel:
        talk = channel.stream_stream(
            f"/{SERVICE}/DeltaAggregatedResources",
            discovery_pb2.DeltaDiscoveryRequest.SerializeToString,
            discovery_pb2.DeltaDiscoveryResponse.FromString,
        )
        answers = talk(iter([discovery_pb2.DeltaDiscoveryRequest(type_url=LISTENER)]), timeout=PATIENCE_S)
        return str(next(answers).resources[0].name)


def test_with_tls_only_proxies_with_a_certificate_are_served(tmp_path: Path) -> None:
    authority, stranger = certificates.Authority(), certificates.Authority()
    shown = authority.server("localhost")

    async def main() -> None:
        server = XdsServer()
        certificate = Certificate(shown.certificate, shown.key)
        await server.start(MutualTlsAddress("127.0.0.1", 0, certificate, authority.pem))
        server.publish(resources({LISTENER: {"a": "one"}}))
        try:
            proxy = authority.agent("proxies", "envoy")
            assert await asyncio.to_thread(ask_with_tls, authority, server.port, proxy) == "a"
            for other in (None, stranger.agent("proxies", "envoy")):
                with pytest.raises(grpc.RpcError):
                    await asyncio.to_thread(ask_with_tls, authority, server.port, other)
        finally:
            await server.stop(0)

    asyncio.run(main())


def test_the_verified_certificate_chooses_the_group_and_renewed_authorities_count() -> None:
    authority, next_authority = certificates.Authority(), certificates.Authority()
    groups = {f"spiffe://cluster.local/ns/{name}/sa/envoy": ProxyGroup() for name in ("one", "two")}

    def find(node: ProxyNode) -> ProxyGroup:
        for uri in node.uris:
            if uri in groups:
                return groups[uri]
        raise UnservedProxyError(f"no group for {node.uris}")

    def address(signer: certificates.Authority) -> MutualTlsAddress:
        shown = signer.server("localhost")
        return MutualTlsAddress("127.0.0.1", 0, Certificate(shown.certificate, shown.key), signer.pem)

    async def main() -> None:
        server = DiscoveryServer(find)
        await server.start(address(authority))
        for number, group in enumerate(groups.values()):
            group.publish(resources({LISTENER: {f"listener-{number}": "one"}}))

        async def ask(signer: certificates.Authority, namespace: str) -> str:
            proxy = signer.agent(namespace, "envoy")
            return await asyncio.to_thread(ask_with_tls, signer, server.port, proxy)

        try:
            assert [await ask(authority, name) for name in ("one", "two")] == ["listener-0", "listener-1"]
            with pytest.raises(grpc.RpcError) as refused:
                await ask(authority, "three")
            assert refused.value.code() is grpc.StatusCode.PERMISSION_DENIED
            server.renew(address(next_authority))
            assert await ask(next_authority, "two") == "listener-1"
            with pytest.raises(grpc.RpcError):
                await ask(authority, "two")
        finally:
            await server.stop(0)

    asyncio.run(main())


def test_an_address_in_use_is_reported(tmp_path: Path) -> None:
    pair, folder = certificates.Authority().server("localhost"), tmp_path / "private"

    def with_tls(port: int) -> MutualTlsAddress:
        return MutualTlsAddress("127.0.0.1", port, Certificate(pair.certificate, pair.key), pair.certificate)

    async def main() -> None:
        servers = [XdsServer() for _ in range(4)]
        await servers[0].start(with_tls(0))
        await servers[1].start(folder / "xds.sock")
        try:
            for server, address in ((servers[2], with_tls(servers[0].port)), (servers[3], folder / "xds.sock")):
                with pytest.raises(InputError) as caught:
                    await server.start(address)
                assert caught.value.diagnostics[0].code == "TW631"
        finally:
            for server in servers:
                await server.stop(0)

    asyncio.run(main())


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o750, 0o701])
def test_a_socket_where_others_may_enter_is_refused(tmp_path: Path, mode: int) -> None:
    open_folder, planted = tmp_path / "open", tmp_path / "planted"
    open_folder.mkdir()
    open_folder.chmod(mode)
    (tmp_path / "private").mkdir(0o700)
    planted.symlink_to(tmp_path / "private")

    async def refusal(path: Path) -> str:
        with pytest.raises(InputError) as caught:
            await XdsServer().start(path)
        [diagnostic] = caught.value.diagnostics
        assert diagnostic.code == "TW641"
        return diagnostic.message

    assert f"other users may enter it (mode {mode:04o})" in asyncio.run(refusal(open_folder / "xds.sock"))
    assert "it is not a folder" in asyncio.run(refusal(planted / "xds.sock"))
    assert "at most 107 bytes" in asyncio.run(refusal(tmp_path / "private" / ("x" * 100)))
    assert "the folder above it does not exist" in asyncio.run(refusal(tmp_path / "no" / "folder" / "xds.sock"))

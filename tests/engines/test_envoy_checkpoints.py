"""Policies that change under running proxies: a request meets one state that was in force, never a mixture.

The proxy is a model. It has routes and filter configurations, skips some configurations, and takes filters one by one
in any order, then routes, as the xDS server sends them. After each step the test looks up what a request of each route
passes.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from envoy.config.cluster.v3 import cluster_pb2
from envoy.config.core.v3 import extension_pb2
from envoy.config.listener.v3 import listener_pb2
from envoy.config.route.v3 import route_pb2
from envoy.service.discovery.v3 import discovery_pb2
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.labs.envoy_attacks import calls, policy
from tests.labs.envoy_passed import Passed, denies_unknown, passed
from tests.randomness import examples
from tests.worlds.tool_objects import manifest
from tierwall.engines.envoy.config.compile import CompileState, XdsResources, canonicalized, compile
from tierwall.engines.envoy.config.names import FACTS, PATH
from tierwall.engines.envoy.config.options import EnvoyOptions
from tierwall.engines.envoy.config.settings.filters import LIMITS, discovered_config
from tierwall.engines.envoy.config.settings.limits import LocalLimit, limit_filter
from tierwall.engines.envoy.control.cache import (
    CLUSTER,
    EXTENSION,
    LISTENER,
    ORDER,
    ROUTE,
    WILDCARD,
    CachedResource,
    ResourceCache,
)
from tierwall.engines.envoy.control.crossing import crossing_routes, policy_filters
from tierwall.engines.envoy.control.stream import XdsStream
from tierwall.resources.load import load, load_objects
from tierwall.resources.resource import Resource
from tierwall.resources.snapshot import Snapshot

NETWORKING, GATEWAY_API = "agentic.networking.x-k8s.io", "gateway.networking.k8s.io"
BACKENDS = ("one", "two", "three")
Object = dict[str, Any]
OPTIONS = EnvoyOptions()


class ControlPlane:
    """Compiles one snapshot after another, each from the state of the last."""

    def __init__(self) -> None:
        self.state = CompileState()

    def compile(self, snapshot: Snapshot) -> XdsResources:
        resources, self.state = compile(snapshot, OPTIONS, self.state)
        return resources

    def compile_objects(self, *policies: Object, ports: tuple[int, ...] = ()) -> XdsResources:
        return self.compile(Snapshot.of(load_objects([*places(*ports), *policies])))

    def canonicalize(self) -> XdsResources:
        resources, self.state = canonicalized(self.state)
        return resources

    def acknowledge(self) -> None:
        """Note that every proxy has acknowledged the last compilation."""
        self.state = self.state.acknowledge(self.state.number)


def fresh(snapshot: Snapshot) -> XdsResources:
    """Return the configuration that a restarted control plane gives."""
    return ControlPlane().compile(snapshot)


def places(*ports: int) -> list[Object]:
    """Return a Gateway with these ports and 80, three backends, a route to each of them and a route to two of them."""
    listeners = [{"name": f"web-{port}", "port": port, "protocol": "HTTP"} for port in (80, *ports)]
    out = [manifest(f"{GATEWAY_API}/v1", "Gateway", "gate", {"gatewayClassName": "c", "listeners": listeners})]
    for name in BACKENDS:
        out.append(manifest(f"{NETWORKING}/v0alpha0", "XBackend", name, {"mcp": {"serviceName": name, "port": 80}}))
        out.append(route(name, name))
    service = manifest("v1", "Service", "asked", {"ports": [{"port": 9000}]})
    return [*out, route("both", "one", "two"), service]


def route(name: str, *backends: str) -> Object:
    refs = [{"group": NETWORKING, "kind": "XBackend", "name": backend, "weight": 1} for backend in backends]
    rule = {"matches": [{"path": {"value": f"/{name}"}}], "backendRefs": refs}
    return manifest(f"{GATEWAY_API}/v1", "HTTPRoute", name, {"parentRefs": [{"name": "gate"}], "rules": [rule]})


def text(name: str, target: str, tools: tuple[str, ...], kind: str) -> Object:
    """Return a policy that is plain, reads an argument or the path, or asks an authorizer."""
    if kind == "asks":
        auth = {"protocol": "HTTP", "http": {"path": f"/{tools[0]}"}, "backendRef": {"name": "asked", "port": 9000}}
        manifest = policy(name, "one", [calls(*tools)], action="ExternalAuth", externalAuth=auth)
    elif kind == "reads":
        expression = f"request.mcp.arguments.{tools[0]} == '{tools[-1]}'"
        manifest = policy(name, "one", [{"authorization": {"type": "CEL", "cel": {"expression": expression}}}])
    elif kind == "paths":
        rule = calls(*tools)
        rule["authorization"]["paths"] = [{"type": "Exact", "value": f"/{tools[0]}"}]
        manifest = policy(name, "one", [rule])
    else:
        manifest = policy(name, "one", [calls(*tools)])
    on_gateway = {"group": GATEWAY_API, "kind": "Gateway", "name": "gate"}
    on_backend = {"group": NETWORKING, "kind": "XBackend", "name": target}
    manifest["spec"]["targetRefs"] = [on_gateway if target == "gate" else on_backend]
    return manifest


# Many tools, so that contents are rarely equal by chance: a mixture must differ from every state that was in force.
TOOLS = st.lists(st.sampled_from("abcdefghijkl"), min_size=1, max_size=2, unique=True).map(tuple)
POLICIES = st.builds(
    text,
    st.sampled_from(["p", "q", "r"]),
    st.sampled_from(["gate", "one", "two"]),
    TOOLS,
    st.sampled_from(["plain", "plain", "plain", "reads", "paths", "asks"]),
)
# A step: policies to put, names to drop, and sometimes another path of a backend.
STEPS = st.lists(
    st.tuples(
        st.lists(POLICIES, max_size=2),
        st.lists(st.sampled_from(["p", "q", "r"]), max_size=1),
        st.sampled_from([None, None, None, "/mcp", "/other"]),
        st.booleans(),  # whether the proxy gets this configuration
        st.booleans(),  # whether unchanged objects were read again
    ),
    min_size=1,
    max_size=8,
)


class Proxy:
    """A proxy, with all states that its routes may mean: those since it last had everything."""

    def __init__(self, resources: XdsResources) -> None:
        self.routes, self.filters = resources.routes, dict(resources.extension_configs)
        self.states: list[dict[str, Any]] = []

    def look(self) -> None:
        skipped = len(self.states) > 2  # then a checkpoint may be forgotten, which denies
        for name, way in passed(self.routes, self.filters).items():
            if not (skipped and is_unknown(way)):
                assert any(way.content == state.get(name) for state in self.states), name

    def take(self, resources: XdsResources, order: list[str]) -> None:
        self.look()
        for name in order:
            self.filters[name] = resources.extension_configs[name]
            self.look()
        self.routes = resources.routes
        self.look()


def is_unknown(way: Passed) -> bool:
    """Whether a filter denies because it does not know the checkpoint."""
    return any(policy.decision is None for policy in way.policies)


def contents(resources: XdsResources) -> dict[str, Any]:
    return {name: way.content for name, way in passed(resources.routes, resources.extension_configs).items()}


def changed(objects: Mapping[tuple[str, str], Resource], step: Any) -> dict[tuple[str, str], Resource]:
    put, drop, path, _, anew = step
    out = dict(objects)
    for name in drop:
        out.pop(("XAccessPolicy", name), None)
    values = list(put)
    if path is not None:
        backend = copy.deepcopy(out["XBackend", "one"].value)
        backend["spec"]["mcp"]["path"] = path
        values.append(backend)
    for resource in load_objects(values):
        out[resource.kind, resource.name] = resource
    return {key: load_objects([resource.value])[0] for key, resource in out.items()} if anew else out


@given(steps=STEPS, data=st.data())
@settings(max_examples=examples(150), deadline=None)
def test_a_request_never_meets_a_mixture_of_states(steps: list[Any], data: st.DataObject) -> None:
    plane = ControlPlane()
    objects = {(resource.kind, resource.name): resource for resource in load_objects(places())}
    resources = plane.compile(Snapshot.of(objects.values()))
    proxy = Proxy(resources)
    proxy.states = [contents(resources)]
    for step in steps:
        objects = changed(objects, step)
        snapshot = Snapshot.of(objects.values())
        resources = plane.compile(snapshot)
        anew = fresh(snapshot)
        assert contents(resources) == contents(anew)
        assert resources.diagnostics == anew.diagnostics
        assert not any(is_unknown(way) for way in passed(resources.routes, resources.extension_configs).values())
        assert denies_unknown(resources.extension_configs)
        proxy.states.append(contents(resources))
        if step[3]:
            new = [name for name, config in resources.extension_configs.items() if proxy.filters[name] is not config]
            proxy.take(resources, data.draw(st.permutations(new)))
            proxy.states = [contents(resources)]
            assert contents(resources) == {
                name: way.content for name, way in passed(proxy.routes, proxy.filters).items()
            }
            plane.acknowledge()
            if data.draw(st.booleans()):
                canonical = plane.canonicalize()
                assert canonical.routes == anew.routes
                assert not plane.state.has_noncanonical_names
                new = [
                    name for name, config in canonical.extension_configs.items() if proxy.filters[name] is not config
                ]
                proxy.take(canonical, data.draw(st.permutations(new)))
                plane.acknowledge()


def wire(resources: XdsResources) -> dict[str, dict[str, bytes]]:
    kinds = ("listeners", "routes", "clusters", "secrets", "extension_configs")
    return {
        kind: {
            name: message.SerializeToString(deterministic=True) for name, message in getattr(resources, kind).items()
        }
        for kind in kinds
    }


@given(steps=STEPS, thrown=STEPS, data=st.data())
@settings(max_examples=examples(60), deadline=None)
def test_a_compilation_does_not_change_the_state_it_starts_from(
    steps: list[Any], thrown: list[Any], data: st.DataObject
) -> None:
    """Discarded compilations have no effect on later ones."""
    careful, plane = ControlPlane(), ControlPlane()
    objects = {(resource.kind, resource.name): resource for resource in load_objects(places())}
    for number, step in enumerate(steps):
        before = plane.state
        others = objects
        for other in thrown[: data.draw(st.integers(0, 2))]:
            others = changed(others, other)
            plane.compile(Snapshot.of(others.values()))
            if data.draw(st.booleans()):
                plane.acknowledge()
                plane.canonicalize()
        plane.state = before
        objects = changed(objects, step)
        expected = careful.compile(Snapshot.of(objects.values()))
        for snapshot in (Snapshot.of(objects.values()), Snapshot.of(objects.values())):
            resources, after = compile(snapshot, OPTIONS, before)
            assert wire(resources) == wire(expected)
            assert resources.diagnostics == expected.diagnostics
            assert (after.number, after.has_noncanonical_names) == (
                careful.state.number,
                careful.state.has_noncanonical_names,
            )
        plane.state = after
        if step[3]:
            plane.acknowledge()
            careful.acknowledge()
            if number % 2:
                assert wire(plane.canonicalize()) == wire(careful.canonicalize())


@given(steps=STEPS)
@settings(max_examples=examples(50), deadline=None)
def test_acknowledged_edits_end_in_the_names_of_a_fresh_start(steps: list[Any]) -> None:
    plane = ControlPlane()
    objects = {(resource.kind, resource.name): resource for resource in load_objects(places())}
    for step in steps:
        objects = changed(objects, step)
        plane.compile(Snapshot.of(objects.values()))
        if step[3]:
            plane.acknowledge()
    plane.canonicalize()
    plane.acknowledge()
    snapshot = Snapshot.of(objects.values())
    assert wire(plane.compile(snapshot)) == wire(fresh(snapshot))
    assert not plane.state.has_noncanonical_names


def test_a_change_of_a_single_policy_changes_no_route() -> None:
    plane = ControlPlane()
    resources = load_objects([*places(), text("p", "gate", ("a",), "plain"), text("q", "one", ("a",), "plain")])
    before = plane.compile(Snapshot.of(resources))
    [new] = load_objects([text("p", "gate", ("b",), "plain")])
    after = plane.compile(Snapshot.of(resources).with_changes([new]))
    assert all(after.routes[name] is route for name, route in before.routes.items())
    differing = [
        name for name, config in after.extension_configs.items() if config is not before.extension_configs[name]
    ]
    assert len(differing) == 1


def test_diagnostics_have_the_current_position(tmp_path: Path) -> None:
    rule = {"authorization": {"type": "CEL", "cel": {"expression": "request.mcp.tool_name.lowerAscii() == 'x'"}}}
    file, plane, lines = tmp_path / "all.yaml", ControlPlane(), []
    for comment in ("", "# a line more\n"):
        objects = [*places(), text("p", "gate", ("a",), "plain"), policy("hard", "one", [rule])]
        file.write_text(comment + yaml.safe_dump_all(objects))
        loaded = load([str(file)])
        resources = plane.compile(loaded.snapshot)
        assert resources.diagnostics == fresh(loaded.snapshot).diagnostics
        lines.append([diagnostic.at.line for diagnostic in resources.diagnostics if diagnostic.at is not None])
    assert lines[1] == [line + 1 for line in lines[0]]
    assert lines[0]


def test_objects_read_again_without_a_change_change_nothing() -> None:
    plane = ControlPlane()
    before = plane.compile_objects(text("p", "gate", ("a",), "plain"))
    after = plane.compile_objects(text("p", "gate", ("a",), "plain"))
    for kind in ("listeners", "routes", "clusters", "secrets", "extension_configs"):
        assert all(getattr(after, kind)[name] is message for name, message in getattr(before, kind).items())


def test_a_number_that_becomes_a_boolean_is_a_change() -> None:
    plane = ControlPlane()
    policy_text, other = text("p", "one", ("a",), "plain"), text("p", "one", ("a",), "plain")
    policy_text["spec"]["rules"][0]["authorization"]["ports"] = [1]
    other["spec"]["rules"][0]["authorization"]["ports"] = [True]
    assert policy_text == other
    before = plane.compile_objects(policy_text)
    after = plane.compile_objects(other)
    assert contents(after) != contents(before)
    assert contents(after) == contents(ControlPlane().compile_objects(other))


def test_policies_that_change_together_change_routes() -> None:
    plane = ControlPlane()
    before = plane.compile_objects(text("p", "gate", ("a",), "plain"), text("q", "one", ("b",), "plain"))
    after = plane.compile_objects(text("p", "gate", ("b",), "plain"), text("q", "one", ("a",), "plain"))
    assert before.routes != after.routes
    old_routes = passed(before.routes, after.extension_configs)
    assert {name: route.content for name, route in old_routes.items()} == contents(before)


def test_contents_that_come_back_together_get_new_names() -> None:
    plane = ControlPlane()
    first = text("p", "gate", ("a",), "plain"), text("q", "one", ("b",), "plain")
    plane.compile_objects(*first)
    for before_targets, after_targets in ((("b",), ("b",)), (("b",), ("a",))):
        before = plane.compile_objects(
            text("p", "gate", before_targets, "plain"), text("q", "one", after_targets, "plain")
        )
        plane.acknowledge()
    after = plane.compile_objects(*first)
    assert before.routes != after.routes


def test_a_change_after_an_unacknowledged_one_changes_routes() -> None:
    plane = ControlPlane()
    p, q = text("p", "gate", ("a",), "plain"), text("q", "one", ("b",), "plain")
    first = plane.compile_objects(p, q)
    second = plane.compile_objects(text("p", "gate", ("b",), "plain"), q)
    assert second.routes == first.routes
    third = plane.compile_objects(text("p", "gate", ("b",), "plain"), text("q", "one", ("a",), "plain"))
    assert third.routes != second.routes
    plane.acknowledge()
    fourth = plane.compile_objects(text("p", "gate", ("b",), "plain"), text("q", "one", ("c",), "plain"))
    assert fourth.routes == third.routes


def test_a_change_after_an_unacknowledged_new_policy_changes_routes() -> None:
    """Otherwise a proxy with the routes from before both changes would get the second without the first."""
    plane = ControlPlane()
    old, new = text("q", "one", ("a",), "plain"), text("q", "one", ("b",), "plain")
    states = [plane.compile_objects(old)]
    plane.acknowledge()
    states.append(plane.compile_objects(old, text("p", "gate", ("a",), "plain")))
    states.append(plane.compile_objects(new, text("p", "gate", ("a",), "plain")))
    met = {name: way.content for name, way in passed(states[0].routes, states[-1].extension_configs).items()}
    assert met == contents(states[0])
    plane.acknowledge()
    last = plane.compile_objects(old, text("p", "gate", ("a",), "plain"))
    assert last.routes == states[-1].routes


def test_a_policy_that_changes_again_after_another_changes_routes() -> None:
    plane = ControlPlane()
    texts = [("a", "a"), ("b", "a"), ("b", "b"), ("c", "b")]
    states = [
        plane.compile_objects(text("p", "gate", (p,), "plain"), text("q", "one", (q,), "plain")) for p, q in texts
    ]
    met = passed(states[0].routes, states[-1].extension_configs)
    # It does not matter which of the first states it is, as long as it is one of them.
    for name, way in met.items():
        assert any(way.content == contents(state).get(name) for state in states), name


@pytest.mark.parametrize("goes_in_between", [False, True])
def test_a_policy_that_moves_and_changes_applies_only_at_its_new_target(goes_in_between: bool) -> None:
    plane = ControlPlane()
    before = plane.compile_objects(text("p", "one", ("a",), "plain"))
    if goes_in_between:
        plane.compile_objects()
    after = plane.compile_objects(text("p", "two", ("b",), "plain"))
    met = {name: way.content for name, way in passed(before.routes, after.extension_configs).items()}
    assert met == contents(before)


def test_a_discarded_compilation_has_no_effect() -> None:
    plane = ControlPlane()
    p, q = text("p", "gate", ("a",), "plain"), text("q", "one", ("b",), "plain")
    first = plane.compile_objects(p, q)
    compile(Snapshot.of(load_objects([*places(), text("p", "gate", ("b",), "plain"), q])), OPTIONS, plane.state)
    third = plane.compile_objects(text("p", "gate", ("b",), "plain"), text("q", "one", ("a",), "plain"))
    assert third.routes != first.routes
    old_routes = passed(first.routes, third.extension_configs)
    assert {name: route.content for name, route in old_routes.items()} == contents(first)


def test_checkpoints_that_no_proxy_uses_are_forgotten() -> None:
    plane = ControlPlane()
    policies = text("p", "gate", ("a",), "plain"), text("q", "gate", ("a",), "plain")
    first = plane.compile_objects(*policies)
    plane.compile_objects(policies[0])
    again = plane.compile_objects(*policies[:1], text("r", "one", ("a",), "plain"))
    # Filters still know the checkpoint of the first routes, and forget it once no proxy uses it.
    assert not any(is_unknown(way) for way in passed(first.routes, again.extension_configs).values())
    plane.acknowledge()
    last = plane.compile_objects(policies[0])
    assert any(is_unknown(way) for way in passed(first.routes, last.extension_configs).values())
    assert not any(is_unknown(way) for way in passed(again.routes, last.extension_configs).values())


def test_the_number_of_retired_checkpoints_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tierwall.engines.envoy.config.checkpoints.MAX_RETIRED", 20)
    plane = ControlPlane()
    sizes = []
    for number in range(60):
        policies = [text("p", "gate", ("a",), "plain"), text("q", "gate", (f"t{number}",), "plain")]
        resources = plane.compile_objects(*policies[: 1 + number % 2])
        sizes.append(sum(config.ByteSize() for config in resources.extension_configs.values()))
    assert sizes[0] < sizes[20] < sizes[-1] * 1.1
    assert sizes[-1] < sizes[40] * 1.1


@pytest.mark.parametrize("kind", ["asks", "reads"])
def test_authorizer_and_arguments_change_together_with_the_policy(kind: str) -> None:
    plane = ControlPlane()
    before = plane.compile_objects(text("p", "one", ("a",), kind))
    after = plane.compile_objects(text("p", "one", ("b",), kind))
    assert before.routes != after.routes
    old_routes = passed(before.routes, after.extension_configs)
    assert {name: route.content for name, route in old_routes.items()} == contents(before)


def test_a_first_rule_about_paths_changes_routes_together_with_the_policy() -> None:
    plane = ControlPlane()
    before = plane.compile_objects(text("p", "one", ("a",), "plain"))
    after = plane.compile_objects(text("p", "one", ("a",), "paths"))
    old_routes = passed(before.routes, after.extension_configs)
    assert {name: route.content for name, route in old_routes.items()} == contents(before)
    # Plain HTTP always has its path, because streams are recognised by it.
    for resources, kinds in ((before, {"http"}), (after, {"http", "mcp", "rpc"})):
        having_path = {
            route.name.rpartition("/")[2]
            for configuration in resources.routes.values()
            for host in configuration.virtual_hosts
            for route in host.routes
            if FACTS in route.typed_per_filter_config and PATH.encode() in route.typed_per_filter_config[FACTS].value
        }
        assert having_path == kinds


def on_all_listeners(routes: Mapping[str, Any], filters: Mapping[str, Any]) -> dict[str, Passed]:
    return {f"{name} {way}": met for name, each in routes.items() for way, met in passed({name: each}, filters).items()}


class MovingProxy:
    """A proxy that goes to another control plane, and looks at its routes after each resource that it takes.

    It may refuse routes that carry their policies.
    """

    def __init__(self, before: XdsResources, is_stubborn: bool = False) -> None:
        self.cache = ResourceCache()
        self.cache.publish(before)
        self._has = {kind: dict(self.cache.of(kind)) for kind in ORDER}
        self._is_stubborn = is_stubborn
        # The names of what it took, in order.
        self.taken: list[str] = []
        self.met = [self._look()]

    def _look(self) -> dict[str, Passed]:
        """Return what requests pass, on every listener."""
        has = {kind: {name: item.message for name, item in items.items()} for kind, items in self._has.items()}
        return on_all_listeners(has[ROUTE], has[EXTENSION])

    def move(self, after: XdsResources, kinds: list[str]) -> None:
        """Subscribe at another control plane in this order of kinds, and take all that it sends."""
        cache = ResourceCache()
        cache.publish(after)
        stream = XdsStream(cache, lambda _: None)
        for kind in kinds:
            names = () if kind in WILDCARD else self._has[kind]
            versions = {name: item.version for name, item in self._has[kind].items()}
            self._send(stream, kind, resource_names_subscribe=names, initial_resource_versions=versions)
            self._take(stream)
        # A proxy wants the routes of its listeners, whichever it gets.
        wanted = [name for name in after.routes if name not in self._has[ROUTE]]
        self._send(stream, ROUTE, resource_names_subscribe=wanted)
        self._take(stream)
        assert stream.is_acknowledged
        assert self._look() == on_all_listeners(after.routes, after.extension_configs)

    def _take(self, stream: XdsStream) -> None:
        while responses := stream.responses():
            for response in responses:
                self._answer(stream, response)

    def _answer(self, stream: XdsStream, response: Any) -> None:
        messages = [_MESSAGES[response.type_url].FromString(each.resource.value) for each in response.resources]
        if self._is_stubborn and any(carries(message) for message in messages):
            refused = {"error_detail": {"code": 3, "message": "no"}}
            self._send(stream, response.type_url, response_nonce=response.nonce, **refused)
            return
        taken = self._has[response.type_url]
        for resource, message in zip(response.resources, messages, strict=True):
            taken[resource.name] = CachedResource(resource.version, message, resource)
            self.taken.append(resource.name)
            self.met.append(self._look())
        for name in response.removed_resources:
            taken.pop(name, None)
        self._send(stream, response.type_url, response_nonce=response.nonce)

    def _send(self, stream: XdsStream, kind: str, **fields: Any) -> None:
        stream.receive(discovery_pb2.DeltaDiscoveryRequest(type_url=kind, **fields))


def carries(message: Any) -> bool:
    """Whether this is a route configuration with policies."""
    return isinstance(message, route_pb2.RouteConfiguration) and bool(message.typed_per_filter_config)


_MESSAGES = {
    CLUSTER: cluster_pb2.Cluster,
    EXTENSION: extension_pb2.TypedExtensionConfig,
    LISTENER: listener_pb2.Listener,
    ROUTE: route_pb2.RouteConfiguration,
}
# The order in which a proxy that comes back subscribes; filters may come before routes.
SUBSCRIBING = st.sampled_from([[CLUSTER, LISTENER, EXTENSION, ROUTE], [CLUSTER, LISTENER, ROUTE, EXTENSION]])
# A state: policies, and ports of the Gateway besides 80.
STATES = st.tuples(
    st.lists(POLICIES, max_size=3, unique_by=lambda value: value["metadata"]["name"]),
    st.sampled_from([(), (), (), (81,), (81, 82)]),
)
CHANGES = st.lists(STATES, max_size=3)


@given(STATES, CHANGES, CHANGES, SUBSCRIBING, st.sampled_from(["", "", "refuses", "too large"]))
@settings(max_examples=examples(60), deadline=None)
def test_a_proxy_that_moves_to_another_control_plane_meets_the_old_state_or_the_new_one(
    common: Any, here: list[Any], there: list[Any], kinds: list[str], hindrance: str
) -> None:
    """Each took its own way from a state that both had, and took its changes for acknowledged, or not."""
    planes = ControlPlane(), ControlPlane()
    ends = []
    for plane, states in zip(planes, (here, there), strict=True):
        resources = plane.compile_objects(*common[0], ports=common[1])
        for policies, ports in states:
            plane.acknowledge()
            resources = plane.compile_objects(*policies, ports=ports)
        ends.append(resources)
    before, after = ends
    proxy = MovingProxy(before, hindrance == "refuses")
    each = [on_all_listeners(end.routes, end.extension_configs) for end in ends]
    with pytest.MonkeyPatch.context() as patched:
        if hindrance == "too large":
            patched.setattr("tierwall.engines.envoy.control.crossing.MAX_COPIES", 1000)
        proxy.move(after, kinds)
    for ways in proxy.met:
        for name, way in ways.items():
            is_closed = hindrance == "too large" and is_unknown(way)
            assert is_closed or way.content in [state[name].content for state in each if name in state], name


@pytest.mark.parametrize("kind", ["plain", "asks"])
def test_a_moving_proxy_is_closed_only_if_its_routes_cannot_carry_policies(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = ControlPlane(), ControlPlane()
    old = text("p", "one", ("a",), kind)
    before = first.compile_objects(old, text("q", "gate", ("a",), "plain"))
    after = second.compile_objects(old, text("q", "gate", ("b",), "plain"), text("r", "gate", ("a",), "plain"))

    def moved() -> MovingProxy:
        proxy = MovingProxy(before)
        proxy.move(after, [CLUSTER, LISTENER, EXTENSION, ROUTE])
        return proxy

    def is_closed(proxy: MovingProxy) -> bool:
        return any(is_unknown(way) for ways in proxy.met for way in ways.values())

    assert not is_closed(moved())
    monkeypatch.setattr("tierwall.engines.envoy.control.crossing.MAX_COPIES", 1000)
    assert is_closed(moved())


def test_routes_that_carry_policies_turn_off_what_a_route_does_not_pass() -> None:
    resources = ControlPlane().compile_objects(text("p", "one", ("a",), "plain"))
    carrying = crossing_routes(resources.routes, resources.extension_configs)
    nothing = ControlPlane().compile_objects()
    assert {name: way.content for name, way in passed(carrying, nothing.extension_configs).items()} == contents(
        resources
    )
    assert any(not way.policies for way in passed(carrying, nothing.extension_configs).values())
    assert any(way.policies for way in passed(carrying, nothing.extension_configs).values())


def test_filters_that_routes_name_come_before_routes_that_carry_policies() -> None:
    first, second = ControlPlane(), ControlPlane()
    before = first.compile_objects(text("p", "gate", ("a",), "plain"), text("q", "one", ("a",), "plain"))
    after = second.compile_objects(text("p", "gate", ("b",), "plain"), text("q", "one", ("b",), "plain"))
    [other] = {LIMITS} & after.extension_configs.keys()
    changed = discovered_config(other, limit_filter({"another": LocalLimit("another", 1, 1, 1)}))
    proxy = MovingProxy(before)
    proxy.move(replace(after, extension_configs={**after.extension_configs, other: changed}), list(ORDER))
    [routes] = after.routes
    *filters, last = proxy.taken[2:]
    assert (proxy.taken[:2], last) == ([other, routes], routes)
    assert set(filters) < policy_filters().keys()

"""Test where policies attach: random clusters against the reference, and each rule by an example."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.randomness import examples
from tests.reference import attach as reference
from tests.worlds.attach_clusters import cluster
from tierwall.attach.attachment import attachment
from tierwall.attach.listener import narrower_hostname, shared_hostnames
from tierwall.attach.place import Place
from tierwall.attach.reach import MAX_CHAINS, gateway_graph
from tierwall.attach.route import attach_route
from tierwall.attach.section import sections
from tierwall.attach.target import GATEWAY_POLICIES, attachments
from tierwall.resources.load import load_objects
from tierwall.resources.resource import Resource
from tierwall.resources.snapshot import BackendRefGrants, Snapshot

API = "gateway.networking.k8s.io"


def shown(snapshot: Snapshot, policy: Resource) -> set[tuple[Any, ...]]:
    out: set[tuple[Any, ...]] = set()
    for target in attachment(snapshot, policy):
        if target.place is None:
            field, index = target.path[1:]
            entry = policy.spec[str(field)][index]
            out.add((entry["kind"], None, entry.get("sectionName", ""), str(target.problem)))
        else:
            result: Any = target.problem and str(target.problem)
            result = result or tuple((gateway.namespace, gateway.name) for gateway in target.gateways)
            out.add((target.place.kind, target.place.name, target.place.section, result))
    return out


@given(seed=st.integers(0, 2**48))
@settings(max_examples=examples(400))
def test_attachment_equals_the_reference(seed: int) -> None:
    objects = cluster(Random(seed))
    snapshot = Snapshot.of(load_objects(objects))
    modes: tuple[BackendRefGrants, ...] = ("route", "strict")
    for grants in modes:
        snapshot = snapshot.with_backend_ref_grants(grants)
        for policy in snapshot.of_kind("agentgateway.dev", "AgentgatewayPolicy"):
            assert shown(snapshot, policy) == reference.attachment(objects, policy.value, grants)


@given(seed=st.integers(0, 2**48))
@settings(max_examples=examples(60))
def test_attachment_does_not_depend_on_the_order_of_files(seed: int) -> None:
    rng = Random(seed)
    objects = cluster(rng)
    results = []
    for order in (objects, rng.sample(objects, len(objects))):
        snapshot = Snapshot.of(load_objects(order))
        index = attachments(snapshot, GATEWAY_POLICIES, admitted=True)
        results.append([(policy.reference, attachment(snapshot, policy)) for policy in index.policies])
    assert results[0] == results[1]


def manifest(
    kind: str, name: str, spec: dict[str, Any], api: str = f"{API}/v1", namespace: str = "ns"
) -> dict[str, Any]:
    return {"apiVersion": api, "kind": kind, "metadata": {"name": name, "namespace": namespace}, "spec": spec}


def policy(*targets: dict[str, Any], **spec: Any) -> dict[str, Any]:
    spec = spec or {"backend": {"tcp": {"connectTimeout": "1s"}}}
    return manifest("AgentgatewayPolicy", "p", {"targetRefs": list(targets)} | spec, "agentgateway.dev/v1alpha1")


GATEWAY = manifest(
    "Gateway", "gw", {"gatewayClassName": "c", "listeners": [{"name": "web", "port": 80, "protocol": "HTTP"}]}
)
ROUTE = manifest(
    "HTTPRoute", "route", {"parentRefs": [{"name": "gw"}], "rules": [{"backendRefs": [{"name": "svc", "port": 80}]}]}
)
SERVICE = manifest("Service", "svc", {"ports": [{"port": 80}, {"port": 90}]}, "v1")


def only(*objects: dict[str, Any]) -> Any:
    snapshot = Snapshot.of(load_objects(objects))
    (loaded_policy,) = snapshot.of_kind("agentgateway.dev", "AgentgatewayPolicy")
    (attached,) = attachment(snapshot, loaded_policy)
    return attached


@pytest.mark.parametrize(
    ("target", "problem", "message", "hint"),
    [
        (
            {"group": API, "kind": "Gateway", "name": "gww"},
            "missing object",
            "Gateway ns/gww not found",
            "did you mean `gw`?",
        ),
        (
            {"group": API, "kind": "Gateway", "name": "gw", "sectionName": "wep"},
            "missing section",
            'sectionName "wep" not found in Gateway ns/gw',
            "did you mean `web`?",
        ),
        (
            {"group": API, "kind": "HTTPRoute", "name": "route", "sectionName": "r"},
            "missing section",
            'sectionName "r" not found in HTTPRoute ns/route',
            "it has no rule with a name",
        ),
        (
            {"group": "", "kind": "Service", "name": "svc", "sectionName": "81"},
            "missing section",
            "port 81 not found in Service ns/svc",
            "it has 80, 90",
        ),
        (
            {"group": "", "kind": "Service", "name": "svc", "sectionName": "90"},
            "not reachable from any Gateway",
            "no route or policy refers to port 90 of Service ns/svc",
            "",
        ),
        (
            {"group": "", "kind": "Service", "name": "lone"},
            "not reachable from any Gateway",
            "Service ns/lone is not attached to any Gateway",
            "",
        ),
        (
            {"group": "", "kind": "Service", "name": "far"},
            "missing object",
            "Service ns/far not found",
            "put the policy into namespace other, where its target is",
        ),
    ],
)
def test_a_target_that_is_not_attached_says_why(target: dict[str, Any], problem: str, message: str, hint: str) -> None:
    lone = manifest("Service", "lone", {"ports": [{"port": 80}]}, "v1")
    far = manifest("Service", "far", {"ports": [{"port": 80}]}, "v1", "other")
    attached = only(GATEWAY, ROUTE, SERVICE, lone, far, policy(target))
    assert (str(attached.problem), attached.message, attached.hint) == (problem, message, hint)


def test_a_port_of_a_gateway_may_be_that_of_a_listener_set() -> None:
    open_gateway = manifest("Gateway", "gw", GATEWAY["spec"] | {"allowedListeners": {"namespaces": {"from": "Same"}}})
    added = manifest(
        "ListenerSet",
        "set",
        {"parentRef": {"name": "gw"}, "listeners": [{"name": "x", "port": 99, "protocol": "HTTP"}]},
    )
    target = {"group": API, "kind": "Gateway", "name": "gw", "port": 99}
    frontend = {"frontend": {"tcp": {"keepalive": {"retries": 1}}}}
    assert only(open_gateway, added, policy(target, **frontend)).problem is None
    assert only(GATEWAY, added, policy(target, **frontend)).message == "port 99 not found in Gateway ns/gw"


def test_a_service_that_an_mcp_backend_selects_is_reached_on_all_its_ports() -> None:
    selector = {"selector": {"services": {"matchLabels": {"mcp": "yes"}}}}
    backend = manifest(
        "AgentgatewayBackend", "tools", {"mcp": {"targets": [{"name": "t", **selector}]}}, "agentgateway.dev/v1alpha1"
    )
    ref = {"group": "agentgateway.dev", "kind": "AgentgatewayBackend", "name": "tools"}
    route = manifest("HTTPRoute", "route", {"parentRefs": [{"name": "gw"}], "rules": [{"backendRefs": [ref]}]})
    service = manifest("Service", "svc", SERVICE["spec"], "v1")
    service["metadata"]["labels"] = {"mcp": "yes"}
    target = {"group": "", "kind": "Service", "name": "svc", "sectionName": "90"}
    assert only(GATEWAY, route, backend, service, policy(target)).problem is None
    assert (
        only(GATEWAY, route, backend, SERVICE, policy(target)).message
        == "Service ns/svc is not attached to any Gateway"
    )


def test_a_delegated_route_is_reached_through_its_parent_and_a_cycle_ends() -> None:
    child_ref = {"group": API, "kind": "HTTPRoute", "name": "child"}
    parent = manifest("HTTPRoute", "route", {"parentRefs": [{"name": "gw"}], "rules": [{"backendRefs": [child_ref]}]})
    back = {"group": API, "kind": "HTTPRoute", "name": "route"}
    child = manifest("HTTPRoute", "child", {"rules": [{"backendRefs": [{"name": "svc", "port": 80}, back]}]})
    target = {"group": API, "kind": "HTTPRoute", "name": "child"}
    assert [str(gateway) for gateway in only(GATEWAY, parent, child, SERVICE, policy(target)).gateways] == [
        "Gateway/ns/gw"
    ]
    snapshot = Snapshot.of(load_objects([GATEWAY, parent, child, SERVICE]))
    chains = [
        [*(parent.route.name for parent in way.parents), way.route.name]
        for way in gateway_graph(snapshot).request_paths()
    ]
    assert chains == [["route", "child"]]


CHILDREN = [
    manifest("HTTPRoute", name, {"rules": [{}], **spec}) | {"metadata": {"namespace": "ns", "name": name, **labels}}
    for name, spec, labels in (
        ("one", {}, {"labels": {"app": "primary"}}),
        ("two", {}, {"labels": {"app": "other"}}),
        ("named", {"parentRefs": [{"group": API, "kind": "HTTPRoute", "name": "route"}]}, {}),
        ("of-another", {"parentRefs": [{"group": API, "kind": "HTTPRoute", "name": "other"}]}, {}),
        ("of-a-gateway", {"parentRefs": [{"name": "gone"}]}, {}),
    )
]


@pytest.mark.parametrize(
    ("name", "namespace", "reached"),
    [
        ("*", "ns", ["named", "one", "two"]),
        ("app=primary", "ns", ["one"]),
        ("app=", "ns", ["named"]),
        ("one", "ns", ["one"]),
        ("named", "ns", ["named"]),
        ("of-another", "ns", []),
        ("of-a-gateway", "ns", []),
        ("*", "elsewhere", ["named"]),
    ],
)
def test_a_parent_selects_its_children_and_they_accept_it(name: str, namespace: str, reached: list[str]) -> None:
    ref = {"group": API, "kind": "HTTPRoute", "name": name, "namespace": "ns"}
    listener = {"name": "web", "port": 80, "protocol": "HTTP", "allowedRoutes": {"namespaces": {"from": "All"}}}
    gateway = manifest("Gateway", "gw", {"gatewayClassName": "c", "listeners": [listener]})
    parents = [{"name": "gw", "namespace": "ns"}]
    parent = manifest("HTTPRoute", "route", {"parentRefs": parents, "rules": [{"backendRefs": [ref]}]}, f"{API}/v1")
    parent["metadata"]["namespace"] = namespace
    children = [child for child in CHILDREN if child["metadata"]["name"] != "named"]
    named = manifest(
        "HTTPRoute",
        "named",
        {"parentRefs": [{"group": API, "kind": "HTTPRoute", "name": "route", "namespace": namespace}], "rules": [{}]},
    )
    snapshot = Snapshot.of(load_objects([gateway, parent, *children, named]))
    paths = gateway_graph(snapshot).request_paths()
    assert [path.route.name for path in paths if path.parents] == reached


def test_many_routes_that_delegate_to_many_are_walked_once() -> None:
    def delegating(number: int) -> dict[str, Any]:
        refs = [{"group": API, "kind": "HTTPRoute", "name": f"r{other}"} for other in range(40) if other != number]
        parents = {"parentRefs": [{"name": "gw"}]} if number == 0 else {}
        return manifest("HTTPRoute", f"r{number}", {**parents, "rules": [{"backendRefs": refs[:16]}] * 2})

    snapshot = Snapshot.of(load_objects([GATEWAY, *map(delegating, range(40))]))
    paths = list(gateway_graph(snapshot).request_paths())
    assert {path.route.name for path in paths} <= {f"r{number}" for number in range(40)}
    assert len(paths) <= 40 * MAX_CHAINS * 2


@pytest.mark.parametrize(
    ("first", "other", "narrower"),
    [
        ("a.example.com", "a.example.com", "a.example.com"),
        ("A.example.com", "a.example.com", "a.example.com"),
        ("*.example.com", "a.b.example.com", "a.b.example.com"),
        ("*.example.com", "example.com", None),
        ("*.example.com", "*.a.example.com", "*.a.example.com"),
        ("*.example.com", "anexample.com", None),
        ("a.example.com", "b.example.com", None),
    ],
)
def test_the_narrower_of_two_overlapping_host_names(first: str, other: str, narrower: str | None) -> None:
    assert narrower_hostname(first, other) == narrower
    assert narrower_hostname(other, first) == narrower


def test_a_route_or_listener_without_host_names_serves_those_of_the_other() -> None:
    assert shared_hostnames("", ()) == ()
    assert shared_hostnames("a.example", ()) == ("a.example",)
    assert shared_hostnames("", ("b.example",)) == ("b.example",)
    assert shared_hostnames("a.example", ("b.example",)) is None


@pytest.mark.parametrize(
    ("parent", "reason"),
    [
        ({"name": "gone"}, "NoMatchingParent"),
        ({"name": "gw", "sectionName": "gone"}, "NoMatchingParent"),
        ({"name": "gw", "port": 81}, "NoMatchingParent"),
        ({"name": "gw", "namespace": "ns", "kind": "Thing"}, "NoMatchingParent"),
    ],
)
def test_a_missing_parent_is_refused(parent: dict[str, Any], reason: str) -> None:
    route = manifest("HTTPRoute", "route", {"parentRefs": [parent]})
    snapshot = Snapshot.of(load_objects([GATEWAY, route]))
    (loaded_route,) = snapshot.of_kind(API, "HTTPRoute")
    on, (refused,) = attach_route(snapshot, loaded_route)
    assert (on, refused.reason) == ((), reason)


def test_another_namespace_and_another_host_name_are_refused() -> None:
    far = manifest("HTTPRoute", "route", {"parentRefs": [{"name": "gw", "namespace": "ns"}]}, namespace="other")
    listener = {"name": "web", "port": 80, "protocol": "HTTP", "hostname": "a.example"}
    named = manifest("Gateway", "gw", {"gatewayClassName": "c", "listeners": [listener]})
    near = manifest("HTTPRoute", "route", {"parentRefs": [{"name": "gw"}], "hostnames": ["b.example"]})
    for objects, reason in (((GATEWAY, far), "NotAllowedByListeners"), ((named, near), "NoMatchingListenerHostname")):
        snapshot = Snapshot.of(load_objects(objects))
        (route,) = snapshot.of_kind(API, "HTTPRoute")
        assert attach_route(snapshot, route)[1][0].reason == reason


def test_the_sections_of_each_kind() -> None:
    ai = manifest("AgentgatewayBackend", "ai", {"ai": {"provider": {"openai": {}}}}, "agentgateway.dev/v1alpha1")
    groups = [{"providers": [{"name": "p", "openai": {}}, {"name": "q", "openai": {}}]}, {"providers": [{"name": "p"}]}]
    grouped = manifest("AgentgatewayBackend", "ai", {"ai": {"groups": groups}}, "agentgateway.dev/v1alpha1")
    mcp = manifest("AgentgatewayBackend", "ai", {"mcp": {"targets": [{"name": "t"}]}}, "agentgateway.dev/v1alpha1")
    static = manifest("AgentgatewayBackend", "ai", {"static": {"host": "h", "port": 1}}, "agentgateway.dev/v1alpha1")
    for value, expected in (
        (GATEWAY, ("web",)),
        (ROUTE, ()),
        (SERVICE, ("80", "90")),
        (ai, ("backend",)),
        (grouped, ("p", "q")),
        (mcp, ("t",)),
        (static, ()),
    ):
        (resource,) = load_objects([value])
        assert sections(resource) == expected


def test_policies_at_a_place_come_oldest_first_and_once() -> None:
    target = {"group": API, "kind": "Gateway", "name": "gw"}
    policies = []
    for name, created in (("b", None), ("a", None), ("c", "2024-01-02T00:00:00Z"), ("d", "2024-01-01T00:00:00Z")):
        value = policy(target, target)
        value["metadata"] = {"name": name, "namespace": "ns"} | ({"creationTimestamp": created} if created else {})
        policies.append(value)
    snapshot = Snapshot.of(load_objects([GATEWAY, *policies]))
    index = attachments(snapshot, GATEWAY_POLICIES, admitted=True)
    assert [resource.name for resource in index.at(Place(API, "Gateway", "ns", "gw"))] == ["d", "c", "a", "b"]


@pytest.mark.parametrize("spec", [{}, {"targetRefs": 3}, {"targetRefs": [3, {}]}, {"targetSelectors": [{"kind": "x"}]}])
def test_a_malformed_policy_has_no_targets(spec: dict[str, Any]) -> None:
    broken = manifest("AgentgatewayPolicy", "p", spec, "agentgateway.dev/v1alpha1")
    snapshot = Snapshot.of(load_objects([broken]))
    (loaded_policy,) = snapshot.of_kind("agentgateway.dev", "AgentgatewayPolicy")
    assert attachment(snapshot, loaded_policy) == ()
    assert attachments(snapshot, GATEWAY_POLICIES, admitted=True).policies == ()

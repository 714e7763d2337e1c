"""Findings about paths: ways around a Gateway, and granted calls that the network stops."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

import tierwall
from tests import ROOT
from tests.path.test_path_question import LABEL, gateway, pod, service, world, xbackend
from tests.randomness import examples
from tests.reference.path import around, stopped
from tests.worlds.network_objects import admin, network_policy, rule
from tests.worlds.network_snapshots import snapshot
from tests.worlds.tool_objects import calls, manifest, mcp, on_backend, on_gateway, sa, v1
from tierwall.analyze.path import path_findings

Object = dict[str, Any]
FOLDERS = (ROOT / "examples/agents/manifests", ROOT / "examples/path/manifests")
PAYMENTS = {"matchLabels": {"app": "payments"}}
ONLY_GATEWAY = {"from": [{"podSelector": {"matchLabels": {LABEL: "gw"}}}]}


def closed(*ingress: Object) -> Object:
    return network_policy("payments", *ingress, namespace="prod", podSelector=PAYMENTS)


def found(asked: tierwall.World, code: str) -> list[tierwall.Finding]:
    return asked.check(select=[code])


def test_the_hint_closes_the_way_around() -> None:
    shop = tierwall.load(*FOLDERS)
    (finding,) = found(shop, "TW414")
    assert str(finding.reference) == "XBackend/shop/reports"
    assert "those of Deployment/shop/orders and Deployment/shop/web" in finding.message
    assert finding.related_objects == ()
    before, _, policy = finding.hint.partition(": ")
    assert before == "let in the Gateway alone"
    mended = shop.overlay(objects=[yaml.safe_load(policy)])
    assert found(mended, "TW414") == []
    question = tierwall.PathQuestion(
        source="agents/shopper-0", gateway="shop/agents", backend="shop/reports", method="tools/list"
    )
    assert mended.ask(question).verdict is tierwall.Verdict.ALLOW


def test_labels_in_the_hint_are_read_as_strings() -> None:
    labels = {"app": "true", "team": "1e3", "on": "x"}
    asked = world(service(selector=labels), pod("prod", "payments-0", **labels))
    (finding,) = found(asked, "TW414")
    policy = yaml.safe_load(finding.hint.partition(": ")[2])
    assert policy["spec"]["podSelector"]["matchLabels"] == labels
    assert found(asked.overlay(objects=[policy]), "TW414") == []


def test_a_way_around_names_a_caller_and_what_lets_it_in() -> None:
    (finding,) = found(world(pod("agents", "another")), "TW414")
    assert finding.message == (
        "2 pods can call XBackend/prod/payments without passing Gateway/prod/gw, so XAccessPolicy/prod/guard cannot "
        "stop them, agents/another and agents/shopper-0: agents/shopper-0 reaches prod/payments-0 on TCP port 9000, "
        "because no policy closes that port"
    )
    (finding,) = found(world(), "TW414")
    assert finding.message == (
        "agents/shopper-0 can call XBackend/prod/payments without passing Gateway/prod/gw, so XAccessPolicy/prod/guard "
        "cannot stop it: it reaches prod/payments-0 on TCP port 9000, because no policy closes that port"
    )
    assert finding.related_objects == ()
    (finding,) = found(world(closed(ONLY_GATEWAY, {"from": [{"namespaceSelector": {}}]})), "TW414")
    assert "because NetworkPolicy/prod/payments ingress[1] lets it in" in finding.message
    assert finding.hint == "narrow NetworkPolicy/prod/payments ingress[1]"


@pytest.mark.parametrize(
    "more",
    [
        [closed(ONLY_GATEWAY)],
        [network_policy("out", namespace="agents", policyTypes=["Egress"])],
        [admin("closed", rule("Deny", namespaces={"matchLabels": {"kubernetes.io/metadata.name": "agents"}}))],
        [v1("guard", on_gateway("nobody"))],
        [service(selector={"app": "nobody"})],
        [xbackend(hostname="pay.example.org", port=443)],
    ],
    ids=("only the Gateway", "no egress", "admin policy", "no tool policy", "no pods", "outside"),
)
def test_no_way_around(more: list[Object]) -> None:
    assert found(world(*more), "TW414") == []


def test_a_single_workload_may_be_a_gateway_that_is_not_known() -> None:
    unlabelled = world(without=("Pod/prod/proxy",))
    assert found(unlabelled, "TW414") == []
    (finding,) = found(unlabelled.overlay(objects=[pod("infra", "envoy")]), "TW414")
    assert finding.hint.startswith("label the pods of Gateway/prod/gw as its own, and let in the Gateway alone: {")


def test_pods_of_all_gateways_of_a_backend_pass() -> None:
    second = gateway()
    second["metadata"]["name"] = "gw2"
    peer = {"from": [{"podSelector": {"matchExpressions": [{"key": LABEL, "operator": "Exists"}]}}]}
    proxies = world(second, pod("prod", "proxy2", **{LABEL: "gw2"}), closed(peer))
    assert found(proxies, "TW414") == []
    (finding,) = found(proxies.overlay(objects=[pod("prod", "proxy3", **{LABEL: "gw3"})]), "TW414")
    assert finding.related_objects == ("Pod/prod/proxy3",)


def test_a_backend_on_the_network_of_its_node_cannot_be_closed() -> None:
    host = pod("prod", "payments-0", ip="10.0.0.9", app="payments")
    host["spec"]["hostNetwork"] = True
    (finding,) = found(world(host, closed()), "TW414")
    assert "because policies do not apply to the network of nodes" in finding.message
    assert finding.hint == "its pods are on the network of their nodes, where no policy applies: take them off it"


def test_pods_of_workloads_are_named_by_them() -> None:
    template = {"metadata": {"labels": {"app": "web"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}}
    spec = {"replicas": 1, "selector": {"matchLabels": {"app": "web"}}, "template": template}
    web = manifest("apps/v1", "Deployment", "web", spec, namespace="prod")
    (finding,) = found(world(web, without=("Pod/agents/shopper-0",)), "TW414")
    assert finding.message.startswith("the pod of Deployment/prod/web can call XBackend/prod/payments without ")
    assert "cannot stop it: prod/web-0 reaches prod/payments-0 on " in finding.message
    (finding,) = found(world(web), "TW414")
    assert "cannot stop them, those of Deployment/prod/web and agents/shopper-0: agents/sh" in finding.message


def test_the_hint_lets_a_gateway_on_the_network_of_its_nodes_in_by_address() -> None:
    proxies = [pod("prod", f"proxy{number}", ip=f"10.9.0.{number}", **{LABEL: "gw"}) for number in range(1, 3)]
    for proxy in proxies:
        proxy["spec"]["hostNetwork"] = True
    proxies[1]["status"]["podIPs"] = [{"ip": "10.9.0.2"}, {"ip": "fd00::2"}]
    asked = world(*proxies, without=("Pod/prod/proxy",))
    (finding,) = found(asked, "TW414")
    before, _, text = finding.hint.partition(": ")
    assert before == "let in the Gateway alone, by the addresses of its nodes"
    policy = yaml.safe_load(text)
    (rule_of_policy,) = policy["spec"]["ingress"]
    assert rule_of_policy["from"] == [
        {"ipBlock": {"cidr": cidr}} for cidr in ("10.9.0.1/32", "10.9.0.2/32", "fd00::2/128")
    ]
    mended = asked.overlay(objects=[policy])
    assert found(mended, "TW414") == found(mended, "TW413") == []
    nowhere = pod("prod", "proxy1", **{LABEL: "gw"})
    nowhere["spec"]["hostNetwork"] = True
    (finding,) = found(world(nowhere, without=("Pod/prod/proxy",)), "TW414")
    assert finding.hint.startswith("take prod/proxy1 off the network of their nodes, so that a policy can let in ")


def test_every_target_of_a_backend_may_be_reached_around_the_gateway() -> None:
    targets = [
        {"name": name, "static": {"host": f"{name}.prod.svc.cluster.local", "port": 80}}
        for name in ("closed", "payments", "pay.example.org")
    ]
    backend = manifest("agentgateway.dev/v1alpha1", "AgentgatewayBackend", "many", {"mcp": {"targets": targets}})
    rules = [{"backendRefs": [{"group": "agentgateway.dev", "kind": "AgentgatewayBackend", "name": "many"}]}]
    route = manifest("gateway.networking.k8s.io/v1", "HTTPRoute", "r", {"parentRefs": [{"name": "gw"}], "rules": rules})
    guard = v1("guard", on_gateway("gw"), {"source": sa("shopper"), "authorization": mcp(calls("refund"))})
    asked = world(backend, route, guard)
    (finding,) = found(asked, "TW414")
    assert str(finding.reference) == "AgentgatewayBackend/prod/many"
    assert "reaches prod/payments-0 on TCP port 9000" in finding.message
    assert found(asked.overlay(objects=[yaml.safe_load(finding.hint.partition(": ")[2])]), "TW414") == []


def test_a_caller_that_cannot_reach_the_gateway() -> None:
    shop = tierwall.load(*FOLDERS)
    (finding,) = found(shop, "TW413")
    assert (str(finding.reference), finding.places) == ("XAccessPolicy/shop/platform-guard", ("rules[1]",))
    assert "lets ServiceAccount/agents/clerk call tool `find_order`" in finding.message
    assert "agents/clerk-0 cannot reach shop/agents-proxy-0 on TCP port 8443: " in finding.message
    assert found(shop.without("NetworkPolicy/agents/nothing-goes-out"), "TW413") == []


def test_many_callers_are_one_finding() -> None:
    sources = [sa(name, namespace="agents") for name in ("shopper", "other", "absent")]
    rules = [{"source": source, "authorization": mcp(calls("refund"))} for source in sources]
    policy = network_policy("out", namespace="agents", policyTypes=["Egress"])
    (finding,) = found(world(v1("guard", on_gateway("gw"), *rules), pod("agents", "other-0", "other"), policy), "TW413")
    assert "(1 more caller cannot either)" in finding.message
    assert finding.places == ("rules[0]", "rules[1]")
    assert finding.related_objects == ("ServiceAccount/agents/other", "ServiceAccount/agents/shopper")


def test_a_gateway_that_cannot_reach_its_backend() -> None:
    asked = world(closed())
    (finding,) = found(asked, "TW413")
    assert finding.message.startswith(
        "ServiceAccount/agents/shopper may call tool `refund` of XBackend/prod/payments through Gateway/prod/gw, but "
        "the network stops every call behind it: prod/proxy cannot reach prod/payments-0 on TCP port 9000: "
    )
    assert (str(finding.reference), finding.related_objects) == ("XBackend/prod/payments", ("Gateway/prod/gw",))
    (finding,) = found(asked.without("XAccessPolicy/prod/guard").overlay(objects=[v1("p", on_gateway("x"))]), "TW413")
    assert finding.message.startswith("every caller may use XBackend/prod/payments through Gateway/prod/gw")
    assert found(asked.overlay(objects=[v1("guard", on_gateway("gw"), rules=[])]), "TW413") == []


def test_a_policy_on_a_backend_counts_if_no_gateway_can_be_reached() -> None:
    second = gateway()
    second["metadata"]["name"] = "gw2"
    rules = {"source": sa("shopper", namespace="agents"), "authorization": mcp(calls("refund"))}
    target = {"group": "agentic.networking.x-k8s.io", "kind": "XBackend", "name": "payments"}
    shut = network_policy("shut", namespace="prod", podSelector={"matchLabels": {LABEL: "gw"}})
    asked = world(v1("guard", target, rules), second, pod("prod", "proxy2", **{LABEL: "gw2"}), shut)
    assert found(asked, "TW413") == []
    both = network_policy("shut2", namespace="prod", podSelector={"matchLabels": {LABEL: "gw2"}})
    findings = found(asked.overlay(objects=[both]), "TW413")
    assert [str(finding.reference) for finding in findings] == ["XAccessPolicy/prod/guard"]


def test_a_service_behind_a_gateway_with_a_policy_is_guarded() -> None:
    rules = [{"backendRefs": [{"name": "payments", "port": 80}]}]
    spec = {"parentRefs": [{"name": "gw"}], "rules": rules}
    route = manifest("gateway.networking.k8s.io/v1", "HTTPRoute", "r", spec)
    (finding,) = found(world(route), "TW414")
    assert str(finding.reference) == "Service/prod/payments"


SELECTORS: tuple[Object, ...] = (
    {},
    {"matchLabels": {"app": "s"}},
    {"matchLabels": {LABEL: "gw"}},
    {"matchExpressions": [{"key": "app", "operator": "In", "values": ["a", "w"]}]},
)
EVERYWHERE: Object = {"namespaceSelector": {}}
PEERS = [{"podSelector": selector, **space} for selector in SELECTORS for space in ({}, EVERYWHERE)]


@st.composite
def closed_worlds(draw: st.DrawFn) -> list[Object]:
    """A cluster in which most pods are isolated: agents, pods of a Gateway, a backend and others, and few openings."""
    accounts = st.sampled_from(("", "agent", "agent"))
    pods = [pod("agents", f"a{number}", draw(accounts), app="a") for number in range(draw(st.integers(0, 2)))]
    pods += [pod("prod", f"w{number}", draw(accounts), app="w") for number in range(draw(st.integers(0, 1)))]
    pods += [pod("prod", f"s{number}", app="s") for number in range(draw(st.integers(1, 2)))]
    proxies = draw(st.integers(0, 2))
    pods += [pod("prod", f"p{number}", draw(accounts), **{LABEL: "gw"}) for number in range(proxies)]
    for each in pods:
        if draw(st.integers(0, 9)) == 0:
            each["spec"]["hostNetwork"] = True
    policies = []
    for number in range(draw(st.integers(0, 4))):
        way = draw(st.sampled_from(("ingress", "egress")))
        peers = draw(st.lists(st.sampled_from(PEERS), min_size=1, max_size=2))
        opening: Object = {"from" if way == "ingress" else "to": peers}
        if draw(st.booleans()):
            opening["ports"] = [{"port": draw(st.sampled_from((8443, 9000)))}]
        spec = {way: draw(st.lists(st.just(opening), max_size=1)), "policyTypes": [way.title()]}
        place = draw(st.sampled_from(("agents", "prod")))
        policy = network_policy(f"n{number}", namespace=place, podSelector=draw(st.sampled_from(SELECTORS)))
        policy["spec"] = {"podSelector": policy["spec"]["podSelector"], **spec}
        policies.append(policy)
    sources = st.sampled_from(
        [sa(name, namespace=place) for name in ("agent", "default") for place in ("agents", "prod")]
    )
    usual = draw(sources)
    for number, target in enumerate((on_gateway("gw"), on_backend("payments"))):
        if draw(st.integers(0, 3)):
            source = usual if draw(st.integers(0, 4)) else draw(sources)
            policies.append(v1(f"p{number}", target, {"source": source, "authorization": mcp(calls("add"))}))
    front = service(selector={"app": "s"}, ports=[{"port": 80, "protocol": "TCP", "targetPort": 9000}])
    return [*pods, gateway(), xbackend(), front, *policies]


@settings(max_examples=examples(200))
@given(closed_worlds())
def test_findings_are_those_of_all_pairs(objects: list[Object]) -> None:
    findings = list(path_findings(snapshot(objects)))
    assert {
        (str(finding.reference), finding.related_objects) for finding in findings if finding.code == "TW414"
    } == around(objects)
    assert {
        (str(finding.reference), name)
        for finding in findings
        if finding.code == "TW413"
        for name in finding.related_objects
    } == stopped(objects)

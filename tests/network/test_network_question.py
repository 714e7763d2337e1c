"""Questions: all problems at once, hints, the forms of an endpoint, and the shape of the decision document."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.randomness import examples
from tests.worlds.network_clusters import PORTS, PROTOCOLS, clusters, endpoints
from tests.worlds.network_snapshots import document, snapshot
from tierwall.core.answer import Answer
from tierwall.core.diagnostics import InputError
from tierwall.planes import ask, differences

Object = dict[str, Any]


def pod(name: str, namespace: str = "shop", **more: Any) -> Object:
    spec: Object = {"containers": [{"name": "c", "image": "i"}], **more.pop("spec", {})}
    metadata = {"name": name, "namespace": namespace, "labels": more.pop("labels", {"app": name})}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec, **more}


def admin(name: str, priority: int = 1, **spec: Any) -> Object:
    return {
        "apiVersion": "policy.networking.k8s.io/v1alpha1",
        "kind": "AdminNetworkPolicy",
        "metadata": {"name": name},
        "spec": {"priority": priority, "subject": {"namespaces": {}}, **spec},
    }


WEB, DB = pod("web", status={"podIP": "10.0.0.1"}), pod("db", "pay", status={"podIP": "10.0.0.2"})


def question(source: Any = "shop/web", destination: Any = "pay/db", **more: Any) -> Object:
    return {"from": source, "to": destination, "port": 80, **more}


def isolating(name: str) -> Object:
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": name, "namespace": "pay"},
        "spec": {"podSelector": {}, "policyTypes": ["Ingress"]},
    }


def asked_of(*policies: Object) -> Answer:
    return ask("network", snapshot([WEB, DB, *policies]), question(), {})


def problems(objects: list[Object], asked: Object) -> list[tuple[str, str]]:
    with pytest.raises(InputError) as caught:
        document(snapshot(objects), asked)
    assert {diagnostic.code for diagnostic in caught.value.diagnostics} <= {"TW703", "TW704"}
    return [(diagnostic.message, diagnostic.hint) for diagnostic in caught.value.diagnostics]


def test_all_problems_of_a_question_are_reported_at_once_with_hints() -> None:
    messages = problems([WEB, DB], {"from": "shop/wbe", "to": "pai/db", "port": 70000, "protocol": "tcp", "prot": 1})
    assert messages == [
        ("expected a number from 1 to 65535 as `port`, found `70000`", ""),
        ("expected one of TCP, UDP, SCTP as `protocol`, found `tcp`", "did you mean `TCP`?"),
        ("unknown key `prot` in a question of the network plane", "did you mean `port`?"),
        ("there is no pod `wbe` in namespace `shop`", "did you mean `web`?"),
        ("there is no pod in namespace `pai`", "did you mean `pay`?"),
    ]


def test_messages_show_what_was_given_as_it_was_written() -> None:
    messages = problems([WEB, DB], {"from": {"ip": "10.0.0.1", "node": "n"}, "to": ["shop/db"], "port": True})
    shown = [message.partition(", found ")[2] for message, _ in messages]
    assert sorted(shown) == ['`["shop/db"]`', "`true`", '`{"ip": "10.0.0.1", "node": "n"}`']


@pytest.mark.parametrize(
    "endpoint",
    [None, "", "web", "a/b/c", "/web", {}, {"ip": "10.0.0"}, {"ip": 7}, {"node": "n"}, {"pod": "x"}, 7, ["shop/web"]],
)
def test_an_invalid_endpoint_is_refused(endpoint: Any) -> None:
    assert len(problems([WEB, DB], question(endpoint))) == 1


@pytest.mark.parametrize("port", [0, -1, 65536, "80", 80.0, True, None])
def test_an_invalid_port_is_refused(port: Any) -> None:
    (problem,) = problems([WEB, DB], question(port=port))
    assert problem[0].startswith("expected a number from 1 to 65535 as `port`")


def test_an_address_of_a_pod_means_that_pod() -> None:
    deny = admin("deny", ingress=[{"action": "Deny", "from": [{"namespaces": {}}]}])
    world = snapshot([WEB, DB, deny])
    by_name, by_address = document(world, question()), document(world, question({"ip": "10.0.0.1"}, {"ip": "10.0.0.2"}))
    assert by_name == by_address
    assert by_name["verdict"] == "Deny"


def test_policies_do_not_apply_to_a_pod_and_itself() -> None:
    deny = admin("deny", ingress=[{"action": "Deny", "from": [{"namespaces": {}}]}])
    got = document(snapshot([WEB, deny]), question("shop/web", {"ip": "10.0.0.1"}))
    assert (got["verdict"], got["egress"]["verdict"], got["ingress"]["verdict"]) == ("Allow", *["NotApplicable"] * 2)
    assert got["decidedBy"] == [{"policy": "Default"}]


def test_traffic_between_a_pod_and_its_own_node_is_decided_with_a_note() -> None:
    node = {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": "n1"},
        "status": {"addresses": [{"type": "InternalIP", "address": "172.18.0.2"}]},
    }
    web = pod("web", spec={"nodeName": "n1"})
    deny = admin("deny", egress=[{"action": "Deny", "to": [{"nodes": {}}]}])
    got = document(snapshot([web, node, deny]), question("shop/web", {"node": "n1"}))
    assert got["verdict"] == "Deny"
    assert got["trace"][0]["note"] == "Kubernetes exempts traffic between a pod and its own node"


def test_a_domain_rule_makes_the_answer_conditional_and_names_the_domains() -> None:
    names = admin(
        "names",
        egress=[
            {"action": "Allow", "to": [{"domainNames": ["*.example.org", "example.org"]}]},
            {"action": "Deny", "to": [{"networks": ["0.0.0.0/0"]}]},
        ],
    )
    got = document(snapshot([WEB, names]), question("shop/web", {"ip": "203.0.113.7"}))
    assert got["verdict"] == "Conditional"
    assert got["domains"] == ["*.example.org", "example.org"]
    assert got["decidedBy"] == [
        {"policy": "AdminNetworkPolicy/names", "rule": "egress[0]"},
        {"policy": "AdminNetworkPolicy/names", "rule": "egress[1]"},
    ]
    assert got["sentence"].startswith("shop/web can reach 203.0.113.7 on TCP port 80 only if its address belongs to")
    # A pod without an address does not belong to a domain; if all answers agree, the domain does not matter.
    assert document(snapshot([WEB, pod("db", "pay"), names]), question())["verdict"] == "Allow"
    same = admin("same", egress=[{"action": "Allow", "to": [{"domainNames": ["example.org"]}]}])
    assert document(snapshot([WEB, same]), question("shop/web", {"ip": "203.0.113.7"}))["verdict"] == "Allow"


def test_the_first_name_of_a_thousand_policies_of_equal_priority_decides() -> None:
    rule: Object = {"from": [{"namespaces": {}}]}
    policies = [admin(f"p{number:04}", 5, ingress=[{"action": "Deny", **rule}]) for number in range(999)]
    policies.append(admin("P", 5, ingress=[{"action": "Allow", **rule}]))
    got = document(snapshot([WEB, DB, *reversed(policies)]), question())
    assert got["ingress"] == {
        "verdict": "Allow",
        "tier": "Admin",
        "decidedBy": [{"policy": "AdminNetworkPolicy/P", "rule": "ingress[0]"}],
        "walk": "admin: AdminNetworkPolicy/P ingress[0] allowed",
    }


def test_expectations_are_checked_as_the_contract_says() -> None:
    rule = {"action": "Deny", "to": [{"namespaces": {}}]}
    named = {**rule, "name": "no-way-out"}
    got = asked_of(admin("a", egress=[{**rule, "ports": [{"portNumber": {"port": 1}}]}, named]), isolating("one"))
    expectations: list[Object] = [
        {},
        {"verdict": "Deny", "egress": "Deny", "ingress": "Deny"},
        {"decidedBy": "NetworkPolicy/pay/one spec"},
        {"decidedBy": ["AdminNetworkPolicy/a", "NetworkPolicy/pay/one"]},
        {"decidedBy": "AdminNetworkPolicy/a egress[1]"},
        {"decidedBy": "AdminNetworkPolicy/a no-way-out"},
        {"decidedBy": [{"policy": "AdminNetworkPolicy/a", "rule": "egress[1]", "name": "no-way-out"}]},
        {"notConsidered": []},
    ]
    for expect in expectations:
        assert differences(expect, got) == []
    wrong = ["AdminNetworkPolicy/a egress[0]", "Default", {"policy": "NetworkPolicy/pay/one", "rule": "ingress[0]"}]
    actual = "AdminNetworkPolicy/a egress[1] no-way-out, NetworkPolicy/pay/one spec"
    assert differences({"verdict": "Allow", "decidedBy": wrong}, got) == [
        "verdict: expected Allow, got Deny",
        f"decidedBy: expected AdminNetworkPolicy/a egress[0], got {actual}",
        f"decidedBy: expected Default, got {actual}",
        f"decidedBy: expected NetworkPolicy/pay/one ingress[0], got {actual}",
    ]


def test_an_empty_list_expects_that_no_policy_decides() -> None:
    nobody = asked_of()
    for expect in ([], "Default", ["Default"], [{"policy": "Default"}]):
        assert differences({"decidedBy": expect}, nobody) == []
    assert differences({"decidedBy": []}, asked_of(isolating("one"))) == [
        "decidedBy: expected that no policy decides, got Default, NetworkPolicy/pay/one spec"
    ]


def test_a_malformed_expectation_is_an_error() -> None:
    with pytest.raises(InputError) as caught:
        differences({"verdikt": "Allow", "egress": "allow", "decidedBy": [7]}, asked_of())
    assert [(diagnostic.code, diagnostic.hint) for diagnostic in caught.value.diagnostics] == [
        ("TW701", ""),
        ("TW701", "did you mean `Allow`?"),
        ("TW701", "did you mean `verdict`?"),
    ]


@settings(max_examples=examples(150))
@given(clusters(), st.data())
def test_the_steps_of_every_answer_lead_to_its_verdict(objects: list[Object], data: st.DataObject) -> None:
    source, destination = (data.draw(st.sampled_from(endpoints(objects))) for _ in range(2))
    protocol, port = data.draw(st.sampled_from(PROTOCOLS)), data.draw(st.sampled_from(PORTS))
    got = document(snapshot(objects), {"from": source, "to": destination, "protocol": protocol, "port": port})
    for direction in ("egress", "ingress"):
        steps = [step for step in got["trace"] if step["direction"] == direction]
        uncertain = [step for step in steps if step["reason"] == "DomainMayMatch"]
        decisive = [step for step in steps if step["verdict"] in ("Allow", "Deny") and step not in uncertain]
        verdict = got[direction]["verdict"]
        if verdict == "NotApplicable":
            assert [step["verdict"] for step in steps] == ["NotApplicable"]
        elif verdict == "Conditional":
            assert uncertain
            assert got["domains"]
        else:
            # The first decisive step and all equal ones of its tier are the deciders.
            first = decisive[0]
            assert first["verdict"] == verdict
            named = [
                (step.get("policy", "Default"), step.get("rule")) for step in decisive if step["tier"] == first["tier"]
            ]
            entries = [(entry["policy"], entry.get("rule")) for entry in got[direction]["decidedBy"]]
            assert entries == named
            assert got[direction]["tier"] == first["tier"]

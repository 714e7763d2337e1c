"""Questions about paths: hops, their order, ends that are not known, other backends, and malformed questions."""

from __future__ import annotations

import json
from typing import Any

import pytest
from click.testing import CliRunner

import tierwall
from tests import ROOT
from tests.labs.served_cluster import serving
from tests.worlds.network_objects import network_policy
from tests.worlds.tool_objects import calls, manifest, mcp, on_gateway, sa, v1
from tierwall import InputError, PathQuestion, Verdict
from tierwall.cli.main import root

Object = dict[str, Any]
LABEL = "gateway.networking.k8s.io/gateway-name"
EXAMPLE = ("-f", str(ROOT / "examples/agents/manifests"), "-f", str(ROOT / "examples/path/manifests"))
SHOPPER = {"from": "agents/shopper-0", "gateway": "prod/gw", "backend": "prod/payments", "tool": "refund"}


def pod(namespace: str, name: str, account: str = "", ip: str = "", phase: str = "Running", **labels: str) -> Object:
    spec: Object = {"containers": [{"name": "c", "image": "i", "ports": [{"name": "http", "containerPort": 9000}]}]}
    if account:
        spec["serviceAccountName"] = account
    status = {"phase": phase, **({"podIPs": [{"ip": ip}]} if ip else {})}
    metadata = {"name": name, "namespace": namespace, "labels": labels}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec, "status": status}


def service(name: str = "payments", **spec: Any) -> Object:
    whole = {"selector": {"app": "payments"}, "ports": [{"name": "web", "port": 80, "targetPort": "http"}], **spec}
    return manifest("v1", "Service", name, {key: value for key, value in whole.items() if value is not None})


def gateway(*ports: int, protocol: str = "HTTPS") -> Object:
    listeners = [{"name": f"l{port}", "port": port, "protocol": protocol} for port in ports or (8443,)]
    return manifest("gateway.networking.k8s.io/v1", "Gateway", "gw", {"gatewayClassName": "c", "listeners": listeners})


def xbackend(**mcp_fields: Any) -> Object:
    spec = {"mcp": mcp_fields or {"serviceName": "payments", "port": 80}}
    return manifest("agentic.networking.x-k8s.io/v0alpha0", "XBackend", "payments", spec)


def world(*more: Object, without: tuple[str, ...] = ()) -> tierwall.World:
    """A path that is open: an agent, the Gateway's proxy, a backend, and a policy that grants `refund`."""
    objects = [
        pod("agents", "shopper-0", "shopper", app="shopper"),
        pod("prod", "proxy", **{LABEL: "gw"}),
        pod("prod", "payments-0", app="payments"),
        gateway(),
        xbackend(),
        service(),
        v1(
            "guard",
            on_gateway("gw"),
            {"source": sa("shopper", namespace="agents"), "authorization": mcp(calls("refund"))},
        ),
    ]
    return tierwall.load(objects=objects).overlay(objects=more).without(*without)


def ask(asked: tierwall.World, **changed: Any) -> tierwall.Answer:
    return asked.ask(PathQuestion.from_dict({**SHOPPER, **changed}))


def hops(answer: tierwall.Answer) -> list[str]:
    return [str(hop.verdict) for hop in answer.detail.hops]


@pytest.mark.parametrize("source", ["outside", "10.0.0.1", "fd00::1", "Service/prod/payments"])
def test_only_pods_call(source: str) -> None:
    with pytest.raises(InputError, match="expected `namespace/pod` or a workload such as") as refused:
        ask(world(), **{"from": source})
    assert f"as `from`, found `{source}`" in str(refused.value)


def test_which_of_several_targets_is_called_is_not_known() -> None:
    targets = [{"name": name, "static": {"host": f"{name}.example", "port": 80}} for name in "ab"]
    backend = manifest("agentgateway.dev/v1alpha1", "AgentgatewayBackend", "many", {"mcp": {"targets": targets}})
    named = ask(world(backend), backend="AgentgatewayBackend/prod/many", tool="b_refund")
    assert (named.verdict, named.detail.leads_to) == (Verdict.ALLOW, "b.example")
    assert "can call tool refund of b at AgentgatewayBackend/prod/many" in named.sentence
    answer = ask(world(backend), backend="AgentgatewayBackend/prod/many", tool=None, method="tools/list")
    assert hops(answer)[2] == "NotApplicable"
    assert "AgentgatewayBackend/prod/many has 2 MCP targets, and which of them is called is not known" in str(
        answer.not_considered[-1].effect
    )


def test_a_path_is_three_answers() -> None:
    answer = ask(world())
    assert answer.verdict is Verdict.ALLOW
    assert [hop.plane for hop in answer.detail.hops] == ["network", "tool", "network"]
    assert answer.sentence == (
        "agents/shopper-0 can call tool refund at XBackend/prod/payments through Gateway/prod/gw: every hop allows it"
    )
    assert [str(decider) for decider in answer.decided_by] == ["XAccessPolicy/prod/guard rules[0] (r0)"]
    first, call, last = answer.detail.hops
    assert (first.detail.source, first.detail.port) == ("agents/shopper-0", 8443)
    assert call.detail.request.caller == "spiffe://cluster.local/ns/agents/sa/shopper"
    assert (last.detail.destination, last.detail.port, last.detail.target_ports) == (
        "Service/prod/payments",
        80,
        (9000,),
    )
    assert answer.steps == (*first.steps, *call.steps, *last.steps)
    document = answer.to_dict()
    assert document["hops"] == [hop.to_dict() for hop in answer.detail.hops]
    assert document["notConsidered"] == []


@pytest.mark.parametrize(
    ("policy", "verdicts", "sentence"),
    [
        (
            network_policy("closed", namespace="agents", policyTypes=["Egress"]),
            ["Deny", "Allow", "Allow"],
            "because agents/shopper-0 cannot reach Gateway/prod/gw on TCP port 8443: NetworkPolicy/agents/closed",
        ),
        (
            network_policy("closed", namespace="prod", podSelector={"matchLabels": {"app": "payments"}}),
            ["Allow", "Allow", "Deny"],
            "because Gateway/prod/gw cannot reach Service/prod/payments on TCP port 80 (port 9000 of its pods): ",
        ),
        (
            network_policy("closed", namespace="prod", podSelector={}),
            ["Deny", "Allow", "Deny"],
            "because agents/shopper-0 cannot reach Gateway/prod/gw",
        ),
    ],
    ids=("way in", "way out", "both"),
)
def test_the_first_hop_that_stops_decides(policy: Object, verdicts: list[str], sentence: str) -> None:
    answer = ask(world(policy))
    assert hops(answer) == verdicts
    assert answer.verdict is Verdict.DENY
    assert sentence in answer.sentence
    stop = next(hop for hop in answer.detail.hops if hop.verdict is Verdict.DENY)
    assert answer.decided_by == stop.decided_by


def test_a_call_without_a_grant_is_denied_in_words_of_the_tool_plane() -> None:
    answer = ask(world(), tool="steal")
    assert hops(answer) == ["Allow", "Deny", "Allow"]
    assert answer.sentence.endswith(
        "through Gateway/prod/gw, because no rule of XAccessPolicy/prod/guard on the Gateway grants it"
    )


def test_a_pod_calls_under_its_own_service_account() -> None:
    plain = pod("agents", "shopper-0", app="shopper")
    call = ask(world(plain)).detail.hops[1]
    assert (call.verdict, call.detail.request.caller) == (Verdict.DENY, "spiffe://cluster.local/ns/agents/sa/default")


def test_a_workload_calls_if_all_its_pods_have_one_account() -> None:
    def replica(name: str, account: str) -> Object:
        made = pod("agents", name, account, app="shopper")
        owner = {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "shopper", "controller": True}
        made["metadata"]["ownerReferences"] = [owner]
        return made

    template = {"metadata": {"labels": {"app": "shopper"}}, "spec": {"containers": []}}
    workload = {"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": {"name": "shopper", "namespace": "agents"}}
    whole = {**workload, "spec": {"template": template}}
    question = {"from": "StatefulSet/agents/shopper"}
    assert (
        ask(world(whole, replica("shopper-0", "shopper"), replica("shopper-1", "shopper")), **question).verdict
        == "Allow"
    )
    with pytest.raises(InputError, match="several ServiceAccounts: agents/other and agents/shopper"):
        ask(world(whole, replica("shopper-0", "shopper"), replica("shopper-1", "other")), **question)


def test_pods_of_the_gateway_that_are_not_alike_are_conditional() -> None:
    labels = {LABEL: "gw", "ring": "inner"}
    closed = network_policy("inner", namespace="prod", podSelector={"matchLabels": {"ring": "inner"}})
    answer = ask(world(pod("prod", "proxy-2", **labels), closed))
    assert hops(answer) == ["Conditional", "Allow", "Allow"]
    assert answer.verdict is Verdict.CONDITIONAL
    assert "it cannot reach prod/proxy-2" in answer.sentence
    assert {group["verdict"] for group in answer.to_dict()["hops"][0]["ends"]} == {"Allow", "Deny"}


def test_pods_of_another_gateway_are_not_asked() -> None:
    closed = network_policy("other", namespace="prod", podSelector={"matchLabels": {LABEL: "other"}})
    assert hops(ask(world(pod("prod", "proxy-2", **{LABEL: "other"}), closed))) == ["Allow"] * 3


def test_connections_of_a_gateway_without_pods_are_not_judged() -> None:
    answer = ask(world(without=("Pod/prod/proxy",)))
    assert hops(answer) == ["NotApplicable", "Allow", "NotApplicable"]
    assert answer.verdict is Verdict.ALLOW
    assert answer.sentence.endswith("but both connections could not be judged")
    (omission,) = answer.not_considered
    assert (omission.reason, omission.kind, omission.count) == ("network", "Gateway", 1)
    assert f"no pod in namespace prod carries the label {LABEL}: gw" in omission.effect
    answer = ask(world(without=("Pod/prod/proxy",)), tool="steal")
    assert (answer.verdict, [decider.policy for decider in answer.decided_by]) == (
        Verdict.DENY,
        [tierwall.Reference("XAccessPolicy", "prod", "guard")],
    )


def test_the_pods_of_a_gateway_can_be_named() -> None:
    envoy = pod("infra", "envoy", app="envoy")
    selection = {"namespace": "infra", "selector": {"matchLabels": {"app": "envoy"}}}
    asked = world(envoy, without=("Pod/prod/proxy",))
    answer = ask(asked, gatewayPods=selection)
    assert (hops(answer), answer.detail.gateway_pods) == (["Allow"] * 3, ("infra/envoy",))
    closed = network_policy("closed", namespace="infra")
    assert hops(ask(asked.overlay(objects=[closed]), gatewayPods=selection)) == ["Deny", "Allow", "Allow"]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"namespace": "infra", "selector": {}}, "`gatewayPods` selects none of the pods of namespace infra"),
        ({"namespace": "prod", "selector": {"app": "x"}}, "expected `matchLabels` or `matchExpressions`, found `app`"),
        ({"name": "x"}, "`name`"),
        ({"namespace": 7}, "expected the name of a namespace as `gatewayPods.namespace`, found `7`"),
        ("prod/x", "expected {namespace, selector} as `gatewayPods`, found `prod/x`"),
    ],
)
def test_malformed_gateway_pods(given: Any, message: str) -> None:
    with pytest.raises(InputError) as caught:
        ask(world(), gatewayPods=given)
    assert message in str(caught.value)


def test_a_service_in_front_of_the_gateway_translates_the_port_of_the_listener() -> None:
    front = service("gw", selector={LABEL: "gw"}, ports=[{"port": 8443, "targetPort": 10443}])
    policy = network_policy(
        "open", {"ports": [{"port": 10443}]}, namespace="prod", podSelector={"matchLabels": {LABEL: "gw"}}
    )
    assert hops(ask(world(policy))) == ["Deny", "Allow", "Allow"]
    answer = ask(world(policy, front))
    assert hops(answer) == ["Allow"] * 3
    assert "on TCP port 8443 (port 10443 of its pods)" in answer.detail.hops[0].sentence


def test_a_host_outside_is_any_address() -> None:
    outside = xbackend(hostname="pay.example.org", port=443)
    answer = ask(world(outside))
    assert hops(answer) == ["Allow"] * 3
    assert "Gateway/prod/gw can reach pay.example.org on TCP port 443" in answer.detail.hops[2].sentence
    assert answer.detail.hops[2].to_dict()["notes"] == [
        "only DNS knows the address of pay.example.org: it may be any address outside the cluster"
    ]
    some = [{"to": [{"ipBlock": {"cidr": "203.0.113.0/24"}}]}]
    policy = network_policy("some", namespace="prod", policyTypes=["Egress"], egress=some)
    assert hops(ask(world(outside, policy))) == ["Allow", "Allow", "Conditional"]
    assert hops(ask(world(xbackend(hostname="203.0.113.7", port=443), policy))) == ["Allow"] * 3
    assert hops(ask(world(xbackend(hostname="198.51.100.7", port=443), policy))) == ["Allow", "Allow", "Deny"]


def agentgateway_backend(**spec: Any) -> Object:
    metadata = {"name": "b", "namespace": "prod"}
    return {
        "apiVersion": "agentgateway.dev/v1alpha1",
        "kind": "AgentgatewayBackend",
        "metadata": metadata,
        "spec": spec,
    }


def test_an_agentgateway_backend_is_its_host() -> None:
    def to_backend(**spec: Any) -> Any:
        return ask(world(agentgateway_backend(**spec)), backend="AgentgatewayBackend/prod/b").detail.hops[2]

    static = {"host": "payments.prod.svc", "port": 80}
    assert to_backend(static=static).detail.destination == "Service/prod/payments"
    assert to_backend(mcp={"targets": [{"name": "a", "static": static}]}).detail.destination == "Service/prod/payments"
    # Several targets are not served.
    both = to_backend(mcp={"targets": [{"name": name, "static": static} for name in "ab"]})
    assert str(both.verdict) == "NotApplicable"


def test_a_host_of_the_cluster_is_its_service() -> None:
    for host in ("payments.prod.svc", "Payments.prod.svc.cluster.local."):
        answer = ask(world(xbackend(hostname=host, port=80)))
        assert answer.detail.hops[2].detail.destination == "Service/prod/payments"


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ([service(selector={"app": "nobody"})], "Service/prod/payments selects no pod"),
        ([service(selector=None)], "Service/prod/payments has no selector"),
        ([service(type="ExternalName", externalName="x.org")], "Service/prod/payments is of type ExternalName"),
        ([xbackend(serviceName="payment", port=80)], "Service/prod/payment is not among the objects"),
        ([xbackend(serviceName="payments", port=81)], "Service/prod/payments has no TCP port 81; it has web (TCP 80)"),
        ([service(ports=[{"port": 80, "targetPort": "grpc"}])], "has a TCP port named `grpc`"),
    ],
    ids=("no pod", "no selector", "ExternalName", "no Service", "no port", "no named port"),
)
def test_a_backend_without_pods_is_said_to_have_none(changed: list[Object], why: str) -> None:
    answer = ask(world(*changed))
    assert hops(answer) == ["Allow", "Allow", "NotApplicable"]
    assert answer.sentence.endswith("but one connection could not be judged")
    assert why in answer.detail.hops[2].sentence
    assert [omission.reason for omission in answer.not_considered] == ["network"]


def test_a_service_is_a_backend_at_the_port_of_its_route() -> None:
    two = service(ports=[{"name": "a", "port": 80, "targetPort": 9000}, {"name": "b", "port": 81, "targetPort": 9001}])
    policy = network_policy(
        "one", {"ports": [{"port": 9001}]}, namespace="prod", podSelector={"matchLabels": {"app": "payments"}}
    )
    rules = [{"backendRefs": [{"name": "payments", "port": 81}]}]
    route = manifest("gateway.networking.k8s.io/v1", "HTTPRoute", "r", {"parentRefs": [{"name": "gw"}], "rules": rules})
    question = {"backend": "Service/prod/payments"}
    assert hops(ask(world(two, policy), **question)) == ["Allow", "Allow", "Conditional"]
    assert hops(ask(world(two, policy, route), **question)) == ["Allow"] * 3


def test_a_headless_service_is_its_pods_at_their_port() -> None:
    headless = service(clusterIP="None", ports=[{"port": 80, "targetPort": 9000}])
    ends = {"podSelector": {"matchLabels": {"app": "payments"}}}
    at_port, at_target = (
        network_policy("one", {"ports": [{"port": number}]}, namespace="prod", **ends) for number in (80, 9000)
    )
    assert hops(ask(world(headless, at_target))) == ["Allow"] * 3
    assert hops(ask(world(headless, at_port))) == ["Allow", "Allow", "Deny"]


def test_pods_that_have_ended_are_not_pods_of_a_gateway() -> None:
    ended = pod("prod", "proxy", phase="Succeeded", **{LABEL: "gw"})
    assert hops(ask(world(ended))) == ["NotApplicable", "Allow", "NotApplicable"]
    gone = pod("agents", "shopper-0", "shopper", phase="Failed", app="shopper")
    answer = ask(world(gone))
    assert (hops(answer), answer.verdict) == (["Deny", "Allow", "Allow"], Verdict.DENY)
    assert "agents/shopper-0 has ended (Failed)" in answer.sentence


def test_a_gateway_on_the_host_network_is_reached_by_its_address() -> None:
    proxy = pod("prod", "proxy", ip="fd00::7", **{LABEL: "gw"})
    proxy["spec"]["hostNetwork"] = True
    blocks = [{"to": [{"ipBlock": {"cidr": "fd00::/64"}}]}]
    policy = network_policy("some", namespace="agents", policyTypes=["Egress"], egress=blocks)
    assert hops(ask(world(proxy, policy))) == ["Allow"] * 3
    labels: list[Object] = [{"to": [{"podSelector": {}, "namespaceSelector": {}}]}]
    by_label = network_policy("some", namespace="agents", policyTypes=["Egress"], egress=labels)
    assert hops(ask(world(proxy, by_label))) == ["Deny", "Allow", "Allow"]


def test_a_gateway_without_a_listener_has_no_port() -> None:
    spec = {"gatewayClassName": "c", "listeners": []}
    bare = manifest("gateway.networking.k8s.io/v1", "Gateway", "gw", spec)
    answer = ask(world(bare))
    assert hops(answer)[0] == "NotApplicable"
    assert "Gateway/prod/gw has no listener with a port" in answer.detail.hops[0].sentence


def test_everything_wrong_is_said_at_once() -> None:
    with pytest.raises(InputError) as caught:
        ask(world(), **{"from": "agents/shoper-0", "gateway": "prod/gv", "backend": "prod/payment", "http": 7})
    said = [diagnostic.message_with_hint for diagnostic in caught.value.diagnostics]
    assert said == [
        "expected a map as `http`, found `7`",
        "there is no Gateway `prod/gv` (did you mean `prod/gw`?)",
        "there is no XBackend `prod/payment` (did you mean `prod/payments`?)",
        "there is no pod `shoper-0` in namespace `agents` (did you mean `shopper-0`?)",
    ]


@pytest.mark.parametrize("source", [None, "outside", {"ip": "10.0.0.1"}, {"node": "n"}, "Service/prod/payments", 7])
def test_a_path_begins_at_a_pod(source: Any) -> None:
    with pytest.raises(InputError, match="expected `namespace/pod` or a workload such as"):
        ask(world(), **{"from": source})


def test_a_listener_must_be_named_if_there_are_several() -> None:
    two = gateway(8443, 9443)
    with pytest.raises(InputError, match="expected one of the 2 listeners"):
        ask(world(two))
    assert ask(world(two), listener="l9443").detail.hops[0].detail.port == 9443
    with pytest.raises(InputError, match="no listener `l944`"):
        ask(world(two), listener="l944")


def test_names_without_a_namespace_get_one() -> None:
    asked = PathQuestion(source="shopper-0", gateway="gw", backend="Service/payments").in_namespace("prod")
    assert asked.to_dict() == {"from": "prod/shopper-0", "gateway": "prod/gw", "backend": "Service/prod/payments"}


def explain(*arguments: str) -> Any:
    return CliRunner().invoke(root, ["explain", "path", *arguments])


def test_the_command_draws_the_hops() -> None:
    asked = ("--from", "agents/clerk-0", "--gateway", "shop/agents", "--backend", "shop/orders", "--tool", "find_order")
    result = explain(*asked, *EXAMPLE)
    assert result.exit_code == 3, result.output
    assert result.stdout.splitlines()[2:11] == [
        "agents/clerk-0 (ServiceAccount/agents/clerk)",
        "  │  network TCP 8443: Deny (NetworkPolicy/agents/nothing-goes-out and Default)",
        "  ✗",
        "Gateway/shop/agents (shop/agents-proxy-0 and shop/agents-proxy-1)",
        "  │  tool tools/call find_order: Allow (XAccessPolicy/shop/platform-guard rules[1] (clerk) and "
        "XAccessPolicy/shop/orders-team rules[1] (clerk))",
        "  │  network TCP 8080: Allow (Default and NetworkPolicy/shop/orders-from-gateway ingress[0])",
        "  ▼",
        "XBackend/shop/orders (Service/shop/orders)",
        "",
    ]
    document = json.loads(explain(*asked, *EXAMPLE, "-o", "json").stdout)
    assert (document["plane"], [hop["verdict"] for hop in document["hops"]]) == ("path", ["Deny", "Allow", "Allow"])


def test_the_command_takes_pods_of_a_gateway_by_label() -> None:
    asked = (
        "--from",
        "agents/shopper-0",
        "--gateway",
        "shop/agents",
        "--backend",
        "shop/orders",
        "--tool",
        "find_order",
    )
    result = explain(*asked, *EXAMPLE, "--gateway-pods", f"shop/{LABEL}=agents")
    assert result.exit_code == 0, result.output
    for text in ("shop", "shop/", "/a=b", "shop/a"):
        assert explain(*asked, *EXAMPLE, "--gateway-pods", text).exit_code == 2


def test_strict_answers_are_complete() -> None:
    asked = (
        "--from",
        "agents/shopper-0",
        "--gateway",
        "shop/agents",
        "--backend",
        "shop/orders",
        "--tool",
        "find_order",
    )
    result = explain(*asked, *EXAMPLE, "--without", "Deployment/shop/agents-proxy", "--strict")
    assert result.exit_code == 6, result.output
    assert "not considered: 1 Gateway (no pod in namespace shop carries the label" in result.stdout


def test_the_policy_tests_of_the_example_pass() -> None:
    report = tierwall.run_tests(ROOT / "examples/path/tests")
    assert (report.passed, report.failed) == (4, 0), [case.mismatches for case in report.cases]


@pytest.mark.parametrize(
    ("expected", "said"),
    [
        (["Allow", "Allow"], "hops: expected 2 hops, got 3"),
        (["Deny", "Allow", "Allow"], "hops[0].verdict: expected Deny, got Allow"),
        ([{"egress": "Deny"}, "Allow", "Allow"], "hops[0].egress: expected Deny, got Allow"),
        (["Allow", {"level": "Backend"}, "Allow"], "hops[1].level: expected Backend, got Gateway"),
    ],
)
def test_hops_that_are_not_as_expected(expected: list[Any], said: str) -> None:
    from tierwall.planes import differences

    assert differences({"hops": expected}, ask(world())) == [said]
    with pytest.raises(InputError):
        differences({"hops": "Allow"}, ask(world()))
    unjudged = ask(world(without=("Pod/prod/proxy",)))
    assert differences({"hops": [{"egress": "Allow"}, "Allow", "NotApplicable"]}, unjudged) == [
        "hops[0]: expected egress, got NotApplicable"
    ]


def test_a_path_in_a_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    objects = [dict(resource.value) for resource in world().objects()]
    front = service("gw", selector={LABEL: "gw"}, ports=[{"port": 8443, "targetPort": 10443}])
    closed = network_policy(
        "proxy", {"ports": [{"port": 10443}]}, namespace="prod", podSelector={"matchLabels": {LABEL: "gw"}}
    )
    with serving([*objects, front, closed]) as cluster:
        monkeypatch.setenv("KUBECONFIG", str(cluster.kubeconfig))
        asked = ("--from", "agents/shopper-0", "--gateway", "prod/gw", "--backend", "prod/payments", "--tool", "refund")
        result = explain(*asked, "--cluster", "-o", "json")
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    assert [hop["verdict"] for hop in document["hops"]] == ["Allow"] * 3
    assert document["hops"][0]["connection"]["targetPorts"] == [10443]
    assert document["notConsidered"] == []


def test_pods_of_a_workload_that_carries_the_label_serve_the_gateway() -> None:
    template = {"metadata": {"labels": {"app": "envoy"}}, "spec": {"containers": []}}
    envoy = manifest("apps/v1", "Deployment", "envoy", {"template": template}, labels={LABEL: "gw"})
    answer = ask(world(envoy, without=("Pod/prod/proxy",)))
    assert (hops(answer), answer.detail.gateway_pods) == (["Allow"] * 3, ("prod/envoy-0",))
    both = ask(world(envoy))
    assert both.detail.gateway_pods == ("prod/envoy-0", "prod/proxy")

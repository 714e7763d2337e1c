"""Ends that stand for several endpoints: workloads, Services and the outside, and pods that have ended."""

from __future__ import annotations

import copy
import ipaddress
import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

import tierwall
from tests.randomness import examples
from tests.reference.cluster import Cluster
from tests.reference.network_ends import decide_ends, members
from tests.worlds.network_clusters import KEYS, PORT_NAMES, PORTS, VALUES, clusters, endpoints
from tests.worlds.network_snapshots import document, snapshot
from tierwall.cli.main import root
from tierwall.core.diagnostics import InputError, UnknownName
from tierwall.network.model.model import network_model

Object = dict[str, Any]


@st.composite
def worlds(draw: st.DrawFn) -> list[Object]:
    """A random cluster in which a Deployment owns some pods, some pods have ended, and Services select some."""
    objects = copy.deepcopy(draw(clusters()))
    pods = [resource for resource in objects if resource["kind"] == "Pod"]
    namespaces = sorted({pod["metadata"]["namespace"] for pod in pods})
    for pod in pods:
        pod["status"]["phase"] = draw(st.sampled_from(("Running", "Running", "Running", "Succeeded", "Failed")))
        if draw(st.booleans()):
            owner = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web", "controller": True}
            pod["metadata"]["ownerReferences"] = [owner]
    for namespace in namespaces:
        template = {"metadata": {"labels": {}}, "spec": {"containers": []}}
        objects.append(
            {
                "apiVersion": "apps/v1",
                "kind": "Deployment",
                "metadata": {"name": "web", "namespace": namespace},
                "spec": {"replicas": 0, "template": template},
            }
        )
        entry = {"port": draw(st.sampled_from(PORTS)), "protocol": draw(st.sampled_from(("TCP", "UDP")))}
        target = draw(st.sampled_from((None, *PORTS, *PORT_NAMES)))
        spec: Object = {
            "selector": {draw(st.sampled_from(KEYS)): draw(st.sampled_from(VALUES))},
            "ports": [entry if target is None else {**entry, "targetPort": target}],
        }
        if draw(st.booleans()):
            spec["clusterIP"] = "None"
        service = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "front", "namespace": namespace}}
        objects.append({**service, "spec": spec})
    return objects


def contains(names: list[str], end: Any) -> bool:
    if isinstance(end, str):
        return end in names
    if "node" in end:
        return f"node:{end['node']}" in names
    address = ipaddress.ip_address(end["ip"])
    for name in names:
        if not name[0].isalpha() or ":" in name:
            low, _, high = name.partition("-")
            first, last = ipaddress.ip_address(low), ipaddress.ip_address(high or low)
            if first.version == address.version and int(first) <= int(address) <= int(last):
                return True
    return False


@settings(max_examples=examples(400))
@given(worlds(), st.data())
def test_ends_are_decided_as_all_their_pairs(objects: list[Object], data: st.DataObject) -> None:
    cluster, world = Cluster(objects), snapshot(objects)
    namespaces = sorted({resource["metadata"]["namespace"] for resource in objects if resource["kind"] == "Service"})
    workloads = [f"Deployment/{namespace}/web" for namespace in namespaces]
    services = [f"Service/{namespace}/front" for namespace in namespaces]
    singles = [end for end in endpoints(objects) if isinstance(end, str) or "node" in end]
    source = data.draw(st.sampled_from([*workloads, *workloads, "outside", *singles]))
    to = data.draw(st.sampled_from([*workloads, *services, *services, "outside", *singles]))
    protocol, port = data.draw(st.sampled_from(("TCP", "UDP"))), data.draw(st.sampled_from(PORTS))
    if isinstance(to, str) and to.startswith("Service/") and data.draw(st.integers(0, 4)):
        namespace = to.split("/")[1]
        (service,) = (each for each in cluster.kind("Service") if each["metadata"]["namespace"] == namespace)
        protocol, port = (service["spec"]["ports"][0][key] for key in ("protocol", "port"))
    question = {"from": source, "to": to, "protocol": protocol, "port": port}
    if not all(members(cluster, end, protocol, port) for end in (source, to)):
        with pytest.raises(InputError):
            document(world, question)
        return
    want = decide_ends(cluster, source, to, protocol, port)
    answer = tierwall.World(world).ask(tierwall.NetworkQuestion.from_dict(question))
    got = answer.to_dict()
    assert got["verdict"] == want["verdict"], got["sentence"]
    several = any(end == "outside" or (isinstance(end, str) and end.count("/") == 2) for end in (source, to))
    assert ("ends" in got) is several
    groups: list[Object] = [
        {"from": list(group.sources), "to": list(group.destinations), "verdict": str(group.verdict),
         "decidedBy": {" ".join(filter(None, (str(by.policy), by.rule))) for by in group.decided_by}}
        for group in answer.detail.ends
    ]  # fmt: skip
    for here, there, _, decision in want["pairs"]:
        holding = [group for group in groups if contains(group["from"], here) and contains(group["to"], there)]
        alike = [group for group in holding if group["verdict"] == decision["verdict"]]
        by = (decision["egress"][1] | decision["ingress"][1]) or {"Default"}
        assert any(
            group["decidedBy"] <= by if decision["verdict"] == "Conditional" else group["decidedBy"] == by
            for group in alike
        ), (here, there, groups)
    verdicts = {decision["verdict"] for *_, decision in want["pairs"]}
    assert {group["verdict"] for group in groups} == verdicts


def pod(name: str, **more: Any) -> Object:
    metadata = {"name": name, "namespace": "shop", "labels": more.pop("labels", {"app": "db"}), **more.pop("meta", {})}
    ports = [{"name": "pg", "containerPort": more.pop("pg")}] if "pg" in more else []
    spec = {"containers": [{"name": "c", "image": "i", "ports": ports}], **more.pop("spec", {})}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec, **more}


def workload(kind: str, name: str = "web", app: str = "web", **spec: Any) -> Object:
    template = {"metadata": {"labels": {"app": app}}, "spec": {"containers": [{"name": "c", "image": "i"}]}}
    version = {"CronJob": "batch/v1", "Job": "batch/v1", "ReplicationController": "v1"}.get(kind, "apps/v1")
    whole: Object = {"template": template, **spec}
    if kind == "CronJob":
        whole = {"jobTemplate": {"spec": whole}}
    return {"apiVersion": version, "kind": kind, "metadata": {"name": name, "namespace": "shop"}, "spec": whole}


def service(*ports: Object, **spec: Any) -> Object:
    whole = {"selector": {"app": "db"}, "ports": list(ports), **spec}
    return {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "db", "namespace": "shop"}, "spec": whole}


def policy(name: str, selector: Object, *rules: Object) -> Object:
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": name, "namespace": "shop"},
        "spec": {"podSelector": {"matchLabels": selector}, "ingress": list(rules)},
    }


FROM_WEB = {"from": [{"podSelector": {"matchLabels": {"app": "web"}}}], "ports": [{"port": 15432}]}
OLD = pod("db-old", labels={"app": "db", "old": "yes"})


def ask(objects: list[Object], source: Any, to: Any, port: Any = 5432, **more: Any) -> Object:
    return document(snapshot(objects), {"from": source, "to": to, "port": port, **more})


def problems(objects: list[Object], source: Any, to: Any, port: Any = 5432, **more: Any) -> list[str]:
    with pytest.raises(InputError) as caught:
        ask(objects, source, to, port, **more)
    return [diagnostic.message for diagnostic in caught.value.diagnostics]


def test_pods_of_a_service_that_are_decided_differently_make_the_answer_conditional() -> None:
    objects = [
        workload("Deployment"),
        pod("db-0"),
        OLD,
        service({"port": 5432, "targetPort": 15432}),
        policy("db", {"app": "db"}, FROM_WEB),
        policy("old", {"old": "yes"}),
        policy("web", {"app": "web"}),
    ]
    # NetworkPolicies only add up, so an admin policy makes the difference.
    objects.append(
        {
            "apiVersion": "policy.networking.k8s.io/v1alpha1",
            "kind": "AdminNetworkPolicy",
            "metadata": {"name": "retire"},
            "spec": {
                "priority": 1,
                "subject": {"pods": {"namespaceSelector": {}, "podSelector": {"matchLabels": {"old": "yes"}}}},
                "ingress": [{"action": "Deny", "from": [{"namespaces": {}}]}],
            },
        }
    )
    got = ask(objects, "Deployment/shop/web", "Service/shop/db")
    assert (got["verdict"], got["egress"]["verdict"], got["ingress"]["verdict"]) == (
        "Conditional",
        "Allow",
        "Conditional",
    )
    default = {"policy": "Default"}
    assert got["ends"] == [
        {
            "from": ["shop/web-0"],
            "to": ["shop/db-0"],
            "verdict": "Allow",
            "decidedBy": [default, {"policy": "NetworkPolicy/shop/db", "rule": "ingress[0]"}],
        },
        {
            "from": ["shop/web-0"],
            "to": ["shop/db-old"],
            "verdict": "Deny",
            "decidedBy": [default, {"policy": "AdminNetworkPolicy/retire", "rule": "ingress[0]"}],
        },
    ]
    assert got["connection"] == {
        "from": "Deployment/shop/web",
        "to": "Service/shop/db",
        "protocol": "TCP",
        "port": 5432,
        "targetPorts": [15432],
    }
    assert got["sentence"] == (
        "Deployment/shop/web can reach Service/shop/db on TCP port 5432 (port 15432 of its pods) only in part: it can "
        "reach shop/db-0 (no policy decides its egress and NetworkPolicy/shop/db ingress[0] allows its ingress); it "
        "cannot reach shop/db-old (AdminNetworkPolicy/retire ingress[0] denies its ingress)"
    )


@pytest.mark.parametrize(
    "kind", ["Deployment", "StatefulSet", "DaemonSet", "ReplicaSet", "Job", "CronJob", "ReplicationController"]
)
@pytest.mark.parametrize("written", ["{kind}/shop/web", "shop/web"])
def test_every_kind_of_workload_is_an_end(kind: str, written: str) -> None:
    objects = [workload(kind), pod("db-0"), policy("db", {"app": "db"}, FROM_WEB)]
    got = ask(objects, written.format(kind=kind), "shop/db-0", 15432)
    assert (got["verdict"], got["connection"]["from"]) == ("Allow", f"{kind}/shop/web")
    assert ask(objects, written.format(kind=kind), "shop/db-0", 80)["verdict"] == "Deny"


def test_a_pod_goes_before_a_workload_of_its_name_and_two_workloads_need_their_kind() -> None:
    objects = [workload("Deployment"), pod("web"), pod("db-0")]
    assert "ends" not in ask(objects, "shop/web", "shop/db-0")
    assert "ends" in ask(objects, "Deployment/shop/web", "shop/db-0")
    assert problems([workload("Deployment"), workload("Job"), pod("db-0")], "shop/web", "shop/db-0") == [
        "`shop/web` names several workloads: Deployment/shop/web and Job/shop/web"
    ]


def test_pods_of_an_owned_replica_set_are_its_own_and_its_owners() -> None:
    owner = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web", "controller": True}
    owned = workload("ReplicaSet", "web-1")
    owned["metadata"]["ownerReferences"] = [owner]
    by_set = {"ownerReferences": [{**owner, "kind": "ReplicaSet", "name": "web-1"}]}
    objects = [workload("Deployment"), owned, pod("web-1-x", labels={"app": "web"}, meta=by_set), pod("db-0")]
    for end in ("Deployment/shop/web", "ReplicaSet/shop/web-1"):
        assert ask(objects, end, "shop/db-0")["ends"][0]["from"] == ["shop/web-1-x"]
    assert problems([workload("Deployment"), owned, pod("db-0")], "ReplicaSet/shop/web-1", "shop/db-0") == [
        "ReplicaSet/shop/web-1 has no running pod"
    ]


def test_named_target_ports_are_looked_up_on_each_pod() -> None:
    ports = {"port": 80, "name": "front", "targetPort": "pg"}
    objects = [workload("Deployment"), pod("db-0", pg=15432), pod("db-1", pg=9), pod("db-2"), service(ports)]
    objects.append(policy("db", {"app": "db"}, FROM_WEB))
    for port in (80, "front"):
        got = ask(objects, "shop/web", "Service/shop/db", port)
        assert [(group["to"], group["verdict"]) for group in got["ends"]] == [
            (["shop/db-0"], "Allow"),
            (["shop/db-1"], "Deny"),
        ]
        assert got["connection"]["targetPorts"] == [9, 15432]
        assert got["notes"] == ["Service/shop/db does not lead to shop/db-2: no port there is named `pg`"]
    bare = [pod("db-2"), service(ports), pod("web")]
    assert problems(bare, "shop/web", "Service/shop/db", 80) == ["no pod of Service/shop/db has a TCP port named `pg`"]


def test_a_headless_service_translates_no_port() -> None:
    objects = [workload("Deployment"), pod("db-0"), policy("db", {"app": "db"}, FROM_WEB)]
    objects.append(service({"port": 80, "name": "pg", "targetPort": 15432}, clusterIP="None"))
    assert ask(objects, "shop/web", "Service/shop/db", 80)["verdict"] == "Deny"
    note = "Service/shop/db is headless, so port 80 is not translated to 15432"
    assert ask(objects, "shop/web", "Service/shop/db", 80)["notes"] == [note]
    assert ask(objects, "shop/web", "Service/shop/db", 15432)["verdict"] == "Allow"
    assert ask(objects, "shop/web", "Service/shop/db", "pg")["verdict"] == "Allow"


def test_a_service_that_leads_nowhere_is_an_error_that_says_why() -> None:
    there: list[Object] = [pod("db-0"), pod("web", labels={})]
    two = service({"port": 5432, "name": "pg"}, {"port": 53, "protocol": "UDP"})
    assert problems([*there, two], "shop/web", "Service/shop/db", 80) == [
        "Service/shop/db has no TCP port 80; it has pg (TCP 5432) and UDP 53"
    ]
    assert problems([*there, two], "shop/web", "Service/shop/db", 53) == [
        "Service/shop/db has no TCP port 53; it has pg (TCP 5432) and UDP 53"
    ]
    assert ask([*there, two], "shop/web", "Service/shop/db", 53, protocol="UDP")["verdict"] == "Allow"
    nobody = service({"port": 80}, selector={"app": "nobody"})
    assert problems([*there, nobody], "shop/web", "Service/shop/db", 80) == ["Service/shop/db selects no pod"]
    external = service(type="ExternalName", externalName="db.example.org")
    assert "is of type ExternalName" in problems([*there, external], "shop/web", "Service/shop/db", 80)[0]
    assert "has no selector" in problems([*there, service({"port": 80}, selector={})], "shop/web", "Service/shop/db")[0]
    assert problems([*there, two], "Service/shop/db", "shop/web") == ["Service/shop/db opens no connections"]


def test_names_that_do_not_exist_get_the_nearest() -> None:
    objects = [workload("Deployment"), pod("db-0"), service({"port": 80})]
    for source, to, message in (
        ("shop/wbe", "shop/db-0", "there is no pod `wbe` in namespace `shop`"),
        ("Deployment/shop/wbe", "shop/db-0", "there is no Deployment/shop/wbe"),
        ("shop/web", "Service/shop/bd", "there is no Service/shop/bd"),
    ):
        with pytest.raises(UnknownName) as caught:
            ask(objects, source, to)
        (diagnostic,) = caught.value.diagnostics
        assert diagnostic.message == message
        assert diagnostic.hint.startswith("did you mean")
    (message,) = problems(objects, "Deploymnt/shop/web", "shop/db-0")
    assert message.endswith("as the kind of `Deploymnt/shop/web` in `from`")


def test_the_outside_is_decided_by_ranges() -> None:
    block = {"from": [{"ipBlock": {"cidr": "10.0.0.0/8", "except": ["10.1.0.0/16"]}}]}
    objects = [pod("db-0", status={"podIP": "10.2.0.1"}), policy("db", {"app": "db"}, block)]
    got = ask(objects, "outside", "shop/db-0")
    assert (got["verdict"], got["egress"]["verdict"]) == ("Conditional", "NotApplicable")
    assert {group["verdict"]: group["from"] for group in got["ends"]} == {
        "Allow": ["10.0.0.0-10.0.255.255", "10.2.0.0-10.255.255.255"],
        "Deny": [
            "0.0.0.0-9.255.255.255",
            "10.1.0.0-10.1.255.255",
            "11.0.0.0-255.255.255.255",
            "::-ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff",
        ],
    }
    assert ask(objects, "shop/db-0", "outside")["verdict"] == "Allow"
    assert ask([*objects, policy("all", {"app": "db"}, {})], "outside", "shop/db-0")["verdict"] == "Allow"


def test_an_address_of_a_pod_or_node_is_not_outside() -> None:
    block = {"from": [{"ipBlock": {"cidr": "10.2.0.1/32"}}, {"ipBlock": {"cidr": "10.2.0.2/32"}}]}
    node = {"type": "InternalIP", "address": "10.2.0.2"}
    objects = [
        pod("db-0", status={"podIP": "10.2.0.1"}),
        {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"}, "status": {"addresses": [node]}},
        policy("db", {"app": "db"}, block),
    ]
    assert ask(objects, "outside", "shop/db-0")["verdict"] == "Deny"


def test_a_pod_and_itself_count_only_if_there_is_no_other_pair() -> None:
    isolated = policy("web", {"app": "web"})
    two = ask([workload("Deployment", replicas=2), isolated], "shop/web", "shop/web")
    assert (two["verdict"], len(two["ends"])) == ("Deny", 1)
    alone = ask([workload("Deployment", replicas=1), isolated], "shop/web", "shop/web")
    assert (alone["verdict"], alone["sentence"]) == (
        "Allow",
        "Deployment/shop/web can reach itself on TCP port 5432: no policy applies to that",
    )


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
@pytest.mark.parametrize("spec", [{}, {"hostNetwork": True}])
def test_a_pod_that_has_ended_reaches_nothing_and_is_reached_by_nothing(phase: str, spec: Object) -> None:
    done = pod("done", status={"phase": phase, "podIP": "10.2.0.1"}, spec=spec)
    objects = [done, pod("db-0")]
    for source, to in (("shop/done", "shop/db-0"), ("shop/db-0", "shop/done"), ("shop/done", "shop/done")):
        got = ask(objects, source, to)
        assert got["verdict"] == "Deny"
        assert got["sentence"] == f"{source} cannot reach {to} on TCP port 5432: shop/done has ended ({phase})"
        assert {step["reason"] for step in got["trace"]} == {"PodEnded"}
    # The address is free again.
    assert ask(objects, {"ip": "10.2.0.1"}, "shop/db-0")["verdict"] == "Allow"
    assert [str(end) for end in network_model(snapshot(objects)).pods] == ["shop/db-0"]
    entries = tierwall.load(objects=objects).connections().pairs()
    assert not any("shop/done" in map(str, (entry.sources, entry.destinations)) for entry in entries)


def test_workloads_but_jobs_go_on_when_their_pods_end() -> None:
    status = {"phase": "Failed"}
    for kind, pods in (("Deployment", ["shop/web-0"]), ("CronJob", ["shop/web-0"]), ("Job", [])):
        owner = {"apiVersion": "batch/v1", "kind": kind, "name": "web", "controller": True}
        owner["apiVersion"] = "apps/v1" if kind == "Deployment" else "batch/v1"
        objects = [workload(kind), pod("web-x", meta={"ownerReferences": [owner]}, status=status)]
        assert [str(end) for end in network_model(snapshot(objects)).pods] == pods


def test_thousands_of_pods_cost_few_decisions(monkeypatch: pytest.MonkeyPatch) -> None:
    from tierwall.network import question as module
    from tierwall.network.decide import decide

    owner = {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "web", "controller": True}
    objects = [workload("StatefulSet"), policy("db", {"app": "db"}, FROM_WEB)]
    for number in range(1500):
        labels = {"app": "web", "apps.kubernetes.io/pod-index": str(number)}
        address = {"podIP": f"10.3.{number // 250}.{number % 250}"}
        objects.append(pod(f"web-{number}", labels=labels, meta={"ownerReferences": [owner]}, status=address))
    calls: list[str] = []

    def counting(*given: Any) -> Any:
        calls.append("decided")
        return decide(*given)

    monkeypatch.setattr(module, "decide", counting)
    got = ask([*objects, pod("db-0")], "shop/web", "shop/web")
    assert (got["verdict"], len(got["ends"][0]["from"])) == ("Allow", 1500)
    assert len(calls) <= 4
    assert len(got["sentence"]) < 300


def test_the_command_line_takes_the_same_ends(tmp_path: Path) -> None:
    (tmp_path / "all.yaml").write_text(
        "\n---\n".join(
            json.dumps(resource)
            for resource in (workload("Deployment"), pod("db-0"), service({"port": 80, "name": "pg"}))
        )
    )

    def run(*arguments: str) -> Any:
        return CliRunner().invoke(root, ["explain", "network", *arguments, "-f", str(tmp_path)])

    result = run("--from", "shop/web", "--to", "Service/shop/db", "--port", "pg")
    assert (result.exit_code, result.stdout.splitlines()[0]) == (
        0,
        "Deployment/shop/web can reach Service/shop/db on TCP port `pg` (port 80 of its pods): no policy decides this, "
        "so the default allows it",
    )
    assert "shop/web-0 → shop/db-0: Allow" in result.stdout
    result = run("--from", "outside", "--to", "shop/db-0", "--port", "pg")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "expected a number from 1 to 65535 as `port`, found the string `pg`" in result.stderr
    result = run("--from", "shop/web", "--to", "300.1.1.1", "--port", "80")
    assert "there is no pod in namespace `default` (`300.1.1.1` is not an IP address)" in result.stderr
    result = run("--from", "10.0.0.0/8", "--to", "shop/db-0", "--port", "80")
    assert "there is no pod in namespace `10.0.0.0` (ask about one address; blocks are not endpoints)" in result.stderr
    (tmp_path / "p.yaml").write_text(json.dumps(policy("db", {"app": "db"}, {"from": [{"ipBlock": {"cidr": "::/0"}}]})))
    result = run("--from", "outside", "--to", "shop/db-0", "--port", "80")
    assert result.exit_code == 5
    assert "IPv6 addresses can (" in result.stdout


def test_policy_tests_and_python_take_the_same_ends(tmp_path: Path) -> None:
    cases = [
        {
            "name": "the front reaches the database",
            "network": {"from": "Deployment/shop/web", "to": "Service/shop/db", "port": "pg"},
            "expect": {"verdict": "Allow", "ingress": "Allow", "decidedBy": "NetworkPolicy/shop/db ingress[0]"},
        },
        {
            "name": "nobody outside does",
            "network": {"from": "outside", "to": "shop/db-0", "port": 15432},
            "expect": {"verdict": "Deny"},
        },
    ]
    objects = [workload("Deployment"), pod("db-0"), policy("db", {"app": "db"}, FROM_WEB)]
    objects.append(service({"port": 80, "name": "pg", "targetPort": 15432}))
    spec = {"objects": objects, "cases": cases}
    test = {"apiVersion": "tierwall.io/v1alpha1", "kind": "PolicyTest", "metadata": {"name": "t"}, "spec": spec}
    (tmp_path / "t.yaml").write_text(json.dumps(test))
    report = tierwall.run_tests(tmp_path / "t.yaml")
    assert [(case.ok, case.mismatches, case.error) for case in report.cases] == [(True, (), "")] * 2
    question = tierwall.NetworkQuestion(source="shop/web", to="outside", port=443)
    detail = tierwall.load(objects=objects).ask(question).detail
    assert isinstance(detail, tierwall.NetworkDetail)
    (group,) = detail.ends
    assert (group.sources, group.verdict) == (("shop/web-0",), tierwall.Verdict.ALLOW)

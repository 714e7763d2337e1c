"""The chart on real nodes with real pods: its processes run with their own rights, and packets obey.

Starting nodes takes its time, so there is one test, in steps. In `make soak` storms blow for half an hour.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from random import Random
from typing import Any

import pytest
import yaml

from tests.labs.chart import NAMESPACE
from tests.labs.installed_chart import InstalledChart, build_image
from tests.labs.node_envoys import NodeEnvoys
from tests.labs.node_storm import NodeStorm
from tests.labs.real_nodes import AGNHOST, RealNodes
from tests.labs.waiting import eventually
from tests.randomness import SEED, outage_seconds, rounds, soak_seconds

pytestmark = pytest.mark.engine
PORT = 8080
# What the image may have without Envoy, in bytes.
IMAGE_LIMIT = 250e6
# How long the API server is away in a storm of `make test`, in seconds.
OUTAGE_S = 3.0
# Pods by name, with the node of each.
PODS = {"server": "node1", "near": "node1", "far": "node2"}
ONLY_NEAR = {
    "apiVersion": "networking.k8s.io/v1",
    "kind": "NetworkPolicy",
    "metadata": {"name": "only-near"},
    "spec": {
        "podSelector": {"matchLabels": {"app": "server"}},
        "ingress": [{"from": [{"podSelector": {"matchLabels": {"app": "near"}}}]}],
    },
}
HERE = {"matchLabels": {"kubernetes.io/metadata.name": "default"}}
NOT_FROM_NEAR: dict[str, Any] = {
    "apiVersion": "policy.networking.k8s.io/v1alpha1",
    "kind": "AdminNetworkPolicy",
    "metadata": {"name": "not-from-near"},
    "spec": {
        "priority": 7,
        "subject": {"pods": {"namespaceSelector": HERE, "podSelector": {"matchLabels": {"app": "server"}}}},
        "ingress": [
            {
                "action": "Deny",
                "from": [{"pods": {"namespaceSelector": HERE, "podSelector": {"matchLabels": {"app": "near"}}}}],
            }
        ],
    },
}


def pod(app: str, node: str, name: str = "") -> dict[str, Any]:
    serves = ["netexec", f"--http-port={PORT}"] if app == "server" else ["pause"]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name or app, "labels": {"app": app}},
        "spec": {
            "nodeName": node,
            "terminationGracePeriodSeconds": 0,
            "containers": [{"name": "agnhost", "image": AGNHOST, "imagePullPolicy": "Never", "args": serves}],
        },
    }


@pytest.fixture
def chart(tmp_path_factory: pytest.TempPathFactory) -> Iterator[InstalledChart]:
    """The chart with its default values, and the pods."""
    folder = tmp_path_factory.mktemp("real")
    nodes = RealNodes(folder)
    try:
        with ThreadPoolExecutor() as pool:
            archive = pool.submit(build_image, folder)
            nodes.start()
            apply(nodes, *(pod(name, node) for name, node in PODS.items()))
            assert archive.result().stat().st_size < IMAGE_LIMIT
            nodes.import_image(archive.result())
        chart = InstalledChart(nodes)
        chart.install()
        nodes.kubectl("wait", "--for=condition=Ready", "pod", "--all", "--timeout=90s")
        yield chart
    finally:
        nodes.stop()


def apply(nodes: RealNodes, *objects: dict[str, Any]) -> None:
    nodes.kubectl("apply", "-f", "-", stdin=yaml.safe_dump_all(objects))


def address(nodes: RealNodes, name: str) -> str:
    return str(json.loads(nodes.kubectl("get", "pod", name, "-o", "json"))["status"]["podIP"])


def connects(nodes: RealNodes, name: str) -> bool:
    """Whether a pod reaches the server."""
    to = f"{address(nodes, 'server')}:{PORT}"
    said = nodes.kubectl("exec", name, "--", "/bin/sh", "-c", f"/agnhost connect {to} --timeout=1s 2>&1; echo $?")
    assert said.strip() in ("0", "TIMEOUT\n1"), said
    return said.strip() == "0"


def has_table(nodes: RealNodes, name: str) -> bool:
    return nodes.run(name, "nft", "list", "table", "inet", "tierwall").returncode == 0


@pytest.mark.slow
@pytest.mark.storm
def test_the_chart_does_what_it_says(chart: InstalledChart) -> None:
    nodes = chart.nodes
    replicas_are_on_different_nodes(chart)
    packets_obey_policies_that_come_and_go(chart)
    a_new_pod_gets_what_its_labels_give_it(nodes)
    an_agent_writes_about_its_own_node_only(chart)
    an_apply_is_warned_about(nodes)
    after_a_storm_everything_is_as_after_a_fresh_start(chart)
    # Not later: helm takes the rights away while pods still end.
    assert list(chart.forbidden()) == []
    removing_opens_nothing_by_surprise(chart)


def replicas_are_on_different_nodes(chart: InstalledChart) -> None:
    """Nodes here have no label of a zone, like those of many clusters."""
    pods = chart.objects("pods", "-l", "app.kubernetes.io/component=controller")
    assert sorted(pod["spec"]["nodeName"] for pod in pods) == sorted(chart.nodes.names)


def packets_obey_policies_that_come_and_go(chart: InstalledChart) -> None:
    nodes = chart.nodes
    assert all(has_table(nodes, name) for name in nodes.names)
    assert connects(nodes, "near")
    assert connects(nodes, "far")
    apply(nodes, ONLY_NEAR)
    eventually(lambda: not connects(nodes, "far"), "the policy")
    assert connects(nodes, "near")
    apply(nodes, NOT_FROM_NEAR)
    eventually(lambda: not connects(nodes, "near"), "the admin policy")
    is_everything_in_force(chart)
    # With its one capability, the agent hears of others who change the table.
    assert nodes.run("node1", "nft", "delete", "table", "inet", "tierwall").returncode == 0
    eventually(lambda: has_table(nodes, "node1"), "the table again")
    assert not connects(nodes, "near")
    nodes.kubectl("delete", "adminnetworkpolicy", "not-from-near")
    nodes.kubectl("delete", "networkpolicy", "only-near")
    eventually(lambda: connects(nodes, "far"), "the end of the policies")
    assert connects(nodes, "near")


def is_everything_in_force(chart: InstalledChart) -> None:
    """Every node reports every policy, in its newest generation, and the status of admin policies says so."""
    listed = json.loads(chart.nodes.kubectl("get", "networkpolicies,adminnetworkpolicies", "-A", "-o", "json"))["items"]

    def is_reported() -> bool:
        reports = chart.reports()
        return set(reports) == set(chart.nodes.names) and all(
            report.get("table", {}).get("policies") == len(listed) and not report.get("behind")
            for report in reports.values()
        )

    eventually(is_reported, lambda: f"{len(listed)} policies in {chart.reports()}")

    def unprogrammed() -> list[str]:
        policies = json.loads(chart.nodes.kubectl("get", "adminnetworkpolicies", "-o", "json"))["items"]
        return [policy["metadata"]["name"] for policy in policies if not is_programmed(policy)]

    eventually(lambda: not unprogrammed(), lambda: f"{unprogrammed()} to be programmed: {chart.described()}")


def is_programmed(policy: dict[str, Any]) -> bool:
    return any(
        condition["type"] == "tierwall.io/Programmed"
        and condition["status"] == "True"
        and condition["observedGeneration"] == policy["metadata"]["generation"]
        for condition in policy.get("status", {}).get("conditions", ())
    )


def a_new_pod_gets_what_its_labels_give_it(nodes: RealNodes) -> None:
    apply(nodes, ONLY_NEAR)
    eventually(lambda: not connects(nodes, "far"), "the policy")
    apply(nodes, pod("near", "node2", "another"))
    nodes.kubectl("wait", "--for=condition=Ready", "pod", "another", "--timeout=90s")
    eventually(lambda: connects(nodes, "another"), "the new pod's right")
    assert not connects(nodes, "far")
    nodes.kubectl("delete", "networkpolicy", "only-near")


def an_agent_writes_about_its_own_node_only(chart: InstalledChart) -> None:
    bound = ("--bound-object-kind=Pod", f"--bound-object-name={chart.agent('node1')}")
    token = chart.kubectl("create", "token", "tierwall-node-agent", *bound).strip()
    patch = json.dumps({"status": {"message": "forged"}})

    def said(token: str, *words: str) -> str:
        done = chart.nodes.try_kubectl("--token", token, "--namespace", NAMESPACE, *words)
        return done.stdout + done.stderr

    def written(token: str, node: str) -> str:
        return said(token, "patch", "nodereport", node, "--subresource=status", "--type=merge", "-p", patch)

    assert "patched" in written(token, "node1")
    assert "a node agent writes only the NodeReport and the Lease of its own node" in written(token, "node2")
    unbound = chart.kubectl("create", "token", "tierwall-node-agent").strip()
    assert "the token of a node agent must be bound to its pod" in written(unbound, "node1")
    lease = said(token, "annotate", "lease", "tierwall-node-node2", "forged=yes")
    assert "a node agent writes only the NodeReport" in lease


def an_apply_is_warned_about(nodes: RealNodes) -> None:
    """The API server reaches the webhook by its Service, and trusts the certificate that the controller made."""
    idle = {**ONLY_NEAR, "metadata": {"name": "idle"}, "spec": {"podSelector": {"matchLabels": {"app": "nobody"}}}}
    last = ""

    def is_warned() -> bool:
        nonlocal last
        last = nodes.try_kubectl("apply", "--dry-run=server", "-f", "-", stdin=yaml.safe_dump(idle)).stderr
        return "Warning: TW204" in last

    eventually(is_warned, lambda: f"a warning, not {last!r}")


def after_a_storm_everything_is_as_after_a_fresh_start(chart: InstalledChart) -> None:
    """Kernels, Envoys and statuses."""
    envoys = NodeEnvoys(chart)
    envoys.begin("one", "two")
    storm = NodeStorm(envoys, ("near", "far", "another"), Random(SEED), outage_seconds(OUTAGE_S))
    end = time.monotonic() + soak_seconds()
    is_first = True
    while is_first or time.monotonic() < end:
        is_first = False
        storm.blow(rounds(12))
        storm.assert_over()
        is_everything_in_force(chart)


def without_agents_nothing_is_programmed(chart: InstalledChart) -> None:
    """Nobody writes statuses after the chart has gone, so they must be true before (docs: Remove)."""
    apply(
        chart.nodes,
        {**NOT_FROM_NEAR, "metadata": {"name": "left-over"}, "spec": {**NOT_FROM_NEAR["spec"], "ingress": []}},
    )
    is_everything_in_force(chart)
    chart.kubectl("delete", "daemonset", "tierwall-node-agent", "--cascade=foreground")
    chart.kubectl("delete", "nodereports", "--all")

    def conditions() -> dict[str, str]:
        policy = json.loads(chart.nodes.kubectl("get", "adminnetworkpolicy", "left-over", "-o", "json"))
        return {condition["type"]: condition["reason"] for condition in policy["status"]["conditions"]}

    eventually(lambda: conditions().get("tierwall.io/Programmed") == "NodesMissing", lambda: str(conditions()))


def removing_opens_nothing_by_surprise(chart: InstalledChart) -> None:
    nodes = chart.nodes
    nodes.kubectl("delete", "networkpolicies,adminnetworkpolicies", "--all")
    for name in PODS:
        nodes.kubectl("label", "--overwrite", "pod", name, f"app={name}")
    apply(nodes, ONLY_NEAR)
    eventually(lambda: connects(nodes, "near") and not connects(nodes, "far"), "the policy")
    without_agents_nothing_is_programmed(chart)
    chart.uninstall()
    # Nobody follows the cluster any more; what was in force stays, whatever happens to the policies.
    nodes.kubectl("delete", "networkpolicy", "only-near")
    assert all(has_table(nodes, name) for name in nodes.names)
    assert connects(nodes, "near")
    assert not connects(nodes, "far")
    assert "nodereports.tierwall.io" in nodes.kubectl("get", "crd", "-o", "name")
    chart.remove_tables()
    assert not any(has_table(nodes, name) for name in nodes.names)
    assert connects(nodes, "far")

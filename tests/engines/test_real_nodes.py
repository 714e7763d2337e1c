"""Real pods on real nodes: `tierwall enforce nft` on each node follows the API server, and packets obey."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
import yaml

from tests.labs.kube_cluster import TIERWALL
from tests.labs.real_nodes import AGNHOST, RealNodes
from tests.labs.waiting import eventually

pytestmark = pytest.mark.engine
PORT = 8080
# Pods by name: the node of each, and whether the policy below admits it.
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


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealNodes]:
    nodes = RealNodes(tmp_path_factory.mktemp("real"))
    try:
        nodes.start()
        apply(nodes, *(pod(name, node) for name, node in PODS.items()))
        for name in nodes.names:
            follow = ("--cluster", "--kubeconfig", str(nodes.kubeconfig), "--node", name, "--exempt-own-node")
            nodes.start_process(name, f"{name}-tierwall", TIERWALL, "enforce", "nft", *follow)
        nodes.kubectl("wait", "--for=condition=Ready", "pod", "--all", "--timeout=90s")
        yield nodes
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


def test_packets_of_real_pods_obey_a_policy_that_comes_and_goes(nodes: RealNodes) -> None:
    for name in nodes.names:
        eventually(partial(has_table, nodes, name), partial(nodes.log, f"{name}-tierwall"))
    assert connects(nodes, "near")
    assert connects(nodes, "far")
    apply(nodes, ONLY_NEAR)
    eventually(lambda: not connects(nodes, "far"), "the policy")
    assert connects(nodes, "near")
    nodes.kubectl("delete", "networkpolicy", "only-near")
    eventually(lambda: connects(nodes, "far"), "the end of the policy")


def has_table(nodes: RealNodes, name: str) -> bool:
    return nodes.run(name, "nft", "list", "table", "inet", "tierwall").returncode == 0


def test_a_new_pod_gets_what_its_labels_give_it(nodes: RealNodes) -> None:
    apply(nodes, ONLY_NEAR)
    eventually(lambda: not connects(nodes, "far"), "the policy")
    apply(nodes, pod("near", "node2", "another"))
    nodes.kubectl("wait", "--for=condition=Ready", "pod", "another", "--timeout=90s")
    eventually(lambda: connects(nodes, "another"), "the new pod's right")
    assert not connects(nodes, "far")
    nodes.kubectl("delete", "networkpolicy", "only-near")

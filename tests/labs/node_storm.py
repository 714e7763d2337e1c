"""A storm over real nodes: policies and labels change while agents and controllers are killed and nodes are cut off."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import yaml

from tests.labs.installed_chart import InstalledChart
from tests.labs.kube_cluster import TIERWALL
from tests.labs.waiting import eventually

_LABELS = ("server", "near", "far")


class NodeStorm:
    """Draws what happens next. `pods` are those whose labels change."""

    def __init__(self, chart: InstalledChart, pods: tuple[str, ...], random: Random) -> None:
        self.chart, self.nodes, self._pods, self._random = chart, chart.nodes, pods, random
        self._cut_off = ""

    def blow(self, rounds: int) -> None:
        """Let so many things happen, then let every node be reached again."""
        happenings: list[Callable[[], None]] = [
            *(self._apply,) * 6,
            *(self._delete,) * 2,
            *(self._label,) * 3,
            self._kill_agent,
            self._kill_controller,
            self._cut_node_off,
        ]
        # Everything happens at least once.
        happening = [*dict.fromkeys(happenings), *self._random.choices(happenings, k=max(0, rounds - 6))]
        self._random.shuffle(happening)
        for happens in happening[:rounds]:
            happens()
        self._connect_node()

    def is_over(self) -> bool:
        """Whether the table of each node is what an agent that starts now would make."""
        return all(self._differences(name) == "" for name in self.nodes.names)

    def assert_over(self) -> None:
        """Wait until every kernel has what a fresh start computes."""
        eventually(self.is_over, lambda: "\n".join(map(self._differences, self.nodes.names)))

    def _differences(self, node: str) -> str:
        cluster = ("--cluster", "--kubeconfig", str(self.nodes.kubeconfig), "--node", node)
        done = self.nodes.run(node, TIERWALL, "enforce", "nft", "--diff", "--exempt-probes", *cluster)
        assert done.returncode in (0, 4), done.stderr
        return done.stdout

    # What happens

    def _apply(self) -> None:
        draw = self._random
        subject, peer = ({"matchLabels": {"app": draw.choice(_LABELS)}} for _ in range(2))
        name = f"storm-{draw.randrange(4)}"
        if draw.random() < 0.5:
            spec: dict[str, Any] = {"podSelector": subject, "policyTypes": [draw.choice(("Ingress", "Egress"))]}
            spec |= {"ingress": [{"from": [{"podSelector": peer}]}]} if spec["policyTypes"] == ["Ingress"] else {}
            policy = {"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy"}
        else:
            here = {"matchLabels": {"kubernetes.io/metadata.name": "default"}}
            pods = {"namespaceSelector": here, "podSelector": peer}
            rule = {"action": draw.choice(("Allow", "Deny", "Pass")), "from": [{"pods": pods}]}
            spec = {"priority": draw.randrange(1000), "ingress": [rule]}
            spec["subject"] = {"pods": {"namespaceSelector": here, "podSelector": subject}}
            policy = {"apiVersion": "policy.networking.k8s.io/v1alpha1", "kind": "AdminNetworkPolicy"}
        self.nodes.kubectl(
            "apply", "-f", "-", stdin=yaml.safe_dump({**policy, "metadata": {"name": name}, "spec": spec})
        )

    def _delete(self) -> None:
        kind = self._random.choice(("networkpolicy", "adminnetworkpolicy"))
        self.nodes.kubectl("delete", kind, f"storm-{self._random.randrange(4)}", "--ignore-not-found")

    def _label(self) -> None:
        label = f"app={self._random.choice(_LABELS)}"
        self.nodes.kubectl("label", "--overwrite", "pod", self._random.choice(self._pods), label)

    def _kill_agent(self) -> None:
        self._kill("node-agent")

    def _kill_controller(self) -> None:
        self._kill("controller")

    def _kill(self, component: str) -> None:
        pods = self.chart.objects("pods", "-l", f"app.kubernetes.io/component={component}")
        name = self._random.choice(sorted(pod["metadata"]["name"] for pod in pods))
        self.chart.kubectl("delete", "pod", name, "--grace-period=0", "--force", "--ignore-not-found")

    def _cut_node_off(self) -> None:
        """Cut a node off from the API server, until the next one is."""
        self._connect_node()
        self._cut_off = self._random.choice(self.nodes.names)
        self._set_link(self._cut_off, "down")

    def _connect_node(self) -> None:
        if self._cut_off:
            self._set_link(self._cut_off, "up")
            self._cut_off = ""

    def _set_link(self, node: str, state: str) -> None:
        done = self.nodes.run("control", "ip", "link", "set", node, state)
        assert done.returncode == 0, done.stderr

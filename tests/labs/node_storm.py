"""A storm over real nodes: policies and labels change while agents, controllers and Envoys are killed, nodes are cut
off, and the API server is away.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from difflib import unified_diff
from random import Random
from typing import Any

import yaml

from tests import ROOT
from tests.labs.kube_cluster import TIERWALL
from tests.labs.node_calls import ALLOWED
from tests.labs.node_envoys import SHOP, NodeEnvoys, access_policy
from tests.labs.waiting import eventually

_LABELS = ("server", "near", "far")
# So many of the last happenings a failure names.
_SHOWN = 40


class NodeStorm:
    """Draws what happens next. `pods` are those whose labels change; `outage` is how long the API server is away."""

    def __init__(self, envoys: NodeEnvoys, pods: tuple[str, ...], random: Random, outage: float) -> None:
        self.envoys, self.chart, self.nodes = envoys, envoys.chart, envoys.nodes
        self._pods, self._random, self._outage = pods, random, outage
        self._cut_off = ""
        # What happened so far, each with the time.
        self._happened: list[str] = []

    def blow(self, rounds: int) -> None:
        """Let so many things happen, then let every node be reached again."""
        happenings: list[Callable[[], None]] = [
            *(self._apply,) * 6,
            *(self._delete,) * 2,
            *(self._label,) * 3,
            *(self._apply_access,) * 4,
            self._delete_access,
            self._kill_agent,
            self._kill_controller,
            self._kill_envoy,
            self._cut_node_off,
        ]
        # Everything happens at least once.
        different = [*dict.fromkeys(happenings), self._stop_api_server]
        happening = [*different, *self._random.choices(happenings, k=max(0, rounds - len(different)))]
        self._random.shuffle(happening)
        for happens in happening:
            self._happened.append(f"{time.strftime('%H:%M:%S', time.gmtime())} {happens.__name__.lstrip('_')}")
            happens()
            self._happened[-1] += f", {self._cut_off} is cut off" if self._cut_off else ""
        self._connect_node()

    def assert_over(self) -> None:
        """Wait until every kernel, every Envoy and every status is what a fresh start computes."""
        eventually(lambda: not self._kernels(), lambda: self._told(self._kernels()))
        self._assert_envoys_over()
        self.envoys.go_on()
        eventually(lambda: not self._statuses(), lambda: self._told(self._statuses()))

    def _told(self, differing: str) -> str:
        """Return what helps to find out why something differs."""
        happened = "\n".join(self._happened[-_SHOWN:])
        return f"{differing}\n{happened}\n{self.envoys.log()}\n{self.chart.described()}"

    def _kernels(self) -> str:
        """Return where the table of a node is not what an agent that starts now would make."""
        return "".join(map(self._differences, self.nodes.names))

    def _assert_envoys_over(self) -> None:
        """Wait until all Envoys have what one has that starts now, from controllers that start now."""
        pods = self.chart.objects("pods", "-l", "app.kubernetes.io/component=controller")
        self.chart.kubectl("delete", "pod", *(pod["metadata"]["name"] for pod in pods), "--grace-period=0", "--force")
        self.chart.kubectl("rollout", "status", "deployment/tierwall-controller", "--timeout=90s")
        fresh, *others = self.envoys.names
        self.envoys.kill(fresh)

        def differing() -> str:
            expected = self.envoys.configuration(fresh)
            if '"dynamic_listeners"' not in expected:
                return f"{fresh} has no listener"
            given = {name: self.envoys.configuration(name) for name in others}
            lines = (unified_diff(expected.split("\n"), given[name].split("\n"), fresh, name, n=1) for name in others)
            return "\n".join(line for diff in lines for line in diff)

        eventually(lambda: not differing(), lambda: self._told(differing()))

    def _statuses(self) -> str:
        """Return what statuses differ from those of a controller that starts now."""
        command = ("env", f"PYTHONPATH={ROOT}", sys.executable, "-m", "tests.labs.fresh_statuses")
        done = self.nodes.run("control", *command, str(self.nodes.kubeconfig))
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

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

    def _apply_access(self) -> None:
        draw = self._random
        # What agents may always do, and some more.
        tools = draw.sample(("place_order", "refund_order", "read_report"), draw.randrange(3))
        kind = draw.choice(("Gateway", "XBackend"))
        policy = access_policy(f"storm-{draw.randrange(3)}", kind, ALLOWED, *tools)
        self.nodes.kubectl("apply", "-f", "-", stdin=yaml.safe_dump(policy))

    def _delete_access(self) -> None:
        name = f"storm-{self._random.randrange(3)}"
        self.nodes.kubectl("delete", "xaccesspolicy", name, "--namespace", SHOP, "--ignore-not-found")

    def _kill_envoy(self) -> None:
        self.envoys.kill(self._random.choice(self.envoys.names))

    def _stop_api_server(self) -> None:
        self.nodes.send_signal("api-server", "STOP")
        time.sleep(self._outage)
        self.nodes.send_signal("api-server", "CONT")

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

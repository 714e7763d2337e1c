"""Envoys on real nodes: each is in the network of a pod of its own, and the controllers of the chart feed it.

The pods do nothing; `tierwall envoy` runs beside them, as the test has it, so that no image needs an Envoy. So do the
MCP server behind the Gateway, and the agents that call its tools through each Envoy all the time.
"""

from __future__ import annotations

import base64
import json
import socket
import subprocess
import sys
from contextlib import closing
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any

import yaml

from examples.agents import certificates
from tests import ROOT
from tests.labs.chart import NAMESPACE
from tests.labs.fleet import gateway_objects
from tests.labs.installed_chart import InstalledChart
from tests.labs.kube_cluster import TIERWALL
from tests.labs.node_calls import AGENTS, ALLOWED, CallNumbers, numbers
from tests.labs.real_nodes import PAUSE
from tests.labs.waiting import PATIENCE_S, eventually

SHOP = "shop"
GATEWAY = "agents"
_KINDS = ("GatewayClass", "Gateway", "HTTPRoute", "GRPCRoute", "ReferenceGrant", "XBackend", "XAccessPolicy")
_DUMPS = ("ListenersConfigDump", "ClustersConfigDump", "RoutesConfigDump", "EcdsConfigDump")
# Lists without an order.
_PARTS = ("dynamic_listeners", "dynamic_active_clusters", "dynamic_route_configs", "ecds_filters")
# What Envoys with the same configuration differ in.
_MOMENTS = ("last_updated", "version_info")
Object = dict[str, Any]


def access_policy(name: str, kind: str, *tools: str) -> Object:
    """Return a policy on the Gateway or on the XBackend behind it; the shopper may call these tools."""
    groups = {"Gateway": "gateway.networking.k8s.io", "XBackend": "agentic.networking.x-k8s.io"}
    target = {"group": groups[kind], "kind": kind, "name": GATEWAY if kind == "Gateway" else "orders"}
    rule = {
        "name": "shopper",
        "source": {"type": "ServiceAccount", "serviceAccount": {"namespace": "agents", "name": AGENTS[0]}},
        "authorization": {"type": "Inline", "mcp": {"methods": [{"name": "tools/call", "params": list(tools)}]}},
    }
    return {
        "apiVersion": "agentic.networking.x-k8s.io/v1alpha1",
        "kind": "XAccessPolicy",
        "metadata": {"name": name, "namespace": SHOP},
        "spec": {"targetRefs": [target], "action": "Allow", "rules": [rule]},
    }


# Without a policy, everybody may call everything.
GUARD = access_policy("guard", "Gateway", ALLOWED)


class _AdminConnection(HTTPConnection):
    """HTTP to the socket of an Envoy's admin interface."""

    def __init__(self, path: Path) -> None:
        super().__init__("envoy", timeout=PATIENCE_S)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))


class NodeEnvoys:
    """The Envoys of one Gateway."""

    def __init__(self, chart: InstalledChart) -> None:
        self.chart, self.nodes = chart, chart.nodes
        self.names: list[str] = []
        # The first process of each Envoy, as the cluster numbers it.
        self._processes: dict[str, str] = {}
        # What is in /etc/resolv.conf of each.
        self._resolvers = self.nodes.folder / "resolv.conf"

    def begin(self, *names: str) -> None:
        """Turn the GatewayClass on, and start the Envoys of a Gateway."""
        command = [TIERWALL, "crds", *_KINDS]
        definitions = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        self.nodes.kubectl("apply", "--server-side", "-f", "-", stdin=definitions)
        self.nodes.kubectl("wait", "--for=condition=Established", "--timeout=60s", "-f", "-", stdin=definitions)
        self.nodes.kubectl("create", "namespace", SHOP)
        account = ("--namespace", SHOP, "get", "serviceaccount", "default")
        eventually(lambda: self.nodes.try_kubectl(*account).returncode == 0, "the ServiceAccount of pods")
        authority = certificates.Authority()
        (self.nodes.folder / "callers.pem").write_bytes(authority.pem)
        for agent in AGENTS:
            pair = authority.agent("agents", agent)
            (self.nodes.folder / f"{agent}.pem").write_bytes(pair.certificate + pair.key)
        objects = [*gateway_objects(authority, SHOP), GUARD]
        self.nodes.kubectl("apply", "-f", "-", stdin=yaml.safe_dump_all(objects))
        # The pods that the controller would make have no image here.
        gateways = ("enabled=true", "replicas=0", "serviceType=ClusterIP")
        self.chart.upgrade(*(f"gatewayClass.{value}" for value in gateways), f"gatewayNamespaces={{{SHOP}}}")
        self._begin_server()
        for name in names:
            self.start(name)
        for name in names:
            self._python(name, "calls", "call", str(self.nodes.folder), str(self._told(name)))

    def _begin_server(self) -> None:
        """Start the MCP server of the example in a pod."""
        self.nodes.kubectl("apply", "-f", "-", stdin=yaml.safe_dump(_pod("orders", app="orders")))
        self._kubectl("wait", "--for=condition=Ready", "pod/orders", "--timeout=90s")
        service = json.loads(self._kubectl("get", "service", "orders", "-o", "json"))["spec"]
        pod = json.loads(self._kubectl("get", "pod", "orders", "-o", "json"))
        self._resolvers.write_text(f"nameserver {pod['status']['podIP']}\n")
        self._python("orders", "server", "serve", str(service["ports"][0]["port"]), service["clusterIP"])

    def _python(self, pod: str, name: str, *words: str) -> None:
        """Start a part of `node_calls` in the network of a pod."""
        node, network = self._network(pod)
        command = ("env", f"PYTHONPATH={ROOT}", sys.executable, "-m", "tests.labs.node_calls", *words)
        self.nodes.start_process(node, f"{name}-{pod}", "nsenter", f"--net={network}", *command)

    def _network(self, pod: str) -> tuple[str, str]:
        """Return the node of a pod, and the path of its network there."""
        value = json.loads(self._kubectl("get", "pod", pod, "-o", "json"))
        node, address = value["spec"]["nodeName"], value["status"]["podIP"]
        is_it = f'nsenter --net=$each ip -4 -o addr | grep -q "inet {address}/"'
        find = f"for each in /run/netns/*; do {is_it} && echo $each; done"
        network = self.nodes.run(node, "sh", "-c", find).stdout.strip()
        assert network, address
        return node, network

    def _told(self, name: str) -> Path:
        return self.nodes.folder / f"calls-{name}.json"

    def calls(self) -> dict[str, CallNumbers]:
        """Return how the calls through each Envoy were answered."""
        return {name: numbers(self._told(name)) for name in self.names}

    def go_on(self) -> None:
        """Wait until agents have more answers of each Envoy, both kinds of them; nothing may be wrong with any."""
        before = self.calls()

        def waiting() -> list[str]:
            return [
                name
                for name, told in self.calls().items()
                if told.allowed < before[name].allowed + 5 or told.denied < before[name].denied + 5
            ]

        eventually(lambda: not waiting(), lambda: f"answers of {waiting()}: {self.calls()}\n{self.log()}")
        for told in self.calls().values():
            assert not told.wrong, told

    def start(self, name: str) -> None:
        """Start an Envoy, in a new pod if it has none."""
        if name not in self.names:
            self.names.append(name)
            self.nodes.kubectl("apply", "-f", "-", stdin=yaml.safe_dump(_pod(name)))
            self._kubectl("wait", "--for=condition=Ready", f"pod/{name}", "--timeout=90s")
        node, network = self._network(name)
        files = self._files(name)
        service = json.loads(self.chart.kubectl("get", "service", "tierwall-controller", "-o", "json"))
        controller = service["spec"]["clusterIP"]
        command = [
            *(TIERWALL, "envoy", f"--gateway={SHOP}/{GATEWAY}", f"--node={name}", "--concurrency=1"),
            *(f"--xds={controller}:18000", f"--certificates={controller}:18001"),
            *(f"--server-name=tierwall-controller.{NAMESPACE}.svc", f"--ca={files / 'ca.pem'}"),
            f"--token={files / 'token'}",
        ]
        names = f"mount --bind {self._resolvers} /etc/resolv.conf"
        script = f"{names}; echo $$ >{files}/pid; export TMPDIR={files}; exec {' '.join(command)}"
        (files / "pid").unlink(missing_ok=True)
        apart = ("nsenter", f"--net={network}", "unshare", "--mount")
        self.nodes.start_process(node, f"envoy-{name}", *apart, "sh", "-c", script)
        eventually(lambda: (files / "pid").exists() and (files / "pid").read_text().strip(), f"Envoy {name}")
        self._processes[name] = (files / "pid").read_text().strip()

    def kill(self, name: str) -> None:
        """Kill an Envoy, and start it again."""
        self.nodes.run("control", "kill", "-KILL", self._processes[name])
        self.start(name)

    def _files(self, name: str) -> Path:
        folder = self.nodes.folder / f"envoy-{name}"
        folder.mkdir(exist_ok=True)
        secret = json.loads(self.chart.kubectl("get", "secret", "tierwall-certificates", "-o", "json"))
        (folder / "ca.pem").write_bytes(base64.b64decode(secret["data"]["ca.crt"]))
        bound = ("--bound-object-kind=Pod", f"--bound-object-name={name}")
        token = self._kubectl("create", "token", "default", "--audience=tierwall", "--duration=4h", *bound)
        (folder / "token").write_text(token)
        return folder

    def _kubectl(self, *words: str) -> str:
        return self.nodes.kubectl("--namespace", SHOP, *words)

    def configuration(self, name: str) -> str:
        """Return what an Envoy has from its controller, as text; empty if it does not answer."""
        newest = max((self.nodes.folder / f"envoy-{name}").glob("*/admin.sock"), key=_age, default=None)
        if newest is None:
            return ""
        try:
            with closing(_AdminConnection(newest)) as connection:
                connection.request("GET", "/config_dump")
                dumped = json.loads(connection.getresponse().read())["configs"]
        except (OSError, HTTPException):
            return ""
        kept = [part for part in dumped if part["@type"].rpartition(".")[2] in _DUMPS]
        return json.dumps([_settled(part) for part in kept], sort_keys=True, indent=1)

    def log(self) -> str:
        """Return the last lines of each Envoy."""
        return "\n".join(self.nodes.log(f"envoy-{name}")[-800:] for name in self.names)


def _age(path: Path) -> float:
    return path.stat().st_mtime


def _settled(value: Any) -> Any:
    """Return a dump without what differs from Envoy to Envoy."""
    if isinstance(value, dict):
        return {
            key: sorted(map(_settled, part), key=json.dumps) if key in _PARTS else _settled(part)
            for key, part in value.items()
            if key not in _MOMENTS and not key.startswith("static_")
        }
    return [_settled(part) for part in value] if isinstance(value, list) else value


def _pod(name: str, **labels: str) -> Object:
    container = {"name": "pause", "image": PAUSE, "imagePullPolicy": "Never"}
    labels = labels or {"gateway.networking.k8s.io/gateway-name": GATEWAY}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": SHOP, "labels": labels},
        "spec": {"containers": [container], "terminationGracePeriodSeconds": 0},
    }

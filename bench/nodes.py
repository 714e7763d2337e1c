"""From a policy change to every kernel of a cluster: `python -m bench nodes`. Needs root and `make node-tools`.

Two real nodes with a hundred real pods and the chart. A client creates, changes and deletes a NetworkPolicy that
selects pods on both nodes, and an AdminNetworkPolicy in turns, so that both meet the same moments of a busy machine.
The kernel of each node tells when it has taken the change. The time counts from before the request until the last of
the kernels has it.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path
from statistics import quantiles
from typing import Any

import yaml

from tests.labs.control_plane import tool
from tests.labs.installed_chart import InstalledChart, build_image
from tests.labs.real_nodes import PAUSE, RealNodes
from tests.labs.waiting import eventually

PODS, NAMESPACES, CHANGES, PAUSE_S = 100, 5, 100, 1.0
_PATHS = {
    "NetworkPolicy": "/apis/networking.k8s.io/v1/namespaces/space-0/networkpolicies",
    "AdminNetworkPolicy": "/apis/policy.networking.k8s.io/v1alpha1/adminnetworkpolicies",
}


class _SocketConnection(HTTPConnection):
    """HTTP to `kubectl proxy`, whose socket reaches into the cluster's network."""

    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=60)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.connect(str(self._path))


# Prints the time of each transaction that the kernel tells of (NFT_MSG_NEWGEN), unless kube-proxy made it.
_LISTENER = """
import socket, struct, time
told = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 12)
told.setsockopt(socket.SOL_SOCKET, 33, 64 << 20)
told.bind((0, 1 << 6))
print(0, flush=True)
while True:
    data = told.recv(1 << 20)
    while len(data) >= 16:
        length, kind = struct.unpack_from("IH", data)
        if kind == 10 << 8 | 15 and b"kube-proxy" not in data[:length]:
            print(time.monotonic_ns(), flush=True)
        data = data[(length + 3) & ~3:]
"""


class KernelWatch:
    """Remembers when the kernel of a node told of the first transaction since `begin`."""

    def __init__(self, nodes: RealNodes, name: str) -> None:
        self.changed = 0.0
        command = nodes.command(name, sys.executable, "-c", _LISTENER)
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        self._lines = self._process.stdout
        self._lines.readline()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        for line in self._lines:
            self.changed = self.changed or int(line) / 1e9

    def begin(self) -> None:
        """Wait for the next transaction."""
        self.changed = 0.0

    def close(self) -> None:
        """Stop listening."""
        self._process.kill()
        self._process.wait()


def pods() -> Iterator[dict[str, Any]]:
    """Yield namespaces and pods; every node has some of each namespace and label."""
    for number in range(NAMESPACES):
        yield {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": f"space-{number}"}}
    for number in range(PODS):
        metadata = {
            "name": f"pod-{number}",
            "namespace": f"space-{number % NAMESPACES}",
            "labels": {"app": f"app-{number // 10 % 4}"},
        }
        container = {"name": "pause", "image": PAUSE, "imagePullPolicy": "Never"}
        spec = {"nodeName": f"node{number % 2 + 1}", "containers": [container], "terminationGracePeriodSeconds": 0}
        yield {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def policy(kind: str, number: int) -> dict[str, Any]:
    """Return the policy with its content of a change."""
    selected, peer = ({"matchLabels": {"app": f"app-{(number + more) % 4}"}} for more in (0, 1))
    here = {"matchLabels": {"kubernetes.io/metadata.name": "space-0"}}
    if kind == "NetworkPolicy":
        port = {"protocol": "TCP", "port": 1000 + number}
        spec: dict[str, Any] = {
            "podSelector": selected,
            "ingress": [{"from": [{"podSelector": peer}], "ports": [port]}],
        }
        version = "networking.k8s.io/v1"
    else:
        rule = {
            "action": "Deny",
            "from": [{"pods": {"namespaceSelector": here, "podSelector": peer}}],
            "ports": [{"portNumber": {"protocol": "TCP", "port": 1000 + number}}],
        }
        subject = {"pods": {"namespaceSelector": here, "podSelector": selected}}
        spec, version = {"priority": 10, "subject": subject, "ingress": [rule]}, "policy.networking.k8s.io/v1alpha1"
    return {"apiVersion": version, "kind": kind, "metadata": {"name": "measured"}, "spec": spec}


@contextmanager
def proxied(nodes: RealNodes) -> Iterator[HTTPConnection]:
    """Run `kubectl proxy` in the cluster; yield a connection to it."""
    path = nodes.folder / "proxy.sock"
    words = (tool("kubectl"), "--kubeconfig", str(nodes.kubeconfig), "proxy", f"--unix-socket={path}")
    nodes.start_process("control", "proxy", *words)
    eventually(path.exists, "kubectl proxy")
    connection = _SocketConnection(path)
    try:
        yield connection
    finally:
        connection.close()


def send(connection: HTTPConnection, method: str, path: str, body: object = None) -> None:
    """Send a request; it must succeed."""
    data = None if body is None else json.dumps(body)
    kind = "application/merge-patch+json" if method == "PATCH" else "application/json"
    connection.request(method, path, data, {"content-type": kind})
    answer = connection.getresponse()
    text = answer.read()
    assert answer.status < 300, text


def measured(connection: HTTPConnection, watches: list[KernelWatch], kind: str, number: int) -> float:
    """Return the seconds from a change to the last kernel that has it."""
    path = _PATHS[kind]
    method, where = (("POST", path), ("PATCH", f"{path}/measured"), ("DELETE", f"{path}/measured"))[number % 3]
    for watch in watches:
        watch.begin()
    start = time.monotonic()
    send(connection, method, where, None if method == "DELETE" else policy(kind, number))
    eventually(lambda: all(watch.changed for watch in watches), f"{method} {kind}")
    seconds = max(watch.changed for watch in watches) - start
    # Changes in quick succession are brought together; here each one stands alone.
    time.sleep(PAUSE_S)
    return seconds


def run() -> None:
    """Print the percentiles for each kind."""
    with tempfile.TemporaryDirectory(prefix="tierwall-bench-") as name:
        folder = Path(name)
        nodes = RealNodes(folder)
        try:
            nodes.start()
            nodes.import_image(build_image(folder))
            InstalledChart(nodes).install()
            nodes.kubectl("apply", "-f", "-", stdin=yaml.safe_dump_all(pods()))
            for number in range(NAMESPACES):
                wait = ("wait", "--for=condition=Ready", "pod", "--all", "--timeout=170s")
                nodes.kubectl("--namespace", f"space-{number}", *wait)
            watches = [KernelWatch(nodes, name) for name in nodes.names]
            print(f"load average {os.getloadavg()[0]:.1f}", flush=True)
            with proxied(nodes) as connection:
                times = [[measured(connection, watches, kind, number) for kind in _PATHS] for number in range(CHANGES)]
                for kind, seconds in zip(_PATHS, zip(*times, strict=True), strict=True):
                    cut = quantiles(seconds, n=100)
                    print(
                        f"{kind}: {len(seconds)} changes, {PODS} pods, {len(watches)} nodes: "
                        f"p50 {cut[49] * 1000:.0f} ms, p90 {cut[89] * 1000:.0f} ms, p99 {cut[98] * 1000:.0f} ms, "
                        f"longest {max(seconds) * 1000:.0f} ms",
                        flush=True,
                    )
            for watch in watches:
                watch.close()
        finally:
            nodes.stop()


if __name__ == "__main__":
    run()

"""A plain cluster as users have it: kube-apiserver with its watch cache on, etcd 3.6, RBAC, several users, our kinds.

`python -m tests.labs.live_cluster FOLDER` keeps one running for as long as somebody is connected to its socket, so the
workers of a test run share it, and it ends with the last of them, however they end. Tests that share it create objects
in namespaces of their own; those that stop or restart servers have a `LiveCluster` to themselves.
"""

from __future__ import annotations

import base64
import contextlib
import fcntl
import json
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests import ROOT
from tests.labs.api_server import ApiServer
from tests.labs.control_plane import need_tools
from tests.labs.live_client import LiveClient
from tests.labs.recording_server import Authority
from tests.labs.waiting import eventually

# A kind of another system, which Tierwall names but does not judge.
FOREIGN = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "ciliumnetworkpolicies.cilium.io"},
    "spec": {
        "group": "cilium.io",
        "scope": "Namespaced",
        "names": {"plural": "ciliumnetworkpolicies", "singular": "ciliumnetworkpolicy", "kind": "CiliumNetworkPolicy"},
        "versions": [
            {
                "name": "v2",
                "served": True,
                "storage": True,
                "schema": {
                    "openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
                },
            }
        ],
    },
}
# What the developers may list in the namespaces that are theirs (`LiveClient.grant`).
DEVELOPER = {
    "apiVersion": "rbac.authorization.k8s.io/v1",
    "kind": "ClusterRole",
    "metadata": {"name": "developer"},
    "rules": [
        {
            "apiGroups": ["", "apps", "batch", "networking.k8s.io", "rbac.authorization.k8s.io"],
            "resources": ["*"],
            "verbs": ["get", "list", "watch"],
        }
    ],
}


class LiveCluster(ApiServer):
    """The processes. Contexts of its kubeconfig: see `_write_kubeconfigs`."""

    users = {
        **ApiServer.users,
        "developer": ("dora", ("developers",)),
        "nobody": ("nils", ()),
    }
    more_flags: tuple[str, ...] = ()

    def start(self) -> None:
        """Start both, and install the kinds that Tierwall reads."""
        self._write_certificates()
        self._start_etcd()
        self.start_api_server()
        self._write_kubeconfigs()
        command = [str(Path(sys.executable).parent / "tierwall"), "crds", "-o", "json"]
        listed = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
        definitions = listed["items"] if isinstance(listed, dict) else listed
        self.install(*map(_without_rules, definitions), FOREIGN)
        status, answer = self.request("POST", "/apis/rbac.authorization.k8s.io/v1/clusterroles", DEVELOPER)
        assert status == 201, answer

    def start_api_server(self) -> None:
        """Start the API server, for the first time or again."""
        self._start_api_server(
            "--authorization-mode=RBAC",
            f"--client-ca-file={self.pki / 'ca.crt'}",
            f"--tls-cert-file={self.pki / 'server.crt'}",
            f"--tls-private-key-file={self.pki / 'server.key'}",
            "--profiling=false",
            *self.more_flags,
        )

    def start_etcd(self, data: str = "etcd") -> None:
        """Start etcd again, with the data of a folder."""
        self._start_etcd(data)

    def send_signal(self, name: str, number: signal.Signals) -> None:
        """Send a signal to a process."""
        self._processes[name].send_signal(number)

    def _write_certificates(self) -> None:
        authority = Authority()
        self.pki.mkdir()
        certificate, key = authority.issue("kube-apiserver", "127.0.0.1")
        for name, data in (
            ("ca.crt", authority.pem),
            ("ca.key", authority.key_pem),
            ("server.crt", certificate),
            ("server.key", key),
        ):
            (self.pki / name).write_bytes(data)
        for name, group in (("carla", "system:masters"), ("dirk", "developers")):
            certificate, key = authority.issue(name, groups=(group,))
            (self.pki / f"{name}.crt").write_bytes(certificate)
            (self.pki / f"{name}.key").write_bytes(key)

    def _write_kubeconfigs(self) -> None:
        """Write `config`, with one context for each user; `admin` is the current one."""
        carla = {
            f"client-{part}-data": base64.b64encode((self.pki / f"carla.{end}").read_bytes()).decode()
            for part, end in (("certificate", "crt"), ("key", "key"))
        }
        users: dict[str, dict[str, Any]] = {user: {"token": f"{user}-token"} for user in self.users}
        users["admin-certificate"] = carla
        users["developer-certificate"] = {"client-certificate": "pki/dirk.crt", "client-key": "pki/dirk.key"}
        users["stranger"] = {"token": "no-such-token"}
        document = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "live", "cluster": {"server": self.url, "certificate-authority": "pki/ca.crt"}}],
            "users": [{"name": user, "user": value} for user, value in users.items()],
            "contexts": [{"name": user, "context": {"cluster": "live", "user": user}} for user in users],
            "current-context": "admin",
        }
        (self.folder / "config").write_text(json.dumps(document))


def _without_rules(schema: Any) -> Any:
    """Leave out the validation rules: the API server would take ten seconds to compile them all."""
    if isinstance(schema, dict):
        return {key: _without_rules(value) for key, value in schema.items() if key != "x-kubernetes-validations"}
    return [_without_rules(value) for value in schema] if isinstance(schema, list) else schema


@contextlib.contextmanager
def shared_cluster(folder: Path) -> Iterator[LiveClient]:
    """Connect to the cluster that keeps running in a folder, starting it first if nobody has.

    Who has started it waits at the end until the others have left, too, and the cluster has stopped.
    """
    need_tools()
    folder.mkdir(exist_ok=True)
    keeper = None
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        connection = _connected(folder)
        if connection is None:
            keeper, connection = _start_keeper(folder)
    with connection, contextlib.closing(LiveClient(Path((folder / "current").read_text()))) as client:
        yield client
    if keeper is not None:
        _leave(keeper)


def _connected(folder: Path) -> socket.socket | None:
    connection = socket.socket(socket.AF_UNIX)
    try:
        # A socket's path has at most 107 characters.
        connection.connect(f"/proc/self/cwd/{os.path.relpath(folder / 'socket')}")
    except OSError:
        connection.close()
        return None
    return connection


def _start_keeper(folder: Path) -> tuple[subprocess.Popen[bytes], socket.socket]:
    with (folder / "keeper.log").open("ab") as log:
        keeper = subprocess.Popen(
            [sys.executable, "-m", "tests.labs.live_cluster", str(folder)],
            cwd=ROOT,
            # It ends with this process, so the keeper notices if nobody is left who could connect.
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    connections: list[socket.socket] = []

    def is_started() -> bool:
        assert keeper.poll() is None, (folder / "keeper.log").read_text()
        if (connection := _connected(folder)) is not None:
            connections.append(connection)
        return bool(connections)

    try:
        eventually(is_started, "the live cluster")
    except AssertionError:
        _leave(keeper)
        raise
    return keeper, connections[0]


def _leave(keeper: subprocess.Popen[bytes]) -> None:
    """Wait until a keeper has ended, which it does when nobody else is connected."""
    assert keeper.stdin is not None
    keeper.stdin.close()
    keeper.wait()


def keep(folder: Path) -> None:
    """Start a cluster, and stop it when nobody is connected any more."""
    (folder / "socket").unlink(missing_ok=True)
    number = len(list(folder.glob("cluster-*")))
    cluster = LiveCluster(folder / f"cluster-{number}")
    cluster.folder.mkdir()
    try:
        cluster.start()
        (folder / "current").write_text(str(cluster.folder))
        os.chdir(folder)
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind("socket")
            listener.listen()
            # Standard input is the one who has started this: it ends when that process does.
            users: set[int] = {sys.stdin.fileno()}
            while users:
                for ready in select.select([listener.fileno(), *users], [], [])[0]:
                    if ready == listener.fileno():
                        users.add(listener.accept()[0].detach())
                    elif not os.read(ready, 1):
                        os.close(ready)
                        users.remove(ready)
            Path("socket").unlink()
    finally:
        cluster.stop()


if __name__ == "__main__":
    keep(Path(sys.argv[1]))

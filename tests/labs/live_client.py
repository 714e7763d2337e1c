"""A client of a live cluster in a test: creates objects, and runs kubectl and Tierwall as one of its users."""

from __future__ import annotations

import contextlib
import fcntl
import http.client
import json
import os
import re
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tests.labs.control_plane import tool
from tests.labs.waiting import PATIENCE_S

TIERWALL = str(Path(sys.executable).parent / "tierwall")


class LiveClient:
    """Requests as an administrator, and commands as anybody. Threads may share it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.kubeconfig = folder / "config"
        self.url: str = json.loads(self.kubeconfig.read_text())["clusters"][0]["cluster"]["server"]
        self._context = ssl.create_default_context(cafile=str(folder / "pki" / "ca.crt"))
        self._context.verify_flags &= ~ssl.VERIFY_X509_STRICT
        self._local = threading.local()
        self._connections: list[http.client.HTTPSConnection] = []

    def close(self) -> None:
        """Close the connections of all threads."""
        for connection in self._connections:
            connection.close()

    # requests

    def request(
        self, method: str, path: str, body: object = None, *, token: str = "admin-token", accept: str = ""
    ) -> tuple[int, Any]:
        """Return the status and the document of an answer. A connection that the server has closed is opened again."""
        connection: http.client.HTTPSConnection | None = getattr(self._local, "connection", None)
        if connection is None:
            address = urlsplit(self.url)
            connection = http.client.HTTPSConnection(
                address.hostname or "", address.port, timeout=PATIENCE_S, context=self._context
            )
            self._local.connection = connection
            self._connections.append(connection)
        headers = {
            "Authorization": f"Bearer {token}",
            "Content-Type": "application/merge-patch+json" if method == "PATCH" else "application/json",
            "Accept": accept or "application/json",
        }
        for is_last in (False, True):
            try:
                connection.request(method, path, None if body is None else json.dumps(body), headers)
                answer = connection.getresponse()
                data = answer.read()
            except (OSError, http.client.HTTPException):
                connection.close()
                if is_last:
                    raise
                continue
            is_json = answer.headers.get("content-type", "").startswith("application/json")
            return answer.status, json.loads(data) if is_json else data.decode()
        raise AssertionError

    def create(self, *objects: dict[str, Any]) -> None:
        """Create objects, and their status where they have any. What is there already is replaced."""
        for value in objects:
            path = path_of(value)
            status, answer = self.request("POST", path, value)
            name = value["metadata"]["name"]
            if status == 409:
                status, answer = self.request("DELETE", f"{path}/{name}?gracePeriodSeconds=0")
                assert status == 200, answer
                status, answer = self.request("POST", path, value)
            assert status == 201, (value, answer)
            if "status" in value and value["kind"] != "CustomResourceDefinition":
                status, answer = self.request("PATCH", f"{path}/{name}/status", {"status": value["status"]})
                assert status == 200, (value, answer)

    def create_many(self, objects: Iterable[dict[str, Any]], threads: int = 8) -> None:
        """Create objects side by side."""
        with ThreadPoolExecutor(threads) as pool:
            for _ in pool.map(self.create, objects):
                pass

    def delete(self, *objects: Mapping[str, Any]) -> None:
        """Delete objects at once."""
        for value in objects:
            path = f"{path_of(value)}/{value['metadata']['name']}?gracePeriodSeconds=0"
            status, answer = self.request("DELETE", path)
            assert status in (200, 202), answer

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Keep the other workers of a test run out, for what only the first of them does."""
        with (self.folder / "lock").open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def namespace(self, name: str, **labels: str) -> str:
        """Create a namespace and return its name."""
        self.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}})
        return name

    def grant(self, namespace: str) -> None:
        """Let developers list the objects of a namespace."""
        self.create(
            {
                "apiVersion": "rbac.authorization.k8s.io/v1",
                "kind": "RoleBinding",
                "metadata": {"name": "developers", "namespace": namespace},
                "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "developer"},
                "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": "developers"}],
            }
        )

    # commands

    def environment(self, **more: str) -> dict[str, str]:
        """Return the environment of commands: the cluster's kubeconfig, and nothing of the user's own."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("KUBE", "TIERWALL_"))}
        return {**kept, "KUBECONFIG": str(self.kubeconfig), "HOME": str(self.folder), **more}

    def kubectl(self, *arguments: str, **environment: str) -> str:
        """Return what kubectl prints; it must succeed."""
        return self._run([tool("kubectl"), *arguments], environment, True).stdout

    def kubectl_failure(self, *arguments: str, **environment: str) -> str:
        """Return the error that kubectl prints; it must fail."""
        done = self._run([tool("kubectl"), *arguments], environment, False)
        assert done.returncode != 0, done.stdout
        return done.stderr

    def tierwall(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run a command."""
        return self._run([TIERWALL, *arguments], environment, False)

    def _run(self, command: list[str], more: dict[str, str], check: bool) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            command, env=self.environment(**more), capture_output=True, text=True, timeout=PATIENCE_S, cwd=self.folder
        )
        if check:
            assert done.returncode == 0, done.stderr
        return done

    def export(self, file: Path, *kinds: str) -> None:
        """Write objects as `kubectl get -o yaml` prints them."""
        file.write_text(self.kubectl("get", ",".join(kinds), "--all-namespaces", "-o", "yaml"))


def path_of(value: Mapping[str, Any]) -> str:
    """Return the path where objects like this one are created."""
    version, kind, namespace = value["apiVersion"], value["kind"], value["metadata"].get("namespace")
    prefix = f"/apis/{version}" if "/" in version else f"/api/{version}"
    plural = re.sub("([^aeiou])ys$", r"\1ies", f"{kind.lower()}{'es' if kind.endswith('s') else 's'}")
    return f"{prefix}/namespaces/{namespace}/{plural}" if namespace else f"{prefix}/{plural}"


def pod(
    namespace: str,
    name: str,
    labels: Mapping[str, str] | None = None,
    address: str = "10.244.0.1",
    port: int = 8080,
    node: str = "node-1",
) -> dict[str, Any]:
    """Return a Pod that runs and has an address."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace, "labels": dict(labels or {})},
        "spec": {
            "nodeName": node,
            "containers": [{"name": "main", "image": "example/main", "ports": [{"containerPort": port}]}],
        },
        "status": {"phase": "Running", "podIP": address, "podIPs": [{"ip": address}], "hostIP": "192.0.2.1"},
    }

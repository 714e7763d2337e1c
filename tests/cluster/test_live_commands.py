"""`authorizer`, `run` and `ui` follow a real API server that is killed and restarted (docs/clusters.md#following)."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.labs.authorizer_server import access
from tests.labs.fault_proxy import FaultProxy
from tests.labs.live_client import LiveClient
from tests.labs.live_cluster import LiveCluster
from tests.labs.waiting import PATIENCE_S, eventually, unused_port

pytestmark = [pytest.mark.engine, pytest.mark.slow]

TIERWALL = str(Path(sys.executable).parent / "tierwall")
SPEC = {
    "gatewayClassName": "tierwall",
    "listeners": [{"name": "mcp", "port": 8080, "protocol": "HTTP"}],
}


@contextmanager
def _following(live: LiveClient, log: Path, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run a command. SIGTERM ends it with exit code 0."""
    with log.open("wb") as out:
        process = subprocess.Popen([TIERWALL, *arguments], stdout=out, stderr=out, env=live.environment())
    try:
        yield process
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_S) == 0, log.read_text()
    finally:
        process.kill()
        process.wait()


def _address(log: Path, mark: str) -> str:
    """Wait for a line that names an address."""
    eventually(lambda: mark in log.read_text(), log.read_text)
    return log.read_text().partition(mark)[2].split('"')[0].split()[0]


def _allows(address: str, user: str) -> bool:
    answer = httpx.post(f"http://{address}/authorize", json=access(user), timeout=PATIENCE_S)
    return bool(answer.json()["status"]["allowed"])


def _policy(user: str) -> dict[str, Any]:
    return {
        "apiVersion": "tierwall.io/v1alpha1",
        "kind": "ClusterAuthorizationPolicy",
        "metadata": {"name": f"for-{user}"},
        "spec": {"effect": "Allow", "expression": f'request.userInfo.username == "{user}"'},
    }


def _gateway(name: str) -> dict[str, Any]:
    metadata = {"name": name, "namespace": "edge"}
    return {"apiVersion": "gateway.networking.k8s.io/v1", "kind": "Gateway", "metadata": metadata, "spec": SPEC}


def test_commands_follow_a_server_that_is_killed_and_restarted(tmp_path: Path) -> None:
    cluster = LiveCluster(tmp_path)
    try:
        cluster.start()
        live = LiveClient(tmp_path)
        live.namespace("edge")
        live.create(_policy("alice"), _gateway("first"))
        _commands(cluster, live)
        live.close()
    finally:
        cluster.stop()


def _commands(cluster: LiveCluster, live: LiveClient) -> None:
    asked, judge_log, run_log = list[str](), live.folder / "authorizer.log", live.folder / "run.log"
    ui_log = live.folder / "ui.log"

    def record(target: str) -> None:
        asked.append(target)

    with FaultProxy(live.url, live.folder / "pki" / "ca.crt") as proxy:
        proxy.always = record
        config = {
            "clusters": [{"name": "c", "cluster": {"server": proxy.url}}],
            "contexts": [{"name": "proxied", "context": {"cluster": "c", "user": ""}}],
        }
        (live.folder / "proxied").write_text(json.dumps(config))
        context = ("--context", "proxied", "--kubeconfig", str(live.folder / "proxied"))
        judge = ("authorizer", *context, "--listen", "127.0.0.1:0")
        run = ("run", "--context", "admin", "--no-envoy", f"--xds=unix:{live.folder / 'private' / 'xds'}")
        (live.folder / "private").mkdir(mode=0o700)
        bind = f"--bind=edge/first:8080=127.0.0.1:{unused_port()}"
        with (
            _following(live, judge_log, *judge),
            _following(live, run_log, *run, bind, "--bind=edge/second:8080=127.0.0.1:1"),
            _following(live, ui_log, "ui", "--context", "admin", "--no-open"),
            Explorer(_address(ui_log, "http://")) as explorer,
        ):
            address, health = _address(judge_log, '"address":"'), _address(run_log, "health and metrics on ")
            objects = _objects(health)
            assert _allows(address, "alice")
            assert not _allows(address, "bob")
            assert explorer.shows("Gateway/edge/first")
            assert not explorer.is_old()
            version = explorer.version()
            # This server has the list as the beginning of the watch: nothing is read in pages.
            followed = [target for target in asked if target.startswith(("/api/v1/", "/apis/")) and "?" in target]
            assert any("sendInitialEvents=true" in target for target in followed)
            assert not any("limit=500" in target for target in followed)
            live.create(_policy("bob"))
            eventually(lambda: _allows(address, "bob"), judge_log.read_text)
            eventually(lambda: explorer.shows("ClusterAuthorizationPolicy/for-bob"), ui_log.read_text)
            assert explorer.version() > version
            # The server is killed, and both say after a while that the last state counts.
            cluster.send_signal("api-server", signal.SIGKILL)
            cluster._processes["api-server"].wait(PATIENCE_S)
            for page in (f"http://{address}/readyz", f"{health}/readyz"):
                eventually(partial(_says_why, page), judge_log.read_text)
            assert _allows(address, "alice")
            eventually(explorer.is_old, ui_log.read_text)
            assert explorer.shows("ClusterAuthorizationPolicy/for-alice")
            cluster.start_api_server()
            live.delete(_policy("alice"))
            live.create(_gateway("second"))
            eventually(lambda: not _allows(address, "alice"), judge_log.read_text)
            assert _allows(address, "bob")
            eventually(lambda: httpx.get(f"{health}/readyz").status_code == 200, run_log.read_text)
            eventually(lambda: not explorer.is_old(), ui_log.read_text)
            eventually(lambda: not explorer.shows("ClusterAuthorizationPolicy/for-alice"), ui_log.read_text)
            eventually(lambda: _objects(health) == objects + 1, run_log.read_text)


class Explorer:
    """The pages of `ui`, for whoever has its address with the token."""

    def __init__(self, address: str) -> None:
        origin, _, token = address.partition("/?token=")
        cookies = {f"tierwall-{origin.rpartition(':')[2]}": token}
        self._client = httpx.Client(base_url=f"http://{origin}", cookies=cookies, timeout=PATIENCE_S)

    def __enter__(self) -> Explorer:
        return self

    def __exit__(self, *raised: object) -> None:
        self._client.close()

    def shows(self, name: str) -> bool:
        """Whether an object is there."""
        return self._client.get(f"/policy/{name}").status_code == 200

    def version(self) -> int:
        """The number of the world that is shown, as the stream tells it."""
        with self._client.stream("GET", "/follow") as stream:
            line = next(line for line in stream.iter_lines() if line.startswith("data:"))
        return int(json.loads(line.removeprefix("data:"))["version"])

    def is_old(self) -> bool:
        """Whether the badge says that what is shown may be old."""
        return "What you see may be old" in self._client.get("/").text


def _says_why(page: str) -> bool:
    answer = httpx.get(page)
    return answer.status_code == 503 and "its last state counts" in answer.text


def _objects(health: str) -> int:
    """The number of objects in force."""
    return int(httpx.get(f"{health}/readyz").json()["manifests"]["message"].split()[0])

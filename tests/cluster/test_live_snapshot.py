"""A snapshot of a real cluster: the same bytes after a restart, and the same answers for each user."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cluster.test_live_answers import COMMANDS, JSON, NEW, plain, run, shop_objects
from tests.labs.live_client import LiveClient, pod
from tests.labs.live_cluster import LiveCluster

pytestmark = [pytest.mark.engine, pytest.mark.slow]
NAMED = {"developer": ("-n", "shop")}
# A question whose answer names the node's pods.
NODE = (
    "can-i",
    "get",
    "configmaps/settings",
    "-n",
    "shop",
    "--as",
    "system:node:shop-node",
    "--as-group",
    "system:nodes",
)


def snapshot(live: LiveClient, file: Path, context: str) -> str:
    """Write the snapshot that a user makes. Developers may not list namespaces, so they name the one they know."""
    result = run("snapshot", "--context", context, "--kubeconfig", live.kubeconfig, *NAMED.get(context, ()))
    assert result.exit_code == 0, result.stderr
    file.write_bytes(result.stdout_bytes)
    return str(file)


def assert_same(live: LiveClient, file: str, context: str) -> None:
    """Ask everything of the cluster as a user, and of the snapshot that this user made."""
    for command in (*(command for _, command in COMMANDS), NODE, ("diff", "-f", str(NEW), *JSON)):
        if context in NAMED and "default" in command:
            continue  # Of a cluster, other namespaces are read than for the snapshot.
        named = NAMED.get(context, ()) if "-n" not in command and command[0] != "check" else ()
        of_cluster = run(*command, *named, "--context", context, "--kubeconfig", live.kubeconfig)
        of_file = run(*command, *named, "-f", file)
        assert of_file.exit_code == of_cluster.exit_code, (command, of_file.stderr, of_cluster.stderr)
        assert of_file.stderr == of_cluster.stderr
        if of_cluster.exit_code not in (1, 2):
            assert plain(command, of_file.stdout) == plain(command, of_cluster.stdout), command


def test_a_snapshot_stands_for_the_cluster(tmp_path: Path) -> None:
    cluster = LiveCluster(tmp_path)
    try:
        cluster.start()
        live = LiveClient(tmp_path)
        live.namespace("shop")
        live.create(*shop_objects())
        reader = pod("shop", "reader", node="shop-node")
        reader["spec"]["volumes"] = [{"name": "settings", "configMap": {"name": "settings"}}]
        live.create(reader)
        live.grant("shop")
        files = {context: snapshot(live, tmp_path / f"{context}.yaml", context) for context in ("admin", "developer")}
        for context, file in files.items():
            assert_same(live, file, context)
        before = {context: Path(file).read_bytes() for context, file in files.items()}
        path = "/api/v1/namespaces/shop/pods/reader"
        for note in ("x", None):  # Now its version is another one.
            live.request("PATCH", path, {"metadata": {"annotations": {"note": note}}})
        cluster.stop_process("api-server")
        cluster.start_api_server()
        for context, file in files.items():
            snapshot(live, Path(file), context)
            assert Path(file).read_bytes() == before[context]
        assert (
            json.loads(live.kubectl("version", "-o", "json"))["serverVersion"]["gitVersion"] in before["admin"].decode()
        )
        live.close()
    finally:
        cluster.stop()

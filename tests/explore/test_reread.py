"""The explorer over a cluster that its user may read only in part, and not follow (docs/explorer.md)."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.labs.served_cluster import ServedCluster, serving
from tests.labs.waiting import PATIENCE_S, eventually
from tierwall.cli.command import read_params
from tierwall.cli.explorer import ExplorerParams, ui
from tierwall.cli.reread import RereadSource
from tierwall.cluster.load import read_whole
from tierwall.core.diagnostics import Diagnostic, InputError

WEAK = {"weak": {"pods": ["shop"], "clusterroles": []}}


def pod(name: str, namespace: str = "shop") -> dict[str, Any]:
    metadata = {"name": name, "namespace": namespace}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"containers": []}}


def source_of(cluster: ServedCluster, *words: str, context: str = "weak") -> RereadSource:
    given = ["--context", context, "--kubeconfig", cluster.kubeconfig, *words]
    params = read_params(ui.make_context("ui", given))
    assert isinstance(params, ExplorerParams)
    return RereadSource(params)


def names(source: RereadSource) -> list[str] | None:
    loaded = source.read()
    return None if loaded is None else sorted(str(each.reference) for each in loaded.snapshot if each.kind == "Pod")


def test_only_another_state_of_the_cluster_is_a_change(tmp_path: Path) -> None:
    (tmp_path / "over.yaml").write_text("{apiVersion: v1, kind: Namespace, metadata: {name: files}}")
    with serving([pod("a"), pod("hidden", "prod")], forbidden=WEAK) as cluster:
        source = source_of(cluster, str(tmp_path), "--without", "Pod/shop/gone")
        with pytest.raises(InputError):
            source.read()
        cluster.put(pod("gone"))
        source.nudge()
        assert names(source) == ["Pod/shop/a"]
        assert names(source) is None
        source.nudge()
        assert names(source) is None
        cluster.put(pod("b"))
        # It is not due yet.
        assert names(source) is None
        source.nudge()
        assert names(source) == ["Pod/shop/a", "Pod/shop/b"]
        cluster.delete("Pod", "shop", "gone")
        cluster.put(pod("d"))
        source.nudge()
        assert names(source) == ["Pod/shop/a", "Pod/shop/b", "Pod/shop/d"]
        cluster.delete("Pod", "shop", "d")
        source.nudge()
        assert names(source) == ["Pod/shop/a", "Pod/shop/b"]
        (tmp_path / "over.yaml").write_text(
            "{apiVersion: v1, kind: Pod, metadata: {name: c, namespace: shop}, spec: {}}"
        )
        assert names(source) == ["Pod/shop/a", "Pod/shop/b", "Pod/shop/c"]
        cluster.server.shutdown()
        cluster.server.server_close()
        source.nudge()
        with pytest.raises(InputError):
            source.read()


def test_a_cluster_that_comes_back_is_told_with_what_changed_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "over.yaml").write_text("{apiVersion: v1, kind: Namespace, metadata: {name: files}}")
    is_away = False

    def read(*given: Any) -> Any:
        if is_away:
            raise InputError([Diagnostic("TW042", "away")])
        return read_whole(*given)

    monkeypatch.setattr("tierwall.cli.reread.read_whole", read)
    with serving([pod("a")], forbidden=WEAK) as cluster:
        source = source_of(cluster, str(tmp_path))
        assert names(source) == ["Pod/shop/a"]
        is_away = True
        source.nudge()
        with pytest.raises(InputError):
            source.read()
        is_away = False
        assert names(source) == ["Pod/shop/a"]
        assert names(source) is None
        is_away = True
        source.nudge()
        (tmp_path / "over.yaml").write_text(
            "{apiVersion: v1, kind: Pod, metadata: {name: c, namespace: shop}, spec: {}}"
        )
        with pytest.raises(InputError):
            source.read()
        is_away = False
        assert names(source) == ["Pod/shop/a", "Pod/shop/c"]
        assert names(source) is None


def test_it_is_read_again_when_it_is_told_to_until_it_stops() -> None:
    async def follow(source: RereadSource) -> int:
        stop, seen = asyncio.Event(), 0
        async for _ in source.changes(stop):
            seen += 1
            if seen == 3:
                stop.set()
            source.nudge()
        return seen

    with serving([]) as cluster:
        assert asyncio.run(asyncio.wait_for(follow(source_of(cluster, context="root")), PATIENCE_S)) == 3


@pytest.mark.slow
def test_whoever_may_not_follow_a_cluster_sees_what_commands_see(tmp_path: Path) -> None:
    out, errors = tmp_path / "out.txt", tmp_path / "errors.txt"
    with serving([pod("a"), pod("hidden", "prod")], forbidden=WEAK) as cluster:
        words = [sys.executable, "-m", "tierwall", "ui", "--no-open", "--context", "weak"]
        with out.open("w") as stdout, errors.open("w") as stderr:
            process = subprocess.Popen([*words, "--kubeconfig", cluster.kubeconfig], stdout=stdout, stderr=stderr)
        try:
            eventually(lambda: out.read_text().endswith("\n"), errors.read_text)
            with httpx.Client(timeout=PATIENCE_S, follow_redirects=True) as client:
                page = client.get(out.read_text().strip()).text
            assert "weak, read again every minute" in page
            assert "Pods (you may not list them in" in page
            assert "this user may not list and watch" in errors.read_text()
            process.send_signal(signal.SIGINT)
            assert process.wait(PATIENCE_S) == 0
        finally:
            process.kill()
            process.wait(PATIENCE_S)

"""The explorer stops when it is told to, whoever follows and whatever page takes long (docs/explorer.md)."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.labs.explorer_server import ExplorerLab
from tests.labs.waiting import PATIENCE_S, eventually
from tierwall.analyze import diff
from tierwall.explore import change
from tierwall.serve.explorer import app

POD = "apiVersion: v1\nkind: Pod\nmetadata: {name: one, namespace: a}\nspec: {containers: []}\n"


def test_an_interrupt_ends_the_program_though_a_page_follows(tmp_path: Path) -> None:
    (tmp_path / "pod.yaml").write_text(POD)
    out, errors = tmp_path / "out.txt", tmp_path / "errors.txt"
    words = [sys.executable, "-m", "tierwall", "ui", str(tmp_path / "pod.yaml"), "--no-open"]
    with out.open("w") as stdout, errors.open("w") as stderr:
        process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr)
    try:
        eventually(lambda: out.read_text().endswith("\n"), errors.read_text)
        address = out.read_text().strip()
        with httpx.Client(timeout=PATIENCE_S) as client:
            token = client.get(address).headers["set-cookie"].partition(";")[0]
            followed = f"{address.partition('/?')[0]}/follow"
            with client.stream("GET", followed, headers={"Cookie": token}) as stream:
                parts = stream.iter_bytes()
                assert b'"version"' in next(parts)
                process.send_signal(signal.SIGINT)
                assert b"".join(parts).strip() == b""
        assert process.wait(PATIENCE_S) == 0
        assert errors.read_text() == ""
    finally:
        process.kill()
        process.wait(PATIENCE_S)


def test_a_page_that_takes_long_does_not_keep_the_server_from_ending(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "pod.yaml").write_text(POD)
    has_begun, goes_on = threading.Event(), threading.Event()

    def forever(*arguments: Any) -> Any:
        has_begun.set()
        goes_on.wait(PATIENCE_S)
        raise AssertionError("nobody waits for this")

    caplog.set_level("WARNING")
    monkeypatch.setattr(app, "page_at", forever)
    lab = ExplorerLab(tmp_path)
    statuses: list[int] = []

    def ask() -> None:
        with httpx.Client(timeout=PATIENCE_S, follow_redirects=True) as client:
            statuses.append(client.get(lab.server.address).status_code)

    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    try:
        assert has_begun.wait(PATIENCE_S)
        lab.close()
        assert not goes_on.is_set()
    finally:
        goes_on.set()
        asking.join(PATIENCE_S)
    assert statuses == [503]
    assert caplog.messages == []


def test_a_comparison_ends_when_nobody_waits_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "pod.yaml").write_text(POD)
    has_begun, has_ended = threading.Event(), threading.Event()

    def compare(*arguments: Any, **more: Any) -> Any:
        has_begun.set()
        eventually(lambda: not wanted[-1](), "nobody told that the comparison is not wanted")
        return diff.compare(*arguments, **more)

    def changed(explored: Any, text: str, grouped: bool, is_wanted: Callable[[], bool]) -> Any:
        wanted.append(is_wanted)
        try:
            return compute(explored, text, grouped, is_wanted)
        except change.NotWanted:
            has_ended.set()
            raise

    wanted: list[Callable[[], bool]] = []
    compute = change.changed
    lab = ExplorerLab(tmp_path)
    try:
        with monkeypatch.context() as patched:
            patched.setattr(change, "compare", compare)
            patched.setattr(change, "changed", changed)
            body = POD.replace("one", "two").encode()
            head = f"POST /change?format=html HTTP/1.1\r\nHost: 127.0.0.1:{lab.server.access.port}\r\n"
            head += f"Cookie: {lab.server.access.cookie}={lab.server.access.token}\r\n"
            head += f"Content-Type: application/yaml\r\nContent-Length: {len(body)}\r\n\r\n"
            with socket.create_connection(("127.0.0.1", lab.server.access.port)) as connection:
                connection.sendall(head.encode() + body)
                assert has_begun.wait(PATIENCE_S)
            assert has_ended.wait(PATIENCE_S)
        answer = lab.client.post("/change?format=html", content=body, headers={"Content-Type": "application/yaml"})
        assert answer.status_code == 200
    finally:
        lab.close()

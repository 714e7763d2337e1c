"""Whoever has no token cannot keep others out by holding connections (docs/explorer.md#safety)."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import httpx
import pytest

from tests.labs.explorer_server import ExplorerLab
from tests.labs.recording_server import Authority
from tests.labs.waiting import PATIENCE_S, eventually
from tierwall.serve.explorer.connections import MAX_CONNECTIONS, ExplorerProtocol
from tierwall.serve.server import MAX_HANDSHAKES


@pytest.fixture
def small(tmp_path: Path) -> Iterator[ExplorerLab]:
    (tmp_path / "a.yaml").write_text("{apiVersion: v1, kind: Namespace, metadata: {name: a}}")
    running = ExplorerLab(tmp_path)
    yield running
    running.close()


def opened(lab: ExplorerLab, begun: bytes) -> socket.socket:
    out = socket.create_connection(("127.0.0.1", lab.server.access.port), timeout=PATIENCE_S)
    out.sendall(begun)
    return out


def is_ended(connection: socket.socket) -> bool:
    try:
        return connection.recv(100) == b""
    except OSError:
        return True


@pytest.mark.parametrize("begun", [b"", b"GET / HTTP/1.1\r\nHost: a\r\nX: "])
def test_silent_connections_keep_nobody_out(small: ExplorerLab, begun: bytes) -> None:
    with ExitStack() as stack, small.client.stream("GET", "/follow") as followed:
        lines = followed.iter_lines()
        assert "world" in next(lines)
        silent = [stack.enter_context(opened(small, begun)) for _ in range(MAX_CONNECTIONS + 30)]
        for _ in range(3):
            assert small.client.get("/index.json").status_code == 200
        # The oldest silent ones have made room, and the stream of the tab has not.
        assert is_ended(silent[0])
        assert not followed.is_closed


def test_headers_must_arrive_in_time(small: ExplorerLab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ExplorerProtocol, "header_seconds", 0.2)
    whole = f"GET /static/icon.svg HTTP/1.1\r\nHost: {small.server.origin.partition('//')[2]}\r\n\r\n".encode()
    for begun in (b"", b"GET / HTTP/1.1\r\n", whole + b"GET / HTTP/1.1\r\n"):
        with opened(small, begun) as late:
            eventually(partial(is_ended, late), "the connection ends")
    # A stream that is followed has no such limit.
    with small.client.stream("GET", "/follow") as followed, opened(small, b"GET") as late:
        lines = followed.iter_lines()
        assert "world" in next(lines)
        eventually(lambda: is_ended(late), "the connection ends")
        assert not followed.is_closed
        assert small.client.get("/index.json").status_code == 200


def test_handshakes_that_never_end_keep_nobody_out(tmp_path: Path) -> None:
    authority = Authority()
    for end, content in zip(("crt", "key"), authority.issue("server", "127.0.0.1"), strict=True):
        (tmp_path / f"server.{end}").write_bytes(content)
    certificate, key = (str(tmp_path / f"server.{end}") for end in ("crt", "key"))
    (tmp_path / "a.yaml").write_text("{apiVersion: v1, kind: Namespace, metadata: {name: a}}")
    lab = ExplorerLab(tmp_path / "a.yaml", tls_cert=certificate, tls_key=key)
    try:
        context = ssl.create_default_context(cadata=authority.pem.decode())
        with ExitStack() as stack, httpx.Client(base_url=lab.server.origin, verify=context) as client:
            silent = [stack.enter_context(opened(lab, b"")) for _ in range(MAX_HANDSHAKES + 30)]
            answer = client.get(lab.server.address, timeout=PATIENCE_S)
            assert (answer.status_code, answer.headers["location"]) == (303, "/")
            assert "Secure" in answer.headers["set-cookie"]
            eventually(partial(is_ended, silent[0]), "the oldest handshake ends")
    finally:
        lab.close()

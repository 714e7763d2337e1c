"""Writing to an API server: what is sent arrives as it is, and a write is never sent again by itself."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

import pytest

from tierwall.cluster.access import ClusterAccess
from tierwall.cluster.connection import Connection
from tierwall.cluster.failures import ApiServerError
from tierwall.cluster.reply import ServerReply


class Written(NamedTuple):
    """A write as the server got it."""

    method: str
    path: str
    content_type: str
    content: bytes


class WrittenServer(ThreadingHTTPServer):
    """Answers every write in the same way, and remembers it."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.writes: list[Written] = []
        self.status, self.headers, self.body = 200, {"Content-Type": "application/json"}, b"{}"


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def _answer(self) -> None:
        assert isinstance(self.server, WrittenServer)
        content = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.server.writes.append(Written(self.command, self.path, self.headers.get("Content-Type", ""), content))
        self.send_response(self.server.status)
        for name, value in {**self.server.headers, "Content-Length": str(len(self.server.body))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(self.server.body)

    do_PUT = do_PATCH = do_POST = do_DELETE = _answer  # noqa: N815 -- the names that http.server looks for

    def log_message(self, *arguments: Any) -> None:
        """Say nothing."""


@pytest.fixture
def server() -> Iterator[WrittenServer]:
    with WrittenServer() as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def send(server: WrittenServer, method: str, *arguments: Any, **named: Any) -> ServerReply:
    async def main() -> ServerReply:
        access = ClusterAccess("test", f"http://127.0.0.1:{server.server_port}", "default")
        connection = Connection(access, 10)
        try:
            return await connection.send(method, *arguments, **named)
        finally:
            await connection.close()

    return asyncio.run(main())


@pytest.mark.parametrize("method", ["PUT", "PATCH", "POST", "DELETE"])
def test_what_is_sent_arrives_as_it_is(server: WrittenServer, method: str) -> None:
    server.status, server.body = 201, b'{"kind":"Lease"}'
    reply = send(server, method, "/x", b"{}", {"fieldManager": "tierwall"}, "application/apply-patch+yaml")
    assert reply.content == server.body
    assert server.writes == [Written(method, "/x?fieldManager=tierwall", "application/apply-patch+yaml", b"{}")]


def test_nothing_need_be_sent(server: WrittenServer) -> None:
    send(server, "DELETE", "/x")
    assert server.writes == [Written("DELETE", "/x", "", b"")]


@pytest.mark.parametrize("status", [409, 422, 429, 503])
def test_a_write_that_fails_is_not_sent_again(server: WrittenServer, status: int) -> None:
    server.status, server.headers = status, {"Content-Type": "text/plain", "Retry-After": "1"}
    with pytest.raises(ApiServerError) as caught:
        send(server, "PUT", "/x", b"{}")
    assert caught.value.code == status
    assert len(server.writes) == 1

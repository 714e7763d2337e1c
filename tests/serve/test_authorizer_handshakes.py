"""A handshake while certificates rotate: a new certificate lets it finish, a new client CA ends it."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest
import uvicorn

from tests.labs.recording_server import Authority
from tests.labs.waiting import PATIENCE_S
from tierwall.serve.authorizer.connections import Certificates, timed_protocol
from tierwall.serve.server import TlsFiles, TlsServer, bind

SERVED = b"served"


class Handshake:
    """A client that has sent its hello, and reads and writes TLS by hand from then on."""

    def __init__(self, folder: Path) -> None:
        context = ssl.create_default_context(cafile=str(folder / "ca.crt"))
        context.load_cert_chain(str(folder / "client.crt"), str(folder / "client.key"))
        self._in, self._out = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._in, self._out, server_hostname="127.0.0.1")

    async def begin(self, port: int) -> None:
        """Send the hello, and wait until the server has chosen its certificate."""
        self._reader, self._writer = await asyncio.open_connection("127.0.0.1", port)
        with pytest.raises(ssl.SSLWantReadError):
            self._tls.do_handshake()
        self._writer.write(self._out.read())
        self._in.write(await self._reader.read(1 << 16))

    async def request(self) -> bytes:
        """Finish the handshake, and return the answer to a request; empty if the connection ends."""
        try:
            await self._exchange(self._tls.do_handshake)
            self._tls.write(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            self._writer.write(self._out.read())
            reply = b""
            while data := await self._exchange(lambda: self._tls.read(1 << 16)):
                reply += data
            return reply
        except (ConnectionError, ssl.SSLError, EOFError):
            return b""
        finally:
            self._writer.close()

    async def _exchange(self, step: Any) -> Any:
        while True:
            try:
                done = step()
            except ssl.SSLWantReadError:
                self._writer.write(self._out.read())
                if not (data := await self._reader.read(1 << 16)):
                    raise EOFError from None
                self._in.write(data)
            else:
                self._writer.write(self._out.read())
                return done


def write(folder: Path, name: str, pair: tuple[bytes, bytes]) -> None:
    for end, content in zip(("crt", "key"), pair, strict=True):
        (folder / f"{name}.{end}").write_bytes(content)


async def answer(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": SERVED})


@pytest.mark.parametrize("is_authority_new", [False, True])
def test_a_new_certificate_lets_a_handshake_finish(tmp_path: Path, is_authority_new: bool) -> None:
    authority = Authority()
    (tmp_path / "ca.crt").write_bytes(authority.pem)
    write(tmp_path, "server", authority.issue("server", "127.0.0.1"))
    write(tmp_path, "client", authority.issue("client"))
    files = TlsFiles(*(str(tmp_path / name) for name in ("server.crt", "server.key", "ca.crt")))
    certificates = Certificates(files)

    async def main() -> None:
        config = uvicorn.Config(answer, http=timed_protocol(PATIENCE_S), lifespan="off", log_config=None)
        server = TlsServer(config, certificates.context, PATIENCE_S)
        listening = bind("127.0.0.1", 0)
        serving = asyncio.create_task(server.serve(sockets=[listening]))
        handshake = Handshake(tmp_path)
        await handshake.begin(listening.getsockname()[1])
        write(tmp_path, "server", authority.issue("server", "127.0.0.1"))
        if is_authority_new:
            (tmp_path / "ca.crt").write_bytes(Authority().pem)
        before = certificates.authority
        assert certificates.reload()
        server.drain(certificates.authority != before)
        reply = await handshake.request()
        assert (SERVED in reply) is not is_authority_new
        server.should_exit = True
        await serving
        listening.close()

    within(main())


def within(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(work, PATIENCE_S))

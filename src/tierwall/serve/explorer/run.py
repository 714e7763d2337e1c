"""Runs the explorer: listens, prints its address, follows the source until a signal comes."""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
import webbrowser
from collections.abc import Callable
from contextlib import suppress
from html import escape
from pathlib import Path

import uvicorn
from msgspec import Struct

from tierwall.core.diagnostics import Diagnostics
from tierwall.serve.explorer.access import Access
from tierwall.serve.explorer.app import ExplorerApp
from tierwall.serve.explorer.connections import HEADERS_S, explorer_protocol
from tierwall.serve.explorer.followed import ExplorerFollower
from tierwall.serve.follower import ObjectSource, until_signalled
from tierwall.serve.server import SignallessServer, TlsFiles, TlsServer, bind, read_context

# How long the file lives from which a browser learns the address, in seconds.
OPENING_S = 30.0


class ExplorerSettings(Struct, frozen=True, kw_only=True):
    """How to serve."""

    host: str
    port: int
    hosts: tuple[str, ...] = ()
    tls_cert: str | None = None
    tls_key: str | None = None


class ExplorerServer:
    """A server that listens already. InputError if its address or certificate cannot be used."""

    def __init__(self, follower: ExplorerFollower, settings: ExplorerSettings) -> None:
        self._follower = follower
        files = TlsFiles(settings.tls_cert, settings.tls_key) if settings.tls_cert and settings.tls_key else None
        self._tls = read_context(files) if files is not None else None
        self.listening = bind(settings.host, settings.port)
        port = int(self.listening.getsockname()[1])
        self.access = Access.of(settings.host, port, settings.hosts, files is not None)
        # Nobody reaches `0.0.0.0`: another name of the server leads to it.
        others = (each for each in settings.hosts if ":" not in each and settings.host in ("0.0.0.0", "::"))
        named = next(others, settings.host)
        name = f"[{named}]" if ":" in named else named
        self.origin = f"{'https' if self.access.is_tls else 'http'}://{name}:{port}"
        self._app = ExplorerApp(follower, self.access)
        self._config = uvicorn.Config(
            self._app.app,
            http=explorer_protocol(),
            ws="none",
            interface="asgi3",
            lifespan="off",
            log_config=None,
            # Whoever sends nonsense must not fill the terminal.
            log_level="error",
            access_log=False,
            proxy_headers=False,
            server_header=False,
            timeout_graceful_shutdown=1,
            h11_max_incomplete_event_size=64 << 10,
        )

    @property
    def address(self) -> str:
        """The address with the token, for whoever may look."""
        return f"{self.origin}/?token={self.access.token}"

    async def run(self, source: ObjectSource, stop: asyncio.Event, report: Callable[[Diagnostics], None]) -> None:
        """Serve and follow the source until `stop` is set; `report` gets what is newly wrong with it."""
        if self._tls is not None:
            server: SignallessServer = TlsServer(self._config, self._tls, HEADERS_S)
        else:
            server = SignallessServer(self._config)
        serving = asyncio.create_task(server.serve(sockets=[self.listening]))
        try:
            async for load in self._follower.follow(source, stop):
                report(Diagnostics(load.unreported))
                self._follower.tell()
        finally:
            self._app.end()
            server.should_exit = True
            await serving


def serve(server: ExplorerServer, source: ObjectSource, opens: bool, report: Callable[[Diagnostics], None]) -> None:
    """Serve until SIGINT or SIGTERM."""

    async def work(stop: asyncio.Event) -> None:
        if opens:
            _open(server.address)
        await server.run(source, stop, report)

    until_signalled(work)


def can_open() -> bool:
    """Whether this machine shows windows: a browser in the terminal would take the terminal away."""
    return sys.platform == "darwin" or bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))


def _open(address: str) -> None:
    """Open a browser. It learns the address from a file of its owner: others can see the arguments of programs."""
    if not can_open():
        return
    descriptor, name = tempfile.mkstemp(prefix="tierwall-", suffix=".html")
    with os.fdopen(descriptor, "w") as file:
        file.write(f'<!doctype html><meta http-equiv="refresh" content="0;url={escape(address)}">')
    webbrowser.open(Path(name).as_uri())

    def remove() -> None:
        with suppress(OSError):
            os.unlink(name)

    asyncio.get_running_loop().call_later(OPENING_S, remove)

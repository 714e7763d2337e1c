"""An HTTP server in the event loop of its owner: starts, says where it listens, and stops when told."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import uvicorn
from starlette.applications import Starlette
from starlette.routing import BaseRoute

from tierwall.core.diagnostics import Diagnostic, InputError


class HttpServer:
    """One listening address with some routes."""

    def __init__(self, routes: Sequence[BaseRoute]) -> None:
        self._app = Starlette(routes=list(routes))
        self._server: _Quiet | None = None
        self._task: asyncio.Task[None] | None = None
        self.port = 0

    async def start(self, host: str, port: int) -> int:
        """Listen; the port. InputError if the address cannot be had."""
        listening = bind(host, port)
        self.port = int(listening.getsockname()[1])
        config = uvicorn.Config(self._app, lifespan="off", log_config=None, access_log=False)
        self._server = _Quiet(config)
        self._task = asyncio.create_task(self._server.serve(sockets=[listening]))
        return self.port

    async def stop(self) -> None:
        """Finish what is being answered and stop."""
        if self._server is not None and self._task is not None:
            self._server.should_exit = True
            await self._task
            self._server = None


class _Quiet(uvicorn.Server):
    """Leaves signals to the owner."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def bind(host: str, port: int) -> socket.socket:
    """A listening socket; InputError with the reason if the address cannot be had."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    out = socket.socket(family, socket.SOCK_STREAM)
    try:
        out.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        out.bind((host, port))
        out.listen(128)
    except OSError as error:
        out.close()
        raise InputError([Diagnostic("TW631", f"cannot listen on `{host}:{port}`: {error.strerror}")]) from error
    return out

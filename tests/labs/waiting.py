"""Waiting for what must come, and ports that nobody takes away: tests must pass on a busy machine, too.

A test waits for the condition that it needs, never for a time. What does not come within `PATIENCE_S` fails the test;
the limit is generous, because only a defect ever reaches it.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable

PATIENCE_S = 90.0


def eventually(holds: Callable[[], object], what: str | Callable[[], object], seconds: float = PATIENCE_S) -> None:
    """Look until something holds; `what` says in the failure what did not come."""
    end = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > end:
            raise AssertionError(f"did not come within {seconds:g} s: {what if isinstance(what, str) else what()}")
        time.sleep(0.01)


class HeldPort:
    """A port of loopback that nobody else is given as long as this object lives.

    It is bound for sharing and never listens, so a connection to it is refused. Who asks to share ports can listen
    there and gets every connection: Envoy does so by itself, etcd and kube-apiserver have an option for it.
    """

    def __init__(self) -> None:
        self._socket = socket.socket()
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        self._socket.bind(("127.0.0.1", 0))
        self.number: int = self._socket.getsockname()[1]

    def close(self) -> None:
        self._socket.close()


def unused_port() -> int:
    """A port that was free a moment ago, for a program that cannot share one and must be told its number before.

    Somebody may take it first; so whoever uses this starts the program again with another when it cannot listen.
    """
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])

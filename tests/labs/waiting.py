"""Waiting for conditions, and reserved ports: tests must pass on a busy machine, too.

A test waits for a condition, never for a time. If the condition is not true within `PATIENCE_S`, the test fails. The
limit is generous, because only a defect ever reaches it.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable

PATIENCE_S = 90.0


def eventually(holds: Callable[[], object], what: str | Callable[[], object], seconds: float = PATIENCE_S) -> None:
    """Wait until a condition is true; `what` describes it in the failure."""
    end = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > end:
            raise AssertionError(f"did not come within {seconds:g} s: {what if isinstance(what, str) else what()}")
        time.sleep(0.01)


class HeldPort:
    """A loopback port that no other program gets while this object lives.

    It is bound for sharing and never listens, so a connection to it is refused. A program that shares ports can listen
    on it and gets every connection: Envoy does so by default, etcd and kube-apiserver have an option for it.
    """

    def __init__(self) -> None:
        self._socket = socket.socket()
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        self._socket.bind(("127.0.0.1", 0))
        self.number: int = self._socket.getsockname()[1]

    def close(self) -> None:
        self._socket.close()


def unused_port() -> int:
    """Return a port that was free a moment ago, for a program that cannot share ports and needs the number in advance.

    Another program may take it first, so callers try again with another port if the program cannot listen.
    """
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])

"""Connections to a server that does not answer are closed, each of them: a follower tries again for days."""

from __future__ import annotations

import asyncio
import os
import socket

import pytest

from tierwall.cluster.access import ClusterAccess
from tierwall.cluster.connection import Connection
from tierwall.cluster.failures import UnreachableError


def _open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.parametrize("scheme", ["https", "http"])
@pytest.mark.parametrize("limits", [(0.05, 5.0), (5.0, 0.05)])
def test_a_request_that_is_given_up_leaves_no_socket(scheme: str, limits: tuple[float, float]) -> None:
    """By its own limit, or by that of the caller. The kernel accepts connections for a server that has stopped."""

    async def main(url: str) -> None:
        timeout, longest = limits
        connection = Connection(ClusterAccess("stopped", url, "default", insecure=True), timeout, "test")
        before = 0
        for _ in range(5):
            with pytest.raises((UnreachableError, TimeoutError)):
                async with asyncio.timeout(longest):
                    await connection.get("/api")
            before = before or _open_files()
        assert _open_files() == before
        await connection.close()

    with socket.create_server(("127.0.0.1", 0), backlog=50) as stopped:
        asyncio.run(main(f"{scheme}://127.0.0.1:{stopped.getsockname()[1]}"))

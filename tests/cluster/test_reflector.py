"""Following a kind: nothing lost, nothing invented, whatever happens on the way (docs/clusters.md#following)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.labs.fake_api_server import FakeApiServer
from tierwall.cluster.access import ClusterAccess
from tierwall.cluster.connection import Connection
from tierwall.cluster.discovery import ServedKind
from tierwall.cluster.reflector import Reflector, Timing
from tierwall.cluster.shapes import ApiObject

THING = ServedKind("example.com", "v1", "Thing", "things", True, frozenset({"list", "watch"}))
HASTE = Timing(watch=(0.3, 0.9), grace=0.3, bookmark=0.4, first_wait=0.005, longest_wait=0.05, forbidden=0.2)


class Recorder:
    """Keeps what a reflector reports."""

    def __init__(self) -> None:
        self.state: dict[str, int] = {}
        self.seen: set[tuple[str, int]] = set()

    def changed(self, name: tuple[str, str], item: Any) -> None:
        """Apply a reported change."""
        if item is None:
            assert name[1] in self.state, "a deletion of something that was not there"
            del self.state[name[1]]
        else:
            self.state[name[1]] = item.spec["version"]
            self.seen.add((name[1], item.spec["version"]))


async def _storm(seed: int, faults: int) -> None:
    async with FakeApiServer(seed, 0.25) as server:
        recorder = Recorder()
        connection = Connection(ClusterAccess("test", server.url, "default"), 0.3, "test")
        reflector = Reflector(connection, THING, ApiObject, recorder.changed, timing=HASTE)
        task = asyncio.create_task(reflector.run())
        names = [f"thing-{number}" for number in range(12)]
        while server.fault_count < faults:
            name = server.random.choice(names)
            if name in server.objects and server.random.random() < 0.4:
                await server.delete(name)
            else:
                await server.put(name)
            if server.random.random() < 0.1:
                server.compact()
            await asyncio.sleep(server.random.choice([0, 0, 0.002, 0.02]))
        server.faults = 0.0
        history = {(name, at) for at, kind, name in server.log if kind != "DELETED"}
        async with asyncio.timeout(20):
            while recorder.state != server.objects:
                assert not task.done(), task.exception()
                await asyncio.sleep(0.02)
        assert {name[1]: item.spec["version"] for name, item in reflector.objects.items()} == server.objects
        assert recorder.seen <= history
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await connection.close()


@pytest.mark.parametrize("seed", range(10))
def test_after_a_hundred_faults_the_state_is_the_servers(seed: int) -> None:
    """Cuts, delays, halves of lines, forged and true 410s, silence, errors of every code."""
    asyncio.run(_storm(seed, 100))

"""Following a kind: nothing lost, nothing invented, whatever happens on the way (docs/clusters.md#following)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import parse_qs, urlsplit

import msgspec
import pytest

from tests.labs.fake_api_server import DEEP, FakeApiServer, FakeKind
from tests.labs.fake_api_server import THING as FAKE_THING
from tests.randomness import SOAK
from tierwall.cluster.access import ClusterAccess
from tierwall.cluster.connection import Connection
from tierwall.cluster.discovery import ServedKind
from tierwall.cluster.failures import ApiServerError
from tierwall.cluster.reflector import Reflector, Timing
from tierwall.cluster.shapes import ApiObject, MetadataObject

THING = ServedKind(*FAKE_THING, frozenset({"list", "watch"}))
HASTE = Timing(
    watch=(0.3, 0.9),
    grace=0.3,
    bookmark=0.4,
    opening=0.3,
    initial=2,
    first_wait=0.005,
    longest_wait=0.05,
    patience=0.2,
    outage=0.5,
)


class Recorder:
    """Keeps what a reflector reports."""

    def __init__(self) -> None:
        self.state: dict[str, int] = {}
        self.seen: set[tuple[str, int]] = set()
        self.reports = 0

    def changed(self, name: tuple[str, str], item: Any) -> None:
        """Apply a reported change."""
        self.reports += 1
        if item is None:
            assert name[1] in self.state, "a deletion of something that was not there"
            del self.state[name[1]]
        else:
            self.state[name[1]] = item.spec["serial"] if isinstance(item, ApiObject) and item.spec else 0
            self.seen.add((name[1], self.state[name[1]]))


@asynccontextmanager
async def _following(
    server: FakeApiServer, recorder: Recorder, shape: type[Any] = ApiObject, timing: Timing = HASTE
) -> AsyncIterator[Reflector]:
    connection = Connection(ClusterAccess("test", server.url, "default"), 0.3, "test")
    reflector = Reflector(connection, THING, shape, recorder.changed, timing=timing)
    task = asyncio.create_task(reflector.run())
    try:
        yield reflector
        assert not task.done(), task.exception()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await connection.close()


async def _until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.005)


def _serials(server: FakeApiServer) -> dict[str, int]:
    return {name[1]: value["spec"]["serial"] for name, value in server.objects("things").items()}


async def _storm(seed: int, faults: int) -> None:
    async with FakeApiServer(seed, 0.25) as server:
        server.streams_lists = seed % 2 == 0
        recorder, history = Recorder(), set[tuple[str, int]]()
        async with _following(server, recorder) as reflector:
            names = [f"thing-{number}" for number in range(12)]
            while server.fault_count < faults:
                name = server.random.choice(names)
                if ("n", name) in server.objects("things") and server.random.random() < 0.4:
                    await server.delete("things", "n", name)
                else:
                    await server.put_thing(name)
                    history.add((name, server.objects("things")["n", name]["spec"]["serial"]))
                if server.random.random() < 0.1:
                    server.compact()
                if server.random.random() < 0.01:
                    await server.restore(max(1, server.version - server.random.randrange(20)))
                await asyncio.sleep(server.random.choice([0, 0, 0.002, 0.02]))
            server.faults = 0.0
            await _until(lambda: recorder.state == _serials(server))
            # It stays so, and is what the reflector has.
            assert {name[1]: item.spec["serial"] for name, item in reflector.objects.items()} == _serials(server)
            assert recorder.seen <= history


@pytest.mark.storm
@pytest.mark.parametrize("seed", range(3))
def test_after_many_faults_the_state_is_the_servers(seed: int) -> None:
    """Cuts, delays, halves of lines, forged and true 410s, silence, restarts, restores, errors of every code."""
    asyncio.run(_storm(seed, 50 * SOAK))


def _query(target: str) -> dict[str, str]:
    return {key: values[0] for key, values in parse_qs(urlsplit(target).query).items()}


def _watches(server: FakeApiServer) -> list[str]:
    return [target for target in server.requests if "watch=true" in target]


@pytest.mark.parametrize("streams_lists", [True, False])
def test_the_list_is_the_beginning_of_the_watch_where_the_server_can_do_that(streams_lists: bool) -> None:
    """A server with an old etcd refuses that inside a 200; then pages are read, and a watch follows."""

    async def main() -> None:
        async with FakeApiServer() as server:
            server.streams_lists = streams_lists
            for number in range(7):
                await server.put_thing(f"thing-{number}")
            recorder = Recorder()
            async with _following(server, recorder):
                await _until(lambda: recorder.state == _serials(server))
                await server.put_thing("later")
                await _until(lambda: "later" in recorder.state)
            lists = [target for target in server.requests if "limit=500" in target]
            # Pages of three.
            assert len(lists) == (0 if streams_lists else 3)
            assert "sendInitialEvents=true" in server.requests[0]

    asyncio.run(main())


def test_a_list_that_never_ends_is_read_in_pages() -> None:
    """An old server does not know the parameter: it sends the objects, and no mark at their end."""

    async def main() -> None:
        async with FakeApiServer() as server:
            await server.put_thing("thing")
            watch = server._watch

            async def old(plural: str, namespace: str, query: dict[str, str], writer: Any) -> None:
                query = {key: value for key, value in query.items() if key != "sendInitialEvents"}
                await watch(plural, namespace, {"resourceVersion": "1", **query}, writer)

            server._watch = old  # type: ignore[method-assign]
            recorder = Recorder()
            async with _following(server, recorder, timing=msgspec.structs.replace(HASTE, initial=0.3)):
                await _until(lambda: recorder.state == _serials(server))

    asyncio.run(main())


def test_deletions_during_an_outage_are_noticed() -> None:
    """The server comes back without its history, and with fewer objects."""

    async def main() -> None:
        async with FakeApiServer() as server:
            for name in ("stays", "goes", "changes"):
                await server.put_thing(name)
            recorder = Recorder()
            async with _following(server, recorder) as reflector:
                await _until(lambda: recorder.state == _serials(server))
                await server.stop()
                await _until(lambda: reflector.failure is not None)
                await server.delete("things", "n", "goes")
                await server.put_thing("changes")
                server.compact()
                reports = recorder.reports
                assert len(reflector.objects) == 3
                await server.start()
                await _until(lambda: recorder.state == _serials(server))
                assert recorder.reports == reports + 2, "what has not changed is not reported again"
                await _until(lambda: reflector.failure is None)

    asyncio.run(main())


def test_a_restored_backup_is_noticed() -> None:
    """The server's version goes back: it would answer a watch from ours with silence."""

    async def main() -> None:
        async with FakeApiServer() as server:
            await server.put_thing("old")
            backup = server.version
            await server.put_thing("old")
            await server.put_thing("new")
            recorder = Recorder()
            async with _following(server, recorder):
                await _until(lambda: recorder.state == _serials(server))
                await server.restore(backup)
                await _until(lambda: recorder.state == _serials(server))
                assert recorder.state.keys() == {"old"}

    asyncio.run(main())


@pytest.mark.parametrize("is_ready", [True, False])
def test_an_empty_list_is_believed_only_if_it_stays_empty(is_ready: bool) -> None:
    """A server that has just started may have nothing; only if it says that it is ready, and for a while, it counts."""

    async def main() -> None:
        async with FakeApiServer() as server:
            await server.put_thing("thing")
            recorder = Recorder()
            async with _following(server, recorder) as reflector:
                await _until(lambda: bool(recorder.state))
                server.is_ready = is_ready
                await server.restart(0.1)
                await _until(lambda: reflector.failure is not None)
                await _until(lambda: reflector.failure is None)
                assert recorder.reports == 1, "the object was there all the time"
                await server.stop()
                await server.delete("things", "n", "thing")
                server.compact()
                await server.start()
                if not is_ready:
                    await _until(lambda: reflector.failure is not None)
                    failure = reflector.failure
                    await asyncio.sleep(3 * HASTE.patience)
                    assert recorder.state, failure
                    server.is_ready = True
                await _until(lambda: not recorder.state)

    asyncio.run(main())


def test_a_server_that_stops_answering_is_noticed_and_found_again() -> None:
    """Neither the end of the connection nor keep-alive shows it: only silence does."""

    async def main() -> None:
        async with FakeApiServer() as server:
            await server.put_thing("thing")
            recorder = Recorder()
            async with _following(server, recorder) as reflector:
                await _until(lambda: bool(recorder.state))
                server.is_stopped = True
                # Watches that are open go on: let them end.
                await server.restart(0)
                await _until(lambda: reflector.failure is not None)
                await server.put_thing("another")
                server.is_stopped = False
                await _until(lambda: recorder.state == _serials(server))

    asyncio.run(main())


def test_a_forbidden_kind_keeps_its_last_state_and_says_since_when() -> None:
    """Rights may come back; until then, the failure has the time at which it began."""

    async def main() -> None:
        async with FakeApiServer() as server:
            await server.put_thing("thing")
            recorder = Recorder()
            async with _following(server, recorder) as reflector:
                await _until(lambda: bool(recorder.state))
                server.forbidden.add("things")
                await server.restart(0)
                await _until(lambda: reflector.failure is not None)
                failure = reflector.failure
                assert failure is not None
                await asyncio.sleep(2 * HASTE.patience)
                assert reflector.failure is not None
                assert reflector.failure.since == failure.since
                assert isinstance(reflector.failure.error, ApiServerError)
                assert reflector.failure.error.code == 403
                assert recorder.state == _serials(server)
                server.forbidden.clear()
                await _until(lambda: reflector.failure is None)

    asyncio.run(main())


@pytest.mark.parametrize("streams_lists", [True, False])
def test_what_planes_do_not_read_makes_no_change(streams_lists: bool) -> None:
    """A kind of which only metadata counts: a change of `spec` is not reported, a change of labels is.

    Items of lists do not say what they are, and events do: this does not count as a change either.
    """

    async def main() -> None:
        async with FakeApiServer() as server:
            server.streams_lists = streams_lists
            await server.put("things", {"metadata": {"name": "a"}, "spec": {"serial": 1}})
            recorder = Recorder()
            async with _following(server, recorder, MetadataObject) as reflector:
                await _until(lambda: recorder.reports == 1)
                await server.put("things", {"metadata": {"name": "a"}, "spec": {"serial": 2}})
                await server.put("things", {"metadata": {"name": "a", "labels": {"x": "y"}}, "spec": {"serial": 2}})
                await _until(lambda: reflector.objects["default", "a"].metadata.labels == {"x": "y"})
                assert recorder.reports == 2

    asyncio.run(main())


@pytest.mark.parametrize("streams_lists", [True, False])
def test_an_object_that_cannot_be_decoded_stops_no_other(streams_lists: bool) -> None:
    """It keeps its last good state; without one it is taken as it is. What is wrong is said until it is mended."""

    async def main() -> None:
        async with FakeApiServer() as server:
            server.streams_lists = streams_lists
            await server.put_thing("good")
            await server.put("things", {"metadata": {"name": "bad", "labels": {"a": 1}}, "spec": {"serial": 7}})
            recorder = Recorder()
            async with _following(server, recorder) as reflector:
                await _until(lambda: reflector.complete.is_set())
                assert recorder.state == {"good": 1, "bad": 7}
                assert reflector.objects["default", "bad"].metadata.labels == {"a": 1}
                assert "labels" in reflector.faults["default", "bad"]
                # A good one becomes bad, and others go on.
                await server.put("things", {"metadata": {"name": "good", "namespace": "n", "labels": []}})
                await server.put_thing("later")
                await _until(lambda: "later" in recorder.state)
                assert recorder.state["good"] == 1
                assert set(reflector.faults) == {("default", "bad"), ("n", "good")}
                # Mended, and gone.
                await server.put_thing("good")
                await server.delete("things", "default", "bad")
                await _until(lambda: recorder.state == _serials(server))
                assert not reflector.faults

    asyncio.run(main())


@pytest.mark.parametrize("streams_lists", [True, False])
def test_deep_nesting_stops_no_reflector(streams_lists: bool) -> None:
    """Whoever may write an object may nest what nobody reads as deeply as the API server allows."""

    async def main() -> None:
        async with FakeApiServer() as server:
            server.streams_lists = streams_lists
            deep = {"metadata": {"name": "deep", "managedFields": DEEP}, "spec": {"serial": 3}}
            await server.put("things", deep)
            await server.put("things", {"metadata": {"name": "abyss"}, "spec": {"serial": 4, "more": DEEP}})
            recorder = Recorder()
            async with _following(server, recorder) as reflector:
                await _until(lambda: reflector.complete.is_set())
                await server.put("things", {**deep, "spec": {"serial": 5}})
                await _until(lambda: recorder.state.get("deep") == 5)
                assert ("default", "deep") not in reflector.faults

    asyncio.run(main())


def test_a_watch_goes_on_from_the_last_bookmark() -> None:
    """The last event of a kind that changes rarely is forgotten by the server, and the bookmark is not."""

    async def main() -> None:
        async with FakeApiServer(kinds=(FAKE_THING, FakeKind("", "v1", "Other", "others"))) as server:
            await server.put_thing("thing")
            recorder = Recorder()
            async with _following(server, recorder) as reflector:
                await _until(lambda: bool(recorder.state))
                # Other kinds change: the version goes up, and the server forgets what was before.
                for _ in range(100):
                    await server.put("others", {"metadata": {"name": "other"}})
                await _until(lambda: reflector._version == str(server.version))
                server.compact()
                before = len(server.requests)
                await _until(lambda: any("watch=true" in target for target in server.requests[before:]))
                await server.put_thing("thing")
                await _until(lambda: recorder.state == _serials(server))
                lists = [target for target in server.requests[before:] if "sendInitialEvents" in target]
                assert lists == [], "nothing has to be listed again"
                assert int(_query(_watches(server)[-1])["resourceVersion"]) > 100

    asyncio.run(main())


def test_a_watch_that_falls_silent_is_opened_again() -> None:
    """The connection stays open and nothing comes, as behind a network that lost it: only the clock shows it."""

    async def main() -> None:
        async with FakeApiServer() as server:
            await server.put_thing("thing")
            events_from, silent = server._events_from, 0

            async def events(*arguments: Any) -> None:
                nonlocal silent
                if recorder.state and silent < 2:
                    silent += 1
                    await asyncio.sleep(3600)
                await events_from(*arguments)

            server._events_from = events  # type: ignore[assignment,method-assign]
            recorder = Recorder()
            async with _following(server, recorder, timing=msgspec.structs.replace(HASTE, watch=(1, 1))):
                await _until(lambda: silent == 2)
                await server.put_thing("another")
                await _until(lambda: recorder.state == _serials(server))

    asyncio.run(main())

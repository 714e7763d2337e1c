"""The parts of every serving process: health, metrics, a decision log, and watched manifests."""

from __future__ import annotations

import asyncio
import io
import json
import os
import socket
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from pathlib import Path

import httpx
import pytest
from starlette.routing import Route

from tests.labs.waiting import PATIENCE_S
from tierwall.core.diagnostics import InputError
from tierwall.resources.load import Loader, LoadResult
from tierwall.serve.decisionlog import MAX_STRING, DecisionLog
from tierwall.serve.files import FileSource
from tierwall.serve.pages import HttpServer, Readiness, RunMetrics, health
from tierwall.serve.server import bind

NAMESPACE = "apiVersion: v1\nkind: Namespace\nmetadata: {name: NAME}\n"


async def loads(loader: Loader, stop: asyncio.Event) -> AsyncGenerator[LoadResult, None]:
    """Yield what is read whenever files may have changed, if it differs."""
    files = FileSource(loader)
    async with aclosing(files.changes(stop)) as changes:
        async for _ in changes:
            loaded = await asyncio.to_thread(files.read)
            if loaded is not None:
                yield loaded


def test_readiness_names_every_check_that_does_not_hold() -> None:
    async def main() -> None:
        checks, metrics = {"good": lambda: Readiness(True)}, RunMetrics()
        metrics.decisions.labels("tool", "Allow", "AccessPolicy/a/b", "rules[0]", "pay").inc()
        server = HttpServer([*health(checks), Route("/metrics", metrics.page)])
        port = await server.start("127.0.0.1", 0)
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client:
            assert (await client.get("/healthz")).text == "ok\n"
            assert (await client.get("/readyz")).status_code == 200
            checks["bad"] = lambda: Readiness(False, "not yet")
            answer = await client.get("/readyz")
            assert answer.status_code == 503
            assert answer.json()["bad"] == {"ready": False, "message": "not yet"}
            page = (await client.get("/metrics")).text
            labels = 'name="pay",plane="tool",policy="AccessPolicy/a/b",rule="rules[0]",verdict="Allow"'
            assert f"tierwall_decisions_total{{{labels}}} 1.0" in page
        await server.stop()

    asyncio.run(main())


def test_a_port_in_use_is_reported() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(InputError) as caught:
            bind("127.0.0.1", port)
    [problem] = caught.value.diagnostics
    assert problem.code == "TW631"
    assert problem.message == f"cannot listen on `127.0.0.1:{port}`: Address already in use"


def test_the_decision_log_has_one_object_per_line_and_cuts_long_values(tmp_path: Path) -> None:
    log = DecisionLog.open(str(tmp_path / "log"))
    log.write({"verdict": "Deny", "tool": "x" * 10_000})
    log.write({"verdict": "Allow", "tool": "line\nbreak"})
    log.close()
    first, second = (json.loads(line) for line in (tmp_path / "log").read_text().splitlines())
    assert len(first["tool"]) == MAX_STRING + 1
    assert second == {"verdict": "Allow", "tool": "line\nbreak"}


def test_a_decision_log_that_cannot_be_written_is_reported(tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        DecisionLog.open(str(tmp_path / "no" / "log"))
    assert caught.value.diagnostics[0].code == "TW634"


def names_in(loaded: LoadResult) -> list[str]:
    return [resource.name for resource in loaded.resources]


def test_watching_yields_the_manifests_and_every_change_even_a_broken_one(tmp_path: Path) -> None:
    async def main() -> None:
        stop = asyncio.Event()
        (tmp_path / "a.yaml").write_text(NAMESPACE.replace("NAME", "a"))
        watched = aiter(loads(Loader([str(tmp_path)]), stop))
        first = await asyncio.wait_for(anext(watched), PATIENCE_S)
        assert names_in(first) == ["a"]
        (tmp_path / "b.yaml").write_text(NAMESPACE.replace("NAME", "b"))
        second = await asyncio.wait_for(anext(watched), PATIENCE_S)
        assert sorted(names_in(second)) == ["a", "b"]
        (tmp_path / "b.yaml").write_text("kind: [")
        third = await asyncio.wait_for(anext(watched), PATIENCE_S)
        assert [diagnostic.severity for diagnostic in third.diagnostics] == ["error"]
        (tmp_path / "b.yaml").unlink()
        fourth = await asyncio.wait_for(anext(watched), PATIENCE_S)
        assert names_in(fourth) == ["a"]
        stop.set()
        assert await asyncio.wait_for(anext(watched, None), PATIENCE_S) is None

    asyncio.run(main())


def test_a_file_that_an_editor_replaces_is_read_again_and_its_neighbours_are_not(tmp_path: Path) -> None:
    async def main() -> None:
        stop = asyncio.Event()
        path = tmp_path / "a.yaml"
        path.write_text(NAMESPACE.replace("NAME", "a"))
        watched = aiter(loads(Loader([str(path)]), stop))
        assert names_in(await asyncio.wait_for(anext(watched), PATIENCE_S)) == ["a"]
        for name in ("b", "c"):
            (tmp_path / "neighbour.yaml").write_text("kind: [")
            other = tmp_path / "new"
            other.write_text(NAMESPACE.replace("NAME", name))
            other.replace(path)
            loaded = await asyncio.wait_for(anext(watched), PATIENCE_S)
            assert names_in(loaded) == [name]
            assert not loaded.diagnostics
        stop.set()
        assert await asyncio.wait_for(anext(watched, None), PATIENCE_S) is None

    asyncio.run(main())


def test_only_changes_to_files_that_are_read_give_a_load(tmp_path: Path) -> None:
    folder = tmp_path / "node_modules" / ".venv" / "manifests"
    (folder / ".git").mkdir(parents=True)
    (folder / "twice.yaml").write_text("---\n".join([NAMESPACE, NAMESPACE]))
    (folder / "link.yaml").symlink_to(".git/linked")
    (folder / ".git" / "linked").write_text(NAMESPACE.replace("NAME", "linked"))

    async def main() -> None:
        stop = asyncio.Event()
        watched = aiter(loads(Loader([str(folder)]), stop))
        assert names_in(await asyncio.wait_for(anext(watched), PATIENCE_S)) == ["linked", "NAME", "NAME"]
        (folder / ".git" / "index").write_text("x")
        (folder / "twice.yaml").touch()
        following = asyncio.ensure_future(anext(watched))
        done, _ = await asyncio.wait([following], timeout=0.3)
        assert not done
        (folder / ".git" / "new").write_text(NAMESPACE.replace("NAME", "other"))
        (folder / ".git" / "new").replace(folder / ".git" / "linked")
        assert names_in(await asyncio.wait_for(following, PATIENCE_S)) == ["other", "NAME", "NAME"]
        stop.set()
        assert await asyncio.wait_for(anext(watched, None), PATIENCE_S) is None

    asyncio.run(main())


def test_a_mounted_config_map_is_read_again_when_its_link_is_switched(tmp_path: Path) -> None:
    def version(name: str, *objects: str) -> None:
        (tmp_path / name).mkdir()
        for namespace in objects:
            (tmp_path / name / f"{namespace[0]}.yaml").write_text(NAMESPACE.replace("NAME", namespace))
        (tmp_path / "..data_tmp").symlink_to(name)
        (tmp_path / "..data_tmp").replace(tmp_path / "..data")

    async def main() -> None:
        stop = asyncio.Event()
        version("..v1", "a1", "b1")
        for name in "ab":
            (tmp_path / f"{name}.yaml").symlink_to(f"..data/{name}.yaml")
        watched = aiter(loads(Loader([str(tmp_path)]), stop))
        first = await asyncio.wait_for(anext(watched), PATIENCE_S)
        assert names_in(first) == ["a1", "b1"]
        version("..v2", "a1", "b2")
        second = await asyncio.wait_for(anext(watched), PATIENCE_S)
        while names_in(second) != ["a1", "b2"]:
            second = await asyncio.wait_for(anext(watched), PATIENCE_S)
        # The file is another one, but its content is the same, and so is the object.
        assert second.resources[0] is first.resources[0]
        stop.set()
        assert await asyncio.wait_for(anext(watched, None), PATIENCE_S) is None

    asyncio.run(main())


def test_a_folder_that_disappears_returns_or_is_replaced_stays_watched(tmp_path: Path) -> None:
    folder = tmp_path / "manifests"

    def fill(name: str, at: Path = folder) -> None:
        at.mkdir(exist_ok=True)
        (at / "a.yaml").write_text(NAMESPACE.replace("NAME", name))

    async def main() -> None:
        stop = asyncio.Event()
        fill("first")
        watched = aiter(loads(Loader([str(folder)]), stop))

        async def until(*names: str) -> None:
            async with asyncio.timeout(20):
                while names_in(await anext(watched)) != list(names):
                    pass

        await until("first")
        folder.rename(tmp_path / "old")
        async with asyncio.timeout(20):
            while not (lost := (await anext(watched)).lost):
                pass
        assert [problem.code for problem in lost] == ["TW011"], "what was in the folder stays in force"
        fill("second")
        await until("second")
        fill("third", tmp_path / "new")
        folder.rename(tmp_path / "older")
        (tmp_path / "new").rename(folder)
        await until("third")
        fill("fourth")
        await until("fourth")
        stop.set()
        assert await asyncio.wait_for(anext(watched, None), PATIENCE_S) is None

    asyncio.run(main())


def test_files_are_polled_where_nothing_can_be_watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(28, "OS file watch limit reached")

    monkeypatch.setattr("watchfiles.main.RustNotify", refuse)
    monkeypatch.setattr("tierwall.serve.watch.UNWATCHED_POLL_SECONDS", 0.1)

    async def main() -> None:
        stop = asyncio.Event()
        path = tmp_path / "a.yaml"
        path.write_text(NAMESPACE.replace("NAME", "a"))
        for paths in ([str(tmp_path)], [str(path)]):
            watched = loads(Loader(paths), stop)
            for name in "bc":
                await asyncio.wait_for(anext(watched), PATIENCE_S)
                path.write_text(NAMESPACE.replace("NAME", name))
            assert names_in(await asyncio.wait_for(anext(watched), PATIENCE_S)) == ["c"]
            await watched.aclose()
        assert not stop.is_set()

    asyncio.run(main())


def test_standard_input_is_part_of_every_load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Stdin:
        buffer = io.BytesIO(NAMESPACE.replace("NAME", "piped").encode())

    monkeypatch.setattr("sys.stdin", Stdin())

    async def main() -> None:
        stop = asyncio.Event()
        watched = aiter(loads(Loader(["-", str(tmp_path)]), stop))
        first = await asyncio.wait_for(anext(watched), PATIENCE_S)
        assert names_in(first) == ["piped"]
        (tmp_path / "a.yaml").write_text(NAMESPACE.replace("NAME", "a"))
        second = await asyncio.wait_for(anext(watched), PATIENCE_S)
        assert names_in(second) == ["piped", "a"]
        stop.set()
        assert await asyncio.wait_for(anext(watched, None), PATIENCE_S) is None

    asyncio.run(main())


@pytest.mark.parametrize("link", [os.link, os.symlink])
def test_a_change_through_another_name_of_a_file_is_noticed_in_time(
    tmp_path: Path, link: Callable[[Path, Path], None]
) -> None:
    folder, other = tmp_path / "manifests", tmp_path / "other.yaml"
    folder.mkdir()
    other.write_text(NAMESPACE.replace("NAME", "first"))
    link(other, folder / "a.yaml")

    async def main() -> None:
        stop = asyncio.Event()
        watched = aiter(loads(Loader([str(folder / "a.yaml")]), stop))
        assert names_in(await anext(watched)) == ["first"]
        other.write_text(NAMESPACE.replace("NAME", "second"))
        # No system reports this change; looking every ten seconds would be too late for a revocation.
        async with asyncio.timeout(5):
            while names_in(await anext(watched)) != ["second"]:
                pass
        stop.set()

    asyncio.run(main())

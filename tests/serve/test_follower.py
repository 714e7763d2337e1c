"""How a load comes into force in any engine, with a source and an engine that do as they are told."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from examples.agents import certificates
from tests import ROOT
from tests.worlds.gateway_objects import gateway
from tests.worlds.network_objects import admin, rule
from tests.worlds.newer_definitions import newer
from tierwall.core.diagnostics import Diagnostic, InputError
from tierwall.engines.envoy.config.compile import XdsResources
from tierwall.engines.envoy.config.options import EnvoyOptions
from tierwall.resources.load import Loader, LoadResult, load_text
from tierwall.resources.snapshot import Snapshot
from tierwall.serve.envoy import EnvoyController
from tierwall.serve.files import FileSource
from tierwall.serve.follower import Follower, Load, LoadOutcome, PreparedState
from tierwall.serve.pages import RunMetrics

TAKEN, UNCHANGED, REFUSED = LoadOutcome.TAKEN, LoadOutcome.UNCHANGED, LoadOutcome.REFUSED


def namespaces(*names: str) -> LoadResult:
    """Return a load with these namespaces. An API server refuses names with capital letters."""
    objects = (f"apiVersion: v1\nkind: Namespace\nmetadata: {{name: {name}}}\n" for name in names)
    return load_text("---\n".join(objects), "namespaces.yaml")


class Told:
    """A source with prepared readings. It raises those that are exceptions; None stands for no change."""

    def __init__(self, *readings: LoadResult | Exception | None) -> None:
        self._readings = list(readings)

    def read(self) -> LoadResult | None:
        reading = self._readings.pop(0)
        if isinstance(reading, Exception):
            raise reading
        return reading

    async def changes(self, stop: asyncio.Event) -> AsyncGenerator[None, None]:
        while self._readings and not stop.is_set():
            yield

    def nudge(self) -> None:
        raise AssertionError


class Names(Follower[list[str]]):
    """An engine that obeys the names of objects. `spoil` says what fails when some are prepared or enforced."""

    def __init__(self, count: Callable[[Load[list[str]]], None] | None = None, **spoil: Exception | str) -> None:
        super().__init__(count)
        self.obeyed: list[str] = []
        self.spoil = spoil

    def prepare(self, snapshot: Snapshot) -> PreparedState[list[str]]:
        names = [resource.name for resource in snapshot]
        noticed: tuple[Diagnostic, ...] = ()
        for name in names:
            match self.spoil.get(f"prepare_{name}"):
                case Exception() as error:
                    raise error
                case str() as code:
                    noticed = (Diagnostic(code, "noticed"),)
        return PreparedState(names, noticed)

    def enforce(self, load: Load[list[str]]) -> bool:
        assert load.state is not None
        for name in load.state:
            if isinstance(error := self.spoil.get(f"enforce_{name}"), Exception):
                raise error
        changed = load.state != self.obeyed
        self.obeyed = load.state
        return changed


def outcomes(follower: Names, source: Any) -> list[tuple[LoadOutcome | None, list[str]]]:
    """Follow a source; return the outcome of each load, and what was obeyed then."""

    async def main() -> list[tuple[LoadOutcome | None, list[str]]]:
        return [(load.outcome, follower.obeyed) async for load in follower.follow(source, asyncio.Event())]

    return asyncio.run(main())


def test_good_loads_are_taken_and_without_changes_there_is_no_load() -> None:
    follower = Names()
    seen = outcomes(follower, Told(namespaces("a"), None, namespaces("a", "b"), None, namespaces("b", "a")))
    assert seen[:2] == [(TAKEN, ["a"]), (TAKEN, ["a", "b"])]
    assert len(seen) == 3
    assert follower.in_force is follower.newest
    assert follower.refusal == ()


def test_a_load_is_taken_if_the_definitions_in_it_admit_what_tierwall_does_not_know() -> None:
    policy = admin("a", rule("Deny"), colour="red")
    objects = [newer("Gateway"), newer("AdminNetworkPolicy"), gateway(colour="red"), policy]
    follower = Names()
    load = load_text(yaml.safe_dump_all(objects), "objects.yaml")
    unexplained = load_text(yaml.safe_dump_all(objects[1:]), "objects.yaml")
    assert [outcome for outcome, _ in outcomes(follower, Told(load))] == [TAKEN]
    assert follower.in_force is not None
    assert [diagnostic.code for diagnostic in follower.in_force.diagnostics] == ["TW111", "TW111", "TW114", "TW112"]
    outcomes(follower, Told(unexplained))
    assert "TW101" in [diagnostic.code for diagnostic in follower.in_force.diagnostics]


def test_a_load_equal_to_the_one_in_force_is_unchanged() -> None:
    follower = Names()
    assert [outcome for outcome, _ in outcomes(follower, Told(namespaces("a"), namespaces("a")))] == [TAKEN, UNCHANGED]
    assert follower.outcomes == {TAKEN: 0, UNCHANGED: 1, REFUSED: 0}


@pytest.mark.parametrize(
    ("bad", "code"),
    [
        (load_text("kind: [", "broken.yaml"), "TW002"),
        (namespaces("unprepared"), "TW603"),
        (namespaces("unforeseen"), "TW635"),
        (namespaces("unenforced"), "TW604"),
        (InputError([Diagnostic("TW001", "the source is away")]), "TW001"),
        (OSError("the source broke"), "TW635"),
    ],
)
def test_a_bad_load_changes_nothing_and_the_next_good_one_counts(bad: LoadResult | Exception, code: str) -> None:
    follower = Names(
        prepare_unprepared=InputError([Diagnostic("TW603", "cannot be prepared")]),
        prepare_unforeseen=KeyError("a mistake"),
        enforce_unenforced=InputError([Diagnostic("TW604", "the engine refuses")]),
    )
    good = namespaces("a")
    troubles = []

    async def main() -> None:
        async for load in follower.follow(Told(good, bad, bad, namespaces("b")), asyncio.Event()):
            troubles.append([problem.code for problem in follower.refusal])
            assert follower.obeyed == (["b"] if len(troubles) == 4 else ["a"])
            if load.outcome is REFUSED:
                assert follower.in_force is not None
                assert follower.in_force.loaded is good
                assert load.state is None

    asyncio.run(main())
    assert troubles == [[], [code], [code], []]
    assert follower.obeyed == ["b"]
    assert follower.outcomes == {TAKEN: 1, UNCHANGED: 0, REFUSED: 2}


@pytest.mark.parametrize(
    ("bad", "names", "code"),
    [
        (
            load_text("just: text\n---\n{apiVersion: v1, kind: Namespace, metadata: {name: b}}", "a.yaml"),
            ["b"],
            "TW006",
        ),
        (namespaces("b", "Refused"), ["b", "Refused"], "TW105"),
        (namespaces("warned"), ["warned"], "TW652"),
        (namespaces("noticed"), ["noticed"], "TW653"),
    ],
)
def test_an_error_of_one_object_is_reported_and_keeps_nothing_out(bad: LoadResult, names: list[str], code: str) -> None:
    for readings in ((bad,), (namespaces("a"), bad)):
        follower = Names(prepare_warned="TW652", prepare_noticed="TW653")
        assert outcomes(follower, Told(*readings))[-1] == (TAKEN, names)
        assert follower.in_force is not None
        assert [problem.code for problem in follower.in_force.diagnostics] == [code]
        assert follower.refusal == ()


def test_a_start_with_a_bad_load_fails_with_everything_that_is_wrong() -> None:
    for bad in (load_text("kind: [\n---\njust: text", "two.yaml"), namespaces("unenforced")):
        follower = Names(enforce_unenforced=InputError([Diagnostic("TW604", "one"), Diagnostic("TW604", "two")]))
        for start in (lambda source, started=follower: outcomes(started, source), follower.begin):
            with pytest.raises(InputError) as caught:
                start(Told(bad, namespaces("a")))
            assert len(caught.value.diagnostics) == 2
            assert caught.value.read is bad
            assert follower.in_force is None
            assert follower.obeyed == []


def test_an_unexpected_error_at_the_start_is_raised_as_it_is() -> None:
    with pytest.raises(KeyError, match="a mistake"):
        Names(prepare_a=KeyError("a mistake")).begin(Told(namespaces("a")))
    with pytest.raises(OSError, match="the source broke"):
        Names().begin(Told(OSError("the source broke")))


def test_an_unexpected_error_names_its_place() -> None:
    follower = Names(prepare_b=KeyError("a mistake"))
    outcomes(follower, Told(namespaces("a"), namespaces("b")))
    [problem] = follower.refusal
    assert problem.message.startswith("unexpected KeyError at test_follower.py:")
    assert problem.message.endswith(": 'a mistake'")


def test_an_unexpected_error_while_objects_are_checked_keeps_the_load_out(monkeypatch: pytest.MonkeyPatch) -> None:
    follower = Names()
    follower.begin(Told(namespaces("a")))

    def fails(loaded: LoadResult) -> None:
        raise KeyError("a mistake")

    monkeypatch.setattr("tierwall.serve.follower.problems", fails)
    assert outcomes(follower, Told(namespaces("b"))) == [(REFUSED, ["a"])]
    assert [problem.code for problem in follower.refusal] == ["TW635"]


def test_a_burst_of_changes_is_read_as_often_as_there_is_time_and_ends_in_the_last() -> None:
    class Burst(Told):
        """A source whose changes arrive while a load is prepared; the next reading has all of them."""

        reads = 0
        now = 0

        def __init__(self) -> None:
            self.heard = asyncio.Event()

        def read(self) -> LoadResult | None:
            self.reads += 1
            return namespaces(f"n{self.now}")

        async def changes(self, stop: asyncio.Event) -> AsyncGenerator[None, None]:
            yield
            while self.now < 1000:
                await self.heard.wait()
                self.heard.clear()
                yield

    async def main() -> tuple[Names, Burst]:
        follower, source = Names(), Burst()

        async def edit() -> None:
            for number in range(1, 1001):
                source.now = number
                source.heard.set()
                if number % 100 == 0:
                    await asyncio.sleep(0.005)

        editing = asyncio.create_task(edit())
        async for load in follower.follow(source, asyncio.Event()):
            assert load.outcome is TAKEN or load.outcome is UNCHANGED
        await editing
        return follower, source

    follower, source = asyncio.run(main())
    assert follower.obeyed == ["n1000"]
    assert source.reads < 100


def test_a_source_that_ends_leaves_the_last_load_in_force() -> None:
    class Ending(Told):
        async def changes(self, stop: asyncio.Event) -> AsyncGenerator[None, None]:
            yield
            raise OSError("no more")

    follower = Names()
    with pytest.raises(OSError, match="no more"):
        outcomes(follower, Ending(namespaces("a")))
    assert follower.obeyed == ["a"]


def test_loads_are_counted() -> None:
    metrics = RunMetrics()
    outcomes(Names(metrics.count), Told(namespaces("a"), load_text("kind: [", "broken.yaml"), namespaces("a", "b")))
    sample = metrics.registry.get_sample_value
    assert sample("tierwall_loads_total", {"outcome": "good"}) == 2
    assert sample("tierwall_loads_total", {"outcome": "broken"}) == 1
    assert sample("tierwall_load_seconds_count") == 2
    assert sample("tierwall_objects") == 2


def test_envoys_obey_the_last_readable_version_of_a_broken_file_and_all_that_compiles(tmp_path: Path) -> None:
    folder = tmp_path / "manifests"
    shutil.copytree(ROOT / "examples" / "agents" / "manifests", folder)
    authority = certificates.Authority()
    tls = certificates.manifests(authority, authority.server("localhost"))
    (folder / "tls.yaml").write_text(tls)
    orders = (folder / "orders.yaml").read_text()
    published: list[XdsResources] = []
    metrics = RunMetrics()
    controller, files = (
        EnvoyController(EnvoyOptions(), published.append, metrics.count),
        FileSource(Loader([str(folder)])),
    )
    controller.begin(files)

    def edit(name: str, text: str) -> LoadOutcome:
        (folder / name).write_text(text)
        load = controller.next_load(files)
        assert load is not None
        return controller.accept(load)

    [first] = published
    assert first.routes
    for text in ("kind: [", "", orders):
        assert edit("orders.yaml", text) is TAKEN
        routes = published[-1].routes
        assert all(routes[name] is before for name, before in first.routes.items()), "a broken file keeps what it had"
    (folder / "tls.yaml").unlink()
    assert edit("orders.yaml", orders) is TAKEN
    assert {diagnostic.code for diagnostic in published[-1].diagnostics} == {"TW653"}
    assert not published[-1].listeners, "a listener without its certificate is not opened"
    assert edit("tls.yaml", tls) is TAKEN
    assert published[-1].listeners.keys() == first.listeners.keys()
    assert metrics.registry.get_sample_value("tierwall_loads_total", {"outcome": "broken"}) is None

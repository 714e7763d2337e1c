"""Files that are broken, empty, half written or gone: what counts of them, in any engine."""

from __future__ import annotations

import asyncio
import os
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from tests.labs.authorizer_server import Clock
from tests.labs.waiting import PATIENCE_S
from tierwall.core.diagnostics import InputError
from tierwall.resources.load import Loader
from tierwall.resources.settling import GROWING_S, LONGEST_S, QUIET_S
from tierwall.resources.snapshot import Snapshot
from tierwall.serve.files import FileSource
from tierwall.serve.follower import Follower, Load, PreparedState
from tierwall.serve.retention import EMPTY_S
from tierwall.serve.state import StateFolder

FILES = ("a.yaml", "b.yaml", "c.yaml")
BROKEN = ("kind: [", "a: b: c", "\x00", "kind: Namespace\n---\n}")
EMPTY = ("", " \n", "# nothing\n", "---\n---\n")


def namespaces(*names: str, version: int = 0) -> str:
    """Return the text of namespaces with a version as label."""
    text = "---\napiVersion: v1\nkind: Namespace\nmetadata:\n  name: {}\n  labels: {{v: 'v{}'}}\n"
    return "".join(text.format(name, version) for name in names)


class Labels(Follower[dict[str, str]]):
    """An engine that obeys the version of each namespace."""

    def __init__(self) -> None:
        super().__init__()
        self.obeyed: dict[str, str] = {}
        self.history: list[dict[str, str]] = []

    def prepare(self, snapshot: Snapshot) -> PreparedState[dict[str, str]]:
        return PreparedState(
            {resource.name: resource.labels.get("v", "") for resource in snapshot if resource.kind == "Namespace"}
        )

    def enforce(self, load: Load[dict[str, str]]) -> bool:
        assert load.state is not None
        self.obeyed = load.state
        self.history.append(load.state)
        return True


class Folder:
    """A folder, the source that reads it, and what an engine obeys."""

    def __init__(self, path: Path, state: StateFolder | None = None, *, settles: bool = False) -> None:
        self.path, self.clock, self.engine = path, Clock(), Labels()
        self.source = FileSource(Loader([str(path)]), None, state, self.clock)
        self.engine.begin(self.source)
        if settles:
            self.source.changes(asyncio.Event())

    def write(self, name: str, text: str) -> dict[str, str]:
        """Write a file, and return what is obeyed then."""
        (self.path / name).write_text(text)
        return self.obeyed()

    def wait(self, seconds: float) -> dict[str, str]:
        """Let time pass, and return what is obeyed then."""
        self.clock.now += seconds
        return self.obeyed()

    def obeyed(self) -> dict[str, str]:
        """Read, and return what is obeyed then."""
        load = self.engine.next_load(self.source)
        if load is not None:
            self.engine.accept(load)
        return self.engine.obeyed

    def codes(self) -> list[str]:
        """Return the codes that were reported last."""
        assert self.engine.newest is not None
        return [diagnostic.code for diagnostic in self.engine.newest.diagnostics]


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    manifests = tmp_path / "manifests"
    manifests.mkdir()
    (manifests / "a.yaml").write_text(namespaces("a", "b"))
    (manifests / "z.yaml").write_text(namespaces("z"))
    return Folder(manifests)


@pytest.mark.parametrize(
    "text",
    [
        "{{- if .Values.on }}\nkind: Namespace\n{{- end }}\n",
        "metadata: {name: a}\n",
        "resources: [a.yaml]\n",
        "- a\n",
        "apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\n",
    ],
)
def test_objects_that_turn_into_something_else_stay(folder: Folder, text: str) -> None:
    assert folder.write("a.yaml", text) == {"a": "v0", "b": "v0", "z": "v0"}
    assert "TW010" in folder.codes()
    assert folder.wait(1000) == {"a": "v0", "b": "v0", "z": "v0"}
    assert folder.write("a.yaml", namespaces("b", version=1)) == {"b": "v1", "z": "v0"}


def test_a_form_that_was_there_before_is_no_lost_object(folder: Folder) -> None:
    text = "---\nservices: {web: {image: nginx}}\n"
    assert folder.write("a.yaml", namespaces("a", "b") + text) == {"a": "v0", "b": "v0", "z": "v0"}
    assert folder.write("a.yaml", namespaces("a") + text) == {"a": "v0", "z": "v0"}
    assert "TW010" not in folder.codes()
    assert folder.write("values.yaml", "replicas: 1\n") == {"a": "v0", "z": "v0"}
    assert folder.write("t.yaml", "{{ a }}: [\n") == {"a": "v0", "z": "v0"}
    assert folder.engine.refusal == ()


def test_a_file_that_is_left_out_counts_as_removed(folder: Folder) -> None:
    assert folder.write(".tierwallignore", "a.yaml\n") == {"z": "v0"}
    assert folder.write(".tierwallignore", "") == {"a": "v0", "b": "v0", "z": "v0"}
    assert folder.write(".tierwallignore", "*x*\n" * 5000) == {"a": "v0", "b": "v0", "z": "v0"}
    assert "TW011" in folder.codes()


def test_a_changed_ignore_file_counts_when_it_has_settled(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(namespaces("a", "b"))
    folder = Folder(tmp_path, settles=True)
    assert folder.write(".tierwallignore", "*\n") == {"a": "v0", "b": "v0"}
    assert folder.wait(0.2) == {"a": "v0", "b": "v0"}, "the file that is gone settles in its turn"
    assert folder.wait(0.2) == {}


@pytest.mark.parametrize("text", BROKEN)
def test_a_file_that_cannot_be_parsed_keeps_its_objects_and_holds_up_nothing_else(folder: Folder, text: str) -> None:
    assert folder.write("a.yaml", text) == {"a": "v0", "b": "v0", "z": "v0"}
    assert "TW010" in folder.codes()
    assert folder.engine.refusal == ()
    assert folder.write("z.yaml", namespaces("x")) == {"a": "v0", "b": "v0", "x": "v0"}
    assert folder.wait(1000) == {"a": "v0", "b": "v0", "x": "v0"}, "however long it takes"
    assert folder.write("a.yaml", namespaces("b", version=1)) == {"b": "v1", "x": "v0"}
    assert folder.codes() == []
    folder.write("a.yaml", text)
    (folder.path / "a.yaml").unlink()
    assert folder.obeyed() == {"x": "v0"}
    assert folder.codes() == []


def test_the_diagnostic_names_the_file_the_fault_and_the_time(folder: Folder) -> None:
    folder.write("a.yaml", "kind: [")
    assert folder.engine.newest is not None
    [problem] = folder.engine.newest.diagnostics
    assert problem.at is not None
    assert problem.at.file.endswith("a.yaml")
    assert problem.message.startswith("expected a value, found the end of the document; since 20")
    assert problem.message.endswith("Z its last readable version counts")
    assert folder.engine.next_load(folder.source) is None, "the time stays, so nothing has changed"


@pytest.mark.parametrize("text", EMPTY)
def test_a_file_that_is_suddenly_empty_keeps_its_objects_for_five_seconds(folder: Folder, text: str) -> None:
    assert folder.write("a.yaml", text) == {"a": "v0", "b": "v0", "z": "v0"}
    assert folder.codes() == ["TW012"]
    assert folder.wait(EMPTY_S - 0.1) == {"a": "v0", "b": "v0", "z": "v0"}
    assert folder.wait(0.2) == {"z": "v0"}
    assert folder.codes() == []
    assert folder.write("a.yaml", "kind: [") == {"z": "v0"}, "it has been empty since"


def test_a_file_that_is_empty_and_then_whole_again_begins_anew(folder: Folder) -> None:
    for _ in range(3):
        assert len(folder.write("a.yaml", "")) == 3
        assert len(folder.wait(EMPTY_S - 1)) == 3
        assert len(folder.write("a.yaml", namespaces("a", "b"))) == 3


def test_a_file_that_never_was_readable_counts_as_absent(folder: Folder) -> None:
    assert folder.write("new.yaml", namespaces("new") + "---\nkind: [") == {"a": "v0", "b": "v0", "z": "v0"}
    assert folder.codes() == ["TW013"]
    assert folder.write("new.yaml", "{") == {"a": "v0", "b": "v0", "z": "v0"}
    assert folder.codes() == ["TW013"]
    assert folder.write("new.yaml", namespaces("new"))["new"] == "v0"


@pytest.mark.parametrize(
    "text",
    [
        "just: text\n",
        "- a list\n",
        "kind: NetworkPolicy\nmetadata: {name: b}\n",
        "apiVersion: v1\nkind: namespace\nmetadata: {name: b}\n",
        "apiVersion: v1\nkind: Namespace\nmetadata: {}\n",
        "apiVersion: v1\nkind: List\nitems: [{apiVersion: v1, kind: Namespace, metadata: {name: c}}, {}]\n",
    ],
)
def test_objects_whose_documents_are_no_objects_any_more_stay(folder: Folder, text: str) -> None:
    obeyed = folder.write("a.yaml", f"{namespaces('a', version=1)}---\n{text}")
    assert (obeyed["a"], obeyed["b"]) == ("v1", "v0"), "what is an object counts as it is now"
    assert "TW010" in folder.codes()
    assert folder.write("a.yaml", f"---\n{text}")["a"] == "v0", "as in the last good version"
    assert folder.write("a.yaml", namespaces("a", version=2)) == {"a": "v2", "z": "v0"}
    assert folder.codes() == []


def test_a_document_that_is_removed_counts_at_once_whatever_else_is_invalid(folder: Folder) -> None:
    invalid = "---\napiVersion: v1\nkind: Namespace\nmetadata: {name: a, labels: {v: v1}}\nspec: {nonsense: true}\n"
    assert folder.write("a.yaml", invalid) == {"a": "v1", "z": "v0"}


def test_a_renamed_file_is_a_removal_and_an_addition_in_one_load(folder: Folder) -> None:
    (folder.path / "a.yaml").rename(folder.path / "q.yaml")
    assert folder.obeyed() == {"a": "v0", "b": "v0", "z": "v0"}
    assert len(folder.engine.history) == 2


def test_a_file_without_permission_keeps_its_objects(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Any, *arguments: Any, **named: Any) -> Any:
        raise PermissionError(13, "Permission denied")

    folder.write("a.yaml", namespaces("a", "b", "c"))
    monkeypatch.setattr("tierwall.resources.read.open", refuse, raising=False)
    (folder.path / "z.yaml").unlink()
    assert len(folder.obeyed()) == 3
    assert folder.codes() == ["TW010"]


def test_a_file_that_is_replaced_by_what_cannot_be_read_keeps_its_objects(folder: Folder, tmp_path: Path) -> None:
    file = folder.path / "a.yaml"
    replacements: list[Callable[[], object]] = [
        lambda: file.symlink_to(tmp_path / "nowhere.yaml"),
        lambda: os.mkfifo(file),
        lambda: file.symlink_to(file),
    ]
    for put in replacements:
        file.unlink()
        put()
        assert len(folder.obeyed()) == 3
        assert folder.codes() == ["TW010"]
    file.unlink()
    assert folder.obeyed() == {"z": "v0"}


def test_a_folder_that_takes_the_name_of_a_file_is_no_file(folder: Folder) -> None:
    (folder.path / "a.yaml").unlink()
    (folder.path / "a.yaml").mkdir()
    assert folder.obeyed() == {"z": "v0"}


def test_a_named_folder_that_vanishes_keeps_its_files_and_is_not_ready(folder: Folder, tmp_path: Path) -> None:
    (folder.path / "z.yaml").unlink()
    shutil.move(folder.path, tmp_path / "elsewhere")
    assert folder.obeyed() == {"a": "v0", "b": "v0", "z": "v0"}
    assert [problem.code for problem in folder.engine.refusal] == ["TW011"]
    assert "2 files below it count as last read" in folder.engine.refusal[0].message
    shutil.move(tmp_path / "elsewhere", folder.path)
    assert folder.obeyed() == {"a": "v0", "b": "v0"}
    assert folder.engine.refusal == ()


def test_a_folder_inside_that_cannot_be_read_keeps_its_files(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder.path / "team").mkdir()
    assert len(folder.write("team/c.yaml", namespaces("c"))) == 4
    scan = os.scandir

    def refuse(path: Any) -> Any:
        if str(path).endswith("team"):
            raise PermissionError(13, "Permission denied")
        return scan(path)

    monkeypatch.setattr(os, "scandir", refuse)
    assert len(folder.write("z.yaml", "")) == 4
    assert "TW011" in folder.codes()
    assert folder.engine.refusal == (), "one team's folder must not take readiness from everybody"
    monkeypatch.undo()
    shutil.rmtree(folder.path / "team")
    assert "c" not in folder.obeyed()


def test_a_named_file_that_is_removed_counts_at_once(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / f"{name}.yaml").write_text(namespaces(name))
    engine, source = Labels(), FileSource(Loader([str(tmp_path / "a.yaml"), str(tmp_path / "b.yaml")]))
    engine.begin(source)
    (tmp_path / "b.yaml").unlink()
    load = engine.next_load(source)
    assert load is not None
    engine.accept(load)
    assert engine.obeyed == {"a": "v0"}
    assert [problem.code for problem in load.diagnostics] == ["TW013"]


class FileChanges(RuleBasedStateMachine):
    """Writes, truncates, breaks, removes and renames files; compares what is obeyed with the rule as it is written."""

    contents: st.SearchStrategy[tuple[str, frozenset[str]]] = st.one_of(
        st.tuples(st.just("good"), st.frozensets(st.sampled_from("pqr"), min_size=1)),
        st.tuples(st.just("junk"), st.frozensets(st.sampled_from("pqr"))),
        st.tuples(st.sampled_from(("broken", "empty")), st.just(frozenset())),
    )

    def __init__(self) -> None:
        super().__init__()
        import tempfile

        self.path = Path(tempfile.mkdtemp())
        self.folder = Folder(self.path)
        self.version = 0
        # What each file is now, and the reference: what counts of it, its last good version, when it was emptied.
        self.now: dict[str, tuple[str, dict[str, str]]] = {}
        self.counts: dict[str, dict[str, str]] = {}
        self.good: dict[str, dict[str, str]] = {}
        self.emptied: dict[str, float] = {}

    def teardown(self) -> None:
        shutil.rmtree(self.path)

    def texts(self, form: str, names: frozenset[str]) -> str:
        junk = {"junk": "---\njust: text\n", "broken": BROKEN[self.version % 4], "empty": EMPTY[self.version % 4]}
        return namespaces(*sorted(names), version=self.version) + junk.get(form, "")

    @rule(file=st.sampled_from(FILES), content=contents, in_place=st.booleans())
    def write(self, file: str, content: tuple[str, frozenset[str]], in_place: bool) -> None:
        self.version += 1
        form, names = content
        if in_place:
            (self.path / file).write_text(self.texts(form, names))
        else:
            (self.path / "new").write_text(self.texts(form, names))
            (self.path / "new").rename(self.path / file)
        self.now[file] = form, dict.fromkeys(names, f"v{self.version}")
        self.emptied.pop(file, None)

    @rule(file=st.sampled_from(FILES))
    def remove(self, file: str) -> None:
        (self.path / file).unlink(missing_ok=True)
        self.now.pop(file, None)

    @rule(file=st.sampled_from(FILES), to=st.sampled_from(FILES))
    def rename(self, file: str, to: str) -> None:
        if file in self.now and file != to:
            (self.path / file).rename(self.path / to)
            self.now[to] = self.now.pop(file)
            self.emptied.pop(to, None)

    @rule(seconds=st.sampled_from((1.0, 3.0, 6.0)))
    def wait(self, seconds: float) -> None:
        self.folder.clock.now += seconds

    @invariant()
    def obeys_the_rule(self) -> None:
        for file in FILES:
            if file not in self.now:
                for known in (self.counts, self.good, self.emptied):
                    known.pop(file, None)
                continue
            form, objects = self.now[file]
            if form == "empty" and self.counts.get(file):
                since = self.emptied.setdefault(file, self.folder.clock.now)
                if self.folder.clock.now - since < EMPTY_S:
                    continue
            if form == "broken":
                continue
            self.counts[file] = {**(self.good.get(file, {}) if form == "junk" else {}), **objects}
            if form != "junk":
                self.good[file] = objects
        expected: dict[str, str] = {}
        for file in FILES:
            expected |= self.counts.get(file, {})
        assert self.folder.obeyed() == expected


FileChanges.TestCase.settings = settings(max_examples=40, stateful_step_count=25, deadline=None)
TestFileChanges = FileChanges.TestCase

OLD, NEW = namespaces("deny", "grant"), namespaces("deny", "other", version=1)


@given(
    cuts=st.lists(st.integers(0, len(NEW) - 1), max_size=12, unique=True),
    pauses=st.lists(st.floats(0, QUIET_S - 0.01), min_size=14, max_size=14),
)
@settings(max_examples=60, deadline=None)
def test_a_file_that_is_written_in_parts_counts_only_when_it_is_whole(
    tmp_path_factory: pytest.TempPathFactory, cuts: list[int], pauses: list[float]
) -> None:
    path = tmp_path_factory.mktemp("parts")
    (path / "a.yaml").write_text(OLD)
    folder = Folder(path, settles=True)
    old, new = {"deny": "v0", "grant": "v0"}, {"deny": "v1", "other": "v1"}
    for size, pause in zip([0, *sorted(cuts)], pauses, strict=False):
        assert folder.write("a.yaml", NEW[:size]) == old
        assert folder.wait(pause) == old
    assert folder.write("a.yaml", NEW) == old
    assert folder.wait(QUIET_S) == new


def test_a_file_that_grows_slowly_counts_only_when_it_is_whole(folder: Folder) -> None:
    folder.source.changes(asyncio.Event())
    text = namespaces("a", "b", "c")
    for size in range(0, len(namespaces("a", "b")), 2):
        assert folder.write("a.yaml", text[:size])["b"] == "v0"
        folder.clock.now += 4.5 / len(text) * 2
    folder.write("a.yaml", text)
    assert folder.wait(QUIET_S)["c"] == "v0"


def test_a_writer_that_never_stops_is_taken_and_nothing_waits_for_it(folder: Folder) -> None:
    folder.source.changes(asyncio.Event())
    began = folder.clock.now
    seen = [folder.write("a.yaml", namespaces("a", "b", version=1))["a"]]
    folder.write("z.yaml", namespaces("x"))
    for version in range(2, 40):
        folder.clock.now += 0.05
        seen.append(folder.write("a.yaml", namespaces("a", "b", version=version))["a"])
        if folder.clock.now > began + QUIET_S + 0.01:
            assert "z" not in folder.engine.obeyed, "the other file has settled"
    assert len(set(seen)) > 1
    assert seen.index("v0") == 0
    assert seen.count("v0") <= LONGEST_S / 0.05 + 2


def test_a_file_that_is_rewritten_all_the_time_is_not_taken_halfway(folder: Folder) -> None:
    folder.source.changes(asyncio.Event())
    seen = set()
    for version in range(1, 100):
        text = namespaces("a", "b", version=version)
        for part in (text[: version * 7 % len(text)], text) if version % 3 == 0 else (text[: version * 7 % len(text)],):
            folder.clock.now += 0.04
            obeyed = folder.write("a.yaml", part)
            assert set(obeyed) == {"a", "b", "z"}
            assert obeyed["a"] == obeyed["b"]
            seen.add(obeyed["a"])
    assert len(seen) > 2, "whole versions count all the same"


def test_removing_a_document_counts_within_the_bound_though_it_looks_like_half_a_write(folder: Folder) -> None:
    folder.source.changes(asyncio.Event())
    assert "b" in folder.write("a.yaml", namespaces("a"))
    assert "b" in folder.wait(0.5), "the writer may only have paused"
    assert "b" not in folder.wait(0.5)
    assert GROWING_S > LONGEST_S


def test_a_file_is_removed_and_renamed_in_one_load_while_it_is_followed(folder: Folder) -> None:
    folder.source.changes(asyncio.Event())
    (folder.path / "a.yaml").unlink()
    assert len(folder.obeyed()) == 3
    assert folder.wait(QUIET_S) == {"z": "v0"}
    (folder.path / "z.yaml").rename(folder.path / "b.yaml")
    for _ in range(10):
        assert folder.wait(0.05) == {"z": "v0"}
    assert folder.codes() == []


def test_a_file_that_is_unlinked_and_created_again_is_never_gone(folder: Folder) -> None:
    folder.source.changes(asyncio.Event())
    for version in range(1, 10):
        (folder.path / "a.yaml").unlink()
        assert folder.wait(0.05)["a"] == f"v{version - 1}"
        folder.write("a.yaml", namespaces("a", "b", version=version))
        assert folder.wait(QUIET_S)["a"] == f"v{version}"


def followed(source: FileSource, edit: Callable[[], object], done: Callable[[Labels], bool]) -> Labels:
    """Follow a source while `edit` runs in a thread, until `done`."""

    async def main() -> Labels:
        engine, stop = Labels(), asyncio.Event()
        thread = threading.Thread(target=edit)
        end = time.monotonic() + PATIENCE_S

        async def watch() -> None:
            while not done(engine) or thread.is_alive():
                assert time.monotonic() < end, engine.obeyed
                await asyncio.sleep(0.02)
            stop.set()

        watching = None
        async for _ in engine.follow(source, stop):
            if watching is None:
                watching = asyncio.create_task(watch())
                thread.start()
        assert watching is not None
        await watching
        return engine

    return asyncio.run(main())


def test_a_hundred_rewrites_let_nothing_through(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text(namespaces("deny", "grant"))

    def rewrite() -> None:
        for number in range(1, 101):
            text = namespaces("deny", "grant", version=number)
            with path.open("w") as file:
                time.sleep(0.005)
                step = 1 if number % 10 == 0 else len(text) // 2 if number % 3 == 0 else len(text)
                for start in range(0, len(text), step):
                    file.write(text[start : start + step])
                    file.flush()
                    time.sleep(0.01 if step > 1 else 0)

    engine = followed(FileSource(Loader([str(tmp_path)])), rewrite, lambda engine: engine.obeyed.get("deny") == "v100")
    assert all(set(state) == {"deny", "grant"} for state in engine.history)


def test_a_file_that_stays_empty_counts_as_empty_though_nothing_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tierwall.serve.retention.EMPTY_S", 0.3)
    (tmp_path / "a.yaml").write_text(namespaces("a"))
    source = FileSource(Loader([str(tmp_path)]), 3600)
    engine = followed(source, lambda: (tmp_path / "a.yaml").write_text(""), lambda engine: not engine.obeyed)
    assert engine.history[0] == {"a": "v0"}


def test_a_mounted_config_map_is_swapped_at_once(tmp_path: Path) -> None:
    def publish(version: int) -> None:
        (tmp_path / f"..{version}").mkdir()
        (tmp_path / f"..{version}" / "a.yaml").write_text(namespaces("a", version=version))
        (tmp_path / "..new").symlink_to(f"..{version}")
        (tmp_path / "..new").rename(tmp_path / "..data")

    publish(0)
    (tmp_path / "a.yaml").symlink_to("..data/a.yaml")
    engine = followed(
        FileSource(Loader([str(tmp_path)])), lambda: publish(1), lambda engine: engine.obeyed == {"a": "v1"}
    )
    assert engine.history == [{"a": "v0"}, {"a": "v1"}]


def test_a_start_with_a_broken_file_fails_and_names_all_of_them(folder: Folder) -> None:
    for name in ("a.yaml", "z.yaml"):
        (folder.path / name).write_text("kind: [")
    with pytest.raises(InputError) as caught:
        Folder(folder.path)
    assert [Path(problem.at.file).name for problem in caught.value.diagnostics if problem.at] == ["a.yaml", "z.yaml"]


def test_standard_input_and_a_file_of_its_name_both_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("stdin").write_text(namespaces("a"))
    loader = Loader(["-", "stdin"])
    loader.cache.unrepeatable[None] = namespaces("b").encode()
    engine = Labels()
    engine.begin(FileSource(loader))
    assert engine.obeyed == {"a": "v0", "b": "v0"}


def test_a_file_that_can_be_read_again_is_never_absent(folder: Folder) -> None:
    settled = Folder(folder.path, settles=True)
    path = folder.path / "a.yaml"
    both = {"a": "v0", "b": "v0", "z": "v0"}
    path.rename(folder.path / "aside")
    path.symlink_to("nowhere")
    for _ in range(4):
        assert settled.wait(QUIET_S / 2) == both
    assert "TW010" in settled.codes()
    path.unlink()
    (folder.path / "aside").rename(path)
    for _ in range(4):
        assert settled.wait(QUIET_S / 2) == both
    assert settled.wait(LONGEST_S) == both
    assert settled.codes() == []
    path.unlink()
    settled.obeyed()
    assert settled.wait(LONGEST_S) == {"z": "v0"}

"""Test repeated loads: whatever happens to the files, a later load equals a first load, and unchanged objects are kept.

Random histories run on real files. Their times are replaced by those of a clock that counts in steps of
`CLOCK_STEP_NS`, like the coarsest real clock, so that edits often leave a file's times unchanged.
"""

from __future__ import annotations

import io
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.randomness import examples
from tierwall.analyze.admission import admission_findings
from tierwall.resources import file_cache, read, validity
from tierwall.resources.admission import admit
from tierwall.resources.file_cache import CLOCK_STEP_NS
from tierwall.resources.load import Loader, LoadResult, load
from tierwall.resources.resource import Resource

# ---- files that change ---------------------------------------------------------------------------------------------

NAMES = ["a.yaml", "b.yml", "c.json", "sub/d.yaml", "sub/deep/e.yaml", "z.txt", ".hidden.yaml"]
MOUNTED = ["m1.yaml", "m2.yaml"]
POLICY = "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {{name: {}, namespace: {}}}\n"
DOCUMENTS = st.one_of(
    st.builds(
        "apiVersion: v1\nkind: {}\nmetadata:\n  name: {}\n  labels: {{k: {}}}\n".format,
        st.sampled_from(["Pod", "Namespace"]),
        st.sampled_from("xy"),
        st.sampled_from("12"),
    ),
    st.builds((POLICY + "spec: {{podSelector: {{}}, polcyTypes: []}}\n").format, st.sampled_from("xy"), st.just("n")),
    st.builds(POLICY.format, st.sampled_from("xy"), st.sampled_from(["n", "o"])),
    st.sampled_from(
        [
            "",
            "# nothing\n",
            "null\n",
            "5\n",
            "just: a map\n",
            "kind: [\n",
            "kind: @\n",
            "apiVersion: v1\nkind: Pod\nkind: Pod\nmetadata: {name: x}\n",
            "apiVersion: v1\nkind: PodList\nitems:\n- metadata: {name: x}\n- metadata: {name: y}\n- 7\n",
            "apiVersion: v1\nkind: List\nitems:\n- {apiVersion: v1, kind: Pod, metadata: {name: x}}\n",
            "apiVersion: tierwall.io/v1alpha1\nkind: PolicyTest\nmetadata: {name: x}\n",
            '{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}}\n',
            '{"apiVersion": "v1", "kind": \n',
            "a: é\x00\n",
            "anchored: &a {apiVersion: v1}\nagain: *a\n",
        ]
    ),
)
TEXTS = st.builds(
    lambda documents, separator, bom, ends: (bom + separator.join(documents)).replace("\n", ends).encode(),
    st.lists(DOCUMENTS, max_size=4),
    st.sampled_from(["---\n", "---\n", "--- # c\n", "--- x\n", ""]),
    st.sampled_from(["", "", "", "\ufeff"]),
    st.sampled_from(["\n", "\n", "\n", "\r\n"]),
)


class World:
    """A folder, and the times of its files on a coarse clock."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.clock = 10 * CLOCK_STEP_NS + CLOCK_STEP_NS * 3 // 5
        self.versions = 0
        self._known: dict[tuple[int, int], tuple[int, bytes]] = {}
        self._times: dict[tuple[int, int], int] = {}

    def look(self) -> None:
        """Set the current time on every file that the last step changed."""
        for file in [path for path in self.folder.rglob("*") if path.is_file() and not path.is_symlink()]:
            status = file.stat()
            inode, state = (status.st_dev, status.st_ino), (status.st_ctime_ns, file.read_bytes())
            if self._known.get(inode) != state:
                self._known[inode], self._times[inode] = state, self.clock // CLOCK_STEP_NS * CLOCK_STEP_NS

    def seen(self, status: os.stat_result) -> Any:
        """Return the status of a file in a file system with that clock."""
        time = self._times[status.st_dev, status.st_ino]
        return SimpleNamespace(
            st_mode=status.st_mode,
            st_ino=status.st_ino,
            st_dev=status.st_dev,
            st_size=status.st_size,
            st_mtime_ns=time,
            st_ctime_ns=time,
        )

    @contextmanager
    def in_force(self) -> Iterator[None]:
        stamp, lasting = file_cache.stamp, file_cache.reliable_stamp
        with (
            mock.patch.object(read, "now", side_effect=lambda: self.clock),
            mock.patch.object(read, "stamp", side_effect=lambda status: stamp(self.seen(status))),
            mock.patch.object(read, "reliable_stamp", side_effect=lambda *now: lasting(self.seen(now[0]), now[1])),
        ):
            yield

    def some(self, number: int) -> Path:
        """Choose one of the files and folders."""
        paths = sorted(self.folder.rglob("*")) or [self.folder / "none"]
        return paths[number % len(paths)]

    def place(self, name: str) -> Path:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        return path


# A step that the file system refuses (a file in place of a folder, a dangling link) is skipped.
Step = Callable[[World], object]


def write(name: str, text: bytes) -> Step:
    return lambda world: world.place(name).write_bytes(text)


def replace(name: str, text: bytes) -> Step:
    """Replace a file by another one with its name, as editors do."""

    def step(world: World) -> None:
        other = world.place(".new")
        other.write_bytes(text)
        other.replace(world.place(name))

    return step


def delete(number: int) -> Step:
    def step(world: World) -> None:
        path = world.some(number)
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()

    return step


def rename(number: int, name: str) -> Step:
    return lambda world: world.some(number).replace(world.place(name))


def link(name: str, number: int, hard: bool) -> Step:
    def step(world: World) -> None:
        if hard:
            world.place(name).hardlink_to(world.some(number))
        else:
            world.place(name).symlink_to(world.some(number))

    return step


def folder(name: str) -> Step:
    return lambda world: world.place(name).mkdir()


def mount(texts: dict[str, bytes], back: bool) -> Step:
    """Change files as kubelet does: they are links into `..data`, which is switched to another folder."""

    def step(world: World) -> None:
        data = world.folder / "..data"
        world.versions += 0 if back and world.versions > 1 else 1
        version = world.folder / f"..v{world.versions - 1 if back and world.versions > 1 else world.versions}"
        if not version.exists():
            version.mkdir()
            for name, text in texts.items():
                (version / name).write_bytes(text)
        switch = world.folder / "..data_tmp"
        switch.symlink_to(version.name)
        switch.replace(data)
        for name in MOUNTED:
            if not (path := world.folder / name).is_symlink():
                path.symlink_to(f"..data/{name}")

    return step


def wait(steps: float) -> Step:
    def step(world: World) -> None:
        world.clock += int(steps * CLOCK_STEP_NS)

    return step


def shift(number: int) -> Step:
    """Insert a document at the top, so that all others move."""

    def step(world: World) -> None:
        path = world.some(number)
        path.write_bytes(b"# moved\n---\n" + path.read_bytes())

    return step


def swap(number: int) -> Step:
    """Edit a file without changing its length."""

    def step(world: World) -> None:
        path = world.some(number)
        path.write_bytes(path.read_bytes().translate(bytes.maketrans(b"xy12", b"yx21")))

    return step


SOME, NUMBER = st.sampled_from(NAMES), st.integers(0, 9)
STEPS = st.one_of(
    st.builds(write, SOME, TEXTS),
    st.builds(replace, SOME, TEXTS),
    st.builds(swap, NUMBER),
    st.builds(swap, NUMBER),
    st.builds(shift, NUMBER),
    st.builds(wait, st.sampled_from([0.3, 1, 3])),
    st.builds(wait, st.sampled_from([0.3, 1, 3])),
    st.builds(delete, NUMBER),
    st.builds(rename, NUMBER, SOME),
    st.builds(link, SOME, NUMBER, st.booleans()),
    st.builds(folder, SOME),
    st.builds(mount, st.dictionaries(st.sampled_from(MOUNTED), TEXTS), st.booleans()),
)
WAYS = st.sampled_from([(".",), ("sub", ".", "a.yaml"), ("b.yml", "*.yaml", "sub/**"), ("gone.yaml", "a.yaml", "sub")])


# ---- comparing loads -----------------------------------------------------------------------------------------------


def identity(resource: Resource) -> tuple[str, ...]:
    return resource.group, resource.version, resource.kind, resource.namespace, resource.name


def said(loaded: LoadResult) -> dict[str, Any]:
    """Return everything about a load except the identity of objects."""
    return {
        "resources": [
            (identity(resource), resource.value, resource.prefix, resource.position()) for resource in loaded.resources
        ],
        "snapshot": [
            (identity(resource), resource.value, resource.prefix, resource.position()) for resource in loaded.snapshot
        ],
        "diagnostics": loaded.diagnostics,
        "documents": [
            (
                document.value,
                document.source.name,
                document.start,
                document.end,
                document.is_json,
                document.repeated_keys,
            )
            for document in loaded.read.documents
        ],
        "read": loaded.read.diagnostics,
        "sources": [(name, source.data) for name, source in loaded.read.sources.items()],
        "admission": list(admission_findings(loaded.snapshot)),
    }


def in_file(loaded: LoadResult, name: str) -> tuple[list[int], list[int]]:
    documents = [document for document in loaded.read.documents if document.source.name == name]
    known = {id(document) for document in documents}
    return [id(document) for document in documents], [
        id(resource) for resource in loaded.resources if id(resource.origin) in known
    ]


@settings(max_examples=examples(400), deadline=None)
@given(WAYS, st.lists(st.tuples(STEPS, st.booleans()), max_size=20))
def test_a_later_load_equals_a_first_load(ways: tuple[str, ...], steps: list[tuple[Step, bool]]) -> None:
    with tempfile.TemporaryDirectory() as name:
        world = World(Path(name))
        paths = [str(world.folder / way) for way in ways]
        loader = Loader(paths)
        with world.in_force():
            before = loader.load()
            for step, loads in [*steps, (wait(0), True)]:
                with suppress(OSError):
                    step(world)
                world.look()
                if not loads:
                    continue
                after = loader.load()
                assert said(after) == said(load(paths))
                assert {id(resource) for resource in after.snapshot} <= {id(resource) for resource in after.resources}
                for file, source in after.read.sources.items():
                    known = before.read.sources.get(file)
                    if known is not None and known.data == source.data:
                        assert source is known
                        assert in_file(after, file) == in_file(before, file)
                before = after


# ---- single cases --------------------------------------------------------------------------------------------------


def pod(name: str, label: str = "1") -> str:
    return f"apiVersion: v1\nkind: Pod\nmetadata:\n  name: {name}\n  labels:\n    k: '{label}'\n"


def only(loaded: LoadResult) -> Resource:
    [resource] = loaded.resources
    return resource


def test_edits_that_keep_the_length_and_come_within_a_tick_of_the_clock_are_seen(tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    file.write_text(pod("x", "0"))
    loader = Loader([str(tmp_path)])
    for number in range(200):
        file.write_text(pod("x", str(number % 10)))
        assert only(loader.load()).labels == {"k": str(number % 10)}


def test_a_file_that_was_left_alone_is_not_even_opened(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(pod("a"))
    (tmp_path / "b.yaml").write_text(pod("b"))
    later = file_cache.now() + 10 * CLOCK_STEP_NS
    with mock.patch.object(read, "now", return_value=later):
        loader = Loader([str(tmp_path)])
        first = loader.load()
        (tmp_path / "b.yaml").write_text(pod("b", "longer"))
        with mock.patch("builtins.open", wraps=open) as opened:
            second = loader.load()
    assert [str(call.args[0]) for call in opened.call_args_list] == [str(tmp_path / "b.yaml")]
    assert second.resources[0] is first.resources[0]
    assert second.resources[1].labels == {"k": "longer"}


def test_the_state_of_the_file_that_was_opened_is_remembered_not_of_its_name(tmp_path: Path) -> None:
    """Switch the link between the check and the opening of the file, and then back."""
    for version in "12":
        (tmp_path / version).mkdir()
        (tmp_path / version / "a.yaml").write_text(pod(f"v{version}"))
    (tmp_path / "current").symlink_to("1")

    def switch(to: str) -> None:
        (tmp_path / "other").symlink_to(to)
        (tmp_path / "other").replace(tmp_path / "current")

    really = open

    def opening(*arguments: Any, **options: Any) -> Any:
        switch("2")
        return really(*arguments, **options)

    loader = Loader([str(tmp_path / "current" / "a.yaml")])
    later = file_cache.now() + 10 * CLOCK_STEP_NS
    with mock.patch.object(read, "now", return_value=later):
        with mock.patch("builtins.open", opening):
            assert only(loader.load()).name == "v2"
        switch("1")
        assert only(loader.load()).name == "v1"


def test_a_document_that_moves_in_its_file_keeps_its_value_and_learns_its_new_place(tmp_path: Path) -> None:
    file = tmp_path / "all.yaml"
    file.write_text("---\n".join(map(pod, "abc")))
    loader = Loader([str(file)])
    before = loader.load()
    assert list(admission_findings(before.snapshot)) == []
    with mock.patch.object(validity, "admit", side_effect=AssertionError("judged again")):
        file.write_text("# a line more\n" + "---\n".join([pod("a"), pod("c"), pod("b")]))
        after = loader.load()
        assert [resource.name for resource in after.resources] == ["a", "c", "b"]
        for resource in after.resources:
            old = before.snapshot.get("", "Pod", "default", resource.name)
            assert old is not None
            # The text of the first document changes: the comment belongs to it.
            assert (resource.value is old.value) == (resource.name != "a")
            if resource.name != "a":
                assert not list(admission_findings(type(after.snapshot).of([resource])))
    assert [
        resource.position() and str(resource.position()).rpartition("all.yaml:")[2] for resource in after.resources
    ] == [
        "2:1",
        "9:1",
        "16:1",
    ]


def test_two_documents_of_one_text_do_not_share_a_value(tmp_path: Path) -> None:
    file = tmp_path / "all.yaml"
    file.write_text("---\n".join([pod("a"), pod("a"), pod("b")]))
    loader = Loader([str(file)])
    loader.load()
    file.write_text("---\n".join([pod("a"), pod("a"), pod("a"), pod("c")]))
    loaded = loader.load()
    assert len({id(resource.value) for resource in loaded.resources}) == 4
    assert [diagnostic.code for diagnostic in loaded.diagnostics] == ["TW007", "TW007"]


def test_problems_of_an_object_that_moves_are_reported_at_its_new_place(tmp_path: Path) -> None:
    file = tmp_path / "all.yaml"
    wrong = POLICY.format("x", "n") + "spec: {podSelector: {}, polcyTypes: []}\n"
    file.write_text(pod("a") + "---\n" + wrong)
    loader = Loader([str(file)])
    before = [admission_finding.at for admission_finding in admission_findings(loader.load().snapshot)]
    file.write_text(pod("a") + "    l: more\n---\n" + wrong)
    after = [admission_finding.at for admission_finding in admission_findings(loader.load().snapshot)]
    assert before
    assert after == [position and position._replace(line=position.line + 1) for position in before]


def test_nothing_changed_is_the_same_snapshot_and_a_change_shares_the_other_kinds(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(pod("a"))
    (tmp_path / "n.yaml").write_text("apiVersion: v1\nkind: Namespace\nmetadata: {name: n}\n")
    loader = Loader([str(tmp_path)])
    first = loader.load()
    assert loader.load().snapshot is first.snapshot
    (tmp_path / "a.yaml").write_text(pod("a", "2"))
    second = loader.load().snapshot
    assert second is not first.snapshot
    assert list(second.of_kind("", "Namespace")) == list(first.snapshot.of_kind("", "Namespace"))
    assert [resource.labels["k"] for resource in second.of_kind("", "Pod")] == ["2"]


def test_admission_of_an_unchanged_object_is_not_repeated(tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / f"{name}.yaml").write_text(pod(name))
    loader = Loader([str(tmp_path)])
    list(admission_findings(loader.load().snapshot))
    (tmp_path / "b.yaml").write_text(pod("b") + "status: {phase: 7}\n")
    with mock.patch.object(validity, "admit", wraps=admit) as asked:
        findings = list(admission_findings(loader.load().snapshot))
        assert findings == list(admission_findings(loader.load().snapshot))
    assert [call.args[0]["metadata"]["name"] for call in asked.call_args_list] == ["b"]


def test_load_if_changed_returns_only_loads_that_differ_from_the_last(tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    file.write_text(pod("a"))
    loader = Loader([str(tmp_path)])
    first = loader.load_if_changed()
    assert first is not None
    assert loader.load_if_changed() is None
    (tmp_path / "other.txt").write_text("x")
    os.utime(file, ns=(1, 1))
    assert loader.load_if_changed() is None
    file.write_text("kind: [")
    broken = loader.load_if_changed()
    assert broken is not None
    assert broken.diagnostics
    assert loader.load_if_changed() is None
    file.write_text(pod("a"))
    again = loader.load()
    assert not again.diagnostics
    assert loader.load_if_changed() is None, "of any load, not only of news"


def test_only_what_was_loaded_last_is_kept(tmp_path: Path) -> None:
    loader = Loader([str(tmp_path)])
    for number in range(5):
        file = tmp_path / f"{number}.yaml"
        file.write_text("---\n".join(pod(f"p{number}-{index}") for index in range(3)))
        (tmp_path / f"{number - 1}.yaml").unlink(missing_ok=True)
        loader.load()
        assert list(loader.cache.files) == [str(file)]
        assert len(loader._known) == 3


@pytest.mark.parametrize(("data", "code"), [(pod("x").encode(), ""), (b"kind: [", "TW002"), (b"x" * 300, "TW003")])
def test_standard_input_and_pipes_are_read_once_and_count_for_every_load(
    tmp_path: Path, data: bytes, code: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO(data)))
    ours, theirs = os.pipe()
    os.write(theirs, data)
    os.close(theirs)
    (tmp_path / "stdin").write_text(pod("file"))
    monkeypatch.chdir(tmp_path)
    paths = ["-", "stdin", "-", f"/dev/fd/{ours}"]
    cache = file_cache.FileCache()
    first = read.read_paths(paths, limits=read.Limits(file_bytes=200), cache=cache)
    for _ in range(2):
        again = read.read_paths(paths, limits=read.Limits(file_bytes=200), cache=cache)
        assert [id(document) for document in again.documents] == [id(document) for document in first.documents]
        assert len(again.documents) == (1 if code else 3)
        assert again.diagnostics == first.diagnostics
        assert [diagnostic.code for diagnostic in again.diagnostics] == [code] * (2 if code else 0)
    os.close(ours)

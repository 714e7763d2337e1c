"""The state folder: the last good copy of each file, and who may write it."""

from __future__ import annotations

import os
import resource
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.serve.test_retention import Folder, namespaces
from tierwall.core.diagnostics import InputError
from tierwall.resources.load import Loader
from tierwall.serve import state as state_module
from tierwall.serve.files import FileSource
from tierwall.serve.retention import EMPTY_S
from tierwall.serve.state import StateFolder


class Restarted:
    """A folder of manifests with a state folder, and a process that can be started again and again."""

    def __init__(self, path: Path) -> None:
        self.manifests, self.state = path / "manifests", path / "state"
        self.manifests.mkdir()
        self.running: Folder | None = None

    def start(self) -> Folder:
        """End the process that runs, and start another."""
        if self.running is not None:
            # The lock ends with the process.
            state = self.running.source._retention._state
            assert state is not None
            os.close(state._lock)
        self.running = None
        state_folder = StateFolder(str(self.state))
        try:
            self.running = Folder(self.manifests, state_folder)
        except InputError:
            os.close(state_folder._lock)
            raise
        return self.running

    def entries(self) -> list[Path]:
        """Return the entries of the state folder."""
        return sorted(self.state.glob("*.copy"))


@pytest.fixture
def restarted(tmp_path: Path) -> Restarted:
    lab = Restarted(tmp_path)
    (lab.manifests / "a.yaml").write_text(namespaces("a", "b"))
    (lab.manifests / "z.yaml").write_text(namespaces("z"))
    lab.start()
    return lab


def test_a_start_with_a_broken_file_uses_its_copy_and_says_so(restarted: Restarted) -> None:
    (restarted.manifests / "a.yaml").write_text("kind: [")
    (restarted.manifests / "z.yaml").write_text(namespaces("x"))
    for _ in range(2):
        folder = restarted.start()
        assert folder.engine.obeyed == {"a": "v0", "b": "v0", "x": "v0"}
        assert folder.engine.newest is not None
        [problem] = folder.engine.newest.diagnostics
        assert problem.code == "TW010"
        assert problem.at is not None
        assert problem.at.file == str(restarted.manifests / "a.yaml")
        assert "; its copy of 20" in problem.message
    assert restarted.running is not None
    assert restarted.running.write("a.yaml", namespaces("c"))["c"] == "v0"
    (restarted.manifests / "a.yaml").write_text("kind: [")
    assert set(restarted.start().engine.obeyed) == {"c", "x"}


def test_a_start_with_a_broken_file_and_no_copy_fails(restarted: Restarted) -> None:
    (restarted.manifests / "new.yaml").write_text("kind: [")
    (restarted.manifests / "z.yaml").unlink()
    with pytest.raises(InputError) as caught:
        restarted.start()
    assert [problem.code for problem in caught.value.diagnostics] == ["TW002"]
    assert len(restarted.entries()) == 2, "a start that fails leaves the copies alone"


def test_a_start_keeps_what_is_no_object_any_more_and_what_is_suddenly_empty(restarted: Restarted) -> None:
    (restarted.manifests / "a.yaml").write_text(namespaces("a", version=1) + "---\njust: text\n")
    (restarted.manifests / "z.yaml").write_text("")
    folder = restarted.start()
    assert folder.engine.obeyed == {"a": "v1", "b": "v0", "z": "v0"}
    assert folder.wait(EMPTY_S) == {"a": "v1", "b": "v0"}
    assert restarted.start().engine.obeyed == {"a": "v1", "b": "v0"}


def test_a_file_that_is_removed_counts_and_its_copy_is_dropped(restarted: Restarted) -> None:
    assert len(restarted.entries()) == 2
    assert restarted.running is not None
    (restarted.manifests / "a.yaml").unlink()
    restarted.running.obeyed()
    assert len(restarted.entries()) == 1
    (restarted.manifests / "z.yaml").unlink()
    assert restarted.start().engine.obeyed == {}
    assert restarted.entries() == []


def test_a_folder_inside_that_cannot_be_read_at_the_start_has_its_copies(
    restarted: Restarted, monkeypatch: pytest.MonkeyPatch
) -> None:
    (restarted.manifests / "team").mkdir()
    assert restarted.running is not None
    restarted.running.write("team/c.yaml", namespaces("c"))
    scan = os.scandir

    def refuse(path: str) -> object:
        if str(path).endswith("team"):
            raise PermissionError(13, "Permission denied")
        return scan(path)

    monkeypatch.setattr(os, "scandir", refuse)
    assert set(restarted.start().engine.obeyed) == {"a", "b", "c", "z"}


def test_only_the_user_can_read_copies(restarted: Restarted) -> None:
    assert stat.S_IMODE(restarted.state.stat().st_mode) == 0o700
    assert {stat.S_IMODE(entry.stat().st_mode) for entry in restarted.state.iterdir()} == {0o600}


@pytest.mark.parametrize("mode", [0o720, 0o702, 0o777, 0o1777])
def test_a_folder_that_others_can_write_is_refused(tmp_path: Path, mode: int) -> None:
    (tmp_path / "state").mkdir()
    (tmp_path / "state").chmod(mode)
    with pytest.raises(InputError, match="can be written by others"):
        StateFolder(str(tmp_path / "state"))


def test_a_folder_of_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "state").mkdir()
    monkeypatch.setattr(os, "geteuid", lambda: 4711)
    with pytest.raises(InputError, match="belongs to another user"):
        StateFolder(str(tmp_path / "state"))


def test_a_folder_that_cannot_be_made_or_is_no_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file", tmp_path / "no" / "where"):
        with pytest.raises(InputError, match="cannot be used"):
            StateFolder(str(path))


def test_two_processes_cannot_share_a_folder(restarted: Restarted) -> None:
    with pytest.raises(InputError, match="in use by another process"):
        StateFolder(str(restarted.state))


def planted_link(entry: Path, other: Path) -> None:
    entry.rename(other)
    entry.symlink_to(other)


def planted_second_name(entry: Path, other: Path) -> None:
    os.link(entry, other)


def planted_for_all(entry: Path, other: Path) -> None:
    entry.chmod(0o666)


def changed(entry: Path, other: Path) -> None:
    entry.write_bytes(entry.read_bytes().replace(b"name: a", b"name: q"))


def cut(entry: Path, other: Path) -> None:
    entry.write_bytes(entry.read_bytes()[:-1])


def exchanged(entry: Path, other: Path) -> None:
    first, second = sorted(entry.parent.glob("*.copy"))
    text = first.read_bytes()
    first.write_bytes(second.read_bytes())
    second.write_bytes(text)


def emptied(entry: Path, other: Path) -> None:
    entry.write_bytes(b"")


@pytest.mark.parametrize(
    "plant", [planted_link, planted_second_name, planted_for_all, changed, cut, exchanged, emptied]
)
def test_an_entry_that_may_be_planted_or_is_damaged_does_not_count(
    restarted: Restarted, plant: Callable[[Path, Path], None]
) -> None:
    [entry] = [entry for entry in restarted.entries() if b"a.yaml" in entry.read_bytes()]
    plant(entry, restarted.state / "other")
    (restarted.manifests / "a.yaml").write_text("kind: [")
    with pytest.raises(InputError) as caught:
        restarted.start()
    assert [problem.code for problem in caught.value.diagnostics] == ["TW002"]


@pytest.mark.parametrize("call", ["open", "fsync", "rename", "unlink", "sync"])
def test_a_crash_at_any_moment_leaves_a_state_that_can_be_used(
    restarted: Restarted, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    class Crash(BaseException):
        pass

    monkeypatch.setattr(state_module, "_MANY", 2 if call == "sync" else 1000)
    system, left = getattr(os, call), 0

    def crashes(*arguments: object, **named: object) -> object:
        nonlocal left
        left -= 1
        if left < 0:
            raise Crash
        return system(*arguments, **named)

    for moment in range(6):
        assert restarted.running is not None
        version = moment + 1
        (restarted.manifests / "a.yaml").write_text(namespaces("a", version=version))
        (restarted.manifests / "z.yaml").write_text(namespaces("z", version=version))
        with monkeypatch.context() as patched:
            left = moment
            patched.setattr(os, call, crashes)
            try:
                restarted.running.obeyed()
            except Crash:
                pass
        for name in ("a.yaml", "z.yaml"):
            (restarted.manifests / name).write_text("kind: [")
        obeyed = restarted.start().engine.obeyed
        assert set(obeyed) >= {"a", "z"}
        assert not list(restarted.state.glob("*.new"))
        for name in ("a", "z"):
            (restarted.manifests / f"{name}.yaml").write_text(namespaces(name, version=version))
        restarted.running.obeyed()


def test_a_full_disk_is_reported_and_keeps_nothing_out(restarted: Restarted, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*arguments: object) -> None:
        raise OSError(28, "No space left on device")

    assert restarted.running is not None
    monkeypatch.setattr(os, "fsync", fails)
    assert restarted.running.write("a.yaml", namespaces("c"))["c"] == "v0"
    assert restarted.running.codes() == ["TW014"]
    monkeypatch.undo()
    (restarted.manifests / "z.yaml").unlink()
    restarted.running.obeyed()
    assert restarted.running.codes() == []
    (restarted.manifests / "a.yaml").write_text("kind: [")
    assert restarted.start().engine.obeyed == {"c": "v0"}


def test_pipes_are_not_kept(tmp_path: Path) -> None:
    theirs, ours = os.pipe()
    os.write(ours, namespaces("piped").encode())
    os.close(ours)
    state = StateFolder(str(tmp_path / "state"))
    loaded = FileSource(Loader([f"/dev/fd/{theirs}"]), None, state).read()
    os.close(theirs)
    assert loaded is not None
    assert [resource.name for resource in loaded.resources] == ["piped"]
    assert list((tmp_path / "state").glob("*.copy")) == []


def test_the_commands_take_the_option(tmp_path: Path) -> None:
    manifests = tmp_path / "manifests"
    manifests.mkdir()
    (manifests / "a.yaml").write_text("kind: [")
    program = str(Path(sys.executable).parent / "tierwall")
    commands: list[list[str | Path]] = [
        ["run", manifests],
        ["enforce", "nft", manifests],
        ["authorizer", "-f", manifests],
    ]
    for command in commands:
        state = tmp_path / f"state-{command[0]}"
        done = subprocess.run(
            [program, *command, "--state", state], capture_output=True, text=True, timeout=120, check=False
        )
        assert done.returncode == 1, done.stderr
        assert "a.yaml" in done.stderr
        assert state.is_dir()


def test_a_file_that_does_not_fit_keeps_no_other_copy_out(tmp_path: Path) -> None:
    files = {name: tmp_path / f"{name}.yaml" for name in ("a", "large", "z")}
    for name, path in files.items():
        path.write_text(namespaces(name) + "# filler\n" * (2000 if name == "large" else 0))
    state = StateFolder(str(tmp_path / "state"))
    source = FileSource(Loader([str(path) for path in files.values()]), None, state)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))
    try:
        loaded = source.read()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert loaded is not None
    [problem] = loaded.diagnostics
    assert problem.code == "TW014"
    assert "large.yaml" in problem.message
    copies = {name: state.copy(str(path)) for name, path in files.items()}
    assert [name for name, copy in copies.items() if copy is not None] == ["a", "z"]
    assert len(list((tmp_path / "state").iterdir())) == 3, "two copies and the lock"

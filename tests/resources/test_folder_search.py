"""Files of a folder that are read (docs/reference/sources.md#what-is-read-in-a-folder)."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import tierwall
from tierwall.resources.folder import MAX_SLOW_PATTERNS
from tierwall.resources.load import Loader, LoadSettings
from tierwall.resources.read import ReadSettings, read_paths
from tierwall.serve.files import FileSource


def write(folder: Path, *files: str) -> None:
    for file in files:
        path = folder / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"name: {file}\n")


def names(folder: Path, *exclude: str) -> list[str]:
    """Return the files that are read, by their path below the folder."""
    read = read_paths([str(folder)], settings=ReadSettings(exclude))
    assert not read.diagnostics
    return [os.path.relpath(file.source.name, folder) for file in read.files]


def test_some_folders_are_left_out(tmp_path: Path) -> None:
    write(
        tmp_path, "a.yaml", ".f.yaml", ".hidden/b.yaml", "node_modules/x/c.yaml", "go/vendor/d.yaml", "env/lib/e.yaml"
    )
    (tmp_path / "env" / "pyvenv.cfg").touch()
    write(tmp_path, "g/vendor.yaml", "h/node_modules.json")
    write(tmp_path, "._mac.yaml")
    (tmp_path / ".#edited.yaml").symlink_to("somebody@example.1234")
    assert names(tmp_path) == [".f.yaml", "a.yaml", "g/vendor.yaml", "h/node_modules.json"]


@pytest.mark.parametrize("given", [".hidden", "vendor", "env", ".hidden/b.yaml", ".f.yaml"])
def test_what_is_named_is_read(tmp_path: Path, given: str) -> None:
    write(tmp_path, ".hidden/b.yaml", "vendor/b.yaml", "env/b.yaml", ".f.yaml")
    (tmp_path / "env" / "pyvenv.cfg").touch()
    exclude = ("*.yaml",) if given.endswith(".yaml") else ()
    assert len(read_paths([str(tmp_path / given)], settings=ReadSettings(exclude)).files) == 1


def test_links_are_followed_inside_the_folder_only(tmp_path: Path) -> None:
    inside, outside = tmp_path / "in", tmp_path / "out"
    write(inside, "real/a.yaml", "b.yaml")
    write(outside, "c.yaml", "d/e.yaml")
    (inside / "aa").symlink_to(inside / "real")
    (inside / "bb.yaml").symlink_to("b.yaml")
    (inside / "loop").symlink_to(".")
    (inside / "real" / "up").symlink_to("..")
    (inside / "file.yaml").symlink_to(outside / "c.yaml")
    (inside / "folder").symlink_to(outside)
    (inside / "above").symlink_to(tmp_path)
    read = read_paths([str(inside)])
    assert [os.path.relpath(file.source.name, inside) for file in read.files] == ["b.yaml", "aa/a.yaml"]
    assert [os.path.basename(path) for path in read.leaving] == ["above", "file.yaml", "folder"]
    assert not read.diagnostics
    noticed = FileSource(Loader([str(inside)])).read()
    assert noticed is not None
    assert [problem.code for problem in noticed.diagnostics] == ["TW017"] * 3
    assert not noticed.errors


def test_a_mounted_config_map_is_read(tmp_path: Path) -> None:
    write(tmp_path, "..2024_01/policy.yaml", "..2024_01/draft.yaml")
    (tmp_path / "..2024_01" / ".tierwallignore").write_text("draft*\n")
    (tmp_path / "..data").symlink_to("..2024_01")
    for name in ("policy.yaml", "draft.yaml", ".tierwallignore"):
        (tmp_path / name).symlink_to(f"..data/{name}")
    assert names(tmp_path) == ["policy.yaml"]


def test_patterns_of_the_command_line(tmp_path: Path) -> None:
    write(tmp_path, "a.yaml", "charts/b.yaml", "x/charts/c.yaml", "x/d.yaml")
    assert names(tmp_path, "charts") == ["a.yaml", "x/d.yaml"]
    assert names(tmp_path, "/charts") == ["a.yaml", "x/d.yaml", "x/charts/c.yaml"]
    assert names(tmp_path, "charts/*") == ["a.yaml", "x/d.yaml", "x/charts/c.yaml"]
    assert names(tmp_path, "*.yaml", "!d.yaml") == ["x/d.yaml"]
    assert names(tmp_path, f"{tmp_path}/x/") == ["a.yaml", "charts/b.yaml"]


def test_patterns_of_files(tmp_path: Path) -> None:
    write(tmp_path, "a.yaml", "b/a.yaml", "b/c.yaml", "b/d/c.yaml")
    (tmp_path / ".tierwallignore").write_text("a.yaml\nc.yaml\n")
    (tmp_path / "b" / ".tierwallignore").write_text("!/c.yaml\n")
    assert names(tmp_path) == ["b/c.yaml"]
    assert names(tmp_path, "!a.yaml") == ["a.yaml", "b/a.yaml", "b/c.yaml"]
    assert names(tmp_path / "b") == ["a.yaml", "c.yaml", "d/c.yaml"], "only from the given folder on"
    assert {resource.name for resource in tierwall.load(tmp_path).objects()} == set()


def test_an_ignore_file_that_cannot_be_used_closes_its_folder(tmp_path: Path) -> None:
    write(tmp_path, "a/a.yaml", "b/b.yaml")
    (tmp_path / "a" / ".tierwallignore").write_text("*x*\n" * (MAX_SLOW_PATTERNS + 1))
    read = read_paths([str(tmp_path)])
    assert [problem.code for problem in read.diagnostics] == ["TW003"]
    assert list(read.unread) == [str(tmp_path / "a")]
    (tmp_path / "a" / ".tierwallignore").unlink()
    (tmp_path / "a" / ".tierwallignore").mkdir()
    assert names(tmp_path) == ["a/a.yaml", "b/b.yaml"]


def test_a_changed_ignore_file_counts_at_the_next_load(tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / f"{name}.yaml").write_text(f"{{apiVersion: v1, kind: Namespace, metadata: {{name: {name}}}}}\n")
    loader = Loader([str(tmp_path)], LoadSettings())
    assert len(loader.load().resources) == 2
    (tmp_path / ".tierwallignore").write_text("b.yaml\n")
    changed = loader.load_if_changed()
    assert changed is not None
    assert [resource.name for resource in changed.resources] == ["a"]
    (tmp_path / ".tierwallignore").unlink()
    changed = loader.load_if_changed()
    assert changed is not None
    assert len(changed.resources) == 2

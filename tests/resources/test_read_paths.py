"""Test which files, folders, patterns and streams are read, in which order, and how the others are refused."""

from __future__ import annotations

import io
import os
from pathlib import Path

import pytest

from tierwall.resources.read import Limits, ReadResult, read_paths, read_text, repeated_keys


def write(folder: Path, files: dict[str, str | bytes]) -> None:
    for name, content in files.items():
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content.encode() if isinstance(content, str) else content)


def values(read: ReadResult) -> list[object]:
    return [document.value for document in read.documents]


def problems(read: ReadResult) -> list[tuple[str, str]]:
    return [(diagnostic.code, diagnostic.message) for diagnostic in read.diagnostics]


def test_folders_are_read_recursively_in_the_order_of_names(tmp_path: Path) -> None:
    write(tmp_path, {"b.yaml": "k: 3", "a.yml": "k: 1\n---\nk: 2", "sub/c.json": '{"k": 4}', "sub/d/e.yaml": "k: 5"})
    write(tmp_path, {"readme.md": "# no", "x.yaml.bak": "k: 9", ".hidden.yaml": "k: 0", ".git/y.yaml": "k: 9"})
    read = read_paths([str(tmp_path)])
    assert values(read) == [{"k": 0}, {"k": 1}, {"k": 2}, {"k": 3}, {"k": 4}, {"k": 5}]
    assert problems(read) == []


def test_a_named_file_is_read_whatever_its_ending(tmp_path: Path) -> None:
    write(tmp_path, {"manifest": "k: 1", ".dot.yaml": "k: 2"})
    read = read_paths([str(tmp_path / "manifest"), str(tmp_path / ".dot.yaml")])
    assert values(read) == [{"k": 1}, {"k": 2}]


def test_patterns_are_expanded_unless_a_file_has_that_name(tmp_path: Path) -> None:
    write(tmp_path, {"a1.yaml": "k: 1", "a2.yaml": "k: 2", "b.yaml": "k: 3", "[x].yaml": "k: 4", "s/t/a3.yaml": "k: 5"})
    assert values(read_paths([str(tmp_path / "a*.yaml")])) == [{"k": 1}, {"k": 2}]
    assert values(read_paths([str(tmp_path / "[x].yaml")])) == [{"k": 4}]
    assert values(read_paths([str(tmp_path / "**" / "a*.yaml")])) == [{"k": 1}, {"k": 2}, {"k": 5}]
    assert problems(read_paths([str(tmp_path / "z*")])) == [("TW001", "no file matches the pattern")]


def test_standard_input_is_read_for_a_dash() -> None:
    read = read_paths(["-"], stdin=io.BytesIO(b"k: 1\n---\nk: [\n"))
    assert values(read) == [{"k": 1}]
    assert str(read.diagnostics[0].at) == "stdin:3:5"


def test_a_file_that_is_reached_twice_is_read_once(tmp_path: Path) -> None:
    write(tmp_path, {"a.yaml": "k: 1"})
    (tmp_path / "b.yaml").symlink_to(tmp_path / "a.yaml")
    read = read_paths([str(tmp_path), str(tmp_path / "a.yaml"), str(tmp_path / "*.yaml")])
    assert values(read) == [{"k": 1}]


def test_every_problem_of_every_file_is_reported_at_once(tmp_path: Path) -> None:
    write(tmp_path, {"a.yaml": "k: [", "b.yaml": "k: @\n---\nk: 1\n---\nm: `", "c.yaml": "k: 2"})
    read = read_paths([str(tmp_path), str(tmp_path / "d.yaml")])
    places = [str(diagnostic.at).removeprefix(f"{tmp_path}/") for diagnostic in read.diagnostics]
    assert places == ["a.yaml:1:5", "b.yaml:1:4", "b.yaml:5:4", "d.yaml:1:1"]
    assert values(read) == [{"k": 1}, {"k": 2}]
    assert set(read.sources) == {str(tmp_path / name) for name in ("a.yaml", "b.yaml", "c.yaml")}


def test_an_empty_path_is_not_a_missing_file() -> None:
    (problem,) = read_paths([""]).diagnostics
    assert (problem.code, problem.message) == ("TW001", "the path is empty")


def test_a_missing_file_is_named_with_the_nearest_one(tmp_path: Path) -> None:
    write(tmp_path, {"policy.yaml": "k: 1"})
    read = read_paths([str(tmp_path / "polcy.yaml")])
    assert problems(read) == [("TW001", "there is no such file or folder")]
    assert read.diagnostics[0].hint == "did you mean `policy.yaml`?"


def test_pipes_and_devices_in_folders_are_refused_without_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.yaml")
    (tmp_path / "device.yaml").symlink_to("/dev/zero")  # leaves the folder
    (tmp_path / "loop.yaml").symlink_to(tmp_path / "loop.yaml")
    (tmp_path / "gone.yaml").symlink_to(tmp_path / "nothing")
    (tmp_path / "again").symlink_to(tmp_path)
    write(tmp_path, {"good.yaml": "k: 1"})
    read = read_paths([str(tmp_path)])
    assert values(read) == [{"k": 1}]
    by_name = {
        os.path.basename(diagnostic.at.file): diagnostic.message for diagnostic in read.diagnostics if diagnostic.at
    }
    assert by_name["pipe.yaml"] == "expected a file, found a pipe"
    assert "link" in by_name["loop.yaml"]
    assert by_name["gone.yaml"] == f"link leads to `{tmp_path}/nothing`, which does not exist"
    assert len(by_name) == 3
    assert read.leaving == (str(tmp_path / "device.yaml"),)
    assert problems(read_paths(["/dev/zero"])) == [("TW001", "expected a file, found a device")]


def test_a_named_pipe_is_read() -> None:
    ours, theirs = os.pipe()
    os.write(theirs, b"k: 1\n")
    os.close(theirs)
    assert values(read_paths([f"/dev/fd/{ours}"])) == [{"k": 1}]
    os.close(ours)


def test_large_files_are_refused_before_they_are_read(tmp_path: Path) -> None:
    with (tmp_path / "huge.yaml").open("wb") as file:
        file.truncate(1 << 40)
    write(tmp_path, {"small.yaml": "k: 1", "medium.yaml": "k: 12345678"})
    read = read_paths([str(tmp_path)])
    assert values(read) == [{"k": 12345678}, {"k": 1}]
    assert problems(read) == [("TW003", "file is too large: 1024 GiB or more, the limit is 256 MiB")]
    tight = read_paths([str(tmp_path / "medium.yaml"), "-"], stdin=io.BytesIO(b"x" * 99), limits=Limits(file_bytes=10))
    assert [code for code, _ in problems(tight)] == ["TW003", "TW003"]
    together = read_paths([str(tmp_path / "medium.yaml"), str(tmp_path / "small.yaml")], limits=Limits(total_bytes=12))
    assert [code for code, _ in problems(together)] == ["TW003"]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"\x7fELF\x02\x01\x01\x00\x00", "file is binary: it has a zero byte"),
        ("a: 1\n".encode("utf-16"), "text is UTF-16"),
        (b"PK\x03\x04\xff", "byte 0xFF is not UTF-8"),
    ],
)
def test_binary_files_are_reported_as_binary(tmp_path: Path, data: bytes, message: str) -> None:
    write(tmp_path, {"a.yaml": data})
    assert problems(read_paths([str(tmp_path / "a.yaml")])) == [("TW005", message)]


def test_a_file_without_permission_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, {"a.yaml": "k: 1"})

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("builtins.open", refuse)
    assert problems(read_paths([str(tmp_path / "a.yaml")])) == [("TW001", "permission denied")]


def test_a_name_that_cannot_be_a_file_is_reported() -> None:
    assert [code for code, _ in problems(read_paths(["a\0b", "x" * 5000, ""]))] == ["TW001", "TW001", "TW001"]


def test_lines_of_a_source_are_shown_without_their_ends() -> None:
    source = read_text("\ufeffa: 1\r\nb: é\n" + "x: y\n" * 40_000 + "last: 1", "f.yaml").sources["f.yaml"]
    assert [source.line(number) for number in (0, 1, 2, 3, 40_002, 40_003, 40_004)] == [
        "a: 1",
        "a: 1",
        "b: é",
        "x: y",
        "x: y",
        "last: 1",
        "",
    ]


def test_repeated_keys_become_diagnostics() -> None:
    diagnostics = list(repeated_keys(read_text("a: 1\na: 2\n", "f.yaml").documents))
    assert [(diagnostic.code, diagnostic.message, str(diagnostic.at)) for diagnostic in diagnostics] == [
        ("TW004", "key `a` is repeated; only the last one counts", "f.yaml:2:1")
    ]

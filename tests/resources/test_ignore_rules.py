"""Patterns of files to leave out, held to git itself (docs/reference/sources.md#leaving-files-out)."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.needs import unavailable
from tests.randomness import seeds
from tierwall.resources.ignore import IgnoreRules

WILD = rb"a b ab c * ** *** ? / / [ab] [!a] [^b] [a-c] []a] [[:alpha:]] [[:x:]] [[:a] [b-a] [a/] [ \ \* \/ ! # . -"
PARTS = [*WILD.split(), b" ", b"\\ ", "é".encode()]
NAMES = [b"a", b"b", b"ab", b"abc", b"c", b"a b", b".a", b"*", b"!a", b"#a", "é".encode(), b"ba", b"a-", b"]", b"a "]


def git(folder: bytes, *arguments: str, input: bytes | None = None) -> bytes:
    environment = {**os.environ, "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull}
    return subprocess.run(
        ["git", "-C", folder, *arguments], input=input, capture_output=True, env=environment, check=False
    ).stdout


def excluded_by_us(path: bytes, rules: dict[bytes, IgnoreRules]) -> bool:
    """Ask the rules of every folder above a path, the nearest first, for each folder on the way and for the file."""
    parts = path.split(b"/")
    for end in range(1, len(parts) + 1):
        answers: Iterator[bool | None] = (
            rules[base].excludes(b"/".join(parts[start:end]), end < len(parts))
            for start in range(end - 1, -1, -1)
            if (base := b"/".join(parts[:start])) in rules
        )
        if next((answer for answer in answers if answer is not None), False):
            return True
    return False


@pytest.mark.parametrize("seed", seeds(40))
def test_random_patterns_match_what_git_ignores(tmp_path: Path, seed: int) -> None:
    if shutil.which("git") is None:
        unavailable("git is not installed")
    rng, root = random.Random(seed), os.fsencode(tmp_path)
    git(root, "init", "-q")
    files: list[bytes] = []
    for _ in range(40):
        path = b"/".join(rng.choices(NAMES, k=rng.randint(1, 4)))
        try:
            os.makedirs(os.path.dirname(root + b"/" + path), exist_ok=True)
            Path(os.fsdecode(root + b"/" + path)).touch()
        except OSError:
            continue  # A file has the name of the folder.
        if os.path.isfile(root + b"/" + path):
            files.append(path)
    rules: dict[bytes, IgnoreRules] = {}
    for folder in sorted({b"", *map(os.path.dirname, files)}):
        if not folder or rng.random() < 0.2:
            lines = [b"".join(rng.choices(PARTS, k=rng.randint(1, 6))) for _ in range(rng.randint(1, 5))]
            data = rng.choice((b"\n", b"\r\n")).join(lines) + b"\n"
            Path(os.fsdecode(os.path.join(root, folder, b".gitignore"))).write_bytes(data)
            rules[folder] = IgnoreRules.read(data)
    given = b"".join(path + b"\0" for path in files)
    ignored = set(git(root, "check-ignore", "--no-index", "-z", "--stdin", input=given).split(b"\0")) - {b""}
    assert {path for path in files if excluded_by_us(path, rules)} == ignored


@pytest.mark.parametrize(
    ("patterns", "left_out", "kept"),
    [
        ("charts", "charts a/charts", "chartsx"),
        ("charts/", "charts", ""),
        ("/a.yaml", "a.yaml", "b/a.yaml"),
        ("b/*.yaml", "b/a.yaml", "x/b/a.yaml b/c/a.yaml"),
        ("**/b/**", "b/a x/b/a b/c/d", "b"),
        ("a/**/b", "a/b a/x/b a/x/y/b", "ab x/a/b"),
        ("*.yaml !keep.yaml", "a.yaml x/a.yaml", "keep.yaml x/keep.yaml"),
        (r"\!a \#b", "!a #b", "a b"),
        ("[0-9]*", "0a 1", "a0"),
    ],
)
def test_what_patterns_mean(patterns: str, left_out: str, kept: str) -> None:
    rules = IgnoreRules(pattern.encode() for pattern in patterns.split())
    assert [path for path in left_out.split() if not rules.excludes(path.encode(), True)] == []
    assert [path for path in kept.split() if rules.excludes(path.encode(), True)] == []


def test_a_comment_and_a_blank_line_are_no_patterns() -> None:
    rules = IgnoreRules.read(b"\xef\xbb\xbf# all\n\n   \n!\n/\n")
    assert not rules.excludes(b"a", False)


@pytest.mark.parametrize(
    "pattern", [b"*a" * 120 + b"b", b"**/a/" * 60 + b"b", b"[!x]*" * 100 + b"z", b"?*" * 120 + b"/y"]
)
def test_no_pattern_takes_long(pattern: bytes) -> None:
    rules = IgnoreRules([pattern])
    start = time.process_time()
    assert not rules.excludes(b"/".join([b"a" * 250] * 16), False)
    assert not rules.excludes(b"a/" * 1000 + b"a", False)
    assert time.process_time() - start < 1


def test_a_hundred_thousand_patterns_are_looked_up() -> None:
    lines = [form % number for number in range(25_000) for form in (b"f%d", b"/d/f%d.yaml", b"*-%d.yaml", b"p%d-*")]
    rules = IgnoreRules(lines)
    start = time.process_time()
    for number in range(1000):
        assert rules.excludes(b"d/f%d.yaml" % number, False)
        assert rules.excludes(b"x/y-%d.yaml" % number, False)
        assert not rules.excludes(b"x/none%d" % number, False)
    assert time.process_time() - start < 2

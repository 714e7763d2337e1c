"""Every file and name that the pages for contributors mention exists."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import ROOT

PACKAGE = ROOT / "src" / "tierwall"
PAGES = [
    ROOT / "docs" / "architecture.md",
    ROOT / "CONTRIBUTING.md",
    *sorted((ROOT / "docs" / "contributing").glob("*.md")),
]
_FENCE = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)
# `path/file.py`, `path/folder/` or `path/file.py:name`; `shop/web-0` is a pod.
_PATH = re.compile(r"`([\w.-]+/(?:[\w.-]+/)*(?:[\w-]+\.(?:py|md|jsonl?|toml))?)(?::([A-Za-z_]\w*))?`")


def mentioned(page: str) -> Iterator[tuple[str, str]]:
    """Each path in backticks, and the name behind its colon."""
    yield from _PATH.findall(_FENCE.sub("", page))


def place(path: str) -> Path | None:
    """The file or folder, from the root of the repository or from the package."""
    return next((base / path for base in (ROOT, PACKAGE) if (base / path).exists()), None)


def defines(file: Path, name: str) -> bool:
    """Whether a Python file defines a name, at the top or in a class; any other file contains the word."""
    if file.suffix != ".py":
        return name in file.read_text()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and node.name == name:
            return True
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.id == name:
            return True
    return False


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_what_a_page_mentions_exists(page: Path) -> None:
    for path, name in mentioned(page.read_text()):
        file = place(path)
        assert file is not None, path
        assert not name or defines(file, name), f"{path}:{name}"


def test_the_pages_mention_files() -> None:
    for page in PAGES:
        assert page.stem == "index" or list(mentioned(page.read_text())), page.name


def test_each_recipe_is_a_numbered_list() -> None:
    recipes = [page for page in PAGES if page.parent.name == "contributing" and page.stem != "index"]
    assert len(recipes) == 6
    for recipe in recipes:
        numbers = re.findall(r"^(\d+)\. ", recipe.read_text(), re.MULTILINE)
        assert numbers == [str(number) for number in range(1, len(numbers) + 1)]
        assert len(numbers) >= 5


def test_a_file_that_does_not_exist_is_noticed() -> None:
    assert [place(path) for path, _ in mentioned("see `core/stacks.py` and `core/stack.py`")] == [
        None,
        PACKAGE / "core" / "stack.py",
    ]
    assert not defines(PACKAGE / "core" / "stack.py", "no_such_name")


def test_each_walk_has_at_most_ten_stations() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text()
    walks = [section for section in page.split("\n## ") if section.startswith("One ")]
    assert len(walks) == 4
    for walk in walks:
        stations = re.findall(r"^(\d+)\. ", walk, re.MULTILINE)
        assert stations == [str(number) for number in range(1, len(stations) + 1)]
        assert 5 <= len(stations) <= 10


FOR_USERS = [
    *sorted(ROOT.glob("*.md")),
    *(page for page in sorted((ROOT / "docs").rglob("*.md")) if page.parent.name != "kinds"),
]
# Any file below a folder of the repository, in running text or in a command.
_FILE = re.compile(r"(?<![\w./-])(?:examples|docs|deploy|requirements|bench|supply)/[\w./-]*[\w/]")
_LINK = re.compile(r"\]\(([^)#\s]+)[^)\s]*\)")


@pytest.mark.parametrize("page", FOR_USERS, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_file_that_a_page_for_users_names_exists(page: Path) -> None:
    text = page.read_text()
    named = {path for path in _FILE.findall(text) if "…" not in path}
    if page.name != "CHANGELOG.md":
        assert [path for path in sorted(named) if not (ROOT / path).exists()] == []
    targets = [target for target in _LINK.findall(_FENCE.sub("", text)) if "://" not in target]
    assert [target for target in targets if not (page.parent / target).exists()] == []


def test_the_site_has_every_page() -> None:
    pages = {str(page.relative_to(ROOT / "docs")) for page in (ROOT / "docs").rglob("*.md")}
    assert set(re.findall(r"[\w./-]+\.md", (ROOT / "mkdocs.yml").read_text())) == pages

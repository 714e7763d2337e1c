"""Every promise on the page about security names a test, and every test that it names exists (docs/security.md)."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from tests import ROOT

PAGE = (ROOT / "docs" / "security.md").read_text()
HEADER = "| tries | promise | held by |"
_TEST = re.compile(r"`(tests/[\w/]+\.py)(?:::(\w+))?`")


@cache
def functions(file: str) -> frozenset[str]:
    """Return the names of the test functions in a file; empty if there is no such file."""
    path = ROOT / file
    if not path.is_file():
        return frozenset()
    names = (node.name for node in ast.parse(path.read_text()).body if isinstance(node, ast.FunctionDef))
    return frozenset(name for name in names if name.startswith("test_"))


def problems(page: str) -> list[str]:
    """Return the tests that a page names and that do not exist."""
    named = _TEST.findall(page)
    return [f"{file}::{test}" for file, test in named if not functions(file) or (test and test not in functions(file))]


def promises(page: str) -> list[str]:
    """Return the rows of all tables of promises."""
    tables = re.findall(rf"^{re.escape(HEADER)}\n\|[-|]+\|\n((?:\|.*\n)+)", page, re.MULTILINE)
    return [row for table in tables for row in table.splitlines()]


def test_every_test_that_the_page_names_exists() -> None:
    assert len(_TEST.findall(PAGE)) > 80
    assert problems(PAGE) == []


def test_every_promise_names_a_test() -> None:
    rows = promises(PAGE)
    assert len(rows) > 40
    assert PAGE.count(HEADER) >= 7
    for row in rows:
        cells = row.strip("|").split(" | ")
        assert len(cells) == 3, row
        assert _TEST.search(cells[2]), f"no test holds this: {row}"
        assert all(test for _, test in _TEST.findall(cells[2])), f"name the function, not only the file: {row}"


def test_the_page_says_what_is_not_promised() -> None:
    section = PAGE.split("## Not promised")[1].split("\n## ")[0]
    assert section.count("\n* ") >= 10


@pytest.mark.parametrize(
    "name",
    [
        "`tests/docs/test_security_page.py::test_no_such`",
        "`tests/docs/no_such_file.py::test_x`",
        "`tests/docs/test_security_page.py::problems`",
    ],
)
def test_a_test_that_does_not_exist_is_noticed(name: str) -> None:
    assert problems(f"| tries | promise | {name} |") == [name.strip("`")]


def test_links_to_the_page_are_where_people_look() -> None:
    places = [ROOT / "README.md", ROOT / "SECURITY.md", ROOT / "docs" / "index.md", ROOT / "docs" / "run.md"]
    assert [place.name for place in places if "security.md" not in Path(place).read_text()] == []

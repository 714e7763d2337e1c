"""The terminal sessions on the pages are real: every `$ tierwall …` on them is run."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from typing import NamedTuple

import pytest
from click.testing import CliRunner

from tests import ROOT
from tierwall.cli.main import root

PAGES = ("README.md", "docs/compare.md", "docs/index.md", "docs/network.md", "docs/policy-tests.md")


class PageExample(NamedTuple):
    page: str
    command: str
    output: tuple[str, ...]


def page_examples() -> Iterator[PageExample]:
    """Yield the commands on the pages, each with the lines shown below it."""
    for page in PAGES:
        for block in re.findall(r"^```console\n(.*?)^```", (ROOT / page).read_text(), re.DOTALL | re.MULTILINE):
            for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
                command, *output = part.rstrip("\n").split("\n")
                if command.startswith("tierwall ") and "changed/" not in command:
                    yield PageExample(page, command, tuple(output))


@pytest.mark.parametrize(
    "example", list(page_examples()), ids=lambda example: f"{example.page}: {example.command}"[:80]
)
def test_a_command_prints_what_its_page_shows(example: PageExample, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    result = CliRunner().invoke(root, shlex.split(example.command, comments=True)[1:])
    # Denied, findings and conditional are answers; 1 and 2 mean that the page is wrong.
    assert result.exit_code in (0, 3, 4, 5), result.output
    printed = result.stdout.rstrip("\n").split("\n")
    if example.output and example.output[-1] == "…":
        assert printed[: len(example.output) - 1] == list(example.output[:-1])
    elif example.output:
        assert printed == list(example.output)


def test_the_picture_of_the_readme_is_drawn_by_the_command_beside_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    match = re.search(r"\(`tierwall ([^`]*)`\):\n\n```mermaid\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert match is not None
    command, picture = match.groups()
    assert CliRunner().invoke(root, shlex.split(command)).stdout == picture

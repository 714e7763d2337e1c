"""The terminal sessions on the pages are real: every `$ tierwall …` on them is run, and prints what is shown.

Pages that are about the reader's own folders are read in a folder that has them. Commands that keep running, or change
the machine, are only read: their options must exist.
"""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import click
import pytest
from click.testing import CliRunner

from tests import ROOT
from tierwall.cli.main import root

PAGES = ("README.md", *sorted(str(page.relative_to(ROOT)) for page in (ROOT / "docs").rglob("*.md")))
# The reader's folders, by the names that the pages give them.
FOLDERS = {
    "manifests": "examples/shop/manifests",
    "main/manifests": "examples/shop/manifests",
    "policies": "examples/api/policies",
    "tests": "examples/shop/tests",
}
READ_ONLY = ("run", "audit", "enforce", "authorizer")
BLOCK = re.compile(r"^```console\n(.*?)^```", re.DOTALL | re.MULTILINE)
# A command of the user, or of root; its next lines are what it prints, up to the next command or to a blank comment.
PROMPT = re.compile(r"^[$#] (?=\w)", re.MULTILINE)


class PageExample(NamedTuple):
    page: str
    command: str
    output: tuple[str, ...]


def page_examples() -> Iterator[PageExample]:
    """Yield the commands on the pages, each with the lines shown below it."""
    for page in PAGES:
        for block in BLOCK.findall((ROOT / page).read_text()):
            for part in PROMPT.split(block.replace("\\\n", " "))[1:]:
                command, *output = part.rstrip("\n").split("\n")
                if "tierwall " in command and not command.startswith("git "):
                    yield PageExample(page, command, tuple(output))


EXAMPLES = list(page_examples())


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the reader's folder, which has the examples, too."""
    home = tmp_path / "home"
    home.mkdir()
    (home / "examples").symlink_to(ROOT / "examples")
    for name, source in FOLDERS.items():
        shutil.copytree(ROOT / source, (tmp_path if "/" in name else home) / name)
    monkeypatch.chdir(home)
    return home


def leaf(words: list[str]) -> tuple[click.Command, list[str]]:
    """Return the command that words call, and its arguments."""
    command: click.Command = root
    while isinstance(command, click.Group) and words and not words[0].startswith("-"):
        below = command.get_command(click.Context(command), words[0])
        assert below is not None, words[0]
        command, words = below, words[1:]
    return command, words


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: f"{example.page}: {example.command}"[:80])
def test_a_command_prints_what_its_page_shows(example: PageExample, folder: Path) -> None:
    words = shlex.split(example.command, comments=True)
    # `--node` names a machine of the reader.
    if words[0] == "tierwall" and (words[1] in READ_ONLY or "--node" in words):
        for name in ("server.pem", "server.key", "ca.crt"):
            (folder / name).touch()
        command, arguments = leaf(words[1:])
        command.make_context(words[1], arguments)
        return
    if words[0] == "tierwall":
        if "--baseline" in words:
            CliRunner().invoke(root, ["check", "manifests", "--write-baseline", words[words.index("--baseline") + 1]])
        result = CliRunner().invoke(root, words[1:])
        code, printed, everything = result.exit_code, result.stdout, result.output
    else:
        script = example.command.replace("tierwall ", f"{shlex.quote(sys.executable)} -m tierwall ")
        done = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=False)
        code, printed, everything = done.returncode, done.stdout, done.stdout + done.stderr
    # Denied, findings and conditional are answers; 1 and 2 mean that the page is wrong.
    assert code in (0, 3, 4, 5), everything
    shown, lines = list(example.output), printed.rstrip("\n").split("\n")
    if shown and shown[-1] == "…":
        assert lines[: len(shown) - 1] == shown[:-1]
    elif shown and lines != shown:
        # What a page shows of a command that prints nothing else may be what it says on standard error.
        assert everything.rstrip("\n").split("\n") == shown


def test_the_pages_have_examples() -> None:
    assert len({example.page for example in EXAMPLES}) > 10


def test_the_baseline_on_its_page_is_the_one_that_the_command_above_it_writes(folder: Path) -> None:
    CliRunner().invoke(root, ["check", "manifests/", "--write-baseline", "tierwall-baseline.txt"])
    written = (folder / "tierwall-baseline.txt").read_text()
    assert f"```\n{written}```" in (ROOT / "docs" / "adopting.md").read_text()


def test_the_picture_of_the_readme_is_drawn_by_the_command_beside_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    match = re.search(r"\(`tierwall ([^`]*)`\):\n\n```mermaid\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert match is not None
    command, picture = match.groups()
    assert CliRunner().invoke(root, shlex.split(command)).stdout == picture

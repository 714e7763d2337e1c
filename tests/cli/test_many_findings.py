"""Very many problems: a bounded number is made and shown, errors first, and all are counted."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from tests.serve.test_follower import Names, Told
from tierwall.cli.main import root
from tierwall.core.diagnostics import MAX_OF_FILE, MAX_SHOWN, Diagnostic, InputError, shown
from tierwall.core.source import Position
from tierwall.resources.forms import form_of_name
from tierwall.resources.load import load_text
from tierwall.world import World

# Codes of an error, a warning and a note.
ERROR, WARNING, NOTE = "TW105", "TW207", "TW209"
MANY = 2345


def problem(code: str, file: str, line: int = 1, count: int = 1) -> Diagnostic:
    return Diagnostic(code, "message", Position(file, line, 1), count=count)


@given(
    st.lists(
        st.builds(
            problem, st.sampled_from((ERROR, WARNING, NOTE)), st.sampled_from("abcdefghijklmnop"), st.integers(1, 9)
        ),
        max_size=40,
    ).map(lambda some: some * 60)
)
def test_what_is_shown_is_bounded_and_nothing_is_lost(diagnostics: list[Diagnostic]) -> None:
    chosen, more = shown(diagnostics)
    assert len(chosen) <= MAX_SHOWN
    of_file = Counter(diagnostic.at.file for diagnostic in chosen if diagnostic.at)
    assert all(number <= MAX_OF_FILE for number in of_file.values())
    assert len(chosen) + sum(number for _, number in more) == len(diagnostics)
    for file, number in of_file.items():
        given_errors = sum(given.code == ERROR for given in diagnostics if given.at and given.at.file == file)
        shown_errors = sum(given.code == ERROR for given in chosen if given.at and given.at.file == file)
        others = number - shown_errors
        assert shown_errors == given_errors or not others, "an error is never hidden behind something lesser"


def test_few_problems_are_shown_as_they_are() -> None:
    diagnostics = tuple(problem(NOTE, "a", line) for line in range(MAX_OF_FILE))
    assert shown(diagnostics) == (diagnostics, ())
    assert shown([*diagnostics, problem(ERROR, "b")]).lines == ()


def test_an_error_is_not_hidden_behind_notes() -> None:
    chosen, more = shown([*(problem(NOTE, "a", line) for line in range(500)), problem(ERROR, "a", 999)])
    assert chosen[-1].code == ERROR
    assert len(chosen) == MAX_OF_FILE
    assert more == (("a", 401),)


def test_many_files_are_counted_together() -> None:
    chosen = shown(problem(ERROR, f"{file}.yaml", line) for file in range(200) for line in range(50))
    assert len(chosen.diagnostics) == MAX_SHOWN
    assert len(chosen.lines) == 21
    assert sum(number for _, number in chosen.more) == 9000
    assert chosen.lines[-1] == "and 8,000 more"


BOMBS = {
    "maps.yaml": "{}\n---\n" * MANY,
    "values.yaml": "1\n---\n" * MANY,
    "stream.json": '{"a": 1}' * MANY,
    "list.yaml": "apiVersion: v1\nkind: List\nitems:\n" + "- 1\n" * MANY,
    "lists.yaml": "{apiVersion: v1, kind: List, items: [1, {}, []]}\n---\n" * (MANY // 3 + 1),
    "broken.yaml": "}\n---\n" * MANY,
    "quotes.yaml": '"\n---\n' * MANY,
    "separators.yaml": "--- }\n" * MANY,
    "tabs.yaml": "a:\n\tb: c\n---\n" * MANY,
    "twice.yaml": "{apiVersion: v1, kind: Pod, metadata: {name: a}, spec: {containers: [{name: a, image: a}]}}\n---\n"
    * MANY,
    "keys.yaml": "apiVersion: v1\nkind: Foo\nmetadata: {name: a}\n" + "a: 1\n" * MANY,
    "documents.yaml": "{a: 1, a: 2}\n---\n" * MANY,
}


def test_the_name_of_a_file_is_looked_at_once(tmp_path: Path) -> None:
    (tmp_path / "once.yaml").write_text("{}\n" * MANY)
    before = form_of_name.cache_info().misses
    assert CliRunner().invoke(root, ["check", str(tmp_path)]).exit_code == 0
    assert form_of_name.cache_info().misses <= before + 1


@pytest.mark.parametrize("name", BOMBS)
def test_a_bomb_of_problems_makes_few_diagnostics_and_all_are_counted(name: str) -> None:
    loaded = load_text(BOMBS[name], name)
    assert len(loaded.diagnostics) <= MAX_OF_FILE + 1, "what is not shown is not made"
    findings = World.of(loaded).check()
    assert len(findings) <= 2 * (MAX_OF_FILE + 1)
    assert sum(diagnostic.count for diagnostic in findings) >= MANY - 1
    assert len(shown(findings).diagnostics) == MAX_OF_FILE


@pytest.mark.parametrize("output", ["text", "json", "sarif", "github", "junit"])
def test_every_format_shows_the_first_and_counts_the_rest(tmp_path: Path, output: str) -> None:
    (tmp_path / "bad.yaml").write_text(BOMBS["maps.yaml"])
    done = CliRunner().invoke(root, ["check", str(tmp_path / "bad.yaml"), "-o", output])
    assert done.exit_code == 4
    assert len(done.stdout) < 100_000
    more = f"{MANY - MAX_OF_FILE:,} more"
    match output:
        case "json":
            document = json.loads(done.stdout)
            assert document["errors"] == MANY
            assert len(document["diagnostics"]) == MAX_OF_FILE
            assert document["more"] == [{"file": str(tmp_path / "bad.yaml"), "count": MANY - MAX_OF_FILE}]
        case "sarif":
            [run] = json.loads(done.stdout)["runs"]
            assert len(run["results"]) == MAX_OF_FILE
            [note] = run["invocations"][0]["toolExecutionNotifications"]
            assert more in note["message"]["text"]
        case "junit":
            [case] = ElementTree.fromstring(done.stdout.partition("\n")[2]).iter("testcase")
            assert len(case.findall("failure")) == MAX_OF_FILE
            assert more in (case.findtext("system-out") or "")
        case _:
            lines = done.stdout.splitlines()
            assert len(lines) == MAX_OF_FILE + 1
            assert f"bad.yaml: and {more}" in lines[-1].replace("%3A", ":")
    if output == "text":
        assert done.stderr.startswith(f"{MANY} errors in 0 objects of 1 file")


def test_commands_that_fail_show_the_first_and_count_the_rest(tmp_path: Path) -> None:
    (tmp_path / "bad.yaml").write_text(BOMBS["maps.yaml"])
    for command in (["list", str(tmp_path)], ["yaml", str(tmp_path / "bad.yaml")]):
        done = CliRunner().invoke(root, command)
        assert len(done.stderr.splitlines()) <= MAX_OF_FILE + 1
    (tmp_path / "bad.yaml").write_text(BOMBS["keys.yaml"])
    done = CliRunner().invoke(root, ["yaml", str(tmp_path / "bad.yaml")])
    assert len(done.stderr.splitlines()) == MAX_OF_FILE + 1


def test_a_message_is_clipped() -> None:
    [clipped] = shown([Diagnostic(ERROR, "x" * 5000, actual="y" * 5000)]).diagnostics
    assert clipped.message.endswith("x… and 3,000 more characters")
    assert clipped.actual == ""


def test_an_exception_names_the_first_and_counts_the_rest() -> None:
    error = InputError(problem(ERROR, "a", line) for line in range(MANY))
    assert error.summary.endswith(f"a: and {MANY - MAX_OF_FILE:,} more")


def test_a_load_reports_what_the_load_before_did_not_have() -> None:
    follower = Names()
    first, second = (load_text(text, "a.yaml") for text in ("just: text", "just: text\n---\nother: text\n"))
    reported = []
    for loaded in (first, second, second, first):
        load = follower.next_load(Told(loaded))
        assert load is not None
        follower.accept(load)
        reported.append([diagnostic.at.line for diagnostic in load.unreported if diagnostic.at])
    assert reported == [[1], [3], [], []]

"""All commands have help with an example, read names with values alike, and can be completed."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.shell_completion import ShellComplete, get_completion_class
from click.testing import CliRunner

from tests import ROOT
from tierwall.cli.command import named_values
from tierwall.cli.main import root


def commands(command: click.Command, words: tuple[str, ...] = ()) -> Iterator[tuple[str, click.Command]]:
    """Yield all commands and groups, with the words that call them."""
    yield " ".join(words), command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            assert below is not None
            yield from commands(below, (*words, name))


ALL = dict(commands(root))


@pytest.mark.parametrize("words", ALL)
def test_help_has_an_example_that_calls_the_command(words: str) -> None:
    shown = " ".join(CliRunner().invoke(root, [*words.split(), "--help"]).stdout.split())
    _, _, example = shown.partition("Example: ")
    assert f"tierwall {words}".strip() in example, shown
    assert "--help Show this message and exit" not in example


@pytest.mark.parametrize("words", ALL)
def test_arguments_stand_in_the_usage_line_alone(words: str) -> None:
    context = click.Context(ALL[words])
    arguments = {
        parameter.make_metavar(context) for parameter in ALL[words].params if isinstance(parameter, click.Argument)
    }
    shown = CliRunner().invoke(root, [*words.split(), "--help"]).stdout.splitlines()
    assert not arguments.intersection(map(str.strip, shown))


@pytest.mark.parametrize(("engine", "command"), [("envoy", "run"), ("authorizer", "authorizer")])
def test_an_engine_that_enforce_does_not_offer_has_its_own_command(engine: str, command: str) -> None:
    result = CliRunner().invoke(root, ["enforce", engine])
    assert result.exit_code == 2
    assert f"No such command '{engine}'; use `tierwall {command}`" in result.stderr


@pytest.mark.parametrize("words", ALL)
def test_help_says_what_a_value_is_not_which_type_it_has(words: str) -> None:
    assert not re.search(r" (TEXT|INTEGER|FLOAT)\b", CliRunner().invoke(root, [*words.split(), "--help"]).stdout)


@pytest.mark.parametrize("words", ALL)
def test_no_line_of_help_ends_in_the_middle_of_a_word(words: str) -> None:
    lines = CliRunner().invoke(root, [*words.split(), "--help"]).stdout.splitlines()
    assert [line for line in lines if re.search(r"\S-$", line)] == []
    assert not [line for line in lines if "\N{NON-BREAKING HYPHEN}" in line]


@pytest.mark.parametrize("words", [words for words, command in ALL.items() if isinstance(command, click.Group)])
def test_a_group_alone_shows_its_help_where_no_summary_is_cut_short(words: str) -> None:
    helped = CliRunner().invoke(root, [*words.split(), "--help"])
    assert [line for line in helped.stdout.splitlines() if line.startswith("  ") and line.endswith("...")] == []
    alone = CliRunner().invoke(root, words.split())
    if words != "authorizer":  # it serves
        assert (alone.exit_code, alone.stdout, alone.stderr) == (2, "", helped.stdout)


@pytest.mark.parametrize("words", [words for words, command in ALL.items() if not isinstance(command, click.Group)])
def test_completion_offers_every_option(words: str) -> None:
    completion = get_completion_class("bash")
    assert completion is not None
    items = completion(root, {}, "tierwall", "_TIERWALL_COMPLETE").get_completions(words.split(), "--")
    offered = {item.value for item in items}
    options = {
        name
        for option in ALL[words].params
        if isinstance(option, click.Option) and not option.hidden
        for name in (*option.opts, *option.secondary_opts)
        if name.startswith("--")
    }
    assert options <= offered


@pytest.mark.parametrize(
    ("words", "kind"),
    [
        ("check", "file"),
        ("test", "file"),
        ("diff", "file"),
        ("diff old", "file"),
        ("yaml", "file"),
        ("cel batch", "file"),
        ("explain network -f", "file"),
        ("check --baseline", "file"),
        ("explain api --object", "file"),
        ("authorizer --policies", "file"),
        ("run --state", "dir"),
    ],
)
def test_files_and_folders_complete(words: str, kind: str) -> None:
    completion = ShellComplete(root, {}, "tierwall", "")
    assert [(item.value, item.type) for item in completion.get_completions(words.split(), "ex")] == [("ex", kind)]


def test_the_path_of_a_request_is_not_a_file() -> None:
    assert ShellComplete(root, {}, "tierwall", "").get_completions(["explain", "tool", "--path"], "/m") == []


def test_space_around_names_and_values_does_not_count() -> None:
    assert named_values(["a=b", " a = b=c ", "a="], "--x") == [("a", "b"), ("a", "b=c"), ("a", "")]
    assert named_values(["Host: a:1"], "--header", "NAME:VALUE") == [("Host", "a:1")]
    for text in ("a", "=b", " =b", ""):
        with pytest.raises(click.BadParameter, match=f"expected NAME=HOST:PORT, found `{text}`"):
            named_values([text], "--bind", "NAME=HOST:PORT")


@pytest.mark.parametrize(
    ("words", "form"),
    [
        ("can-i get pods --extra a", "KEY=VALUE"),
        ("explain gateway --gateway infra/edge --request a -f examples/gateway/manifests", "NAME=VALUE"),
        ("explain tool --gateway a/b --backend a/c --header a", "NAME:VALUE"),
        ("explain tool --gateway a/b --backend a/c --external-auth a", "POLICY=ANSWER"),
        ("run examples/tool/manifests --bind a", "NAME=HOST:PORT"),
        ("cel check a --var a", "NAME:TYPE"),
    ],
)
def test_every_name_with_a_value_is_read_alike(words: str, form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    result = CliRunner().invoke(root, words.split())
    assert result.exit_code == 2
    assert f"expected {form}, found `a`" in result.stderr


@pytest.mark.parametrize(
    ("options", "who"),
    [
        ("", "a user without a name, in no group"),
        ("--list", "a user without a name, in no group"),
        ("--as-group a", "a user without a name, in group `a`"),
        ("--as-group a --as-group b", "a user without a name, in groups `a` and `b`"),
        ("--as alice", ""),
        ("-q", ""),
    ],
)
def test_can_i_says_whom_it_judges(options: str, who: str) -> None:
    asked = [] if options == "--list" else ["get", "pods"]
    result = CliRunner().invoke(root, ["can-i", *asked, *options.split(), "-f", str(ROOT / "examples/api/policies")])
    expected = f"note: this is about {who} (name the user with --as)\n" if who else ""
    assert result.stderr.startswith(expected)
    assert "without a name" not in result.stdout
    assert who or "without a name" not in result.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("status", "no policy that has a status is among the objects"),
        ("effective --all", "there is no Gateway with a route or backend to show"),
    ],
)
def test_a_command_with_nothing_to_print_says_so(words: str, said: str, tmp_path: Path) -> None:
    done = CliRunner().invoke(root, [*words.split(), "-f", str(tmp_path)])
    assert (done.exit_code, done.stdout, done.stderr) == (0, "", said + "\n")
    document = CliRunner().invoke(root, [*words.split(), "-f", str(tmp_path), "-o", "json"])
    assert (json.loads(document.stdout), document.stderr) == ({"items": [], "notConsidered": []}, "")

"""Nothing from input fakes a line or moves a terminal, in any command and format
(docs/semantics.md#output-cannot-be-forged)."""

from __future__ import annotations

import csv
import io
import json
import shutil
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import yaml
from click.testing import CliRunner

from tests import ROOT
from tierwall.cli.main import root
from tierwall.core.diagnostics import Diagnostic
from tierwall.core.source import Position
from tierwall.core.unprintable import escape_unprintable, printable_json, printable_json_bytes, printable_line
from tierwall.render.formats import FORMATS
from tierwall.render.text import diagnostics
from tierwall.serve.authorizer.run import log_event
from tierwall.serve.decisionlog import DecisionLog

NASTY = "\nFORGED: no\r\x1b[2J\x07FORGED\x7f\x85FORGED\x9b\u2028FORGED\u2029\u202eFORGED\u2066\u200b\ufeff\x0b\x0c\t::"
WORLDS = {
    "shop": "examples/shop/manifests",
    "tool": "examples/tool/manifests",
    "gateway": "examples/gateway/manifests",
    "api": "examples/api/policies",
    "broken": "examples/shop/broken",
    "tests": "examples/shop/tests",
}
# What a name is for the API server itself stays as it is.
KEPT = ("apiVersion", "kind", "effect", "action", "type", "protocol", "operator", "expression", "group", "verdict")


def nasty_value(value: Any, names: set[str], key: str = "") -> Any:
    """Spoil every name consistently, so that references still fit, and every description."""
    if isinstance(value, dict):
        return {name: nasty_value(item, names, name) for name, item in value.items()}
    if isinstance(value, list):
        return [nasty_value(item, names, key) for item in value]
    if key in KEPT or not isinstance(value, str):
        return value
    if value in names or key in ("description", "message"):
        return value + NASTY
    return "/".join(part + NASTY if part in names else part for part in value.split("/"))


def names_in(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        if isinstance(value.get("name"), str):
            yield value["name"]
        for item in value.values():
            yield from names_in(item)
    elif isinstance(value, list):
        for item in value:
            yield from names_in(item)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The examples with names, descriptions and file names that try to fake lines."""
    base = tmp_path_factory.mktemp("nasty")
    for name, source in WORLDS.items():
        documents = [
            (file.name, [value for value in yaml.safe_load_all(file.read_text()) if value])
            for file in sorted((ROOT / source).rglob("*.yaml"))
        ]
        names = {text for _, values in documents for text in names_in(values)}
        (base / name).mkdir()
        for file, values in documents:
            text = "\n---\n".join(json.dumps(nasty_value(value, names)) for value in values)
            (base / name / f"{file}{NASTY.replace('/', '')}.yaml").write_text(text)
    (base / "broken" / f"::error file=x::FORGED{NASTY}.yaml").write_text('{"a": [\n"\x1b[2JFORGED\u202e": }')
    (base / "broken" / "odd.yaml").write_text(
        json.dumps({"apiVersion": f"v1{NASTY}", "kind": f"Pod{NASTY}", "metadata": {"name": NASTY, NASTY: NASTY}})
        + "\n---\n"
        + json.dumps(
            {
                "apiVersion": "tierwall.io/v1alpha1",
                "kind": "ClusterAuthorizationPolicy",
                "metadata": {"name": "p"},
                "spec": {"effect": f"Deny{NASTY}", "expression": f"'{NASTY}' == {NASTY}", f"x{NASTY}": 1},
            }
        )
    )
    return base


def spoiled(text: str) -> str:
    return "/".join(part + NASTY for part in text.split("/"))


def questions() -> Iterator[tuple[str, str, list[str]]]:
    """Yield each command with its formats: the entry in `FORMATS`, the world, and the arguments."""
    everyone = ["--from", spoiled("shop/api-0"), "--to", spoiled("shop/db-0"), "--port", "5432"]
    yield "explain", "shop", ["explain", "network", *everyone]
    tool = ["--gateway", spoiled("prod/prod-gateway"), "--backend", spoiled("prod/payment-service")]
    yield (
        "explain",
        "tool",
        ["explain", "tool", "--caller", spoiled("agents/shopper"), "--tool", f"refund{NASTY}", *tool],
    )
    user = ["--user", f"alice{NASTY}", "--verb", f"create{NASTY}", "--resource", f"pods{NASTY}", "-n", f"dev{NASTY}"]
    yield "explain", "api", ["explain", "api", *user]
    yield "effective --all", "gateway", ["effective", "--all"]
    yield "can-i", "api", ["can-i", f"create{NASTY}", f"pods{NASTY}", "--as", f"alice{NASTY}", "-n", f"dev{NASTY}"]
    yield "can-i --list", "api", ["can-i", "--list", "--as", f"alice{NASTY}", "-n", "dev"]
    yield "tools", "tool", ["tools", "--all", "--caller", spoiled("agents/shopper")]
    yield "status", "gateway", ["status"]
    yield "status", "tool", ["status"]
    yield "list", "shop", ["list", "--explain"]
    for world in WORLDS:
        yield "check", world, ["check"]
    yield "test", "tests", ["test"]


CASES = [
    (command, output, world, arguments)
    for command, world, arguments in questions()
    for output in FORMATS[command]
    if not (command == "list" and output in ("dot", "mermaid", "html"))
] + [("list", output, "shop", ["list"]) for output in ("dot", "mermaid", "html")]


def check_text(text: str, where: str) -> None:
    """Check that no character from input does more than show itself."""
    for line in text.split("\n"):
        assert line.isprintable(), f"{where}: {line!r}"
        assert not line.lstrip().startswith(("FORGED", "::error::", "::error file=x")), f"{where}: {line!r}"


@pytest.mark.parametrize(("command", "output", "world", "arguments"), CASES)
def test_no_output_can_be_forged(folder: Path, command: str, output: str, world: str, arguments: list[str]) -> None:
    paths = [str(folder / world)] if arguments[0] == "test" else ["-f", str(folder / world)]
    given = [*arguments, *paths, *(["-f", str(folder / "shop")] if arguments[0] == "test" else []), "-o", output]
    result = CliRunner().invoke(root, given)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    assert result.exit_code != 2, result.output
    is_annotation = output == "github"
    check_text(result.stderr, "stderr")
    check_text(result.stdout.replace("::error ", "") if is_annotation else result.stdout, "stdout")
    if result.exit_code == 1 and not result.stdout:
        return
    match output:
        case "json" | "sarif":
            value = json.loads(result.stdout)
            for uri in _values(value, "uri"):
                assert uri.isascii()
                assert not set(uri) & set(' \n\t\\<>"{}')
        case "junit":
            ElementTree.fromstring(result.stdout)
        case "csv":
            assert len({len(row) for row in csv.reader(io.StringIO(result.stdout))}) == 1
        case "md":
            starts = ("|", "### Gateway/", "### ListenerSet/", "* ", "No settings.", "not considered", "No conn")
            strays = [line for line in result.stdout.splitlines() if line and not line.startswith(starts)]
            assert strays == [], "\n".join(strays)
        case "github":
            lines = result.stdout.splitlines()
            assert all(line.startswith(("::error ", "::warning ", "::notice ")) for line in lines)
        case "mermaid":
            assert all(line.startswith(("flowchart", "  n")) for line in result.stdout.splitlines())
        case "dot":
            assert all(line.startswith(("digraph", "  ", "}")) for line in result.stdout.splitlines())


def _values(value: Any, key: str) -> Iterator[str]:
    if isinstance(value, dict):
        for name, item in value.items():
            if name == key:
                yield item
            yield from _values(item, key)
    elif isinstance(value, list):
        for item in value:
            yield from _values(item, key)


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _strings(item)


@pytest.mark.parametrize("arguments", [["compile", "nft"], ["compile", "envoy"]])
def test_no_configuration_can_be_forged(folder: Path, arguments: list[str]) -> None:
    world = "shop" if arguments[1] == "nft" else "tool"
    result = CliRunner().invoke(root, [*arguments, "-f", str(folder / world)])
    assert result.exit_code in (0, 1), result.output
    check_text(result.output.replace("\n\t\t", "\n").replace("\n\t", "\n"), "output")


def test_other_commands_escape_too(folder: Path) -> None:
    file = next((folder / "shop").iterdir())
    result = CliRunner().invoke(root, ["yaml", str(file)])
    check_text(result.output, "yaml")
    assert any("FORGED" in json.dumps(json.loads(line)) for line in result.stdout.splitlines())
    for arguments in (
        ["cel", "eval", json.dumps(NASTY)],
        ["cel", "partial", f"object.a == {json.dumps(NASTY)}", "--unknown", "object"],
        ["cel", "check", f"1 + {NASTY}"],
        ["explain", f"network{NASTY}"],
        ["list", f"no such folder{NASTY}"],
        ["check", "-o", f"json{NASTY}"],
        ["authorizer", "--listen", f"x{NASTY}", "-f", str(folder / "api")],
    ):
        check_text(CliRunner().invoke(root, arguments).output, str(arguments))


def test_a_copy_of_the_input_is_as_good_as_the_original(folder: Path, tmp_path: Path) -> None:
    """The names are still the names: JSON gives them back."""
    shutil.copytree(folder / "shop", tmp_path / "shop")
    result = CliRunner().invoke(root, ["list", str(tmp_path / "shop"), "-o", "json"])
    assert NASTY in "".join(_strings(json.loads(result.stdout)))


def test_on_a_terminal_only_our_own_colours_are_left() -> None:
    finding = Diagnostic("TW101", f"unknown field {NASTY}", Position(f"a{NASTY}.yaml", 1, 3), hint=NASTY)
    lines = list(diagnostics([finding], lambda *_: f"  a: \x1b[2J{NASTY}", terminal=True, colour=True))
    assert lines[0].count("\x1b") == 2
    check_text(lines[0].replace("\x1b[1;31m", "").replace("\x1b[0m", ""), "head")
    snippet = lines[1]
    assert snippet.isprintable()


def test_logs_have_one_line_for_each_record(capsys: pytest.CaptureFixture[str]) -> None:
    stream = io.BytesIO()
    record = {"time": str(datetime.now(UTC)), "user": f"alice{NASTY}", "policy": NASTY}
    DecisionLog(stream).write(record)
    text = stream.getvalue().decode()
    assert json.loads(text) == record
    check_text(text, "decision log")
    log_event("policies taken", problems=[{"message": NASTY}])
    said = capsys.readouterr().err
    assert json.loads(said)["problems"] == [{"message": NASTY}]
    check_text(said, "event")


def test_the_escapes_are_those_of_the_format() -> None:
    assert escape_unprintable("a\n\x1b\u202e\U000e0001é") == r"a\n\x1b\u202e\U000e0001é"
    assert printable_line("::error file=a::b") == r"\x3a:error file=a::b"
    assert printable_line("::1 => ::2") == "::1 => ::2"
    text = json.dumps("\x7f\u2028\U000e0001é", ensure_ascii=False)
    for escaped in (printable_json(text), printable_json_bytes(text.encode()).decode()):
        assert escaped.isprintable()
        assert json.loads(escaped) == "\x7f\u2028\U000e0001é"

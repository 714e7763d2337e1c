"""Every command prints, in every format, its golden file in `outputs`; `pytest --renew tests/golden` renews them.

A change of the output is a change of a file there; read it before you commit it.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import click
import pytest
from click.testing import CliRunner

from tests import ROOT
from tierwall.cli.main import root
from tierwall.core.answer import Decider
from tierwall.core.protocols import DecisionEvent
from tierwall.core.reference import Reference
from tierwall.core.verdict import StepVerdict
from tierwall.network.detail import ObservedConnection, ObservedEndpoint, RuleHits
from tierwall.network.model.rules import Direction, RuleAction
from tierwall.render.formats import FORMATS, View, renderer
from tierwall.render.json import dump

OUTPUTS = ROOT / "tests" / "golden" / "outputs"
WORLDS = "tests/golden/worlds"


class GoldenCommand(NamedTuple):
    """A command line with golden files: its entry in `FORMATS`, a name, the arguments and the exit code.

    `only` lists the formats that the options can be combined with.
    """

    command: str
    name: str
    arguments: str
    code: int = 0
    only: tuple[str, ...] = ()


TESTS = ("examples/shop/tests", "examples/tool/tests", "examples/gateway/tests", "examples/api/test.yaml")
TO_DB = "--to shop/db-0 --port 5432 -f examples/shop/manifests"
GATEWAY = "--gateway infra/edge --listener web -f examples/gateway/manifests"
ROUTE = "--route HTTPRoute/team/chat --rule llm --backend AgentgatewayBackend/team/model"
TOOL = "--gateway prod/prod-gateway --backend prod/payment-service -f examples/tool/manifests"
PATH = "--gateway shop/agents --backend shop/orders -f examples/agents/manifests -f examples/path/manifests"
APPROVED = "--external-auth XAccessPolicy/prod/fraud-desk=Allow"
READS = "-f examples/api/reads"
API = "-n dev -f examples/api/policies"
CREATE = f"--user alice --verb create --resource persistentvolumeclaims {API}"
RESIDUAL = "'request.verb == \"create\" && object.spec.owner == request.user'"

COMMANDS = (
    GoldenCommand("check", "nothing-wrong", "check examples/tool/manifests"),
    GoldenCommand("check", "warnings", "check examples/shop/manifests", 4),
    GoldenCommand("check", "errors", "check examples/shop/broken", 4),
    GoldenCommand("check", "all-planes", f"check examples/tool examples/gateway examples/api {WORLDS}/changed", 4),
    GoldenCommand("check", "unreadable", f"check {WORLDS}/unreadable.yaml", 1),
    GoldenCommand("test", "passed", f"test {' '.join(TESTS)}"),
    GoldenCommand("test", "failed", f"test {WORLDS}/failing.yaml", 4),
    GoldenCommand(
        "explain",
        "network-denied",
        f"explain network --from shop/web-0 {TO_DB}",
        3,
    ),
    GoldenCommand(
        "explain",
        "network-allowed",
        f"explain network --from shop/api-0 {TO_DB}",
    ),
    GoldenCommand(
        "explain",
        "network-ends",
        "explain network --from shop/web --to Service/shop/db --port postgres -f examples/shop/retiring",
        5,
    ),
    GoldenCommand("explain", "tool-denied", f"explain tool --caller agents/shopper --tool refund {TOOL}", 3),
    GoldenCommand(
        "explain",
        "tool-allowed",
        f"explain tool --caller agents/shopper --tool pay --external-auth XAccessPolicy/prod/fraud-desk=Allow {TOOL}",
    ),
    GoldenCommand("explain", "path-denied", f"explain path --from agents/clerk-0 --tool refund_order {PATH}", 3),
    GoldenCommand("explain", "gateway", f"explain gateway {ROUTE} {GATEWAY}"),
    GoldenCommand("explain", "api-conditional", f"explain api {CREATE}", 5),
    GoldenCommand("explain", "api-final", f"explain api {CREATE} --object examples/api/claim.yaml"),
    GoldenCommand("effective", "place", f"effective {ROUTE} {GATEWAY}"),
    GoldenCommand(
        "effective --why",
        "one-field",
        f"effective --why traffic.timeouts {ROUTE} {GATEWAY}",
        only=("text", "json", "md"),
    ),
    GoldenCommand("effective --all", "every-place", "effective --all -f examples/gateway/manifests"),
    GoldenCommand("can-i", "conditional", f"can-i create persistentvolumeclaims --as alice {API}", 5),
    GoldenCommand("can-i", "no", f"can-i delete nodes --as eve {API}", 3),
    GoldenCommand("can-i", "refused-list", f"can-i list pods --as alice -n dev {READS}", 3),
    GoldenCommand("can-i", "allowed-list", f"can-i list pods --as alice -n dev -l owner=alice,team!=payroll {READS}"),
    GoldenCommand("can-i --widest", "alice", f"can-i list pods --as alice --widest {READS}"),
    GoldenCommand("explain", "api-list", f"explain api --user alice --verb list --resource pods -n dev {READS}", 3),
    GoldenCommand("can-i --list", "alice", f"can-i --list --as alice {API}"),
    GoldenCommand("tools", "shopper", "tools --caller agents/shopper -f examples/tool/manifests"),
    GoldenCommand("tools", "all", "tools --all --caller agents/shopper -f examples/tool/manifests"),
    GoldenCommand(
        "tools --from-log",
        "everybody",
        "tools --from-log examples/tool/decisions.jsonl -f examples/tool/manifests",
    ),
    GoldenCommand("status", "all", "status -f examples/gateway/manifests"),
    GoldenCommand("status", "network", "status -f examples/shop/manifests"),
    GoldenCommand("list", "shop", "list examples/shop/manifests"),
    GoldenCommand("list", "explained", "list examples/shop/manifests --to shop/db --explain --denied"),
    GoldenCommand(
        "list", "pairs", "list examples/shop/manifests --pairs --port 5432", only=("text", "json", "csv", "md")
    ),
    GoldenCommand(
        "list --exposure", "shop", "list examples/shop/manifests --exposure", only=("text", "json", "csv", "md")
    ),
    GoldenCommand("list", "ways-in", "list examples/ways-in --explain"),
    GoldenCommand("diff", "changed", f"diff examples/shop/manifests {WORLDS}/changed", 4),
    GoldenCommand("diff", "all-planes", "diff examples/compare/old examples/compare/new", 4),
    GoldenCommand("convert", "cluster", "convert examples/shop/manifests --to ClusterNetworkPolicy", 4),
    GoldenCommand("convert", "namespaced", "convert examples/shop/manifests --to NetworkPolicy", 4),
    GoldenCommand(
        "diff --prove",
        "opened",
        "diff --prove examples/compare/old examples/compare/new",
        4,
        only=("text", "json", "md"),
    ),
    GoldenCommand(
        "diff --prove",
        "same",
        "diff --prove --plane network examples/shop/manifests examples/shop/manifests",
        only=("text", "json", "md"),
    ),
    GoldenCommand("diff", "same", "diff examples/shop/manifests examples/shop/manifests"),
    GoldenCommand("compile envoy", "plain", f"compile envoy -f {WORLDS}/plain-gateway.yaml"),
    GoldenCommand("compile envoy", "without-certificate", "compile envoy -f examples/tool/manifests", 1),
    GoldenCommand("compile nft", "shop", "compile nft -f examples/shop/manifests"),
    GoldenCommand("crds", "policy", "crds AuthorizationPolicy"),
    GoldenCommand("cel partial", "residual", f"cel partial {RESIDUAL} --known {WORLDS}/request.yaml --unknown object"),
    GoldenCommand("cel eval", "value", 'cel eval \'{"a": [1, 2u, 3.0, b"x"], "b": duration("90s")}\''),
    GoldenCommand("cel check", "type", "cel check 'names.all(n, n.size() < 10)' --var 'names:list(string)'"),
    GoldenCommand("yaml", "policies", "yaml examples/shop/manifests/policies.yaml"),
)

SEEN = ObservedConnection(
    Direction.INGRESS,
    "TCP",
    ObservedEndpoint("10.0.0.1", 40000, "shop", "web-0"),
    ObservedEndpoint("fd00::2", 5432, "shop", "db-0"),
)
DECIDERS = (
    Decider(Reference("AdminNetworkPolicy", "", "guard"), "ingress[0]", "no web"),
    Decider(Reference("NetworkPolicy", "shop", "db-from-api"), "spec"),
)
EVENTS = tuple(
    DecisionEvent(
        plane="network",
        time=datetime(2026, 1, 2, 3, 4, 5, 678_000, UTC),
        verdict=StepVerdict.DENY,
        decided_by=(decider,),
        shadow=shadow,
        detail=SEEN,
    )
    for decider, shadow in zip(DECIDERS, (False, True), strict=True)
)
HITS = tuple(
    RuleHits(
        decided_by=(decider,), direction=Direction.INGRESS, action=RuleAction.DENY, shadow=shadow, packets=3, bytes=180
    )
    for decider, shadow in zip(DECIDERS, (False, True), strict=True)
)
# Reports of the kernel are made up: a real audit runs until it is stopped.
REPORTED: dict[str, Iterable[Any]] = {"audit": EVENTS, "audit --hits": HITS}


def outputs() -> Iterator[tuple[GoldenCommand, str]]:
    """Yield every command line in every format of its command."""
    for golden in COMMANDS:
        for output in golden.only or formats(golden.arguments) or ("text",):
            yield golden, output


def formats(arguments: str) -> tuple[str, ...]:
    """Return the choices of `-o` for a command line; empty if it has no `-o`."""
    command: click.Command = root
    for word in shlex.split(arguments):
        if not isinstance(command, click.Group):
            break
        subcommand = command.get_command(click.Context(command), word)
        assert subcommand is not None, arguments
        command = subcommand
    offered = [option.type for option in command.params if option.name == "output"]
    return tuple(str(choice) for kind in offered if isinstance(kind, click.Choice) for choice in kind.choices)


def compare_golden(name: str, text: str, renew: bool) -> None:
    """Compare an output with its golden file, or renew the file."""
    path = OUTPUTS / name
    if renew:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert path.exists(), f"{name} does not exist: `pytest --renew tests/golden` writes it"
    assert text == path.read_text()


def file_of(command: str, name: str, output: str) -> str:
    return f"{command.replace(' --', '-').replace(' ', '-')}/{name}.{output}"


def _without_code(page: str) -> str:
    """Leave out the style and the script of a page, and their hashes: only what they show is golden."""
    page = re.sub(r"(<(style|script)[^>]*>).*?(</\2>)", r"\1\3", page, flags=re.DOTALL)
    return re.sub(r"sha256-[^&]*", "sha256-", page)


@pytest.mark.parametrize(
    ("golden", "output"),
    list(outputs()),
    ids=[file_of(golden.command, golden.name, output) for golden, output in outputs()],
)
def test_a_command_prints_its_golden_file(
    golden: GoldenCommand, output: str, monkeypatch: pytest.MonkeyPatch, renew: bool
) -> None:
    monkeypatch.chdir(ROOT)
    arguments = shlex.split(golden.arguments)
    chosen = ["-o", output] if formats(golden.arguments) else []
    result = CliRunner().invoke(root, [*arguments, *chosen])
    assert result.exit_code == golden.code, result.output
    name = file_of(golden.command, golden.name, output)
    compare_golden(name, _without_code(result.stdout) if output == "html" else result.stdout, renew)
    if result.stderr:
        compare_golden(f"{name}.stderr", result.stderr, renew)
    else:
        assert not (OUTPUTS / f"{name}.stderr").exists()


@pytest.mark.parametrize(
    ("command", "output"), [(command, output) for command in REPORTED for output in FORMATS[command]]
)
def test_audit_prints_its_golden_file(command: str, output: str, renew: bool) -> None:
    rendered = renderer(command, output)(REPORTED[command], View())
    text = (
        dump(rendered) if isinstance(rendered, dict) else rendered if isinstance(rendered, str) else "\n".join(rendered)
    )
    compare_golden(file_of(command, "events", output), f"{text}\n", renew)


def test_every_format_of_every_command_has_a_golden_file_and_no_file_is_left_over(renew: bool) -> None:
    assert {golden.command for golden in COMMANDS} | REPORTED.keys() >= FORMATS.keys()
    names = {file_of(golden.command, golden.name, output) for golden, output in outputs()}
    names |= {file_of(command, "events", output) for command in REPORTED for output in FORMATS[command]}
    there = {path.relative_to(OUTPUTS).as_posix(): path for path in OUTPUTS.rglob("*") if path.is_file()}
    gone = {name: path for name, path in there.items() if name.removesuffix(".stderr") not in names}
    if renew:
        for path in gone.values():
            path.unlink()
    assert renew or not gone, f"nothing prints these any more: {sorted(gone)}"


def test_a_difference_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "OUTPUTS", tmp_path)
    with pytest.raises(AssertionError, match="does not exist"):
        compare_golden("some/file.text", "one", renew=False)
    compare_golden("some/file.text", "one", renew=True)
    with pytest.raises(AssertionError):
        compare_golden("some/file.text", "other", renew=False)

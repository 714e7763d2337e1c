"""Every output format of every command prints what is kept in `outputs`; `pytest --renew tests/golden` keeps it anew.

A change of what users see is a change of a file there, to be read before it is committed.
"""

from __future__ import annotations

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


class Shown(NamedTuple):
    """A command line whose output is kept: the entry of `FORMATS` that writes it, a name, arguments and exit code.

    Options that do not go with every format say with which they go.
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
APPROVED = "--external-auth XAccessPolicy/prod/fraud-desk=Allow"
API = "-n dev -f examples/api/policies"
CREATE = f"--user alice --verb create --resource persistentvolumeclaims {API}"
RESIDUAL = "'request.verb == \"create\" && object.spec.owner == request.user'"

SHOWN = (
    Shown("check", "nothing-wrong", "check examples/tool/manifests"),
    Shown("check", "warnings", "check examples/shop/manifests", 4),
    Shown("check", "errors", "check examples/shop/broken", 4),
    Shown("check", "all-planes", f"check examples/tool examples/gateway examples/api {WORLDS}/changed", 4),
    Shown("check", "unreadable", f"check {WORLDS}/unreadable.yaml", 1),
    Shown("test", "passed", f"test {' '.join(TESTS)}"),
    Shown("test", "failed", f"test {WORLDS}/failing.yaml", 4),
    Shown(
        "explain",
        "network-denied",
        f"explain network --from shop/web-0 {TO_DB}",
        3,
    ),
    Shown(
        "explain",
        "network-allowed",
        f"explain network --from shop/api-0 {TO_DB}",
    ),
    Shown("explain", "tool-denied", f"explain tool --caller agents/shopper --tool refund {TOOL}", 3),
    Shown(
        "explain",
        "tool-allowed",
        f"explain tool --caller agents/shopper --tool pay --external-auth XAccessPolicy/prod/fraud-desk=Allow {TOOL}",
    ),
    Shown("explain", "gateway", f"explain gateway {ROUTE} {GATEWAY}"),
    Shown("explain", "api-conditional", f"explain api {CREATE}", 5),
    Shown("explain", "api-final", f"explain api {CREATE} --object examples/api/claim.yaml"),
    Shown("effective", "place", f"effective {ROUTE} {GATEWAY}"),
    Shown("effective --all", "every-place", "effective --all -f examples/gateway/manifests"),
    Shown("can-i", "conditional", f"can-i create persistentvolumeclaims --as alice {API}", 5),
    Shown("can-i", "no", f"can-i delete nodes --as eve {API}", 3),
    Shown("can-i --list", "alice", f"can-i --list --as alice {API}"),
    Shown("tools", "shopper", "tools --caller agents/shopper -f examples/tool/manifests"),
    Shown("tools", "all", "tools --all --caller agents/shopper -f examples/tool/manifests"),
    Shown("status", "all", "status -f examples/gateway/manifests"),
    Shown("list", "shop", "list examples/shop/manifests"),
    Shown("list", "explained", "list examples/shop/manifests --to shop/db --explain --denied"),
    Shown("list", "pairs", "list examples/shop/manifests --pairs --port 5432", only=("text", "json", "csv", "md")),
    Shown("list", "exposure", "list examples/shop/manifests --exposure", only=("text", "json", "csv", "md")),
    Shown("diff", "changed", f"diff examples/shop/manifests {WORLDS}/changed", 4),
    Shown("diff", "same", "diff examples/shop/manifests examples/shop/manifests"),
    Shown("compile envoy", "plain", f"compile envoy -f {WORLDS}/plain-gateway.yaml"),
    Shown("compile envoy", "without-certificate", "compile envoy -f examples/tool/manifests", 1),
    Shown("compile nft", "shop", "compile nft -f examples/shop/manifests"),
    Shown("crds", "policy", "crds AuthorizationPolicy"),
    Shown("cel partial", "residual", f"cel partial {RESIDUAL} --known {WORLDS}/request.yaml --unknown object"),
    Shown("cel eval", "value", 'cel eval \'{"a": [1, 2u, 3.0, b"x"], "b": duration("90s")}\''),
    Shown("cel check", "type", "cel check 'names.all(n, n.size() < 10)' --var 'names:list(string)'"),
    Shown("yaml", "policies", "yaml examples/shop/manifests/policies.yaml"),
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
# What the kernel reports is made up here: an audit runs until it is ended.
REPORTED: dict[str, Iterable[Any]] = {"audit": EVENTS, "audit --hits": HITS}


def outputs() -> Iterator[tuple[Shown, str]]:
    """Every command line in every format that its command has."""
    for shown in SHOWN:
        for output in shown.only or formats(shown.arguments) or ("text",):
            yield shown, output


def formats(arguments: str) -> tuple[str, ...]:
    """What `-o` offers for a command line; nothing where there is no `-o`."""
    command: click.Command = root
    for word in shlex.split(arguments):
        if not isinstance(command, click.Group):
            break
        subcommand = command.get_command(click.Context(command), word)
        assert subcommand is not None, arguments
        command = subcommand
    offered = [option.type for option in command.params if option.name == "output"]
    return tuple(str(choice) for kind in offered if isinstance(kind, click.Choice) for choice in kind.choices)


def kept(name: str, text: str, renew: bool) -> None:
    """An output is the one that is kept, or is kept from now on."""
    path = OUTPUTS / name
    if renew:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert path.exists(), f"{name} is not kept: `pytest --renew tests/golden` keeps it"
    assert text == path.read_text()


def file_of(command: str, name: str, output: str) -> str:
    return f"{command.replace(' --', '-').replace(' ', '-')}/{name}.{output}"


@pytest.mark.parametrize(
    ("shown", "output"),
    list(outputs()),
    ids=[file_of(shown.command, shown.name, output) for shown, output in outputs()],
)
def test_a_command_prints_what_is_kept(shown: Shown, output: str, monkeypatch: pytest.MonkeyPatch, renew: bool) -> None:
    monkeypatch.chdir(ROOT)
    arguments = shlex.split(shown.arguments)
    chosen = ["-o", output] if formats(shown.arguments) else []
    result = CliRunner().invoke(root, [*arguments, *chosen])
    assert result.exit_code == shown.code, result.output
    name = file_of(shown.command, shown.name, output)
    kept(name, result.stdout, renew)
    if result.stderr:
        kept(f"{name}.stderr", result.stderr, renew)
    else:
        assert not (OUTPUTS / f"{name}.stderr").exists()


@pytest.mark.parametrize(
    ("command", "output"), [(command, output) for command in REPORTED for output in FORMATS[command]]
)
def test_an_audit_prints_what_is_kept(command: str, output: str, renew: bool) -> None:
    made = renderer(command, output)(REPORTED[command], View())
    text = dump(made) if isinstance(made, dict) else made if isinstance(made, str) else "\n".join(made)
    kept(file_of(command, "events", output), f"{text}\n", renew)


def test_every_format_of_every_command_is_kept_and_nothing_else(renew: bool) -> None:
    assert {shown.command for shown in SHOWN} | REPORTED.keys() >= FORMATS.keys()
    names = {file_of(shown.command, shown.name, output) for shown, output in outputs()}
    names |= {file_of(command, "events", output) for command in REPORTED for output in FORMATS[command]}
    there = {path.relative_to(OUTPUTS).as_posix(): path for path in OUTPUTS.rglob("*") if path.is_file()}
    gone = {name: path for name, path in there.items() if name.removesuffix(".stderr") not in names}
    if renew:
        for path in gone.values():
            path.unlink()
    assert renew or not gone, f"nothing prints these any more: {sorted(gone)}"


def test_a_difference_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "OUTPUTS", tmp_path)
    with pytest.raises(AssertionError, match="is not kept"):
        kept("some/file.text", "one", renew=False)
    kept("some/file.text", "one", renew=True)
    with pytest.raises(AssertionError):
        kept("some/file.text", "other", renew=False)

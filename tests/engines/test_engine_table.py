"""The table of engines: every engine implements what its commands call, and says what it lacks."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import pytest
from click.testing import CliRunner

from tierwall.cli.main import root
from tierwall.core.protocols import Engine
from tierwall.engines.table import ENGINES, engine, offered_by
from tierwall.planes import PLANES
from tierwall.resources.snapshot import Snapshot

METHODS = ("compile", "apply", "follow", "ask", "audit")
# What a command calls.
CALLED = {
    "compile": {"compile"},
    "enforce": {"compile", "apply", "follow"},
    "run": {"follow"},
    "authorizer": {"follow"},
    "test": {"ask"},
    "audit": {"audit"},
}


def class_of(name: str) -> type[Engine[Any, Any, Any]]:
    module, _, attribute = ENGINES[name].target.partition(":")
    engine_class: type[Engine[Any, Any, Any]] = getattr(importlib.import_module(module), attribute)
    return engine_class


def has(name: str) -> set[str]:
    """Return the methods that an engine overrides."""
    return {method for method in METHODS if getattr(class_of(name), method) is not getattr(Engine, method)}


@pytest.mark.parametrize("name", ENGINES)
def test_an_engine_implements_its_commands_and_has_the_planes_of_the_table(name: str) -> None:
    entry = ENGINES[name]
    assert set().union(*(CALLED[command] for command in entry.commands)) <= has(name)
    assert class_of(name).planes == entry.planes
    assert set(entry.planes) <= set(PLANES)
    # Whoever enforces policies can say without doing it what it would enforce.
    assert name == "model" or "compile" in has(name)


@pytest.mark.parametrize("name", ENGINES)
def test_an_absent_method_says_so(name: str) -> None:
    created = engine(name)
    calls: dict[str, Callable[[], Any]] = {
        "compile": lambda: created.compile(Snapshot.of([])),
        "apply": lambda: created.apply(None),
        "follow": lambda: created.follow(None, lambda step: None),
        "ask": lambda: created.ask(Snapshot.of([]), []),
        "audit": created.audit,
    }
    for method in set(METHODS) - has(name):
        with pytest.raises(NotImplementedError, match=f"has no `{method}`"):
            calls[method]()


@pytest.mark.parametrize("command", ["compile", "enforce"])
def test_a_command_offers_the_engines_of_the_table(command: str) -> None:
    assert offered_by(command)
    for name, entry in offered_by(command).items():
        shown = CliRunner().invoke(root, [command, "--help"]).stdout
        assert any(line.split() == [name, *entry.title.split()] for line in shown.splitlines())
        assert CliRunner().invoke(root, [command, name, "--help"]).exit_code == 0


def test_policy_tests_can_ask_every_engine_that_answers() -> None:
    shown = " ".join(CliRunner().invoke(root, ["test", "--help"]).stdout.split())
    assert f"[{'|'.join(offered_by('test'))}]" in shown
    for name, entry in ENGINES.items():
        assert bool(entry.answered_by) == ("test" in entry.commands)
        assert not entry.answered_by or f"{entry.answered_by} ({name})" in shown


def test_every_engine_compiles_an_empty_snapshot() -> None:
    for name in ("nft", "envoy", "authorizer"):
        assert engine(name).compile(Snapshot.of([])) is not None

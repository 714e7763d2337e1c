"""All engines by name, with their classes, their planes, and the commands that offer them.

To add an engine, write a class that overrides the methods of `core.protocols.Engine` that it supports, and add a line
here. For `compile` and `enforce`, add commands of these names, with the options they take, to `cli/NAME.py`.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, cast

if TYPE_CHECKING:
    from tierwall.core.diagnostics import Diagnostic
    from tierwall.core.protocols import Engine
    from tierwall.resources.snapshot import Snapshot


class EngineEntry(NamedTuple):
    """An engine: its class as `module:name`, its planes and commands, and a title."""

    target: str
    planes: tuple[str, ...]
    commands: tuple[str, ...]
    title: str
    # What answers the questions of policy tests, if `test` offers the engine.
    answered_by: str = ""
    # What `check` finds that the engine cannot enforce: a function as `module:name`, and the API groups that it is for.
    findings: str = ""
    groups: tuple[str, ...] = ()


ENGINES: Mapping[str, EngineEntry] = {
    "model": EngineEntry(
        "tierwall.policytest.run:ModelEngine",
        ("network", "tool", "gateway", "api", "admit", "path"),
        ("test",),
        "The library itself.",
        answered_by="the library",
    ),
    "nft": EngineEntry(
        "tierwall.serve.nftables:Nftables",
        ("network",),
        ("compile", "enforce", "test", "audit"),
        "Network policies, with nftables in the Linux kernel.",
        answered_by="packets through nftables",
    ),
    "envoy": EngineEntry(
        "tierwall.serve.envoy:Envoy",
        ("tool", "gateway"),
        ("compile", "run", "test"),
        "Tool policies and gateway settings, with Envoy.",
        answered_by="requests through Envoy",
        findings="tierwall.engines.envoy.config.findings:envoy_findings",
        groups=("agentic.networking.x-k8s.io", "agentic.prototype.x-k8s.io", "agentgateway.dev"),
    ),
    "authorizer": EngineEntry(
        "tierwall.serve.authorizer.run:AuthorizerEngine",
        ("api",),
        ("authorizer",),
        "API policies, by API servers that ask over a webhook.",
    ),
}


def offered_by(command: str) -> dict[str, EngineEntry]:
    """Return the engines that a command offers."""
    return {name: entry for name, entry in ENGINES.items() if command in entry.commands}


def engine_findings(snapshot: Snapshot) -> Iterator[Diagnostic]:
    """Yield what engines cannot enforce as it is written; an engine is asked only about objects of its groups."""
    for entry in ENGINES.values():
        if entry.findings and not snapshot.groups.isdisjoint(entry.groups):
            module, _, name = entry.findings.partition(":")
            yield from getattr(importlib.import_module(module), name)(snapshot)


def enforced_with() -> dict[str, str]:
    """Return the command that puts policies in force, by engine: `enforce`, or its own if a process must stay."""
    commands = "enforce", "run", "authorizer"
    return {name: command for name, entry in ENGINES.items() for command in entry.commands if command in commands}


def engine(name: str, **settings: Any) -> Engine[Any, Any, Any]:
    """Return the engine of this name; its module is imported on first use."""
    module, _, attribute = ENGINES[name].target.partition(":")
    return cast("Engine[Any, Any, Any]", getattr(importlib.import_module(module), attribute)(**settings))

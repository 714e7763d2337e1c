"""Every engine by name: where it is, which planes it answers for, and which commands offer it.

Adding an engine: write a class that overrides what it can do of `core.protocols.Engine`, and add a line here. For
`compile` and `enforce`, add commands of these names, with the options they take, to `cli/NAME.py`.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, cast

if TYPE_CHECKING:
    from tierwall.core.protocols import Engine


class EngineEntry(NamedTuple):
    """An engine: its class, as `module:name`, and what for it is there."""

    target: str
    planes: tuple[str, ...]
    commands: tuple[str, ...]
    title: str
    # What answers the questions of policy tests, where `test` offers it.
    answered_by: str = ""


ENGINES: Mapping[str, EngineEntry] = {
    "model": EngineEntry(
        "tierwall.policytest.run:ModelEngine",
        ("network", "tool", "gateway", "api", "admit"),
        ("test",),
        "The library itself.",
        answered_by="the library",
    ),
    "nft": EngineEntry(
        "tierwall.serve.nftables:Nftables",
        ("network",),
        ("compile", "enforce", "test", "audit"),
        "Network policies, by nftables in the Linux kernel.",
        answered_by="packets through nftables",
    ),
    "envoy": EngineEntry(
        "tierwall.serve.envoy:Envoy",
        ("tool",),
        ("compile", "run", "test"),
        "Tool policies, by Envoy.",
        answered_by="requests through Envoy",
    ),
    "authorizer": EngineEntry(
        "tierwall.serve.authorizer.run:AuthorizerEngine",
        ("api",),
        ("authorizer",),
        "API policies, by API servers that ask over a webhook.",
    ),
}


def offered_by(command: str) -> dict[str, EngineEntry]:
    """The engines that a command offers."""
    return {name: entry for name, entry in ENGINES.items() if command in entry.commands}


def enforced_with() -> dict[str, str]:
    """The command that makes each engine obey: `enforce`, or one of its own where a process must stay."""
    commands = "enforce", "run", "authorizer"
    return {name: command for name, entry in ENGINES.items() for command in entry.commands if command in commands}


def engine(name: str, **settings: Any) -> Engine[Any, Any, Any]:
    """The engine of that name, imported on first use."""
    module, _, attribute = ENGINES[name].target.partition(":")
    return cast("Engine[Any, Any, Any]", getattr(importlib.import_module(module), attribute)(**settings))

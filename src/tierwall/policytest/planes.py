"""Which module answers which question of a policy test (docs/policy-tests.md#questions)."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any, Protocol, cast

from tierwall.core.answer import Answer
from tierwall.core.diagnostics import Diagnostic
from tierwall.core.expectation import mismatches
from tierwall.core.protocols import Plane
from tierwall.resources.snapshot import Snapshot

PLANES = {
    "network": "tierwall.network.question",
    "tool": "tierwall.tool.question",
    "gateway": "tierwall.gateway.question",
    "api": "tierwall.api.question",
    "admit": "tierwall.policytest.admit",
}


class OldPlane(Protocol):
    """A module that still answers with documents."""

    def ask(self, snapshot: Snapshot, question: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
        """The decision document; InputError when the question is malformed or names what does not exist."""

    def mismatches(self, expect: Mapping[str, Any], got: Mapping[str, Any]) -> list[str]:
        """What of the expectation does not hold, a line each; InputError when the expectation is malformed."""


def plane(name: str) -> OldPlane:
    """The module of a plane, imported on first use."""
    return cast(OldPlane, importlib.import_module(PLANES[name]))


def ask(
    name: str, snapshot: Snapshot, question: Mapping[str, Any], defaults: Mapping[str, Any]
) -> Answer | dict[str, Any]:
    """Ask a plane a question in its YAML form; `defaults` fill in keys that the question has and leaves out."""
    module = importlib.import_module(PLANES[name])
    if not hasattr(module, "QUESTION"):
        return cast(OldPlane, module).ask(snapshot, question, defaults)
    asked = cast(Plane[Snapshot], module)
    problems: list[Diagnostic] = []
    given = {key: value for key, value in defaults.items() if key in asked.QUESTION.keys()}  # noqa: SIM118
    return asked.ask(snapshot, asked.QUESTION.read({**given, **question}, problems), problems)


def differences(name: str, expect: Mapping[str, Any], got: Answer | Mapping[str, Any]) -> list[str]:
    """What of an expectation does not hold; InputError if it is malformed."""
    if isinstance(got, Answer):
        return mismatches(expect, got, cast(Plane[Snapshot], importlib.import_module(PLANES[name])).EXPECTATIONS)
    return plane(name).mismatches(expect, got)

"""Which module answers which question of a policy test (docs/policy-tests.md)."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from functools import cache
from typing import Any, cast

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


@cache
def plane(name: str) -> Plane[Snapshot]:
    """The module of a plane, imported on first use."""
    return cast(Plane[Snapshot], importlib.import_module(PLANES[name]))


def ask(name: str, snapshot: Snapshot, question: Mapping[str, Any], defaults: Mapping[str, Any]) -> Answer:
    """Ask a plane a question in its YAML form; `defaults` fill in keys that the question has and leaves out."""
    asked = plane(name)
    keys = asked.QUESTION.keys()
    given = {key: value for key, value in defaults.items() if key in keys}
    problems: list[Diagnostic] = []
    return asked.ask(snapshot, asked.QUESTION.read({**given, **question}, problems), problems)


def differences(expect: Mapping[str, Any], answer: Answer) -> list[str]:
    """What of an expectation does not hold; InputError if it is malformed."""
    return mismatches(expect, answer, plane(answer.plane).EXPECTATIONS)

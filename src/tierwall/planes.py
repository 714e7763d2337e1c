"""The table of planes, and how to ask a plane a question in the form of a policy test (docs/policy-tests.md).

Adding a plane: write its `question` module, which is a `core.protocols.Plane`, and add a line here. `render` finds its
documents and its text by the same name.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, cast

from tierwall.core.answer import Answer
from tierwall.core.diagnostics import Diagnostic
from tierwall.core.expectation import mismatches

if TYPE_CHECKING:
    from tierwall.core.protocols import Plane
    from tierwall.core.question import Question
    from tierwall.resources.snapshot import Snapshot

PLANES = {
    "network": "tierwall.network.question",
    "tool": "tierwall.tool.question",
    "gateway": "tierwall.gateway.question",
    "api": "tierwall.api.question",
    "admit": "tierwall.resources.admission.question",
    "path": "tierwall.path.question",
}


@cache
def plane(name: str) -> Plane[Snapshot]:
    """Import the module of a plane on first use."""
    return cast("Plane[Snapshot]", importlib.import_module(PLANES[name]))


def read(name: str, value: Mapping[str, Any], defaults: Mapping[str, Any], problems: list[Diagnostic]) -> Question:
    """Read a question in its YAML form. `defaults` fill in keys that the plane knows and the question leaves out."""
    question = plane(name).QUESTION
    keys = question.keys()
    given = {key: default for key, default in defaults.items() if key in keys}
    return question.read({**given, **value}, problems)


def ask(
    name: str,
    snapshot: Snapshot,
    value: Mapping[str, Any],
    defaults: Mapping[str, Any],
    namespace: str = "default",
) -> Answer:
    """Ask a plane a question in its YAML form; InputError names everything wrong with it."""
    problems: list[Diagnostic] = []
    return plane(name).ask(snapshot, read(name, value, defaults, problems).in_namespace(namespace), problems)


def differences(expect: Mapping[str, Any], answer: Answer) -> list[str]:
    """Return the parts of an expectation that do not hold. InputError if the expectation is malformed."""
    return mismatches(expect, answer, plane(answer.plane).EXPECTATIONS)

"""Which module answers which question of a policy test (contract, sections 2.1 to 2.5).

Every plane answers in the same form: `ask` gives the decision document, `mismatches` compares it with what was
expected.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any, Protocol, cast

from tierwall.resources.snapshot import Snapshot

PLANES = {
    "network": "tierwall.network.question",
    "tool": "tierwall.tool.question",
    "gateway": "tierwall.gateway.question",
    "api": "tierwall.api.question",
    "admit": "tierwall.policytest.admit",
}


class Plane(Protocol):
    """A module that answers one kind of question."""

    def ask(self, snapshot: Snapshot, question: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
        """The decision document; InputError when the question is malformed or names what does not exist."""

    def mismatches(self, expect: Mapping[str, Any], got: Mapping[str, Any]) -> list[str]:
        """What of the expectation does not hold, a line each; InputError when the expectation is malformed."""


def plane(name: str) -> Plane:
    """The module of a plane, imported on first use."""
    return cast(Plane, importlib.import_module(PLANES[name]))

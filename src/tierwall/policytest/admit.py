"""The `admit` question: would an API server with these CRDs take the object (docs/policy-tests.md#admit)?"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tierwall.core.diagnostics import InputError, unknown_keys
from tierwall.core.verdict import Verdict
from tierwall.resources.admission import admit
from tierwall.resources.snapshot import Snapshot

EXPECTED = ("verdict", "message")


def ask(snapshot: Snapshot, question: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """The verdict on `object`, or on every object in `objects` (what a `file` held), with each problem in the trace."""
    objects = question["objects"] if "objects" in question else [question.get("object")]
    problems = [problem for value in objects for problem in admit(value) if not problem.is_warning]
    return {
        "verdict": str(Verdict.DENY if problems else Verdict.ALLOW),
        "decidedBy": [],
        "trace": [{"tier": "admission", "outcome": "Deny", "note": problem.message} for problem in problems],
    }


def mismatches(expect: Mapping[str, Any], got: Mapping[str, Any]) -> list[str]:
    """`verdict` must be equal, `message` a part of some problem's message."""
    unknown = unknown_keys("TW701", expect, EXPECTED, "`expect` of an admit case")
    if unknown:
        raise InputError(unknown)
    out = []
    if "verdict" in expect and expect["verdict"] != got["verdict"]:
        out.append(f"verdict: expected `{expect['verdict']}`, got `{got['verdict']}`")
    if "message" in expect:
        messages = [step["note"] for step in got["trace"]]
        if not any(str(expect["message"]) in message for message in messages):
            heard = "; ".join(f"`{message}`" for message in messages) or "no message"
            out.append(f"message: expected a message with `{expect['message']}`, got {heard}")
    return out

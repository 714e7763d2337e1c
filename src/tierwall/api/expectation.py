"""What an `api` case of a policy test expects, compared with the decision document (docs/policy-tests.md#api)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tierwall.core.diagnostics import Diagnostic, InputError, near_miss

_VERDICTS = ("Allow", "Deny", "NoOpinion", "Conditional")
_KEYS = ("verdict", "final", "decidedBy", "conditionSets", "error", "called")


def mismatches(expect: Mapping[str, Any], got: Mapping[str, Any]) -> list[str]:
    """What of the expectation does not hold, a line each; InputError if it is malformed."""
    problems = list(_problems(expect))
    if problems:
        raise InputError(problems)
    found = [
        f"{key}: expected {expect[key]}, got {got.get(key, 'none without data')}"
        for key in ("verdict", "final")
        if key in expect and expect[key] != got.get(key)
    ]
    if "error" in expect and bool(expect["error"]) is not bool(got.get("error")):
        found.append(f"error: expected {_word(expect['error'])}, got {_word(got.get('error'))}")
    if "called" in expect and list(expect["called"]) != list(got["called"]):
        found.append(f"called: expected {expect['called']}, got {got['called']}")
    if "decidedBy" in expect:
        names = {entry["policy"] for entry in got["decidedBy"]}
        wanted = expect["decidedBy"] if isinstance(expect["decidedBy"], list) else [expect["decidedBy"]]
        missing = [one for one in wanted if one not in names]
        if missing:
            found.append(f"decidedBy: expected {', '.join(missing)}, got {', '.join(sorted(names))}")
    if "conditionSets" in expect:
        wanted_sets, got_sets = (
            [_plain(one) for one in expect["conditionSets"]],
            [_plain(one) for one in got["conditionSets"]],
        )
        if wanted_sets != got_sets:
            found.append(f"conditionSets: expected {expect['conditionSets']}, got {got['conditionSets']}")
    return found


def _plain(entry: Mapping[str, Any]) -> tuple[Any, ...]:
    """An entry to compare by: an effect that is left out, and one that is 0, are the same."""
    effects = entry.get("effects") or {}
    counts = tuple(effects.get(effect, 0) for effect in ("Allow", "Deny", "NoOpinion"))
    return entry.get("authorizer"), bool(entry.get("allowed")), bool(entry.get("denied")), counts


def _word(value: Any) -> str:
    return "true" if value else "false"


def _problems(expect: Mapping[str, Any]) -> list[Diagnostic]:
    found: list[Diagnostic] = []

    def problem(message: str, hint: str = "") -> None:
        found.append(Diagnostic("TW701", message, hint=hint))

    for key, value in expect.items():
        match key:
            case "verdict" | "final":
                words = _VERDICTS if key == "verdict" else _VERDICTS[:3]
                if value not in words:
                    problem(f"`{key}` must be one of {', '.join(words)}, found `{value}`", near_miss(str(value), words))
            case "error":
                if not isinstance(value, bool):
                    problem(f"`error` must be true or false, found `{value}`")
            case "called":
                if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
                    problem("`called` must be a list of authorizer names")
            case "decidedBy":
                listed = value if isinstance(value, list) else [value]
                if not all(isinstance(one, str) for one in listed):
                    problem("`decidedBy` must be an authorizer name or a list of them")
            case "conditionSets":
                if not isinstance(value, list) or not all(_is_entry(one) for one in value):
                    problem("`conditionSets` must be a list of `{authorizer, allowed | denied | effects}`")
            case _:
                problem(f"unknown key `{key}` in the expectation of an `api` question", near_miss(str(key), _KEYS))
    return found


def _is_entry(value: Any) -> bool:
    if not isinstance(value, Mapping) or not set(value) <= {"authorizer", "allowed", "denied", "effects"}:
        return False
    effects = value.get("effects", {})
    return isinstance(effects, Mapping) and set(effects) <= {"Allow", "Deny", "NoOpinion"}

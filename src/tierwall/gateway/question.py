"""Questions to the gateway plane and their answers as documents.

docs/policy-tests.md#gateway, docs/semantics.md#what-a-gateway-answer-holds.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, cast

from tierwall.core.diagnostics import Diagnostic, InputError, near_miss, unknown_keys
from tierwall.gateway.ask_place import PLACE_KEYS, asked_place
from tierwall.gateway.conditional import PROFILES, FactError, Facts, Profile
from tierwall.gateway.fields import FIELDS
from tierwall.gateway.levels import Asked
from tierwall.gateway.merge import PHASES, Outcome, Phase, merge
from tierwall.resources.snapshot import Snapshot

KEYS = (*PLACE_KEYS, "profile", "phase", "request")
EXPECTED = ("effective", "conflicts")


class Question(NamedTuple):
    """A question that can be asked: its place is there, its words are known."""

    asked: Asked
    profile: Profile
    phase: Phase
    facts: Facts | None


def ask(snapshot: Snapshot, question: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """The decision document; InputError lists all that is wrong with the question."""
    outcomes = answer(snapshot, read(snapshot, question, defaults))
    return {"effective": effective(outcomes), "conflicts": conflicts(outcomes)}


def read(snapshot: Snapshot, question: Mapping[str, Any], defaults: Mapping[str, Any]) -> Question:
    """The question with its place found; InputError lists all that is wrong with it."""
    problems = unknown_keys("TW703", question, KEYS, "a gateway question")
    asked = asked_place(snapshot, question, problems)
    profile, phase, facts = terms(question, defaults, problems)
    if problems:
        raise InputError(problems)
    return Question(asked, profile, phase, facts)


def terms(
    question: Mapping[str, Any], defaults: Mapping[str, Any], problems: list[Diagnostic]
) -> tuple[Profile, Phase, Facts | None]:
    """The profile, the phase and the facts of a question; what is wrong with them is added to `problems`."""
    profile = question.get("profile") or defaults.get("profile") or "docs"
    phase = question.get("phase") or defaults.get("phase") or "PostRouting"
    for key, value, known in (("profile", profile, PROFILES), ("phase", phase, PHASES)):
        if value not in known:
            words = f"expected one of {', '.join(known)} as `{key}`, found `{value}`"
            problems.append(_problem(words, near_miss(str(value), known)))
    facts = None
    request = question.get("request")
    if request is not None and not isinstance(request, dict):
        problems.append(_problem(f"expected a map of facts as `request`, found `{request}`"))
    elif request:
        try:
            facts = Facts(request)
        except FactError as error:
            problems.append(_problem(f"{error} in `request`"))
    return cast(Profile, profile), cast(Phase, phase), facts


def answer(snapshot: Snapshot, question: Question) -> dict[str, Outcome]:
    """How every field is settled at the place."""
    return merge(snapshot, question.profile, question.phase, question.facts).effective(question.asked)


def effective(outcomes: Mapping[str, Outcome]) -> dict[str, Any]:
    """The fields that are set, each with `value` and `from`."""
    return {path: found for path, one in outcomes.items() if (found := one.document()) is not None}


def conflicts(outcomes: Mapping[str, Outcome]) -> list[str]:
    """The fields that two policies of one level set."""
    return [path for path, one in outcomes.items() if one.conflict]


def mismatches(expect: Mapping[str, Any], got: Mapping[str, Any]) -> list[str]:
    """What of an expectation does not hold; InputError when the expectation itself is malformed."""
    problems = unknown_keys("TW701", expect, EXPECTED, "`expect` of a gateway case")
    out: list[str] = []
    fields = expect.get("effective", {})
    if not isinstance(fields, dict):
        problems.append(_malformed("expected a map of fields as `effective`"))
        fields = {}
    for path, wanted in fields.items():
        if path not in FIELDS:
            problems.append(_malformed(f"there is no field `{path}`", near_miss(str(path), FIELDS)))
        elif wanted is not None and (not isinstance(wanted, dict) or not wanted.keys() <= {"value", "from"}):
            problems.append(_malformed(f"expected `value` and `from`, or null, for `{path}`, found `{wanted}`"))
        else:
            out += _differences(path, wanted, got["effective"].get(path))
    names = expect.get("conflicts", [])
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        problems.append(_malformed("expected a list of field paths as `conflicts`"))
    elif "conflicts" in expect:
        problems += [
            _malformed(f"there is no field `{name}`", near_miss(name, FIELDS)) for name in names if name not in FIELDS
        ]
        if set(names) != set(got["conflicts"]):
            out.append(f"conflicts: expected {_listed(names)}, got {_listed(got['conflicts'])}")
    if problems:
        raise InputError(problems)
    return out


def _differences(path: str, wanted: Mapping[str, Any] | None, found: Mapping[str, Any] | None) -> list[str]:
    if wanted is None:
        return [f"{path}: expected not set, got {found}"] if found is not None else []
    if found is None:
        return [f"{path}: expected {dict(wanted)}, got not set"]
    return [
        f"{path} {key}: expected {wanted[key]}, got {found[key]}"
        for key in ("value", "from")
        if key in wanted and not same(wanted[key], found[key])
    ]


def same(one: Any, other: Any) -> bool:
    """Equality of JSON values: true is not 1, and 1 is 1.0."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same(value, other[key]) for key, value in one.items())
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    return bool(one == other)


def _listed(names: list[str]) -> str:
    return ", ".join(sorted(names)) or "none"


def _problem(message: str, hint: str = "") -> Diagnostic:
    return Diagnostic("TW703", message, hint=hint)


def _malformed(message: str, hint: str = "") -> Diagnostic:
    return Diagnostic("TW701", message, hint=hint)

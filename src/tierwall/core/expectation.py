"""Compare an answer with `expect` of a policy test (docs/semantics.md#expected-deciders).

`verdict`, `decidedBy` and `notConsidered` mean the same on every plane. A plane adds its own keys and says for each
which values are valid and how to compare them. A malformed expectation is an error of the test, not a failure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from msgspec import Struct

from tierwall.core.answer import DEFAULT, Answer, Decider
from tierwall.core.diagnostics import Diagnostic, InputError, near_miss, unknown_keys
from tierwall.core.unprintable import escape_unprintable
from tierwall.core.verdict import Verdict
from tierwall.core.words import as_given


class Expectation(Struct, frozen=True):
    """One key of `expect`: how to check a value, and how to compare it with an answer."""

    problems: Callable[[str, Any], Iterable[Diagnostic]]
    differences: Callable[[str, Any, Answer], Iterable[str]]


def mismatches(expect: Mapping[str, Any], answer: Answer, of_plane: Mapping[str, Expectation]) -> list[str]:
    """Return one line for each expectation that does not hold; raise InputError if `expect` is malformed.

    `of_plane` has the keys of one plane. The key `verdict` exists only if the answer has a verdict.
    """
    keys = {"decidedBy": DECIDED_BY, "notConsidered": NOT_CONSIDERED, **of_plane}
    if answer.verdict is not None:
        keys["verdict"] = VERDICT
    article = "an" if answer.plane.startswith("a") else "a"
    problems = unknown_keys("TW701", expect, keys, f"`expect` of {article} {answer.plane} case")
    known = {key: value for key, value in expect.items() if key in keys}
    for key, value in known.items():
        problems += keys[key].problems(key, value)
    if problems:
        raise InputError(problems)
    return [line for key, value in known.items() for line in keys[key].differences(key, value, answer)]


def malformed_expectation(key: str, expected: str, actual: Any, hint: str = "") -> Diagnostic:
    """Make a diagnostic for an invalid value of `expect`."""
    return Diagnostic("TW701", f"expected {expected} as `{key}`, found {as_given(actual)}", hint=hint)


def one_of(words: Iterable[str], get: Callable[[Answer], str | None]) -> Expectation:
    """Return the expectation of one word; `get` reads the actual word from the answer."""
    known = tuple(map(str, words))

    def problems(key: str, value: Any) -> Iterator[Diagnostic]:
        if value not in known:
            yield malformed_expectation(key, f"one of {', '.join(known)}", value, near_miss(str(value), known))

    def differences(key: str, value: Any, answer: Answer) -> Iterator[str]:
        if (actual := get(answer)) != value:
            yield f"{key}: expected {value}, got {actual or 'nothing'}"

    return Expectation(problems, differences)


def list_of_strings(what: str, get: Callable[[Answer], Iterable[str]]) -> Expectation:
    """Return the expectation of an exact, ordered list of strings."""

    def problems(key: str, value: Any) -> Iterator[Diagnostic]:
        if not isinstance(value, list) or not all(isinstance(text, str) and text for text in value):
            yield malformed_expectation(key, f"a list of {what}", value)

    def differences(key: str, value: Any, answer: Answer) -> Iterator[str]:
        actual = list(get(answer))
        if actual != value:
            yield f"{key}: expected {', '.join(value) or 'none'}, got {', '.join(actual) or 'none'}"

    return Expectation(problems, differences)


def _decided_by_problems(key: str, value: Any) -> Iterator[Diagnostic]:
    for wanted in value if isinstance(value, list) else [value]:
        if isinstance(wanted, Mapping) and wanted.get("policy"):
            if wanted.keys() <= {"policy", "rule", "name"} and all(isinstance(text, str) for text in wanted.values()):
                continue
        elif isinstance(wanted, str) and wanted:
            continue
        yield malformed_expectation(key, "a reference, or a list of them,", wanted)


def _decided_by_differences(key: str, value: Any, answer: Answer) -> Iterator[str]:
    actual = ", ".join(map(_written, answer.decided_by)) or "none"
    wanted_list = value if isinstance(value, list) else [value]
    if not wanted_list and any(decider != DEFAULT for decider in answer.decided_by):
        yield f"{key}: expected that no policy decides, got {actual}"
    for wanted in wanted_list:
        if not any(_is_meant(wanted, decider) for decider in answer.decided_by or (DEFAULT,)):
            expected = " ".join(wanted.values()) if isinstance(wanted, Mapping) else wanted
            yield f"{key}: expected {expected}, got {actual}"


def _is_meant(wanted: str | Mapping[str, str], decider: Decider) -> bool:
    """Whether a decider is meant: by `reference`, `reference rule`, `reference name`, all three, or its document."""
    policy = str(decider.policy)
    if isinstance(wanted, Mapping):
        actual = {"policy": policy, "rule": decider.rule, "name": decider.name}
        return all(actual[key] == text for key, text in wanted.items())
    if wanted in (policy, _written(decider)):
        return True
    reference, _, place = wanted.partition(" ")
    return reference == policy and bool(place) and place in (decider.rule, decider.name)


def _written(decider: Decider) -> str:
    name = escape_unprintable(decider.name or "")
    return " ".join(str(part) for part in (decider.policy, decider.rule, name) if part)


def _not_considered_problems(key: str, value: Any) -> Iterator[Diagnostic]:
    if value != []:
        yield malformed_expectation(key, "an empty list", value, "write `[]` to expect that nothing was left out")


def _not_considered_differences(key: str, value: Any, answer: Answer) -> Iterator[str]:
    left_out = [omission for omission in answer.not_considered if not omission.is_harmless]
    if left_out:
        yield f"{key}: expected that nothing was left out, got {', '.join(map(str, left_out))}"


VERDICT = one_of(Verdict, lambda answer: answer.verdict)
DECIDED_BY = Expectation(_decided_by_problems, _decided_by_differences)
NOT_CONSIDERED = Expectation(_not_considered_problems, _not_considered_differences)

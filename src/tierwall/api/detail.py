"""The detail of an api answer, and what a policy test may expect of it.

docs/reference/decision-document.md#keys-of-one-plane, docs/policy-tests.md#api.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeAlias

import msgspec

from tierwall.api.algebra.chain import ChainEntry
from tierwall.api.algebra.condition import Condition, ConditionalDecision, Effect, FailureMode
from tierwall.api.reads.selector_text import ReadSelector
from tierwall.core.answer import Answer
from tierwall.core.diagnostics import Diagnostic
from tierwall.core.expectation import Expectation, list_of_strings, malformed_expectation, one_of
from tierwall.core.verdict import Verdict


class AuthorizerOpinion(msgspec.Struct, frozen=True):
    """The opinion of one authorizer: Allow or Deny without conditions, or Conditional with them."""

    authorizer: str
    verdict: Verdict
    conditions: tuple[Condition, ...] = ()
    # The verdict of a Deny condition that fails; None where there are no conditions.
    failure_mode: FailureMode | None = None

    @property
    def effects(self) -> dict[Effect, int]:
        """The number of conditions by effect, without effects that no condition has."""
        counts = dict.fromkeys((Effect.ALLOW, Effect.DENY, Effect.NO_OPINION), 0)
        for condition in self.conditions:
            counts[condition.effect] += 1
        return {effect: count for effect, count in counts.items() if count}


class ApiDetail(msgspec.Struct, frozen=True, kw_only=True):
    """The second phase, and the opinions that led to it.

    `final` is None where the answer depends on data that was not given. `condition_sets` are the opinions of a
    conditional answer in the order of the chain, up to the first without conditions.
    """

    final: Verdict | None = None
    condition_sets: tuple[AuthorizerOpinion, ...] = ()
    called: tuple[str, ...] = ()
    error: bool = False
    evaluation_error: str = ""
    reason: str = ""
    # With the impersonated request, and without its object: the verdict, and the opinions of a conditional one.
    impersonation: Verdict | None = None
    impersonation_sets: tuple[AuthorizerOpinion, ...] = ()
    # Of a read that is refused: a selector that would be allowed, and an object that would have been shown.
    suggestion: ReadSelector | None = None
    witness: Mapping[str, Any] | None = None

    @property
    def can_become_allowed(self) -> bool:
        """Whether a condition, or an authorizer behind conditions, can still allow the request."""
        return any(
            opinion.verdict is Verdict.ALLOW or Effect.ALLOW in opinion.effects for opinion in self.condition_sets
        )


def authorizer_opinions(entries: Iterable[ChainEntry]) -> tuple[AuthorizerOpinion, ...]:
    """Return the opinions of a chain as an answer shows them."""
    return tuple(map(_opinion, entries))


def _opinion(entry: ChainEntry) -> AuthorizerOpinion:
    decision = entry.decision
    if not isinstance(decision, ConditionalDecision):
        return AuthorizerOpinion(entry.authorizer, decision.verdict)
    conditions = decision.conditions
    return AuthorizerOpinion(entry.authorizer, decision.verdict, conditions.conditions, conditions.failure_mode)


def _error_problems(key: str, value: Any) -> Iterator[Diagnostic]:
    if not isinstance(value, bool):
        yield malformed_expectation(key, "true or false", value)


def _error_differences(key: str, value: Any, answer: Answer) -> Iterator[str]:
    if answer.detail.error is not value:
        words = {True: "true", False: "false"}
        yield f"{key}: expected {words[value]}, got {words[answer.detail.error]}"


def _set_problems(key: str, value: Any) -> Iterator[Diagnostic]:
    if not isinstance(value, list) or not all(map(_is_set, value)):
        yield malformed_expectation(key, "a list of `{authorizer, allowed | denied | effects}`", value)


def _is_set(value: Any) -> bool:
    if not isinstance(value, Mapping) or not value.keys() <= {"authorizer", "allowed", "denied", "effects"}:
        return False
    effects = value.get("effects", {})
    return isinstance(effects, Mapping) and set(effects) <= set(map(str, Effect))


def _set_differences(key: str, value: Any, answer: Answer) -> Iterator[str]:
    wanted = [_wanted_set(condition_set) for condition_set in value]
    actual = [_actual_set(opinion) for opinion in answer.detail.condition_sets]
    if wanted != actual:
        yield f"{key}: expected {_in_words(wanted)}, got {_in_words(actual)}"


_Set: TypeAlias = tuple[Any, bool, bool, tuple[int, ...]]


def _wanted_set(value: Mapping[str, Any]) -> _Set:
    """Normalize an expected set: an effect that is left out counts as 0."""
    counts = value.get("effects") or {}
    effects = tuple(counts.get(effect, 0) for effect in Effect)
    return value.get("authorizer"), bool(value.get("allowed")), bool(value.get("denied")), effects


def _actual_set(opinion: AuthorizerOpinion) -> _Set:
    effects = tuple(opinion.effects.get(effect, 0) for effect in Effect)
    return opinion.authorizer, opinion.verdict is Verdict.ALLOW, opinion.verdict is Verdict.DENY, effects


def _in_words(sets: Iterable[_Set]) -> str:
    """Write sets such as `policies {Allow: 1}, rbac allowed`."""
    words = []
    for authorizer, allowed, denied, effects in sets:
        counts = ", ".join(f"{effect}: {count}" for effect, count in zip(Effect, effects, strict=True) if count)
        words.append(f"{authorizer} {'allowed' if allowed else 'denied' if denied else f'{{{counts}}}'}")
    return ", ".join(words) or "none"


EXPECTATIONS: Mapping[str, Expectation] = {
    "final": one_of((Verdict.ALLOW, Verdict.DENY, Verdict.NO_OPINION), lambda answer: answer.detail.final),
    "conditionSets": Expectation(_set_problems, _set_differences),
    "error": Expectation(_error_problems, _error_differences),
    "called": list_of_strings("authorizer names", lambda answer: answer.detail.called),
}

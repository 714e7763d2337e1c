"""What only the answers of the api plane have (docs/reference/decision-document.md#keys-of-one-plane)."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from tierwall.api.algebra.chain import Entry
from tierwall.api.algebra.condition import Condition, Conditional, Effect, FailureMode
from tierwall.core.verdict import Verdict


class AuthorizerOpinion(msgspec.Struct, frozen=True):
    """What one authorizer says: Allow or Deny without conditions, or Conditional with them."""

    authorizer: str
    verdict: Verdict
    conditions: tuple[Condition, ...] = ()
    # What a Deny condition that fails comes to; None where there are no conditions.
    failure_mode: FailureMode | None = None

    @property
    def effects(self) -> dict[Effect, int]:
        """How many conditions there are of each effect; an effect without any is left out."""
        counts = dict.fromkeys((Effect.ALLOW, Effect.DENY, Effect.NO_OPINION), 0)
        for condition in self.conditions:
            counts[condition.effect] += 1
        return {effect: count for effect, count in counts.items() if count}


class ApiDetail(msgspec.Struct, frozen=True, kw_only=True):
    """The second phase, and what the chain said on the way.

    `final` is None where the answer hangs on data that was not given. `condition_sets` are the opinions of a
    conditional answer in the order of the chain, up to the first without conditions.
    """

    final: Verdict | None = None
    condition_sets: tuple[AuthorizerOpinion, ...] = ()
    called: tuple[str, ...] = ()
    error: bool = False
    evaluation_error: str = ""
    reason: str = ""

    @property
    def can_become_allowed(self) -> bool:
        """Whether a condition, or an authorizer behind conditions, can still allow the request."""
        return any(
            opinion.verdict is Verdict.ALLOW or Effect.ALLOW in opinion.effects for opinion in self.condition_sets
        )


def opinions_of(entries: Iterable[Entry]) -> tuple[AuthorizerOpinion, ...]:
    """What the authorizers of a chain said, as an answer shows it."""
    return tuple(map(_opinion, entries))


def _opinion(entry: Entry) -> AuthorizerOpinion:
    decision = entry.decision
    if not isinstance(decision, Conditional):
        return AuthorizerOpinion(entry.authorizer, decision.verdict)
    conditions = decision.conditions
    return AuthorizerOpinion(entry.authorizer, decision.verdict, conditions.conditions, conditions.failure_mode)

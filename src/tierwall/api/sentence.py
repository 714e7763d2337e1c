"""The sentence of an api answer, and conditions as people read them."""

from __future__ import annotations

from tierwall.api.algebra.chain import ChainDecision, chain_entries
from tierwall.api.algebra.condition import CEL_TYPE, Condition, ConditionError
from tierwall.api.algebra.condition_words import condition_words
from tierwall.api.algebra.decision import ALLOW, NO_OPINION, Decision
from tierwall.api.algebra.request import Attributes
from tierwall.api.authorizers.expression import condition_text
from tierwall.api.decide import TwoPhaseDecision

_MAY, _MAY_NOT = "may", "may not"


def sentence(decision: TwoPhaseDecision) -> str:
    """Write the answer as one sentence."""
    first, final, request = decision.first, decision.final, decision.attributes
    if decision.read is not None and final is not None and final.verdict is not ALLOW:
        return f"{request.sentence(_MAY_NOT)}: {decision.read.words}"
    if not first.is_conditional:
        return _concrete(request, first, first.decided_by)
    if isinstance(final, ChainDecision):
        words = "this request" if decision.impersonation is not None else "this object"
        return _concrete(request, final, final.decided_by, words)
    if final is not None:
        what = "the impersonated request" if request.verb.startswith("impersonate") else "the object"
        return f"{request.sentence(_MAY_NOT)}: the answer depends on {what}, and conditions cannot be enforced here"
    if not first.can_become_allowed:
        return f"{request.sentence(_MAY_NOT)}: whatever the object is, nothing allows it"
    return f"{request.sentence(_MAY)}, but only under conditions"


def _concrete(request: Attributes, decision: Decision, decided_by: str, object_words: str = "") -> str:
    what = f" ({object_words})" if object_words else ""
    error = f"; {decision.error}" if decision.error and decision.verdict is not ALLOW else ""
    if decision.verdict is NO_OPINION:
        return f"{request.sentence(_MAY_NOT)}{what}: no authorizer allows it{error}"
    modal, word = (_MAY, "allows") if decision.verdict is ALLOW else (_MAY_NOT, "denies")
    why = f" ({decision.reason})" if decision.reason else ""
    return f"{request.sentence(modal)}{what}: authorizer `{decided_by}` {word} it{why}{error}"


def words_of(decision: ChainDecision) -> str:
    """Write the conditions of a decision, as far as its authorizers were asked."""
    return condition_words(chain_entries((*decision.opinions, *decision.later)), decision.is_complete)


def readable_condition(condition: Condition) -> str:
    """Write a condition for people: its CEL, or its text and type where it is opaque."""
    try:
        return condition_text(condition)
    except ConditionError:
        return f"{condition.text} ({condition.type})" if condition.type != CEL_TYPE else condition.text

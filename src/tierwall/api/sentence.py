"""An api decision in a person's words: one sentence first, then who said what, with conditions as readable CEL."""

from __future__ import annotations

from collections.abc import Iterator

from tierwall.api.attributes import Attributes
from tierwall.api.chain import ChainDecision
from tierwall.api.condition import CEL_TYPE, Condition, Effect
from tierwall.api.condition_set import Conditional, ConditionError
from tierwall.api.decision import ALLOW, NO_OPINION, Decision
from tierwall.api.expression import condition_text
from tierwall.api.question import Asked

_WORDS = {Effect.ALLOW: "allows if", Effect.DENY: "denies if", Effect.NO_OPINION: "has no opinion if"}


def sentence(asked: Asked) -> str:
    """The answer in one sentence."""
    first, final, request = asked.first, asked.final, asked.attributes
    if not first.is_conditional:
        return _plain(request, first, first.decided_by)
    if isinstance(final, ChainDecision):
        return _plain(request, final, final.decided_by, "this object")
    if final is not None:
        return (
            f"{_phrase(request, may=False)}: the answer depends on the object, and no conditions can be enforced here"
        )
    if not first.can_become_allowed:
        return f"{_phrase(request, may=False)}: whatever the object is, nothing allows it"
    return f"{_phrase(request, may=True)}, but only under conditions"


def _plain(request: Attributes, decision: Decision, decided_by: str, thing: str = "") -> str:
    what = f" ({thing})" if thing else ""
    error = f"; {decision.error}" if decision.error and decision.verdict is not ALLOW else ""
    if decision.verdict is NO_OPINION:
        return f"{_phrase(request, may=False)}{what}: no authorizer allows it{error}"
    word = "allows" if decision.verdict is ALLOW else "denies"
    why = f" ({decision.reason})" if decision.reason else ""
    return f"{_phrase(request, may=decision.verdict is ALLOW)}{what}: authorizer `{decided_by}` {word} it{why}{error}"


def _phrase(request: Attributes, *, may: bool) -> str:
    who = f"`{request.user}`" if request.user else "a user without a name"
    verb = f"{'may' if may else 'may not'} {request.verb or 'do'}"
    if not request.is_resource_request:
        return f"{who} {verb} {request.path}"
    group = f".{request.group}" if request.group else ""
    name = f" `{request.name}`" if request.name else ""
    where = f" in namespace `{request.namespace}`" if request.namespace else ""
    return f"{who} {verb} {request.resource or 'nothing'}{group}{_slash(request.subresource)}{name}{where}"


def _slash(subresource: str) -> str:
    return f"/{subresource}" if subresource else ""


def walk(asked: Asked) -> Iterator[str]:
    """Who said what, in the order of the chain."""
    if not asked.first.is_conditional:
        return
    for name, decision in asked.first.entries():
        if not isinstance(decision, Conditional):
            yield f"{name}: {'allows' if decision.verdict is ALLOW else 'denies'} if it comes to that"
            continue
        mode = (
            "" if not decision.conditions.of(Effect.DENY) else f", a failing Deny: {decision.conditions.failure_mode}"
        )
        yield f"{name}: conditional{mode}"
        for one in decision.conditions.conditions:
            yield f"  {_WORDS[one.effect]} {readable(one)}"
            description = f"{one.description}; " if one.description else ""
            yield f"      {description}{_origin(one)}"


def readable(condition: Condition) -> str:
    """The condition for a person: its CEL, or its text and type where it is opaque."""
    try:
        return condition_text(condition)
    except ConditionError:
        return f"{condition.text} ({condition.type})" if condition.type != CEL_TYPE else condition.text


def _origin(condition: Condition) -> str:
    if condition.source is None:
        return f"condition {condition.id}"
    origin = condition.source.origin
    at = origin.position(("spec", "expression")) if origin is not None else None
    return f"{condition.source.policy}" + (f" at {at}" if at is not None else "")

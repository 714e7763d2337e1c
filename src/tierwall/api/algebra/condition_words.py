"""Conditions in words, for reasons, messages and logs: what would be allowed, and what is denied.

The words are one bounded line, whatever a policy has in its text: descriptions come from whoever writes policies, and
a reason ends up in terminals and logs. They are made of the conditions on one request, from which partial evaluation
has removed everything about other users.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

from tierwall.api.algebra.condition import CEL_TYPE, PACKED_CEL_TYPE, Condition, ConditionalDecision, Effect
from tierwall.api.algebra.condition_fit import unpack
from tierwall.api.algebra.decision import ALLOW, Decision
from tierwall.core.unprintable import escape_unprintable

# The longest text of one condition or description, the most conditions of one effect, and the longest words.
MAX_TEXT, MAX_SHOWN, MAX_WORDS = 200, 4, 1000
# The longest reason or message, with the names of the request and errors.
MAX_REASON = 3000
_ALWAYS = (Effect.ALLOW, "true")
_VERBS = ((Effect.ALLOW, "allowed if"), (Effect.DENY, "denied if"), (Effect.NO_OPINION, "left to others if"))


def condition_words(opinions: Iterable[tuple[str, Decision]], is_complete: bool = True) -> str:
    """Write the conditions of opinions, each with the name of its authorizer: `allowed only if …; denied if …`.

    `is_complete` says that no authorizer remains that could allow the request as well.
    """
    opinions = list(opinions)
    allowing = next((name for name, opinion in opinions if opinion.verdict is ALLOW), None)
    conditions = tuple(
        condition
        for _, opinion in opinions
        if isinstance(opinion, ConditionalDecision)
        for condition in opinion.conditions.conditions
    )
    # An Allow that holds in any case stands in a set only beside others that do not allow.
    always = next((condition for condition in conditions if (condition.effect, condition.text) == _ALWAYS), None)
    if always is not None:
        conditions = tuple(condition for condition in conditions if condition is not always)
    parts = _parts(conditions, is_complete and allowing is None and always is None)
    if always is not None:
        parts += ("otherwise allowed" + (f" ({clean_text(always.description)})" if always.description else ""),)
    elif allowing is not None:
        parts += (f"otherwise allowed by authorizer `{clean_text(allowing)}`",)
    return bounded("; ".join(parts), MAX_WORDS)


@lru_cache(maxsize=1024)
def _parts(conditions: tuple[Condition, ...], is_only: bool) -> tuple[str, ...]:
    """Write the conditions by effect. A reason and a record tell the same, and so do the next requests."""
    parts = []
    for effect, verb in _VERBS:
        of_effect = [condition for condition in conditions if condition.effect is effect]
        if not of_effect:
            continue
        shown = [one_condition(condition) for condition in of_effect[:MAX_SHOWN]]
        if len(of_effect) > MAX_SHOWN:
            shown.append(f"one of {len(of_effect) - MAX_SHOWN} more conditions holds")
        verb = "allowed only if" if effect is Effect.ALLOW and is_only else verb
        parts.append(f"{verb} {', or if '.join(shown)}")
    return tuple(parts)


def one_condition(condition: Condition) -> str:
    """Write one condition: its text, and its description in brackets."""
    text = condition.text
    if condition.type == PACKED_CEL_TYPE:
        try:
            text = unpack(text)
        except ValueError:
            text = "a condition that cannot be shown"
    elif condition.type != CEL_TYPE:
        text = f"{text} ({condition.type})"
    description = clean_text(condition.description)
    return f"{clean_text(text)} ({description})" if description else clean_text(text)


def one_line(text: str) -> str:
    """Return a reason or message as one bounded line."""
    return bounded(escape_unprintable(text[: 2 * MAX_REASON]), MAX_REASON)


def clean_text(text: str) -> str:
    """Return a text as one bounded line without unprintable characters."""
    if len(text) <= MAX_TEXT and text.isascii() and text.isprintable() and "  " not in text and text == text.strip():
        return text
    # Cut first, so that a huge text costs nothing.
    return bounded(escape_unprintable(" ".join(text[: 4 * MAX_TEXT].split())), MAX_TEXT)


def bounded(text: str, limit: int) -> str:
    """Return at most so many characters of a text; a cut is marked."""
    return text if len(text) <= limit else f"{text[: limit - 1]}…"

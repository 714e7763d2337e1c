"""The words of a decision (docs/semantics.md#verdicts-are-words). No output has a bare boolean.

`Verdict` is the answer to a question. `StepVerdict` has the same words for one step or one direction of a connection,
and three more that only a part of an answer can have.
"""

from __future__ import annotations

from enum import StrEnum


class Verdict(StrEnum):
    """The answer to a question."""

    ALLOW = "Allow"
    DENY = "Deny"
    CONDITIONAL = "Conditional"
    NO_OPINION = "NoOpinion"


class StepVerdict(StrEnum):
    """The verdict of one policy, rule or direction on the way to an answer."""

    ALLOW = "Allow"
    DENY = "Deny"
    CONDITIONAL = "Conditional"
    NO_OPINION = "NoOpinion"
    # The rule matches and hands the question to the next tier.
    PASS = "Pass"
    # No rule of the policy matches the question.
    NO_MATCH = "NoMatch"
    # This side of a connection, or this hop of a path, is not under policy.
    NOT_APPLICABLE = "NotApplicable"

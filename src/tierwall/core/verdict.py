"""The words of a decision (docs/semantics.md#verdicts-are-words): never a bare truth value in any output.

`Verdict` is what a question comes to. `StepVerdict` has the same words for one step of the walk, or one direction of a
connection, and three more that only a part of an answer can have.
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
    """What one policy, rule or direction says on the way to an answer."""

    ALLOW = "Allow"
    DENY = "Deny"
    CONDITIONAL = "Conditional"
    NO_OPINION = "NoOpinion"
    # The rule matched and hands the question to the next tier.
    PASS = "Pass"
    # Nothing in the policy is about this question.
    NO_MATCH = "NoMatch"
    # That end of a connection, or that hop of a path, is not under policy.
    NOT_APPLICABLE = "NotApplicable"

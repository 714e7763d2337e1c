"""The words a decision may say (contract, section 1); never a bare bool in any output."""

from __future__ import annotations

from enum import StrEnum


class Verdict(StrEnum):
    """The answer to a question, or of one direction or phase of it."""

    ALLOW = "Allow"
    DENY = "Deny"
    CONDITIONAL = "Conditional"
    NO_OPINION = "NoOpinion"
    # Only for one direction of a connection: that end is not under policy.
    NOT_APPLICABLE = "NotApplicable"


EXIT_CODES = {Verdict.ALLOW: 0, Verdict.DENY: 3, Verdict.NO_OPINION: 3, Verdict.CONDITIONAL: 5}

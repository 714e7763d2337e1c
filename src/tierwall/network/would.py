"""What would become of a connection with the policies in force that are in shadow mode.

All of them together, because they are tried together; said only where it makes a difference to the verdict or to
who settles it.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from tierwall.core.trace import Settled
from tierwall.network.decide import NO_MATCH, Decision
from tierwall.network.model.rules import Rule
from tierwall.network.model.shadow import is_shadow
from tierwall.network.sentence import names, sentence


class Would(NamedTuple):
    """The policies in shadow mode that a connection meets, and how it would be decided with them in force."""

    policies: tuple[str, ...]
    decision: Decision

    @property
    def sentence(self) -> str:
        """In plain words."""
        one = len(self.policies) == 1
        lead = f"{names(self.policies)} {'is' if one else 'are'} in shadow mode"
        return f"{lead}; with {'it' if one else 'them'} in force {sentence(self.decision)}"

    def document(self) -> dict[str, Any]:
        """As a part of the decision document."""
        return {
            "sentence": self.sentence,
            "policies": list(self.policies),
            "verdict": str(self.decision.verdict),
            "decidedBy": [one.document() for one in _settled(self.decision)],
        }


def would(now: Decision, then: Decision) -> Would | None:
    """What the policies in shadow mode would change about a decision; None if nothing."""
    if now.verdict is then.verdict and _settled(now) == _settled(then):
        return None
    met = dict.fromkeys(
        str(decider.policy if isinstance(decider, Rule) else decider.reference)
        for judgement in (then.egress, then.ingress)
        for decider, word in judgement.looked
        if decider is not None and word != NO_MATCH and is_shadow(decider.resource)
    )
    return Would(tuple(met), then)


def _settled(decision: Decision) -> list[Settled]:
    return list(dict.fromkeys((*decision.egress.outcome.settled, *decision.ingress.outcome.settled)))

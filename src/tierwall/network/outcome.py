"""What settles one direction of a connection: a verdict, the tier it fell in, and the rules that settled it.

All allowing NetworkPolicy rules are named, all isolating policies, never a Pass rule
(docs/semantics.md#who-decided-a-connection); a direction that only a domain rule could settle is Conditional and names
that rule and what holds otherwise (docs/semantics.md#domain-rules-make-answers-conditional).
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

from tierwall.core.trace import DEFAULT, Settled
from tierwall.core.verdict import Verdict
from tierwall.network.model.matching import domains
from tierwall.network.model.rules import Action, Policy, Rule, Tier

Decider: TypeAlias = Rule | Policy

# What a rule that matches says, if it does not pass the question on.
VERDICTS = {Action.ALLOW: Verdict.ALLOW, Action.DENY: Verdict.DENY}


class Outcome(NamedTuple):
    """How one direction was settled, and under which domain names if they matter.

    A policy in `by` isolates without a rule that allows; None in it, or nothing at all, is the default.
    """

    verdict: Verdict
    tier: Tier | None
    by: tuple[Decider | None, ...] = ()
    domains: tuple[str, ...] = ()

    @property
    def settled(self) -> tuple[Settled, ...]:
        """The entries of `decidedBy`; a direction that is not under policy adds nothing."""
        if self.verdict is Verdict.NOT_APPLICABLE:
            return ()
        return tuple(map(settled, self.by)) or (DEFAULT,)


NOT_APPLICABLE = Outcome(Verdict.NOT_APPLICABLE, None)
DEFAULT_ALLOW = Outcome(Verdict.ALLOW, Tier.DEFAULT)


def settled(decider: Decider | None) -> Settled:
    """One entry of `decidedBy`."""
    if decider is None:
        return DEFAULT
    if isinstance(decider, Rule):
        return Settled(str(decider.policy), decider.place)
    return Settled(str(decider.reference), "spec")


def either(otherwise: Outcome, rule: Rule, below: Outcome | None) -> Outcome:
    """The outcome when a domain rule may match: `below` if it passes the question on, `otherwise` if it does not match.

    Where both come to the same verdict the domain does not matter.
    """
    matched = Outcome(VERDICTS[rule.action], rule.tier) if below is None else below
    if matched.verdict is otherwise.verdict and matched.verdict is not Verdict.CONDITIONAL:
        return otherwise
    own = () if rule.action is Action.PASS else (rule,)
    below_by = () if below is None else below.by or (None,)
    by = dict.fromkeys((*own, *below_by, *(otherwise.by or (None,))))
    names = {*domains(rule), *(below.domains if below is not None else ()), *otherwise.domains}
    return Outcome(Verdict.CONDITIONAL, rule.tier, tuple(by), tuple(sorted(names)))


def both(egress: Verdict, ingress: Verdict) -> Verdict:
    """The verdict of the whole connection: it passes only if both directions let it."""
    if Verdict.DENY in (egress, ingress):
        return Verdict.DENY
    return Verdict.CONDITIONAL if Verdict.CONDITIONAL in (egress, ingress) else Verdict.ALLOW

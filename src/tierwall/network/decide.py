"""Deciding one connection: per direction Admin, then NetworkPolicy, then Baseline, then the default (KEP-2091).

Admin and Baseline: the first rule that matches, by priority and then rule order; Pass leaves the tier. NetworkPolicy:
if one isolates the pod, the union of all their rules allows and all else is dropped; the Baseline is not asked. Both
directions are always judged, each on its own; an end that is not under policy, and a pod that talks to itself, are not.
"""

from __future__ import annotations

from typing import TypeAlias

from msgspec import Struct

from tierwall.core.verdict import Verdict
from tierwall.network.model.ends import End
from tierwall.network.model.matching import Match, covered, domains, rule_matches
from tierwall.network.model.model import Model, Stack
from tierwall.network.model.rules import Action, Direction, Policy, Rule, Tier
from tierwall.network.outcome import DEFAULT_ALLOW, NOT_APPLICABLE, VERDICTS, Decider, Outcome, both, either

# What was looked at, in order, and the word for what came of it; None is the default.
Looked: TypeAlias = tuple[Decider | None, str]

ALLOWED, DENIED, PASSED, NO_MATCH = "allowed", "denied", "passed", "no match"
# An Allow rule that is not understood and therefore matches nothing.
CLOSED = "fails closed"
MAY_ALLOW, MAY_DENY, MAY_PASS = "may allow", "may deny", "may pass"
_WORDS = {Action.ALLOW: ALLOWED, Action.DENY: DENIED, Action.PASS: PASSED}
_MAY = {Action.ALLOW: MAY_ALLOW, Action.DENY: MAY_DENY, Action.PASS: MAY_PASS}


class Judgement(Struct, frozen=True, eq=False):
    """One direction: how it was settled and what was looked at on the way."""

    direction: Direction
    outcome: Outcome
    looked: tuple[Looked, ...] = ()


class Decision(Struct, frozen=True, eq=False):
    """A whole connection: both directions, and what they come to."""

    source: End
    destination: End
    protocol: str
    port: int
    egress: Judgement
    ingress: Judgement

    @property
    def verdict(self) -> Verdict:
        """Allow only if both directions let the connection pass."""
        return both(self.egress.outcome.verdict, self.ingress.outcome.verdict)


def decide(model: Model, source: End, destination: End, protocol: str, port: int) -> Decision:
    """May `source` open a connection to `destination`?"""
    same = source is destination
    directions = ((Direction.EGRESS, source, destination), (Direction.INGRESS, destination, source))
    egress, ingress = (
        Judgement(direction, NOT_APPLICABLE)
        if same or not subject.under_policy
        else _Walk(model, direction, subject, other, destination, protocol, port).judgement()
        for direction, subject, other in directions
    )
    return Decision(source, destination, protocol, port, egress, ingress)


class _Walk:
    """One direction's fall through the tiers, noting what it looks at."""

    def __init__(
        self, model: Model, direction: Direction, subject: End, other: End, destination: End, protocol: str, port: int
    ) -> None:
        self.direction = direction
        self.stack: Stack = model.stack(subject, direction)
        self.question = subject, other, destination, protocol, port, model.node_addresses
        self.looked: list[Looked] = []
        self.below_admin: Outcome | None = None

    def judgement(self) -> Judgement:
        return Judgement(self.direction, self._admin(), tuple(self.looked))

    def _admin(self) -> Outcome:
        return self._first_match(self.stack.admin, Tier.ADMIN)

    def _below(self, tier: Tier) -> Outcome:
        """What the next tiers say; asked at most once a tier."""
        if tier is Tier.BASELINE:
            self.looked.append((None, ALLOWED))
            return DEFAULT_ALLOW
        return self._union() if self.stack.namespace else self._first_match(self.stack.baseline, Tier.BASELINE)

    def _first_match(self, policies: tuple[Policy, ...], tier: Tier) -> Outcome:
        uncertain: list[Rule] = []
        settling = self._settling(policies, uncertain)
        below: Outcome | None = None
        if settling is None or settling.action is Action.PASS:
            outcome = below = self._below(tier)
        else:
            outcome = Outcome(VERDICTS[settling.action], tier, (settling,))
        # From the last to the first: each is asked before all that an outcome so far already stands for.
        for rule in reversed(uncertain):
            if rule.action is Action.PASS and below is None:
                below = self._below(tier)
            outcome = either(outcome, rule, below if rule.action is Action.PASS else None)
        return outcome

    def _settling(self, policies: tuple[Policy, ...], uncertain: list[Rule]) -> Rule | None:
        """The first rule that surely matches; rules before it that may match go to `uncertain`."""
        looked, direction, question = self.looked, self.direction, self.question
        asked: set[str] = set()
        for policy in policies:
            silent = True
            for rule in policy.rules(direction) or ():
                match = rule_matches(rule, *question)
                if match is Match.YES:
                    looked.append((rule, _WORDS[rule.action]))
                    return rule
                if match is Match.MAYBE and not all(covered(name, asked) for name in domains(rule)):
                    asked.update(domains(rule))
                    uncertain.append(rule)
                    looked.append((rule, _MAY[rule.action]))
                    silent = False
                elif rule.note:
                    looked.append((rule, CLOSED))
                    silent = False
            if silent:
                looked.append((policy, NO_MATCH))
        return None

    def _union(self) -> Outcome:
        """NetworkPolicies: every rule that allows, or else every policy that isolates."""
        isolating = self.stack.namespace
        allowing: list[Rule] = []
        for policy in isolating:
            for rule in policy.rules(self.direction) or ():
                if rule.note:
                    self.looked.append((rule, CLOSED))
                elif rule_matches(rule, *self.question) is Match.YES:
                    allowing.append(rule)
        if allowing:
            self.looked += [(rule, ALLOWED) for rule in allowing]
            return Outcome(Verdict.ALLOW, Tier.NAMESPACE, tuple(allowing))
        self.looked += [(policy, DENIED) for policy in isolating]
        return Outcome(Verdict.DENY, Tier.NAMESPACE, isolating)

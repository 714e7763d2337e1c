"""Which rules are in vain, whatever pods, namespaces and nodes come: proved, or not said.

A rule of the Admin or Baseline tier is in vain when no connection that it matches ever gets to it, a NetworkPolicy
rule when admin policies deny all that it allows. Both hold if no connection is possible that the rule matches and
that gets past the rules before it. The search for one is exact on labels, ports and addresses; where it would take
too long nothing is claimed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from itertools import islice, takewhile
from typing import NamedTuple, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from tierwall.analyze.network_case import ConnectionCase
from tierwall.analyze.network_formula import (
    CaseSearch,
    Formula,
    RuleFormulas,
    SearchTooLong,
    does_not_select_subject,
    selects_subject,
)
from tierwall.core.labels import Selector
from tierwall.core.stack import Tier
from tierwall.network.model.model import NetworkModel
from tierwall.network.model.rules import NetworkRule, RuleAction, TieredPolicy, tier_isolates

# How many conditions are tried for one rule, and for all of a model; and how many rules before it are looked at.
MOST_STEPS = 10_000
MOST_STEPS_OF_ALL = 200_000
MOST_BEFORE = 64

SettlingPart: TypeAlias = NetworkRule | TieredPolicy


class _PolicyRule(NamedTuple):
    policy: TieredPolicy
    rule: NetworkRule


class ShadowProver:
    """The rules of one model, each asked what settles all that it matches before it comes to count."""

    def __init__(self, model: NetworkModel) -> None:
        self._formulas = RuleFormulas(model)
        self._tiers = model.tiers
        self._rules = {tier.name: list(_placed(tier.policies)) for tier in self._tiers}
        self._home = {placed.rule: placed for rules in self._rules.values() for placed in rules}
        self._left = MOST_STEPS_OF_ALL

    def settled_before(self, rule: NetworkRule) -> list[SettlingPart]:
        """Who settles all that a rule of a first-match tier matches; nobody if it may ever count."""
        return self._proved(rule, self._in_first_match)

    def denied_before(self, rule: NetworkRule) -> list[SettlingPart]:
        """The rules above that deny all that a rule of a NetworkPolicy allows; none if it may ever allow."""
        return self._proved(rule, self._in_union)

    def _proved(self, rule: NetworkRule, ask: Callable[[_RuleInQuestion], list[SettlingPart]]) -> list[SettlingPart]:
        search = CaseSearch(min(MOST_STEPS, self._left))
        granted = search.steps
        try:
            asked = _RuleInQuestion.of(self._formulas, search, self._home[rule])
            # Mostly one rule takes all; to look at fewer rules proves less, never more.
            while asked is not None:
                found = ask(asked)
                if found or asked.most >= MOST_BEFORE:
                    return found
                asked = replace(asked, most=4 * asked.most)
        except SearchTooLong:
            pass
        finally:
            self._left -= granted - search.steps
        return []

    def _above(self, rule: NetworkRule) -> list[Tier[TieredPolicy]]:
        """The tiers above the one that a rule stands in."""
        return list(takewhile(lambda tier: tier.name != rule.tier, self._tiers))

    def _in_union(self, asked: _RuleInQuestion) -> list[SettlingPart]:
        """A rule that only allows is undone where a tier above denies; one that allows there, too, does no harm."""
        ways: list[list[Formula]] = [[]]
        settlers: list[SettlingPart] = []
        for tier in self._above(asked.rule):
            rules = asked.concerned(self._rules[tier.name])
            onward = list(asked.ways_on(rules, (RuleAction.ALLOW, RuleAction.PASS)))
            if any(asked.possible([*way, *further]) for way in ways for further in onward):
                return []
            settlers += asked.takers(rules, ways)
            ways = [[*way, *further] for way in ways for further in asked.ways_on(rules, (RuleAction.PASS,))]
        return settlers

    def _in_first_match(self, asked: _RuleInQuestion) -> list[SettlingPart]:
        """A rule counts if some connection that it matches passes every tier above it and the rules before it."""
        ways: list[list[Formula]] = [[]]
        # What may settle it on the way, with the ways that lead there.
        passed: list[tuple[list[TieredPolicy] | list[_PolicyRule], list[list[Formula]]]] = []
        for tier in self._above(asked.rule):
            if tier_isolates(tier):
                isolating = list(islice(filter(asked.is_isolated, tier.policies), asked.most))
                passed.append((isolating, ways))
                ways = [[*way, *(does_not_select_subject(policy) for policy in isolating)] for way in ways]
            else:
                rules = asked.concerned(self._rules[tier.name])
                passed.append((rules, ways))
                ways = [[*way, *onward] for way in ways for onward in asked.ways_on(rules, (RuleAction.PASS,))]
        before = asked.concerned(self._rules[asked.rule.tier])
        if any(asked.possible([*way, *asked.past(before)]) for way in ways):
            return []
        settlers: list[SettlingPart] = []
        for met, leading in passed:
            placed = [one for one in met if isinstance(one, _PolicyRule)]
            settlers += [rule for rule in asked.takers(placed, leading) if rule.action is not RuleAction.PASS]
            settlers += [
                policy
                for policy in met
                if isinstance(policy, TieredPolicy)
                and any(asked.possible([*way, selects_subject(policy)]) for way in leading)
            ]
        return [*settlers, *asked.takers(before, ways)]


class _RuleInQuestion(Struct, frozen=True):
    """A rule that is asked about: the case that it matches, with the choices which that leaves.

    Of each tier no more than the first `most` rules are looked at.
    """

    formulas: RuleFormulas
    search: CaseSearch
    rule: NetworkRule
    case: ConnectionCase
    choices: Collection[Formula]
    subjects: dict[tuple[Selector, Selector], bool]
    most: int = 1

    @classmethod
    def of(cls, formulas: RuleFormulas, search: CaseSearch, one: _PolicyRule) -> _RuleInQuestion | None:
        """None for a rule that matches nothing in the first place: no other rule is to blame."""
        found = search.narrowed(formulas.anything(), [formulas.may_match(*one)])
        if found is None or not search.meets(*found):
            return None
        return cls(formulas, search, one.rule, *found, {})

    def concerned(self, tier: Iterable[_PolicyRule]) -> list[_PolicyRule]:
        """The first rules of a tier, up to the one asked about, that may match something that it matches."""
        before = takewhile(lambda one: one.rule is not self.rule, tier)
        return list(islice(filter(self._concerns, before), self.most))

    def _concerns(self, one: _PolicyRule) -> bool:
        same = one.rule.direction is self.rule.direction
        return same and self._shares(one.policy) and self.search.fits(self.case, self.formulas.matches(*one))

    def is_isolated(self, policy: TieredPolicy) -> bool:
        """Whether a NetworkPolicy may isolate a subject of the rule."""
        return policy.rules(self.rule.direction) is not None and self._shares(policy)

    def _shares(self, policy: TieredPolicy) -> bool:
        """Whether a policy may be about a subject of the rule; asked once for all policies about the same pods."""
        key = policy.namespaces, policy.pods
        if key not in self.subjects:
            self.subjects[key] = self.search.fits(self.case, selects_subject(policy))
        return self.subjects[key]

    def possible(self, formulas: Iterable[Formula]) -> bool:
        """Whether some connection that the rule matches meets these."""
        return self.search.meets(self.case, [*self.choices, *formulas])

    def past(self, before: Iterable[_PolicyRule]) -> list[Formula]:
        """None of these rules matches."""
        return [self.formulas.misses(*one) for one in before]

    def ways_on(self, before: list[_PolicyRule], onward: Collection[RuleAction]) -> Iterator[list[Formula]]:
        """How a tier is left: no rule of it matches, or the first that does has one of these actions."""
        yield self.past(before)
        for number, one in enumerate(before):
            if one.rule.action in onward:
                yield [self.formulas.matches(*one), *self.past(before[:number])]

    def takers(self, before: list[_PolicyRule], ways: list[list[Formula]]) -> list[NetworkRule]:
        """The rules that settle something that the rule asked about matches."""
        return [
            one.rule
            for number, one in enumerate(before)
            if any(self.possible([*way, self.formulas.matches(*one), *self.past(before[:number])]) for way in ways)
        ]


def _placed(policies: Iterable[TieredPolicy]) -> Iterator[_PolicyRule]:
    for policy in policies:
        for rule in policy.all_rules:
            yield _PolicyRule(policy, rule)

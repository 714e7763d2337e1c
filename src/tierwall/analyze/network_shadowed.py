"""Proves that a rule has no effect, whatever pods, namespaces and nodes there will be.

A rule of the Admin or Baseline tier has no effect if no connection that it matches ever reaches it; a rule of a
NetworkPolicy, if admin policies deny everything that it allows. In both cases no connection is possible that the rule
matches and that gets past the rules before it. The search for such a connection is exact on labels, ports and
addresses. If it would take too long, nothing is claimed.
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

# Limits: conditions tried per rule, conditions tried per model, and earlier rules considered per rule.
MAX_STEPS_PER_RULE = 10_000
MAX_STEPS = 200_000
MAX_EARLIER_RULES = 64

SettlingPart: TypeAlias = NetworkRule | TieredPolicy


class _PolicyRule(NamedTuple):
    policy: TieredPolicy
    rule: NetworkRule


class ShadowProver:
    """Finds the rules and policies that settle everything a rule matches before the rule applies."""

    def __init__(self, model: NetworkModel) -> None:
        self._formulas = RuleFormulas(model)
        self._tiers = model.tiers
        self._rules = {tier.name: list(_policy_rules(tier.policies)) for tier in self._tiers}
        self._policy_rules = {policy_rule.rule: policy_rule for rules in self._rules.values() for policy_rule in rules}
        self._steps_left = MAX_STEPS

    def settled_before(self, rule: NetworkRule) -> list[SettlingPart]:
        """Return the parts that settle everything a rule of a first-match tier matches; none if the rule may apply."""
        return self._prove(rule, self._in_first_match)

    def denied_before(self, rule: NetworkRule) -> list[SettlingPart]:
        """Return the rules that deny everything a rule of a NetworkPolicy allows; none if it may allow something."""
        return self._prove(rule, self._in_union)

    def _prove(self, rule: NetworkRule, prove: Callable[[_RuleInQuestion], list[SettlingPart]]) -> list[SettlingPart]:
        search = CaseSearch(min(MAX_STEPS_PER_RULE, self._steps_left))
        granted = search.steps
        try:
            asked = _RuleInQuestion.of(self._formulas, search, self._policy_rules[rule])
            # Usually one rule settles everything. Considering fewer rules proves less, never more.
            while asked is not None:
                settlers = prove(asked)
                if settlers or asked.most >= MAX_EARLIER_RULES:
                    return settlers
                asked = replace(asked, most=4 * asked.most)
        except SearchTooLong:
            pass
        finally:
            self._steps_left -= granted - search.steps
        return []

    def _above(self, rule: NetworkRule) -> list[Tier[TieredPolicy]]:
        """Return the tiers above the tier of a rule."""
        return list(takewhile(lambda tier: tier.name != rule.tier, self._tiers))

    def _in_union(self, asked: _RuleInQuestion) -> list[SettlingPart]:
        """Prove that tiers above deny everything an allowing rule matches. If one also allows it, nothing is lost."""
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
        """Prove that no connection that a rule matches passes every tier above and every rule before it."""
        ways: list[list[Formula]] = [[]]
        # The rules and policies that may settle a connection on the way, with the ways that lead there.
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
            rules_met = [part for part in met if isinstance(part, _PolicyRule)]
            settlers += [rule for rule in asked.takers(rules_met, leading) if rule.action is not RuleAction.PASS]
            settlers += [
                policy
                for policy in met
                if isinstance(policy, TieredPolicy)
                and any(asked.possible([*way, selects_subject(policy)]) for way in leading)
            ]
        return [*settlers, *asked.takers(before, ways)]


class _RuleInQuestion(Struct, frozen=True):
    """The rule in question: the case that it matches, with the choices that the case leaves.

    At most the first `most` rules of each tier are considered.
    """

    formulas: RuleFormulas
    search: CaseSearch
    rule: NetworkRule
    case: ConnectionCase
    choices: Collection[Formula]
    subjects: dict[tuple[Selector, Selector], bool]
    most: int = 1

    @classmethod
    def of(cls, formulas: RuleFormulas, search: CaseSearch, policy_rule: _PolicyRule) -> _RuleInQuestion | None:
        """Return None for a rule that matches nothing by itself: no other rule is to blame."""
        narrowed = search.narrow(formulas.anything(), [formulas.may_match(*policy_rule)])
        if narrowed is None or not search.can_meet(*narrowed):
            return None
        return cls(formulas, search, policy_rule.rule, *narrowed, {})

    def concerned(self, tier: Iterable[_PolicyRule]) -> list[_PolicyRule]:
        """Return the first rules of a tier, before the rule in question, that may match the same connections."""
        before = takewhile(lambda policy_rule: policy_rule.rule is not self.rule, tier)
        return list(islice(filter(self._concerns, before), self.most))

    def _concerns(self, policy_rule: _PolicyRule) -> bool:
        policy, rule = policy_rule
        same_direction = rule.direction is self.rule.direction
        return (
            same_direction
            and self._shares_subject(policy)
            and self.search.may_meet(self.case, self.formulas.matches(policy, rule))
        )

    def is_isolated(self, policy: TieredPolicy) -> bool:
        """Whether a NetworkPolicy may isolate a subject of the rule."""
        return policy.rules(self.rule.direction) is not None and self._shares_subject(policy)

    def _shares_subject(self, policy: TieredPolicy) -> bool:
        """Whether a policy may select a subject of the rule. Policies with the same subject share the answer."""
        key = policy.namespaces, policy.pods
        if key not in self.subjects:
            self.subjects[key] = self.search.may_meet(self.case, selects_subject(policy))
        return self.subjects[key]

    def possible(self, formulas: Iterable[Formula]) -> bool:
        """Whether some connection that the rule matches can meet all these formulas."""
        return self.search.can_meet(self.case, [*self.choices, *formulas])

    def past(self, before: Iterable[_PolicyRule]) -> list[Formula]:
        """Return the formulas that say that none of these rules matches."""
        return [self.formulas.misses(*policy_rule) for policy_rule in before]

    def ways_on(self, before: list[_PolicyRule], onward: Collection[RuleAction]) -> Iterator[list[Formula]]:
        """Yield the ways out of a tier: no rule of it matches, or the first that does has one of these actions."""
        yield self.past(before)
        for number, policy_rule in enumerate(before):
            if policy_rule.rule.action in onward:
                yield [self.formulas.matches(*policy_rule), *self.past(before[:number])]

    def takers(self, before: list[_PolicyRule], ways: list[list[Formula]]) -> list[NetworkRule]:
        """Return the rules that settle something that the rule in question matches."""
        takers: list[NetworkRule] = []
        for number, policy_rule in enumerate(before):
            reached = [self.formulas.matches(*policy_rule), *self.past(before[:number])]
            if any(self.possible([*way, *reached]) for way in ways):
                takers.append(policy_rule.rule)
        return takers


def _policy_rules(policies: Iterable[TieredPolicy]) -> Iterator[_PolicyRule]:
    for policy in policies:
        for rule in policy.all_rules:
            yield _PolicyRule(policy, rule)

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

    def _prove(self, rule: NetworkRule, prove: Callable[[_TestedRule], list[SettlingPart]]) -> list[SettlingPart]:
        search = CaseSearch(min(MAX_STEPS_PER_RULE, self._steps_left))
        steps_at_start = search.steps
        try:
            tested = _TestedRule.of(self._formulas, search, self._policy_rules[rule])
            # Usually one rule settles everything. Considering fewer rules proves less, never more.
            while tested is not None:
                settlers = prove(tested)
                if settlers or tested.max_earlier >= MAX_EARLIER_RULES:
                    return settlers
                tested = replace(tested, max_earlier=4 * tested.max_earlier)
        except SearchTooLong:
            pass
        finally:
            self._steps_left -= steps_at_start - search.steps
        return []

    def _above(self, rule: NetworkRule) -> list[Tier[TieredPolicy]]:
        """Return the tiers above the tier of a rule."""
        return list(takewhile(lambda tier: tier.name != rule.tier, self._tiers))

    def _in_union(self, tested: _TestedRule) -> list[SettlingPart]:
        """Prove that tiers above deny everything an allowing rule matches. If one also allows it, nothing is lost."""
        paths: list[list[Formula]] = [[]]
        settlers: list[SettlingPart] = []
        for tier in self._above(tested.rule):
            rules = tested.earlier_rules(self._rules[tier.name])
            onward = list(tested.paths_beyond(rules, (RuleAction.ALLOW, RuleAction.PASS)))
            if any(tested.possible([*path, *further]) for path in paths for further in onward):
                return []
            settlers += tested.settling_rules(rules, paths)
            paths = [[*path, *further] for path in paths for further in tested.paths_beyond(rules, (RuleAction.PASS,))]
        return settlers

    def _in_first_match(self, tested: _TestedRule) -> list[SettlingPart]:
        """Prove that no connection that a rule matches passes every tier above and every rule before it."""
        paths: list[list[Formula]] = [[]]
        # The rules and policies that may settle a connection on its path, with the paths that lead there.
        passed: list[tuple[list[TieredPolicy] | list[_PolicyRule], list[list[Formula]]]] = []
        for tier in self._above(tested.rule):
            if tier_isolates(tier):
                isolating = list(islice(filter(tested.is_isolated, tier.policies), tested.max_earlier))
                passed.append((isolating, paths))
                paths = [[*path, *(does_not_select_subject(policy) for policy in isolating)] for path in paths]
            else:
                rules = tested.earlier_rules(self._rules[tier.name])
                passed.append((rules, paths))
                paths = [
                    [*path, *onward] for path in paths for onward in tested.paths_beyond(rules, (RuleAction.PASS,))
                ]
        before = tested.earlier_rules(self._rules[tested.rule.tier])
        if any(tested.possible([*path, *tested.match_none(before)]) for path in paths):
            return []
        settlers: list[SettlingPart] = []
        for parts, paths_there in passed:
            rules_met = [part for part in parts if isinstance(part, _PolicyRule)]
            settlers += [
                rule for rule in tested.settling_rules(rules_met, paths_there) if rule.action is not RuleAction.PASS
            ]
            settlers += [
                policy
                for policy in parts
                if isinstance(policy, TieredPolicy)
                and any(tested.possible([*path, selects_subject(policy)]) for path in paths_there)
            ]
        return [*settlers, *tested.settling_rules(before, paths)]


class _TestedRule(Struct, frozen=True):
    """The rule that is tested: the case that it matches, with the choices that the case leaves.

    At most the first `max_earlier` rules of each tier are considered.
    """

    formulas: RuleFormulas
    search: CaseSearch
    rule: NetworkRule
    case: ConnectionCase
    choices: Collection[Formula]
    subjects: dict[tuple[Selector, Selector], bool]
    max_earlier: int = 1

    @classmethod
    def of(cls, formulas: RuleFormulas, search: CaseSearch, policy_rule: _PolicyRule) -> _TestedRule | None:
        """Return None for a rule that matches nothing by itself: no other rule is to blame."""
        narrowed = search.narrow(formulas.anything(), [formulas.may_match(*policy_rule)])
        if narrowed is None or not search.can_meet(*narrowed):
            return None
        return cls(formulas, search, policy_rule.rule, *narrowed, {})

    def earlier_rules(self, tier: Iterable[_PolicyRule]) -> list[_PolicyRule]:
        """Return the first rules of a tier, before the tested rule, that may match the same connections."""
        before = takewhile(lambda policy_rule: policy_rule.rule is not self.rule, tier)
        return list(islice(filter(self._overlaps, before), self.max_earlier))

    def _overlaps(self, policy_rule: _PolicyRule) -> bool:
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

    def match_none(self, before: Iterable[_PolicyRule]) -> list[Formula]:
        """Return the formulas that say that none of these rules matches."""
        return [self.formulas.misses(*policy_rule) for policy_rule in before]

    def paths_beyond(self, before: list[_PolicyRule], actions: Collection[RuleAction]) -> Iterator[list[Formula]]:
        """Yield the paths out of a tier: no rule of it matches, or the first that does has one of these actions."""
        yield self.match_none(before)
        for number, policy_rule in enumerate(before):
            if policy_rule.rule.action in actions:
                yield [self.formulas.matches(*policy_rule), *self.match_none(before[:number])]

    def settling_rules(self, before: list[_PolicyRule], paths: list[list[Formula]]) -> list[NetworkRule]:
        """Return the rules that settle something that the tested rule matches."""
        rules: list[NetworkRule] = []
        for number, policy_rule in enumerate(before):
            reached = [self.formulas.matches(*policy_rule), *self.match_none(before[:number])]
            if any(self.possible([*path, *reached]) for path in paths):
                rules.append(policy_rule.rule)
        return rules


def _policy_rules(policies: Iterable[TieredPolicy]) -> Iterator[_PolicyRule]:
    for policy in policies:
        for rule in policy.all_rules:
            yield _PolicyRule(policy, rule)

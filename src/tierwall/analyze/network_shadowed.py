"""Proves that a rule has no effect, whatever pods, namespaces and nodes there will be.

A rule of the Admin or Baseline tier has no effect if no connection that it matches ever reaches it; a rule of a
NetworkPolicy, if admin policies deny everything that it allows. In both cases no connection is possible that the rule
matches and that gets past the rules before it. Proofs about connections say whether one is (docs/prove.md), so the
answer is exact. If it would take too long, nothing is claimed.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from itertools import takewhile
from math import inf
from typing import NamedTuple, TypeAlias

from tierwall.analyze.network_samples import SampleIndex
from tierwall.core.reference import Reference
from tierwall.core.stack import Tier
from tierwall.logic.circuit import TRUE
from tierwall.logic.solver import CircuitSolver
from tierwall.network.model.model import NetworkModel
from tierwall.network.model.rules import (
    Direction,
    NetworkRule,
    RuleAction,
    TieredPolicy,
    tier_isolates,
)
from tierwall.proofs.network.connection import SymbolicConnection
from tierwall.proofs.network.plane import unbounded_connection

# Conflicts of the solver for one question, and questions about one model.
MAX_CONFLICTS = 2_000
MAX_QUESTIONS = 1_000
# So many rules share a literal for all before them.
SHARING = 64

SettlingPart: TypeAlias = NetworkRule | TieredPolicy


class _PolicyRule(NamedTuple):
    policy: TieredPolicy
    rule: NetworkRule


class _Passed(NamedTuple):
    """What is passed on the way to a rule of a tier: the literal of the way there, and for each rule of it whether none
    before it in its tier matches.

    `parts` may settle something there, each if its literal is true.
    """

    way: int
    none_before: dict[NetworkRule, tuple[int, int]]
    parts: list[SettlingPart]
    literals: list[int]


class _TooLong(Exception):
    """Nobody knows within the limits."""


class ShadowProver:
    """Finds the rules and policies that settle everything a rule matches before the rule applies.

    Of the rules of NetworkPolicies, it is asked about those in `asked` only; with a `focus`, of the other rules about
    those of this policy only. Of the rules `with_example`, the caller has seen a connection that they match. After
    `until` (`time.thread_time`) nothing is proved any more.
    """

    def __init__(
        self,
        model: NetworkModel,
        asked: Collection[NetworkRule],
        focus: Reference | None = None,
        until: float = inf,
        with_example: Collection[NetworkRule] = (),
    ) -> None:
        self._model, self._asked, self._focus, self._until = model, asked, focus, until
        self._with_example = with_example
        # Whether the time was over before something was proved.
        self.is_over = False
        self._rules = {tier.name: list(_policy_rules(tier.policies)) for tier in model.tiers}
        self._policies = {pair.rule: pair.policy for rules in self._rules.values() for pair in rules}
        self._questions_left = MAX_QUESTIONS
        self._known_premises: dict[NetworkRule, tuple[int, int]] = {}
        # By direction and tier; the parts that may settle something there by sample.
        self._ways: dict[tuple[Direction, str], _Passed] = {}
        self._places: dict[tuple[Direction, str], Mapping[int, list[int]]] = {}
        # The rules of NetworkPolicies that are denied, by direction.
        self._denied: dict[Direction, set[NetworkRule]] = {}

    @cached_property
    def _connection(self) -> SymbolicConnection:
        """Any connection between any ends: nothing that exists counts."""
        return unbounded_connection(self._model)

    @cached_property
    def _solver(self) -> CircuitSolver:
        return CircuitSolver(self._connection.circuit)

    @cached_property
    def _samples(self) -> SampleIndex:
        # A sample of a rule that nobody asks about seldom says anything of another one.
        pairs = (pair for rules in self._rules.values() for pair in rules)
        return SampleIndex(
            self._connection,
            (pair for pair in pairs if pair.rule in self._asked or self._may_be_asked(pair)),
        )

    def _may_be_asked(self, pair: _PolicyRule) -> bool:
        return not tier_isolates(self._tier(pair.rule)) and self._focus in (None, pair.rule.policy)

    def settled_before(self, rule: NetworkRule) -> list[SettlingPart]:
        """Return the parts that settle everything a rule of a first-match tier matches; none if the rule may apply."""
        tested = _PolicyRule(self._policies[rule], rule)
        try:
            if self._possible(tested, self._way(rule)) or not self._matches_something(tested):
                return []
            # Samples that the rule matches show what settles them; without any, one connection shows it.
            passed, settling = self._passed(rule), self._settling(rule)
            places = {place for sample in self._samples.of(self._premises(tested)) for place in settling[sample]}
            if not places and self._possible(tested, [self._connection.circuit.any_of(passed.literals)]):
                places = {n for n, literal in enumerate(passed.literals) if self._solver.is_true(literal)}
            return [passed.parts[place] for place in sorted(places)]
        except _TooLong:
            return []

    def denied_before(self, rule: NetworkRule) -> bool:
        """Whether admin policies deny everything that a rule of a NetworkPolicy allows, if it allows anything.

        If one also allows it, nothing is lost. One question is about many rules: does anything get through to any?
        """
        denied = self._denied.get(rule.direction)
        if denied is None:
            pairs = [pair for pair in self._rules[rule.tier] if pair.rule in self._asked]
            denied = self._denied[rule.direction] = set()
            with suppress(_TooLong):
                denied.update(self._denied_rules([pair for pair in pairs if pair.rule.direction is rule.direction]))
        return rule in denied

    def _denied_rules(self, pairs: list[_PolicyRule]) -> Iterator[NetworkRule]:
        """Yield the rules, all of one direction, that no connection gets through to."""
        way = self._passed(pairs[0].rule).way
        waiting = [pairs]
        while waiting:
            together = waiting.pop()
            literals = [self._connection.circuit.all_of(self._premises(pair)) for pair in together]
            possible = self._solve([way, self._connection.circuit.any_of(literals)])
            if possible is False:
                yield from (pair.rule for pair in together if self._matches_something(pair))
                continue
            # The connection that was found gets through to some of them.
            is_met = [bool(possible) and self._solver.is_true(literal) for literal in literals]
            rest = [pair for pair, met in zip(together, is_met, strict=True) if not met]
            if together is pairs:
                rest = [pair for pair in rest if not self._samples.meet([way, *self._premises(pair)])]
            if rest and len(together) > 1:
                middle = (len(rest) + 1) // 2
                waiting += (part for part in (rest[middle:], rest[:middle]) if part)

    def _way(self, rule: NetworkRule) -> list[int]:
        """Return literals that are true if nothing before a rule settles the connection. Rules share most of them."""
        passed = self._passed(rule)
        return [passed.way, *passed.none_before.get(rule, ())]

    def _passed(self, rule: NetworkRule) -> _Passed:
        """Return what is passed on the way to the tier of a rule. It is the same for all rules of a direction there."""
        key = rule.direction, rule.tier
        known = self._ways.get(key)
        if known is not None:
            return known
        circuit, way = self._connection.circuit, TRUE
        # What a NetworkPolicy allows is not lost if an admin policy allows it, too.
        is_union = tier_isolates(self._tier(rule))
        ending = (RuleAction.DENY,) if is_union else (RuleAction.ALLOW, RuleAction.DENY)
        parts: list[tuple[SettlingPart, int]] = []
        none_before: dict[NetworkRule, tuple[int, int]] = {}
        for tier in (*self._above(rule), *(() if is_union else [self._tier(rule)])):
            if tier_isolates(tier):
                isolating = [policy for policy in tier.policies if policy.rules(rule.direction) is not None]
                selecting = [self._selects(policy, rule.direction) for policy in isolating]
                parts += zip(isolating, (circuit.all_of((way, literal)) for literal in selecting), strict=True)
                way = circuit.all_of((way, -circuit.any_of(selecting)))
                continue
            rules = [pair for pair in self._rules[tier.name] if pair.rule.direction is rule.direction]
            nothing = shared = TRUE
            for number, pair in enumerate(rules):
                self._look_at_clock()
                # Solvers keep what follows from the literals that questions share.
                shared = nothing if number % SHARING == 0 else shared
                none_before[pair.rule] = shared, nothing
                # A Pass of a tier above settles nothing.
                if tier.name == rule.tier or pair.rule.action is not RuleAction.PASS:
                    parts.append((pair.rule, circuit.all_of((way, nothing, self._matches(pair)))))
                nothing = circuit.all_of((nothing, -self._matches(pair)))
            if tier.name != rule.tier:
                way = circuit.all_of((way, self._passes(rules, ending)))
        passed = _Passed(way, none_before, [part for part, _ in parts], [literal for _, literal in parts])
        self._ways[key] = passed
        return passed

    def _settling(self, rule: NetworkRule) -> Mapping[int, list[int]]:
        """Return for each sample the places of the parts that settle it on the way to the tier of a rule."""
        key = rule.direction, rule.tier
        known = self._places.get(key)
        if known is None:
            settling: defaultdict[int, list[int]] = defaultdict(list)
            for place, literal in enumerate(self._passed(rule).literals):
                self._look_at_clock()
                for sample in self._samples.of([literal]):
                    settling[sample].append(place)
            known = self._places[key] = settling
        return known

    def _tier(self, rule: NetworkRule) -> Tier[TieredPolicy]:
        return next(tier for tier in self._model.tiers if tier.name == rule.tier)

    def _above(self, rule: NetworkRule) -> list[Tier[TieredPolicy]]:
        """Return the tiers above the tier of a rule."""
        return list(takewhile(lambda tier: tier.name != rule.tier, self._model.tiers))

    def _passes(self, rules: Sequence[_PolicyRule], ending: tuple[RuleAction, ...]) -> int:
        """Return whether the first of some rules that matches, if any, has none of these actions."""
        circuit, passes = self._connection.circuit, TRUE
        for earlier in reversed(rules):
            matches = self._matches(earlier)
            ends = earlier.rule.action in ending
            passes = circuit.all_of((-matches, passes)) if ends else circuit.any_of((matches, passes))
        return passes

    def _possible(self, tested: _PolicyRule, literals: Sequence[int]) -> bool:
        """Whether some connection that a rule matches can meet all these literals."""
        is_under_policy, matches = self._premises(tested)
        asked = [is_under_policy, *literals, matches]
        if self._samples.meet(asked):
            return True
        answer = self._solve(asked)
        if answer is None:
            raise _TooLong
        return answer

    def _matches_something(self, tested: _PolicyRule) -> bool:
        """Whether a rule matches anything by itself: if not, that is nobody else's fault."""
        return tested.rule in self._with_example or self._possible(tested, [])

    def _look_at_clock(self) -> None:
        if time.thread_time() > self._until:
            self.is_over = True
            raise _TooLong

    def _solve(self, literals: Sequence[int]) -> bool | None:
        """Ask the solver; None if this question takes too long. If all do, raise _TooLong."""
        self._look_at_clock()
        self._questions_left -= 1
        if self._questions_left < 0:
            raise _TooLong
        return self._solver.possible(literals, MAX_CONFLICTS)

    def _premises(self, tested: _PolicyRule) -> tuple[int, int]:
        known = self._known_premises.get(tested.rule)
        if known is None:
            subject = self._connection.subject(tested.rule.direction)
            known = self._known_premises[tested.rule] = subject.under_policy(0), self._matches(tested)
        return known

    def _matches(self, pair: _PolicyRule) -> int:
        return self._connection.selects_and_matches(0, pair.policy, pair.rule)

    def _selects(self, policy: TieredPolicy, direction: Direction) -> int:
        return self._connection.selects(0, policy, direction)


def _policy_rules(policies: Iterable[TieredPolicy]) -> Iterator[_PolicyRule]:
    for policy in policies:
        for rule in policy.all_rules:
            yield _PolicyRule(policy, rule)

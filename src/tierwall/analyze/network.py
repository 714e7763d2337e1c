"""Checks of network policies: the mistakes that KEP-2091 asks tools to report ("Risks and Mitigation").

They find subjects and peers that select nothing, namespaces outside every trust domain, and policies that disagree,
override or shadow each other. For the last three, every kind of subject is walked through its tiers. The walk uses
classes of endpoints and ranges of ports, on the pods that exist and on stand-ins for future pods, so that a developer
who sees one namespace still learns which admin policy overrides their rule. A finding gives one connection as an
example; `network_shadowed` proves what is said about all connections.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import cache, cached_property
from math import inf
from typing import TYPE_CHECKING, Any

from tierwall.analyze.network_cells import (
    ConnectionCell,
    Examples,
    RuleShares,
    TakenEndpoints,
    TooManyCells,
    Witness,
    add_example,
    cells_with_rules,
    name_connection,
    rule_shares,
    widest,
)
from tierwall.core.diagnostics import Diagnostic
from tierwall.core.reference import Reference
from tierwall.core.source import Position
from tierwall.core.stack import Stack, Tier, evaluate
from tierwall.core.words import join_names
from tierwall.network.model.endpoints import Endpoint
from tierwall.network.model.model import network_model
from tierwall.network.model.rules import (
    EGRESS,
    Direction,
    NetworkRule,
    PortRange,
    RuleAction,
    TieredPolicy,
    TierName,
    tier_isolates,
)
from tierwall.network.reach.classes import EndpointClasses
from tierwall.network.reach.exposure import HypotheticalSnapshot
from tierwall.network.reach.membership import MatchedRule, RuleEffects
from tierwall.network.reach.own_classes import own_rows
from tierwall.network.reach.rows import Rows
from tierwall.network.reach.spaces import union

if TYPE_CHECKING:
    from tierwall.analyze.network_shadowed import SettlingPart, ShadowProver

# A thousand policies of one priority are one mistake: so many get a finding of their own, and the others share one.
MAX_POLICIES = 50
# The most rules, in all cells of a subject together, that are looked at while somebody waits.
MAX_FOCUSED_RULES = 20_000
# The most rules that one rule is said to disagree with, and the comparisons after which one is enough.
MAX_CLASHES = 200
MAX_COMPARISONS = 2_000_000
MAX_NAMED = 5
# The most hypothetical pods that rules are tried on. The search for shadowed rules proves the rest.
MAX_STAND_INS = 240


class RuleWalk:
    """Walks every kind of subject through its tiers, to see which rules ever count and which override which.

    With a `focus`, only what that policy has to do with is reported, and only the subjects that are wanted are walked:
    the snapshot then needs the policies of these subjects alone. `until` (`time.thread_time`) ends the walk, and
    `end_of_proofs` the proofs. With `ports`, only these ports are looked at, and nothing is claimed about others.
    """

    def __init__(
        self,
        hypothetical: HypotheticalSnapshot,
        focus: Reference | None = None,
        is_wanted: Callable[[Endpoint], bool] = lambda subject: True,
        until: float = inf,
        ports: Collection[PortRange] | None = None,
        end_of_proofs: float = inf,
    ) -> None:
        self._focus, self._is_wanted, self._until, self._ports = focus, is_wanted, until, ports
        self._end_of_proofs = end_of_proofs
        self.hypothetical, self.stand_ins = hypothetical, hypothetical.pods
        self.model = network_model(hypothetical.snapshot)
        own_explained = own_rows(hypothetical.snapshot)[1] if ports is None else None
        self.rows = own_explained or Rows(EndpointClasses(self.model, ports=ports or ()), True)
        self.classes = self.rows.classes
        everything = self.rows.ports.everything
        self._looked_at = everything if ports is None else union(map(self.rows.ports.mask, ports))
        self.counted: set[NetworkRule] = set()
        # The rules of earlier policies of the same priority that a rule disagrees with.
        self.clashes: dict[NetworkRule, Examples] = {}
        self.allowing: set[NetworkRule] = set()
        self.overridden: dict[NetworkRule, Examples] = {}
        self.opened: dict[tuple[TieredPolicy, Direction], Examples] = {}
        # The policies that still drop a connection with a pod.
        self.dropping: set[tuple[TieredPolicy, Direction]] = set()
        # The policies that were not compared for some subject.
        self.skipped: set[Reference] = set()
        self._comparisons_left = MAX_COMPARISONS
        # One rule often affects thousands.
        self._positions = cache(_positions)

    @cached_property
    def shadows(self) -> ShadowProver:
        """Proves what is said about all connections."""
        from tierwall.analyze.network_shadowed import ShadowProver  # most policies have no rule to prove anything of

        asked = {
            rule
            for rule, denying in self.overridden.items()
            if self._concerns_focus(rule.policy, denying) and self._may_be_wholly_denied(rule)
        }
        return ShadowProver(self.model, asked, self._focus, self._end_of_proofs, with_example=asked)

    def findings(self) -> Iterator[Diagnostic]:
        """Yield everything that the walk finds."""
        self.walk()
        if self.skipped:
            names = join_names([str(policy) for policy in sorted(self.skipped)], MAX_NAMED)
            verb = "has" if len(self.skipped) == 1 else "have"
            message = f"{names} {verb} too many rules on too many ports: what they override was not checked"
            yield Diagnostic("TW215", message, related_objects=_references(self.skipped))
        yield from self.equal_priorities()
        yield from self.overridden_policies()
        yield from self.shadowed()

    def walk(self) -> None:
        """Walk every kind of subject that is wanted."""
        seen: set[Any] = set()
        for endpoint_class in self.classes.all:
            subject = endpoint_class.representative
            if not subject.under_policy or not self._is_wanted(subject):
                continue
            for direction in Direction:
                stack = self.model.stack(subject, direction)
                if all(map(tier_isolates, stack)):
                    continue
                key = direction, *((tier, self.rows.seen_by(tier.policies, subject, direction)) for tier in stack)
                if key not in seen:
                    seen.add(key)
                    try:
                        self._walk(subject, direction, stack)
                    except TooManyCells:
                        self._not_walked(direction, stack)

    def _walk(self, subject: Endpoint, direction: Direction, stack: Stack[TieredPolicy]) -> None:
        matched = {tier.name: self.rows.membership.matched(tier, subject, direction) for tier in stack}
        others = self.hypothetical.others(self.classes, subject)
        most = MAX_FOCUSED_RULES if self._focus is not None else None
        for ports, tiers in cells_with_rules(self._looked_at, matched, most):
            if self._until < inf and time.thread_time() > self._until:
                raise TooManyCells
            cell = ConnectionCell(subject, direction, ports, others)
            taken = TakenEndpoints({name: RuleEffects(policies, ports) for name, policies in tiers.items()})
            # Whoever has no rule here settles nothing; a tier isolates all the same.
            here = (Tier(tier.name, tuple(tiers[tier.name]), tier.combining) for tier in stack)
            evaluate(here, others, taken.effects_of, True, taken.record)
            self.counted |= taken.rules
            for tier in stack:
                if tier.name == TierName.ADMIN:
                    self._clash(cell, tiers[tier.name])
                elif tier.name == TierName.BASELINE and not any(map(tier_isolates, stack)):
                    self._clash(cell, tiers[tier.name], taken.settled_in(TierName.ADMIN))
                if tier_isolates(tier):
                    self._union(cell, tier, tiers[tier.name], taken)

    def _not_walked(self, direction: Direction, stack: Stack[TieredPolicy]) -> None:
        """Claim nothing about policies as a whole, and remember that they were not compared."""
        policies = [policy for tier in stack for policy in tier.policies]
        self.dropping |= {(policy, direction) for policy in policies}
        self.skipped |= {policy.reference for policy in policies}

    def _clash(self, cell: ConnectionCell, policies: Mapping[TieredPolicy, list[MatchedRule]], above: int = 0) -> None:
        """Find policies of equal priority that decide the same connection differently. Others settle `above`."""
        by_priority: dict[int, list[list[MatchedRule]]] = {}
        if self.model.tied_policies.isdisjoint(policy.reference for policy in policies):
            return
        for policy, rules in policies.items():
            # The only BaselineAdminNetworkPolicy has no priority: it comes last.
            if policy.has_priority:
                by_priority.setdefault(policy.priority, []).append(rules)
        for priority in sorted(by_priority):
            shares = [rule_shares(rules, cell.ports, cell.others & ~above) for rules in by_priority[priority]]
            by_action = dict.fromkeys(RuleAction, 0)
            for number, later in enumerate(shares):
                for rule, mask in later:
                    disagreeing = union(other for action, other in by_action.items() if action is not rule.action)
                    if mask & disagreeing:
                        self._compare(cell, shares[:number], rule, mask)
                for rule, mask in later:
                    by_action[rule.action] |= mask
            above |= union(by_action.values())

    def _compare(self, cell: ConnectionCell, earlier: list[RuleShares], rule: NetworkRule, mask: int) -> None:
        """Record the earlier rules that decide some of the same connections differently: at most some of very many."""
        clashes = self.clashes.setdefault(rule, {})
        for share in earlier:
            for other, other_mask in share:
                self._comparisons_left -= 1
                if mask & other_mask and other.action is not rule.action:
                    add_example(clashes, other, cell, mask & other_mask)
            if len(clashes) >= MAX_CLASHES or (clashes and self._comparisons_left < 0):
                return

    def _union(
        self,
        cell: ConnectionCell,
        tier: Tier[TieredPolicy],
        policies: Mapping[TieredPolicy, list[MatchedRule]],
        taken: TakenEndpoints,
    ) -> None:
        """Find connections that these policies allow and tiers above deny, and those that only tiers above allow."""
        permitted = 0
        denying = taken.by_action(RuleAction.DENY)
        for matched in (rule for rules in policies.values() for rule in rules):
            allowed = matched.on(cell.ports)[0] & cell.others
            permitted |= allowed
            for rule, mask in denying:
                if mask & allowed:
                    add_example(self.overridden.setdefault(matched.rule, {}), rule, cell, mask & allowed)
                    allowed &= ~mask
            if allowed:
                self.allowing.add(matched.rule)
        dropped = cell.others & ~permitted
        for rule, mask in taken.by_action(RuleAction.ALLOW):
            opened = mask & cell.others & ~permitted
            dropped &= ~mask
            if opened:
                for policy in tier.policies:
                    add_example(self.opened.setdefault((policy, cell.direction), {}), rule, cell, opened)
        if dropped & self.classes.under_policy:
            self.dropping |= {(policy, cell.direction) for policy in tier.policies}

    def _connection(self, witness: Witness) -> str:
        return name_connection(self.rows, self.stand_ins, witness)

    def _concerns_focus(self, policy: Reference, examples: Examples) -> bool:
        """Whether a finding about a policy that other rules affect is about the focus, if there is one."""
        return self._focus in (None, policy) or any(rule.policy == self._focus for rule in examples)

    def _shown(self, rules: Sequence[NetworkRule]) -> NetworkRule:
        """Return the rule whose example is shown: the first of the focus, or of all."""
        return next((rule for rule in rules if rule.policy == self._focus), rules[0])

    def equal_priorities(self) -> Iterator[Diagnostic]:
        """Yield one finding for each policy that disagrees with earlier ones; of very many, the last stands for all."""
        by_policy: dict[Reference, list[NetworkRule]] = {}
        for rule, examples in self.clashes.items():
            if self._concerns_focus(rule.policy, examples):
                by_policy.setdefault(rule.policy, []).append(rule)
        policies = sorted(by_policy)
        for policy in policies[: MAX_POLICIES - 1] if len(policies) > MAX_POLICIES else policies:
            rules = by_policy[policy]
            pairs = [(rule, other) for rule in rules for other in self.clashes[rule]]
            pairs = [pair for pair in pairs if self._focus in (None, pair[0].policy, pair[1].policy)]
            second, first = max(pairs, key=lambda pair: self.clashes[pair[0]][pair[1]].width)
            example = self._connection(self.clashes[second][first])
            others = {other.policy for rule in rules for other in self.clashes[rule]}
            more = f" ({len(others)} policies of this priority disagree with it)" if len(others) > 1 else ""
            yield second.resource.diagnostic(
                "TW201",
                f"{second} ({second.action}) and {first} ({first.action}) have the same priority and both match "
                f"{example}; {first.policy.name} goes first by name{more}",
                second.path,
                hint="give one of the two policies another priority",
                related=_positions("the other rule", widest(self.clashes[second])),
                places=tuple(sorted(rule.place for rule in rules)),
                related_objects=_references(others),
                example=example,
            )
        if surplus := policies[MAX_POLICIES - 1 :] if len(policies) > MAX_POLICIES else []:
            at = by_policy[surplus[0]][0].resource.position()
            message = f"{len(surplus)} more policies disagree with others of their priority"
            yield Diagnostic("TW201", message, at, count=len(surplus), related_objects=_references(surplus))

    def affected(self) -> set[Reference]:
        """Return the NetworkPolicies that are overridden somewhere, without a proof for future pods."""
        denied = {rule.policy for rule, by in self.overridden.items() if self._concerns_focus(rule.policy, by)}
        opened = ((policy.reference, by) for (policy, _), by in self.opened.items())
        return denied | {policy for policy, by in opened if self._concerns_focus(policy, by)}

    def overridden_policies(self) -> Iterator[Diagnostic]:
        """Yield findings about NetworkPolicies, one for all rules of a policy that fare alike."""
        wholly: dict[Reference, list[NetworkRule]] = {}
        partly: dict[Reference, list[NetworkRule]] = {}
        for rule, denying in self.overridden.items():
            if not self._concerns_focus(rule.policy, denying):
                continue
            whole = self._may_be_wholly_denied(rule) and self.shadows.denied_before(rule)
            (wholly if whole else partly).setdefault(rule.policy, []).append(rule)
        for rules in wholly.values():
            yield self._denied_finding("TW202", "everything", rules)
        for rules in partly.values():
            yield self._denied_finding("TW203", "some of what", rules)
        for (policy, direction), examples in self.opened.items():
            if self._concerns_focus(policy.reference, examples):
                yield self._opened_finding(policy, direction, examples)

    def _may_be_wholly_denied(self, rule: NetworkRule) -> bool:
        """Whether all ports of a rule are looked at, and the walk saw nothing that it allows."""
        is_seen = self._ports is None or (rule.ports is not None and set(rule.ports) <= set(self._ports))
        return is_seen and rule not in self.allowing

    def _denied_finding(self, code: str, extent: str, rules: list[NetworkRule]) -> Diagnostic:
        examples: Examples = {}
        for rule in rules:
            for denying, witness in self.overridden[rule].items():
                if denying not in examples or examples[denying].width < witness.width:
                    examples[denying] = witness
        by = widest(examples)
        what = str(rules[0])
        if len(rules) > 1:
            what = f"{len(rules)} rules of {rules[0].policy} ({join_names([rule.place for rule in rules])})"
        verb = "denies" if len(by) == 1 else "deny"
        example = self._connection(examples[self._shown(by)])
        message = f"{join_names([str(denying) for denying in by])} {verb} {extent} {what} "
        message += f"{'allows' if len(rules) == 1 else 'allow'}, such as {example}"
        return rules[0].resource.diagnostic(
            code,
            message,
            rules[0].path,
            related=self._positions("overridden here", tuple(by[:MAX_NAMED])),
            places=tuple(sorted(rule.place for rule in rules)),
            related_objects=_references(denying.policy for denying in by),
            example=example,
        )

    def _opened_finding(self, policy: TieredPolicy, direction: Direction, examples: Examples) -> Diagnostic:
        """Return a warning if nothing is left that the policy keeps from pods, otherwise a note."""
        by = widest(examples)
        whole = self._ports is None and (policy, direction) not in self.dropping
        whose = "to" if direction is EGRESS else "from"
        what = f"everything {whose} pods that" if whole else "what"
        names, example = join_names([str(rule) for rule in by], 1), self._connection(examples[self._shown(by)])
        return policy.resource.diagnostic(
            "TW212" if whole else "TW203",
            f"{names} {'allows' if len(by) == 1 else 'allow'} {what} {policy.reference} would drop, such as {example}",
            ("spec",),
            hint="let the admin rule Pass, or remove the policy" if whole else "",
            related=self._positions("overridden here", tuple(by[:MAX_NAMED])),
            places=(str(direction),),
            related_objects=_references(rule.policy for rule in by),
            example=example,
        )

    def shadowed(self) -> Iterator[Diagnostic]:
        """Yield rules that never count."""
        first_match = (tier for tier in self.model.tiers if not tier_isolates(tier))
        for policy in (policy for tier in first_match for policy in tier.policies):
            if self._focus not in (None, policy.reference):
                continue
            for rule in policy.all_rules:
                settlers = [] if rule in self.counted else self.shadows.settled_before(rule)
                if settlers:
                    yield self._shadowed_finding(rule, settlers)

    def _shadowed_finding(self, rule: NetworkRule, settlers: list[SettlingPart]) -> Diagnostic:
        names = [settler.decider.short for settler in settlers]
        return rule.resource.diagnostic(
            "TW207",
            f"{rule} can never count: whatever it matches is settled before by {join_names(names, MAX_NAMED)}",
            rule.path,
            related=_positions("settled here", settlers),
            related_objects=_references(settler.policy for settler in settlers),
        )


def _positions(words: str, parts: Sequence[SettlingPart]) -> tuple[tuple[str, Position | None], ...]:
    """Return the positions of the first few rules: to look up a position takes time."""
    return tuple((words, part.resource.position(part.path)) for part in parts[:MAX_NAMED])


def _references(policies: Iterable[Reference]) -> tuple[str, ...]:
    return tuple(sorted(set(map(str, policies))))

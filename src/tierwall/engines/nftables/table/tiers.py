"""Tiers as lines of a chain: first match for Admin and Baseline, union with isolation for NetworkPolicies.

Rules that only drop (for ingress: drop or accept) are the same for every pod, so each policy has one chain of them that
pods' chains jump to. A rule that leaves the tier, and an egress rule that allows, must stand in the pod's own chain,
because `return` there lets the connection leave the pod.

The kernel does not know domain names. An Allow by domain opens nothing, and a Deny by domain closes every address.
After a Pass by domain, only connections pass that both the rest of the tier and the tiers below allow
(docs/enforce-network.md#domain-names).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import chain, groupby
from typing import NamedTuple, assert_never

from tierwall.engines.nftables.table.builder import ALLOW, TableBuilder, by_port
from tierwall.engines.nftables.table.matches import RuleLine, matches, resolved_peers
from tierwall.engines.nftables.table.names import Label
from tierwall.engines.nftables.table.table import ACCEPT, DROP, RETURN, ChainVerdict, VerdictWord
from tierwall.network.model.matching import domain_names, is_covered_domain
from tierwall.network.model.policies import is_shadow
from tierwall.network.model.rules import AddressPeer, Direction, NetworkRule, Peer, Port, RuleAction, TieredPolicy
from tierwall.values.addresses import IPV6, LAST, LAST_IPV4, Block, Span


class TierSubject(NamedTuple):
    """The direction of the rules, and the namespace that related peers are compared with."""

    direction: Direction
    namespace: str
    labels: Mapping[str, str]


def first_match(
    builder: TableBuilder, subject: TierSubject, policies: Iterable[TieredPolicy], passing: ChainVerdict
) -> list[str] | None:
    """Return the lines of the Admin or Baseline tier; None if no rule of the tier can match.

    `passing` is the verdict that leaves the tier: after a Pass, and after the last line.
    """
    walk = _FirstMatch(builder, subject, passing)
    lines: list[str] = []
    rules = [(policy, rule) for policy in policies for rule in policy.rules(subject.direction) or ()]
    if walk.lines(rules, ALLOW[subject.direction], lines):
        return lines
    return [*lines, str(passing)] if lines else None


class _FirstMatch:
    def __init__(self, builder: TableBuilder, subject: TierSubject, passing: ChainVerdict) -> None:
        self.builder, self.subject, self.passing = builder, subject, passing
        self.covered_domains: list[tuple[tuple[str, ...], tuple[Port, ...] | None]] = []

    def lines(self, rules: list[tuple[TieredPolicy, NetworkRule]], allow: ChainVerdict, out: list[str]) -> bool:
        """Add the lines of these rules; True if nothing after them is ever reached."""
        run: list[RuleLine] = []
        owner: TieredPolicy | None = None
        for number, (policy, rule) in enumerate(rules):
            if owner is not None and policy is not owner:
                _flush(self.builder, owner, run, out)
            owner = policy
            if is_shadow(policy.resource):
                self._watch(policy, rule, out)
                continue
            by_domain = self._is_first_by_domain(rule)
            lines = self._rule(rule, allow)
            if by_domain and rule.action is RuleAction.DENY:
                lines = chain(lines, self._rule(rule, allow, everybody=True))
            for line in lines:
                run.append(line)
                if line.match.always:
                    _flush(self.builder, owner, run, out)
                    return True
            if by_domain and rule.action is RuleAction.PASS and allow != self.passing:
                _flush(self.builder, owner, run, out)
                if self._after_pass_by_domain(rule, rules[number + 1 :], out):
                    return True
        if owner is not None:
            _flush(self.builder, owner, run, out)
        return False

    def _after_pass_by_domain(
        self, rule: NetworkRule, after: list[tuple[TieredPolicy, NetworkRule]], out: list[str]
    ) -> bool:
        """Add the lines after a Pass by domain: the later rules and the tiers below must both allow.

        True if that holds for everybody, so that nothing after these lines is reached.
        """
        rest: list[str] = []
        if not self.lines(after, self.passing, rest):
            rest.append(str(self.passing))
        if rule.ports is None and self._addressed() is None:
            out += rest
            return True
        name = self.builder.chain("both", rest, f"after {rule}: what the tiers below allow too")
        ending = f'{ChainVerdict(VerdictWord.GOTO, name)} comment "{Label.of_rule(rule).remark()}"'
        for match in matches(self.builder.sets, self.subject.direction, self._addressed(), rule.ports):
            out.append(str(RuleLine(match, ending)))
        return False

    def _rule(self, rule: NetworkRule, allow: ChainVerdict, everybody: bool = False) -> Iterator[RuleLine]:
        match rule.action:
            case RuleAction.ALLOW:
                verdict, shared = allow, allow == ACCEPT
            case RuleAction.DENY:
                verdict, shared = DROP, True
            case RuleAction.PASS:
                verdict, shared = self.passing, False
            case _:
                assert_never(rule.action)
        ending = self.builder.rule_ending(Label.of_rule(rule), verdict)
        peers = self._addressed() if everybody else resolved_peers(rule, self.subject.namespace, self.subject.labels)
        for match in matches(self.builder.sets, self.subject.direction, peers, rule.ports):
            yield RuleLine(match, ending, shared)

    def _watch(self, policy: TieredPolicy, rule: NetworkRule, out: list[str]) -> None:
        """Watch a policy in shadow mode: count and log its first matching rule, and go on."""
        rules = policy.rules(self.subject.direction) or ()
        if rule is not rules[0]:
            return
        lines = [line for watched in rules for line in _shadow_lines(self.builder, self.subject, watched, RETURN)]
        if lines:
            out.append(_jump(self.builder.chain("shadow", map(str, lines), str(policy.reference))))

    def _addressed(self) -> tuple[Peer, ...] | None:
        """Return the peers that a domain name may match: all with a real address, not only a stand-in."""
        everywhere = AddressPeer((Block(Span(0, LAST_IPV4)), Block(Span(IPV6, LAST))))
        return (everywhere,) if self.builder.sets.wire.unlisted else None

    def _is_first_by_domain(self, rule: NetworkRule) -> bool:
        """Whether a rule can be the first to match by domain: earlier rules do not cover all of its domains."""
        names = domain_names(rule)
        earlier_domains = {
            name for before, ports in self.covered_domains if ports is None or ports == rule.ports for name in before
        }
        if all(is_covered_domain(name, earlier_domains) for name in names):
            return False
        self.covered_domains.append((names, rule.ports))
        return True


def union(builder: TableBuilder, subject: TierSubject, policies: Iterable[TieredPolicy]) -> list[str] | None:
    """Return the lines of the NetworkPolicy tier, which always settle; None if no enforced policy isolates."""
    direction = subject.direction
    enforced = [policy for policy in policies if not is_shadow(policy.resource)]
    if not enforced:
        return None
    ending: list[str] = []
    for policy in policies:
        if is_shadow(policy.resource):
            for rule in policy.rules(direction) or ():
                ending += map(str, _shadow_lines(builder, subject, rule, None))
    ending.append(builder.rule_ending(Label.of_isolation(direction, enforced), DROP))
    allowing = [
        [
            line
            for rule in policy.rules(direction) or ()
            for line in _lines(builder, subject, rule, builder.rule_ending(Label.of_rule(rule), ALLOW[direction]))
        ]
        for policy in enforced
    ]
    if direction is Direction.EGRESS:
        return by_port(builder, [line for lines in allowing for line in lines], VerdictWord.GOTO, ending)
    out: list[str] = []
    for policy, lines in zip(enforced, allowing, strict=True):
        texts = by_port(builder, lines, VerdictWord.JUMP, [])
        out += texts if len(texts) < 2 else [_jump(builder.chain("policy", texts, str(policy.reference)))]
    return [*out, *ending]


def shadow_union(builder: TableBuilder, subject: TierSubject, policies: Iterable[TieredPolicy]) -> list[str]:
    """Count and log what NetworkPolicies in shadow mode would drop where no enforced policy isolates; then continue."""
    watched = [policy for policy in policies if is_shadow(policy.resource)]
    if not watched:
        return []
    lines = [
        str(line)
        for policy in watched
        for rule in policy.rules(subject.direction) or ()
        for line in _shadow_lines(builder, subject, rule, RETURN, logs=False)
    ]
    lines.append(builder.rule_ending(Label.of_isolation(subject.direction, watched, shadow=True), RETURN))
    return [_jump(builder.chain("shadow", lines))]


def _shadow_lines(
    builder: TableBuilder, subject: TierSubject, rule: NetworkRule, verdict: ChainVerdict | None, logs: bool = True
) -> Iterator[RuleLine]:
    return _lines(builder, subject, rule, builder.rule_ending(Label.of_rule(rule, shadow=True), verdict, logs))


def _lines(builder: TableBuilder, subject: TierSubject, rule: NetworkRule, ending: str) -> Iterator[RuleLine]:
    peers = resolved_peers(rule, subject.namespace, subject.labels)
    for match in matches(builder.sets, subject.direction, peers, rule.ports):
        yield RuleLine(match, ending)


def _jump(chain: str) -> str:
    return str(ChainVerdict(VerdictWord.JUMP, chain))


def _flush(builder: TableBuilder, policy: TieredPolicy, run: list[RuleLine], out: list[str]) -> None:
    """Write a policy's lines: two or more shared lines in a row become a chain of their own."""
    for shared, lines in groupby(run, key=lambda line: line.shared):
        texts = [str(line) for line in lines]
        if shared and len(texts) > 1:
            texts = [_jump(builder.chain("policy", texts, str(policy.reference)))]
        out += texts
    run.clear()

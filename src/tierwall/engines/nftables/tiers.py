"""Tiers as lines of a chain: first match for Admin and Baseline, union with isolation for NetworkPolicies.

Rules that only drop (in ingress: that drop or accept) are alike for every pod, so each policy has one chain of them
that is jumped to; a rule that leaves the tier, and an egress rule that allows, must stand in the pod's own chain,
because `return` there means that egress lets the connection pass.
Domain names are not known to the kernel. An Allow by domain opens nothing and a Deny closes for every address; after
a Pass by domain only that passes what both the rest of the tier and the tiers below allow
(docs/enforce-network.md#domain-names).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from tierwall.engines.nftables.index import Line, by_port
from tierwall.engines.nftables.matches import matches
from tierwall.engines.nftables.names import comment, several
from tierwall.engines.nftables.parts import ALLOW, ISOLATES, Parts, remark, told
from tierwall.engines.nftables.resolve import resolved
from tierwall.network.model.addresses import IPV6, LAST, LAST_IPV4, Block, Span
from tierwall.network.model.matching import covered, domains
from tierwall.network.model.rules import Action, AddressPeer, Direction, Peer, Policy, Port, Rule
from tierwall.network.model.shadow import is_shadow


class Subject(NamedTuple):
    """Whose rules: the direction, and the namespace that related peers are compared with."""

    direction: Direction
    namespace: str
    labels: Mapping[str, str]


class _Line(NamedTuple):
    text: str
    shared: bool


def first_match(parts: Parts, subject: Subject, policies: Iterable[Policy], passing: str) -> list[str]:
    """Lines of the Admin or Baseline tier; `passing` is what leaving the tier does, also at its end."""
    walk = _FirstMatch(parts, subject, passing)
    lines: list[str] = []
    rules = [(policy, rule) for policy in policies for rule in policy.rules(subject.direction) or ()]
    if not walk.lines(rules, ALLOW[subject.direction], lines):
        lines.append(passing)
    return lines


class _FirstMatch:
    def __init__(self, parts: Parts, subject: Subject, passing: str) -> None:
        self.parts, self.subject, self.passing = parts, subject, passing
        self.asked: list[tuple[tuple[str, ...], tuple[Port, ...] | None]] = []

    def lines(self, rules: list[tuple[Policy, Rule]], allow: str, out: list[str]) -> bool:
        """Add the lines of these rules; True if nothing after them is ever reached."""
        run: list[_Line] = []
        owner: Policy | None = None
        for number, (policy, rule) in enumerate(rules):
            if owner is not None and policy is not owner:
                _flush(self.parts, owner, run, out)
            owner = policy
            if is_shadow(policy.resource):
                self._shadow(policy, rule, out)
                continue
            for line in self._rule(rule, allow):
                run.append(line)
                if _always(line.text):
                    _flush(self.parts, owner, run, out)
                    return True
            names = domains(rule)
            if not names or self._covered(names, rule.ports):
                continue
            self.asked.append((names, rule.ports))
            if rule.action is Action.DENY:
                for line in self._rule(rule, allow, everybody=True):
                    run.append(line)
                    if _always(line.text):
                        _flush(self.parts, owner, run, out)
                        return True
            elif rule.action is Action.PASS and allow != self.passing:
                _flush(self.parts, owner, run, out)
                rest: list[str] = []
                if not self.lines(rules[number + 1 :], self.passing, rest):
                    rest.append(self.passing)
                if rule.ports is None and self._addressed() is None:
                    out += rest
                    return True
                name = self.parts.chain("both", rest, f"after {rule}: what the tiers below allow too")
                for match in matches(self.parts.sets, self.subject.direction, self._addressed(), rule.ports):
                    out.append(f"{match.text} goto {name} {remark(rule)}")
        if owner is not None:
            _flush(self.parts, owner, run, out)
        return False

    def _rule(self, rule: Rule, allow: str, everybody: bool = False) -> Iterator[_Line]:
        direction = self.subject.direction
        verdict = {Action.ALLOW: allow, Action.DENY: "drop", Action.PASS: self.passing}[rule.action]
        ending = self.parts.ending(rule.action, verdict, rule.place, (told(str(rule.policy)),))
        peers = self._addressed() if everybody else resolved(rule, self.subject.namespace, self.subject.labels)
        shared = rule.action is Action.DENY or (rule.action is Action.ALLOW and verdict == "accept")
        for match in matches(self.parts.sets, direction, peers, rule.ports):
            yield _Line(f"{match.text} {ending} {remark(rule)}".lstrip(), shared)

    def _shadow(self, policy: Policy, rule: Rule, out: list[str]) -> None:
        """A watched policy: its first rule that matches is counted and logged, and the question goes on."""
        rules = policy.rules(self.subject.direction) or ()
        if rule is not rules[0]:
            return
        lines = []
        for one in rules:
            ending = self.parts.ending(one.action, "return", one.place, (told(str(one.policy)),), shadow=True)
            peers = resolved(one, self.subject.namespace, self.subject.labels)
            found = matches(self.parts.sets, self.subject.direction, peers, one.ports)
            lines += [f"{match.text} {ending} {remark(one)}".lstrip() for match in found]
        if lines:
            out.append(f"jump {self.parts.chain('shadow', lines, str(policy.reference))}")

    def _addressed(self) -> tuple[Peer, ...] | None:
        """Whom a domain name may stand for: everybody in packets, unless some are there by a stand-in only."""
        everywhere = AddressPeer((Block(Span(0, LAST_IPV4)), Block(Span(IPV6, LAST))))
        return (everywhere,) if self.parts.sets.wire.unlisted else None

    def _covered(self, names: tuple[str, ...], ports: tuple[Port, ...] | None) -> bool:
        """Whether rules before this one already stand for its domains, so that it can never be the first to match."""
        asked = {name for names, those in self.asked if those is None or those == ports for name in names}
        return all(covered(name, asked) for name in names)


def union(parts: Parts, subject: Subject, policies: Iterable[Policy]) -> list[str] | None:
    """Lines of the NetworkPolicy tier, always final; None if no enforced policy isolates."""
    direction = subject.direction
    enforced = [one for one in policies if not is_shadow(one.resource)]
    if not enforced:
        return None
    ending: list[str] = []
    for policy in policies:
        if is_shadow(policy.resource):
            for rule in policy.rules(direction) or ():
                ending += [one.text for one in _allowing(parts, subject, rule, shadow=True)]
    ending.append(_isolated(parts, direction, enforced, "drop"))
    found = [
        [one for rule in policy.rules(direction) or () for one in _allowing(parts, subject, rule)]
        for policy in enforced
    ]
    if direction is Direction.EGRESS:
        return by_port(parts, [line for lines in found for line in lines], "goto", ending)
    out: list[str] = []
    for policy, lines in zip(enforced, found, strict=True):
        own = by_port(parts, lines, "jump", [])
        out += own if len(own) < 2 else [f"jump {parts.chain('policy', own, str(policy.reference))}"]
    return [*out, *ending]


def shadow_union(parts: Parts, subject: Subject, policies: Iterable[Policy]) -> list[str]:
    """Where only watched NetworkPolicies isolate: what they would drop is counted and logged, and goes on."""
    watched = [one for one in policies if is_shadow(one.resource)]
    if not watched:
        return []
    lines = []
    for policy in watched:
        for rule in policy.rules(subject.direction) or ():
            peers = resolved(rule, subject.namespace, subject.labels)
            counted = parts.counted("ShadowAllow", rule.place, told(str(rule.policy)))
            found = matches(parts.sets, subject.direction, peers, rule.ports)
            lines += [f"{match.text} {counted} return {remark(rule)}".lstrip() for match in found]
    lines.append(_isolated(parts, subject.direction, watched, "return", shadow=True))
    return [f"jump {parts.chain('shadow', lines)}"]


def _allowing(parts: Parts, subject: Subject, rule: Rule, shadow: bool = False) -> Iterator[Line]:
    verdict = "" if shadow else ALLOW[subject.direction]
    ending = parts.ending(Action.ALLOW, verdict, rule.place, (told(str(rule.policy)),), shadow)
    peers = resolved(rule, subject.namespace, subject.labels)
    for match in matches(parts.sets, subject.direction, peers, rule.ports):
        yield Line(f"{match.text} {ending} {remark(rule)}".lstrip(), match.at)


def _isolated(parts: Parts, direction: Direction, policies: list[Policy], verdict: str, shadow: bool = False) -> str:
    names = tuple(told(str(policy.reference)) for policy in policies)
    told_names = comment(f"{several(names)} {ISOLATES}")
    return f'{parts.ending(Action.DENY, verdict, f"{direction}:{ISOLATES}", names, shadow)} comment "{told_names}"'


def _flush(parts: Parts, policy: Policy, run: list[_Line], out: list[str]) -> None:
    """Write a policy's lines: two or more shared ones in a row become a chain of their own."""
    shared: list[str] = []

    def close() -> None:
        if len(shared) > 1:
            out.append(f"jump {parts.chain('policy', shared, str(policy.reference))}")
        else:
            out.extend(shared)
        shared.clear()

    for line in run:
        if line.shared:
            shared.append(line.text)
        else:
            close()
            out.append(line.text)
    close()
    run.clear()


def _always(line: str) -> bool:
    """Whether a line has no condition."""
    return line.startswith("counter ")

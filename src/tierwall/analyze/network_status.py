"""Compute the status that a controller would write on AdminNetworkPolicies and their kin (docs/network.md#status).

These kinds have one list of conditions and no name of a controller in it, so the types carry a prefix. A policy is
`Conflicted` if another policy of its tier and priority answers some connection otherwise. As for TW201, connections of
pods that may be created count too: a status that waited for them would come too late.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from tierwall.analyze.network import MAX_STAND_INS
from tierwall.analyze.network_cells import ConnectionCell, Witness, name_connection
from tierwall.attach.status import MAX_MESSAGE_BYTES, StatusCondition, bounded_message
from tierwall.core.reference import Reference
from tierwall.core.stack import Tier
from tierwall.core.unprintable import escape_unprintable
from tierwall.core.words import join_names
from tierwall.network.model.endpoints import Endpoint
from tierwall.network.model.model import network_model, network_model_with_shadow
from tierwall.network.model.policies import BASELINE, NETWORK_POLICY, is_shadow
from tierwall.network.model.policies import KINDS as POLICY_KINDS
from tierwall.network.model.rules import Direction, RuleAction, TieredPolicy
from tierwall.network.reach.classes import EndpointClasses
from tierwall.network.reach.exposure import with_stand_ins
from tierwall.network.reach.membership import MatchedRule, rule_cells
from tierwall.network.reach.rows import Rows
from tierwall.network.reach.spaces import union
from tierwall.resources.once import per_snapshot
from tierwall.resources.resource import Resource
from tierwall.resources.snapshot import Snapshot
from tierwall.resources.validity import objections

KINDS = tuple(kind for kind in POLICY_KINDS if kind != NETWORK_POLICY)
ACCEPTED, CONFLICTED = "tierwall.io/Accepted", "tierwall.io/Conflicted"
# The most rivals that are looked for: a thousand policies of one priority are one mistake.
MAX_RIVALS = 20


class NetworkPolicyStatus(NamedTuple):
    """The conditions of one policy."""

    policy: Resource
    conditions: tuple[StatusCondition, ...]


def network_policies(snapshot: Snapshot) -> Iterator[Resource]:
    """Yield the policies of the network plane that have a status."""
    for kind in KINDS:
        yield from snapshot.of_kind(*kind)


def network_policy_status(snapshot: Snapshot, policy: Resource, *, examples: bool = True) -> NetworkPolicyStatus:
    """Return the status of one policy, where a conflict has a connection as an example or has none."""
    conditions = [_accepted(snapshot, policy)]
    if policy.kind != BASELINE:
        conditions.append(_conflicted(snapshot, policy, examples))
    return NetworkPolicyStatus(policy, tuple(conditions))


def _accepted(snapshot: Snapshot, policy: Resource) -> StatusCondition:
    refused = objections(snapshot, policy)
    if not refused:
        return StatusCondition(ACCEPTED, True, "Accepted", "Policy is accepted")
    meanwhile = f"Meanwhile {_meanwhile(snapshot, policy)}"
    return StatusCondition(ACCEPTED, False, "Invalid", bounded_message(refused, meanwhile))


def _meanwhile(snapshot: Snapshot, policy: Resource) -> str:
    """Say what a policy does that is not understood (docs/network.md#what-cannot-be-understood-fails-closed)."""
    if is_shadow(policy):
        return "it is in shadow mode and decides nothing"
    model = network_model_with_shadow(snapshot)
    judged = next((tiered for tiered in model.policies if tiered.resource is policy), None)
    if judged is None:
        return "it decides nothing"
    if judged.closed:
        return "it denies everything that it could be about"
    closed = [rule for rule in judged.all_rules if rule.closed]
    silent = [rule.place for rule in closed if rule.action is RuleAction.ALLOW]
    denying = [rule.place for rule in closed if rule.action is not RuleAction.ALLOW]
    parts = [f"{join_names(silent)} {'allows' if len(silent) == 1 else 'allow'} nothing"] if silent else []
    if denying:
        verb, whose = ("denies", "its") if len(denying) == 1 else ("deny", "their")
        parts.append(f"{join_names(denying)} {verb} everything in {whose} direction")
    return " and ".join(parts) or "it is applied as far as it is understood"


def _conflicted(snapshot: Snapshot, policy: Resource, examples: bool) -> StatusCondition:
    rivals = priority_rivals(snapshot).get(policy.reference)
    if not rivals:
        message = "No policy of the same priority answers a connection otherwise"
        if not _search(snapshot).is_complete:
            message += ", as far as compared: policies tell too many sorts of future pods apart"
        return StatusCondition(CONFLICTED, False, "NoConflicts", message)
    names = [str(rival) for rival in sorted(rivals)]
    verbs = "has the same priority and answers" if len(names) == 1 else "have the same priority and answer"
    endings = (f", such as {rivals[min(rivals)]}", "") if examples else ("",)
    if len(names) >= MAX_RIVALS:
        names.append("perhaps others")
    messages = (
        escape_unprintable(f"{join_names(names, named)} {verbs} some connections otherwise{ending}")
        for named in range(len(names), 0, -1)
        for ending in endings
    )
    fitting = (message for message in messages if len(message.encode()) <= MAX_MESSAGE_BYTES)
    message = next(fitting, "Policies with the same priority answer some connections otherwise")
    return StatusCondition(CONFLICTED, True, "SamePriority", message)


def priority_rivals(snapshot: Snapshot) -> Mapping[Reference, Mapping[Reference, str]]:
    """Return by policy those of the same tier and priority that answer a connection otherwise, with that connection."""
    return _search(snapshot).rivals


class _RivalSearch:
    """Walks every kind of subject through tiers in which policies share a priority."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.rivals: dict[Reference, dict[Reference, str]] = {}
        # Whether all sorts of future pods were compared.
        self.is_complete = True
        if not network_model(snapshot).tied_policies:
            return
        leading = network_model(snapshot).tied_policies
        hypothetical = with_stand_ins(snapshot, named_ports=True, limit=MAX_STAND_INS, leading=leading)
        self._hypothetical = hypothetical
        self.is_complete = hypothetical.is_complete
        self._stand_ins = hypothetical.pods
        model = network_model(hypothetical.snapshot)
        self._classes = EndpointClasses(model)
        self._rows = Rows(self._classes, True)
        seen: set[Any] = set()
        for endpoint_class in self._classes.all:
            subject = endpoint_class.representative
            for direction in Direction if subject.under_policy else ():
                for tier in model.stack(subject, direction):
                    key = direction, tier, self._rows.seen_by(tier.policies, subject, direction)
                    if key not in seen and any(policy.reference in model.tied_policies for policy in tier.policies):
                        seen.add(key)
                        self._walk(subject, direction, tier)

    def _walk(self, subject: Endpoint, direction: Direction, tier: Tier[TieredPolicy]) -> None:
        matched = self._rows.membership.matched(tier, subject, direction)
        others = self._hypothetical.others(self._classes, subject)
        for ports, rules in rule_cells(self._rows.ports.everything, matched):
            by_priority: dict[int, dict[TieredPolicy, dict[RuleAction, int]]] = {}
            for policy in tier.policies:
                by_priority.setdefault(policy.priority, {})[policy] = _answers(rules[policy], ports, others)
            open_cases = others
            for policies in by_priority.values():
                self._compare(subject, direction, ports, policies, open_cases)
                for answers in policies.values():
                    for mask in answers.values():
                        open_cases &= ~mask

    def _compare(
        self,
        subject: Endpoint,
        direction: Direction,
        ports: int,
        policies: Mapping[TieredPolicy, Mapping[RuleAction, int]],
        among: int,
    ) -> None:
        """Find policies of one priority that answer otherwise."""
        everybody: dict[RuleAction, int] = {}
        for answers in policies.values():
            for action, mask in answers.items():
                everybody[action] = everybody.get(action, 0) | mask
        for policy, answers in policies.items():
            rivals = self.rivals.get(policy.reference, {})
            for action, mask in answers.items():
                otherwise = mask & among & _with_other_actions(everybody, action)
                if not otherwise or len(rivals) >= MAX_RIVALS:
                    continue
                for other, answers_of_other in policies.items():
                    both = otherwise & _with_other_actions(answers_of_other, action)
                    if both and other is not policy and other.reference not in rivals:
                        rivals = self.rivals.setdefault(policy.reference, {})
                        witness = Witness.of(ConnectionCell(subject, direction, ports, both), both)
                        rivals[other.reference] = name_connection(self._rows, self._stand_ins, witness)
                        if len(rivals) >= MAX_RIVALS:
                            break


@per_snapshot
def _search(snapshot: Snapshot) -> _RivalSearch:
    return _RivalSearch(snapshot)


def _answers(rules: Sequence[MatchedRule], ports: int, others: int) -> dict[RuleAction, int]:
    """Return the endpoints that a policy answers with each action, if it were the only policy."""
    answers: dict[RuleAction, int] = {}
    for matched in rules:
        hit = matched.on(ports)[0] & others
        if hit:
            answers[matched.rule.action] = answers.get(matched.rule.action, 0) | hit
            others &= ~hit
    return answers


def _with_other_actions(answers: Mapping[RuleAction, int], action: RuleAction) -> int:
    """Return the endpoints that are answered with another action."""
    return union(mask for other, mask in answers.items() if other is not action)

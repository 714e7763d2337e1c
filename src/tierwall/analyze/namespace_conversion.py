"""Converts policies of the Admin and Baseline tiers to NetworkPolicies, where these can express them.

docs/compare.md#convert. A NetworkPolicy only allows, in one namespace, and isolates its pods. So a direction of a
policy can be expressed if its rules are Allow rules and then a Deny for every pod, in each namespace that the subject
selects. Allow rules alone can be expressed for pods that are isolated by what comes after them: NetworkPolicies, if
they are of the Admin tier, and converted policies of lower precedence. For all other pods they say what holds without
them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from tierwall.analyze.policy_writing import (
    CannotExpress,
    at_rule,
    metadata,
    network_policy_peers,
    network_policy_ports,
    selector,
)
from tierwall.core.labels import EVERYTHING, Selector
from tierwall.network.model.model import NetworkModel
from tierwall.network.model.rules import Direction, NetworkRule, PodPeer, RuleAction, TieredPolicy, TierName

API_VERSION, KIND = "networking.k8s.io/v1", "NetworkPolicy"
_EVERY_POD = PodPeer(EVERYTHING)
BY_NETWORK_POLICY = -1


class IsolatedSubject(NamedTuple):
    """Pods of a namespace that are isolated in one direction, by a converted policy or by a NetworkPolicy.

    `rank` is the place of the converted policy in the order of precedence.
    """

    namespace: str
    direction: Direction
    pods: Selector
    rank: int = BY_NETWORK_POLICY

    def comes_after(self, tier: TierName, rank: int) -> bool:
        """Whether a policy of a tier and a rank decides before what isolates these pods."""
        return tier is TierName.ADMIN if self.rank == BY_NETWORK_POLICY else self.rank > rank


class ExpressibleDirection(NamedTuple):
    """The Allow rules of one direction of a policy, and whether a Deny for every pod follows them."""

    direction: Direction
    allows: tuple[NetworkRule, ...]
    isolates: bool


def expressible_directions(policy: TieredPolicy) -> Iterator[ExpressibleDirection]:
    """Yield the directions of a policy. Raise CannotExpress if a NetworkPolicy has no words for a rule."""
    for direction in (Direction.INGRESS, Direction.EGRESS):
        rules = policy.rules(direction)
        if not rules:
            continue
        allows: list[NetworkRule] = []
        isolates = False
        for rule in rules:
            if rule.action is RuleAction.PASS:
                raise CannotExpress("a NetworkPolicy cannot pass on", rule)
            if rule.action is RuleAction.ALLOW:
                allows.append(rule)
            elif rule.ports is None and (rule.peers is None or _EVERY_POD in rule.peers):
                isolates = True
                break  # nothing passes it but what comes from outside, which isolation denies as well
            else:
                raise CannotExpress("a NetworkPolicy cannot deny some connections and leave others open", rule)
        yield ExpressibleDirection(direction, tuple(allows), isolates)


def isolations(model: NetworkModel) -> set[IsolatedSubject]:
    """Return which pods the NetworkPolicies of a model isolate."""
    return {
        IsolatedSubject(policy.reference.namespace, direction, policy.pods)
        for policy in model.policies
        if policy.tier is TierName.NAMESPACE
        for direction in Direction
        if policy.rules(direction) is not None
    }


def network_policies(
    policy: TieredPolicy,
    directions: Sequence[ExpressibleDirection],
    namespaces: Mapping[str, Mapping[str, str]],
    isolated: Iterable[IsolatedSubject],
    name: str,
) -> Iterator[dict[str, Any]]:
    """Yield a policy as NetworkPolicies of each namespace. Raise CannotExpress if they have no words for it."""
    for namespace, labels in namespaces.items():
        if not policy.namespaces.matches(labels):
            continue
        by_pods: dict[Selector, dict[Direction, list[dict[str, Any]]]] = {}
        for direction, allows, isolates in directions:
            rules = [written for rule in allows if (written := _rule(rule, namespace, labels)) is not None]
            if isolates:
                by_pods.setdefault(policy.pods, {})[direction] = rules
            elif rules:
                for pods in _isolated_pods(policy, isolated, namespace, direction):
                    by_pods.setdefault(pods, {})[direction] = rules
        for number, (pods, by_direction) in enumerate(by_pods.items(), 1):
            spec: dict[str, Any] = {
                "podSelector": selector(pods),
                "policyTypes": [direction.capitalize() for direction in by_direction],
            }
            spec |= {str(direction): rules for direction, rules in by_direction.items() if rules}
            numbered = name if number == 1 else f"{name[:248]}-{number}"
            of_namespace = metadata(policy.resource, numbered, namespace)
            yield {"apiVersion": API_VERSION, "kind": KIND, "metadata": of_namespace, "spec": spec}


def _isolated_pods(
    policy: TieredPolicy, isolated: Iterable[IsolatedSubject], namespace: str, direction: Direction
) -> Iterable[Selector]:
    """Return the pods of a policy that are isolated in a namespace, as selectors."""
    selectors = {pods for place, which, pods, _ in isolated if (place, which) == (namespace, direction)}
    if selectors & {EVERYTHING, policy.pods}:
        return (policy.pods,)
    # A pod that two selectors select has every requirement of both.
    return sorted(Selector(tuple(sorted({*pods.requirements, *policy.pods.requirements}))) for pods in selectors)


def _rule(rule: NetworkRule, namespace: str, labels: Mapping[str, str]) -> dict[str, Any] | None:
    """Return a rule as a NetworkPolicy of a namespace has it, or None if it matches nobody there."""
    written: dict[str, Any] = {}
    if rule.peers is not None:
        with at_rule(rule):
            peers = [entry for peer in rule.peers for entry in network_policy_peers(peer, namespace, labels)]
        if not peers:
            return None
        written[rule.direction.peers_key] = peers
    if rule.ports is not None:
        written["ports"] = [entry for port in rule.ports for entry in network_policy_ports(port)]
    return written

"""Converts AdminNetworkPolicies and the BaselineAdminNetworkPolicy to ClusterNetworkPolicies (docs/compare.md#convert).

A ClusterNetworkPolicy holds fewer rules, peers and ports. A rule with too many peers or ports becomes several rules
with the same action; a policy with too many rules cannot be expressed. The baseline comes after every other policy of
its tier, so it gets the last priority.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

from tierwall.analyze.policy_writing import (
    CannotExpress,
    at_rule,
    cluster_peer,
    cluster_protocol,
    cluster_subject,
    metadata,
)
from tierwall.network.model.policies import BASELINE
from tierwall.network.model.rules import Direction, NetworkRule, RuleAction, TieredPolicy

API_VERSION, KIND = "policy.networking.k8s.io/v1alpha2", "ClusterNetworkPolicy"
# The most rules of a direction, peers of a rule and ports of a rule, and the longest name of a rule.
MAX_ITEMS, MAX_NAME = 25, 100
LAST_PRIORITY = 1000
_ACTIONS = {RuleAction.ALLOW: "Accept", RuleAction.DENY: "Deny", RuleAction.PASS: "Pass"}

T = TypeVar("T")


def cluster_policy(policy: TieredPolicy, name: str) -> dict[str, Any]:
    """Return a policy as a ClusterNetworkPolicy. Raise CannotExpress if it cannot be one."""
    priority = LAST_PRIORITY if policy.resource.kind == BASELINE else policy.priority
    spec: dict[str, Any] = {
        "tier": str(policy.tier),
        "priority": priority,
        "subject": cluster_subject(policy.namespaces, policy.pods),
    }
    for direction in (Direction.INGRESS, Direction.EGRESS):
        rules = policy.rules(direction)
        if rules is not None:
            written = [part for rule in rules for part in _rules(rule)]
            if len(written) > MAX_ITEMS:
                raise CannotExpress(f"it has {len(written)} {direction} rules, and a {KIND} at most {MAX_ITEMS}")
            spec[str(direction)] = written
    return {"apiVersion": API_VERSION, "kind": KIND, "metadata": metadata(policy.resource, name), "spec": spec}


def _rules(rule: NetworkRule) -> Iterator[dict[str, Any]]:
    """Yield a rule, or several that together match the same."""
    with at_rule(rule):
        peers = [cluster_peer(peer) for peer in rule.peers or ()]
    ports = [cluster_protocol(port) for port in rule.ports] if rule.ports is not None else None
    parts = [(some, entries) for some in _chunks(peers) for entries in ([None] if ports is None else _chunks(ports))]
    for number, (some, entries) in enumerate(parts, 1):
        written: dict[str, Any] = {}
        if rule.name:
            suffix = f"-{number}" if len(parts) > 1 else ""
            written["name"] = f"{rule.name[: MAX_NAME - len(suffix)]}{suffix}"
        written["action"] = _ACTIONS[rule.action]
        written[rule.direction.peers_key] = some
        if entries is not None:
            written["protocols"] = entries
        yield written


def _chunks(items: Sequence[T]) -> list[Sequence[T]]:
    return [items[start : start + MAX_ITEMS] for start in range(0, len(items), MAX_ITEMS)]

"""AdminNetworkPolicy, BaselineAdminNetworkPolicy and ClusterNetworkPolicy into the one rule form.

The order is priority, then name byte by byte, both kinds of a tier in one list; a BaselineAdminNetworkPolicy comes
after the ClusterNetworkPolicies of the Baseline tier (docs/semantics.md#equal-priority-goes-by-name). What cannot be
understood fails closed: of a rule, the whole rule; of the subject, priority or tier, the whole policy, for the widest
subject it could have.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, assert_never

from tierwall.network.model.malformed import Malformed, items
from tierwall.network.model.peers import (
    BASELINE_EGRESS_PEER,
    EGRESS_PEER,
    INGRESS_PEER,
    admin_peer,
    peers_of,
    subject,
    widest_subject,
)
from tierwall.network.model.ports import admin_ports, cluster_protocols
from tierwall.network.model.rules import Action, Direction, Policy, Rule, TierName
from tierwall.resources.resource import Resource

GROUP = "policy.networking.k8s.io"
ADMIN, BASELINE, CLUSTER = "AdminNetworkPolicy", "BaselineAdminNetworkPolicy", "ClusterNetworkPolicy"

_ACTIONS = {"Allow": Action.ALLOW, "Accept": Action.ALLOW, "Deny": Action.DENY, "Pass": Action.PASS}
# Before every priority that can be written, so that what fails closed is asked first.
_FIRST = -(2**31) - 1


def in_order(policies: Iterable[Policy]) -> tuple[Policy, ...]:
    """The policies of one tier in the order they are asked."""
    return tuple(
        sorted(
            policies,
            key=lambda one: (
                one.reference.kind == BASELINE,
                one.priority,
                one.reference.name.encode(errors="surrogatepass"),
                one.reference.kind,
            ),
        )
    )


def admin_policy(resource: Resource) -> Policy:
    """One policy of the Admin or Baseline tier."""
    spec = resource.spec
    closed: list[str] = []
    try:
        namespaces, pods = subject(spec.get("subject"))
    except Malformed as error:
        namespaces, pods = widest_subject(spec.get("subject"))
        closed.append(f"the subject cannot be understood ({error})")
    tier, priority = _place(resource, closed)
    reason = "; ".join(closed)
    by_direction: list[tuple[Rule, ...] | None] = []
    for direction in Direction:
        written = spec.get(direction)
        if written is None:
            by_direction.append(None)
        elif isinstance(written, list):
            by_direction.append(tuple(_rule(resource, tier, direction, *one, reason) for one in enumerate(written)))
        else:
            by_direction.append((_closed(resource, tier, direction, 0, Action.DENY, f"`{direction}` is not a list"),))
    egress, ingress = by_direction
    return Policy(tier, resource.reference, resource, namespaces, pods, ingress, egress, priority, reason)


def _place(resource: Resource, closed: list[str]) -> tuple[TierName, int]:
    if resource.kind == BASELINE:
        return TierName.BASELINE, 0
    tier, priority = TierName.ADMIN, resource.spec.get("priority")
    if resource.kind == CLUSTER:
        if resource.spec.get("tier") in (TierName.ADMIN, TierName.BASELINE):
            tier = TierName(resource.spec["tier"])
        else:
            closed.append(f"tier `{resource.spec.get('tier')}` is neither Admin nor Baseline")
            return tier, _FIRST
    if type(priority) is not int:
        closed.append(f"priority `{priority}` is not a whole number")
        return tier, _FIRST
    return tier, priority


def _rule(resource: Resource, tier: TierName, direction: Direction, index: int, value: Any, policy_closed: str) -> Rule:
    called = value.get("action") if isinstance(value, dict) else None
    name = value.get("name") if isinstance(value, dict) else None
    name = name if isinstance(name, str) else ""
    action = _ACTIONS.get(called) if isinstance(called, str) else None
    try:
        if not isinstance(value, dict):
            raise Malformed("the rule is not a map")
        if action is None:
            raise Malformed(f"action `{called}` is not one of {', '.join(_ACTIONS)}")
        known = _peer_fields(resource, direction)
        written = items(peers_of(value, direction), f"peers in `{direction.peers_key}`")
        peers = tuple(dict.fromkeys(admin_peer(peer, known) for peer in written))
        is_cluster = resource.kind == CLUSTER
        if value.get("ports" if is_cluster else "protocols") is not None:
            raise Malformed("`ports` and `protocols` belong to different kinds of policy")
        ports = cluster_protocols(value.get("protocols")) if is_cluster else admin_ports(value.get("ports"))
    except Malformed as error:
        return _closed(resource, tier, direction, index, action or Action.DENY, str(error), name)
    if policy_closed:
        # Who the policy is about is not known: what it would allow or pass on, it may not have been asked to.
        peers = () if action is Action.ALLOW else peers
        action = Action.ALLOW if action is Action.ALLOW else Action.DENY
    return Rule(tier, resource.reference, resource, direction, index, action, peers, ports, name, policy_closed)


def _closed(
    resource: Resource, tier: TierName, direction: Direction, index: int, action: Action, reason: str, name: str = ""
) -> Rule:
    """A rule that is not understood: Allow matches nobody, Deny and Pass deny everything in that direction."""
    allows = action is Action.ALLOW
    return Rule(
        tier,
        resource.reference,
        resource,
        direction,
        index,
        Action.ALLOW if allows else Action.DENY,
        () if allows else None,
        None,
        name,
        reason,
    )


def _peer_fields(resource: Resource, direction: Direction) -> tuple[str, ...]:
    match direction:
        case Direction.INGRESS:
            return INGRESS_PEER
        case Direction.EGRESS:
            return BASELINE_EGRESS_PEER if resource.kind == BASELINE else EGRESS_PEER
        case _:
            assert_never(direction)

"""NetworkPolicy (networking.k8s.io/v1) into the one rule form: every rule allows, and having a say isolates.

Without `policyTypes` a policy is about ingress, and about egress if it has an egress rule
(docs/semantics.md#egress-is-implied-by-an-egress-rule). A rule that cannot be understood allows nothing; a policy whose
pods cannot be understood isolates its whole namespace and allows nothing.
"""

from __future__ import annotations

from typing import Any

from tierwall.core.labels import EVERYTHING, Requirement, Selector
from tierwall.network.model.ends import NAMESPACE_NAME
from tierwall.network.model.malformed import Malformed, selector
from tierwall.network.model.peers import network_policy_peer, peers_of
from tierwall.network.model.ports import network_policy_ports
from tierwall.network.model.rules import Action, Direction, Peer, Policy, Rule, TierName
from tierwall.resources.resource import Resource

GROUP, KIND = "networking.k8s.io", "NetworkPolicy"

_TYPES = {"Ingress": Direction.INGRESS, "Egress": Direction.EGRESS}


def network_policy(resource: Resource) -> Policy:
    """One NetworkPolicy."""
    spec = resource.spec
    closed = ""
    pods = EVERYTHING
    try:
        if spec.get("podSelector") is not None:
            pods = selector(spec["podSelector"], "podSelector")
    except Malformed as error:
        closed = f"the pods cannot be understood ({error})"
    isolating = _directions(resource)
    rules = {
        direction: _rules(resource, direction, spec.get(direction), closed) if direction in isolating else None
        for direction in Direction
    }
    namespace = Selector((Requirement(NAMESPACE_NAME, "In", (resource.namespace,)),))
    return Policy(
        TierName.NAMESPACE,
        resource.reference,
        resource,
        namespace,
        pods,
        rules[Direction.INGRESS],
        rules[Direction.EGRESS],
        closed=closed,
    )


def _directions(resource: Resource) -> tuple[Direction, ...]:
    types = resource.spec.get("policyTypes")
    if types is None or types == []:
        return tuple(Direction) if resource.spec.get("egress") else (Direction.INGRESS,)
    if not isinstance(types, list) or not all(isinstance(one, str) and one in _TYPES for one in types):
        return tuple(Direction)
    return tuple(_TYPES[one] for one in types)


def _rules(resource: Resource, direction: Direction, written: Any, closed: str) -> tuple[Rule, ...]:
    rules = written if isinstance(written, list) else () if written is None else (written,)
    return tuple(_rule(resource, direction, index, value, closed) for index, value in enumerate(rules))


def _rule(resource: Resource, direction: Direction, index: int, value: Any, closed: str) -> Rule:
    ports = None
    try:
        if closed:
            peers: tuple[Peer, ...] | None = ()
        else:
            # `- ` with nothing after it is an empty rule, which allows everything, as `{}` does.
            fields = {} if value is None else value
            if not isinstance(fields, dict):
                raise Malformed("the rule is not a map")
            peers = _peers(fields, direction)
            ports = network_policy_ports(fields.get("ports"))
    except Malformed as error:
        peers, closed = (), str(error)
    return Rule(
        TierName.NAMESPACE, resource.reference, resource, direction, index, Action.ALLOW, peers, ports, closed=closed
    )


def _peers(fields: dict[str, Any], direction: Direction) -> tuple[Peer, ...] | None:
    written = peers_of(fields, direction)
    if written is None or written == []:
        return None
    if not isinstance(written, list):
        raise Malformed(f"`{direction.peers_key}` is not a list")
    return tuple(dict.fromkeys(network_policy_peer(peer) for peer in written))

"""Peers and subjects of all dialects: flat (v0.1.3 and later, v1alpha2), nested (KEP-2091, v0.1.0 to v0.1.2),
NetworkPolicy.

A `namespaces` peer is nested if it has one of namespaceSelector, sameLabels, notSameLabels, related; `namespaces:
{}` is every namespace, but `pods.namespaces` is always nested, so `{}` there fails closed
(docs/semantics.md#nested-and-plain-peers).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tierwall.core.labels import EVERYTHING, Selector
from tierwall.network.model.malformed import Malformed, items, one_of, selector, text
from tierwall.network.model.rules import AddressPeer, Direction, DomainPeer, NodePeer, Peer, PodPeer, Related, Relation
from tierwall.values.addresses import Block, Span, parse_cidr

NESTED = ("namespaceSelector", "sameLabels", "notSameLabels", "related")
INGRESS_PEER = ("namespaces", "pods")
BASELINE_EGRESS_PEER = (*INGRESS_PEER, "networks", "nodes")
EGRESS_PEER = (*BASELINE_EGRESS_PEER, "domainNames")
NETWORK_POLICY_PEER = ("podSelector", "namespaceSelector", "ipBlock")


def peers_of(fields: Mapping[str, Any], direction: Direction) -> Any:
    """The peers of a rule as they are written; Malformed if they stand where the other direction has them."""
    key = direction.peers_key
    for other in Direction:
        if other is not direction and fields.get(other.peers_key) is not None:
            raise Malformed(f"`{other.peers_key}` in an {direction} rule, expected `{key}`")
    return fields.get(key)


def admin_peer(value: object, known: tuple[str, ...]) -> Peer:
    """A peer of the Admin and Baseline tiers; `known` are the fields such a peer may have."""
    key, found = one_of(value, known, "peer")
    if key == "namespaces":
        nested = isinstance(found, dict) and any(name in found for name in NESTED)
        return PodPeer(_namespaces(found) if nested else selector(found, key))
    if key == "pods":
        return _pods(found)
    if key == "networks":
        return AddressPeer(tuple(Block(_cidr(one)) for one in items(found, key)))
    if key == "nodes":
        return NodePeer(selector(found, key))
    return DomainPeer(tuple(sorted({text(one, "domain name").lower().rstrip(".") for one in items(found, key)})))


def network_policy_peer(value: object) -> Peer:
    """A peer of a NetworkPolicy: selectors (of its own namespace unless one selects namespaces), or an ipBlock."""
    if not isinstance(value, dict):
        raise Malformed("peer is not a map")
    given = {key: value[key] for key in NETWORK_POLICY_PEER if value.get(key) is not None}
    if not given or ("ipBlock" in given and len(given) > 1):
        names = ", ".join(f"`{key}`" for key in (given or value)) or "nothing"
        raise Malformed(f"peer has {names}, expected `ipBlock` alone, or `podSelector` and `namespaceSelector`")
    if "ipBlock" in given:
        return AddressPeer((_ip_block(given["ipBlock"]),))
    pods = selector(given["podSelector"], "podSelector") if "podSelector" in given else EVERYTHING
    if "namespaceSelector" not in given:
        return PodPeer(Related(Relation.SELF), pods)
    return PodPeer(selector(given["namespaceSelector"], "namespaceSelector"), pods)


def subject(value: object) -> tuple[Selector, Selector]:
    """The namespaces and pods a cluster-scoped policy is about."""
    key, found = one_of(value, INGRESS_PEER, "subject")
    if key == "namespaces":
        return selector(found, key), EVERYTHING
    if not isinstance(found, dict):
        raise Malformed("`pods` is not a map")
    return _optional(found.get("namespaceSelector")), selector(found.get("podSelector"), "podSelector")


def widest_subject(value: object) -> tuple[Selector, Selector]:
    """The most that a malformed subject could be about: what is understood of it still narrows it."""
    try:
        return _optional(value["pods"]["namespaceSelector"]), EVERYTHING  # type: ignore[index]
    except (Malformed, KeyError, TypeError, IndexError):
        return EVERYTHING, EVERYTHING


def _pods(value: object) -> PodPeer:
    if not isinstance(value, dict):
        raise Malformed("`pods` is not a map")
    pods = selector(value.get("podSelector"), "podSelector")
    if "namespaces" not in value:
        return PodPeer(_optional(value.get("namespaceSelector")), pods)
    if value.get("namespaceSelector") is not None:
        raise Malformed("`pods` has `namespaces` and `namespaceSelector`, expected only one of them")
    return PodPeer(_namespaces(value["namespaces"]), pods)


def _namespaces(value: object) -> Selector | Related:
    key, found = one_of(value, NESTED, "`namespaces`")
    if key == "namespaceSelector":
        return selector(found, key)
    if key == "related":
        for relation in (Relation.SELF, Relation.NOT_SELF):
            if isinstance(found, str) and found.lower() == relation.lower():
                return Related(relation)
        raise Malformed(f"`related` is `{found}`, expected `Self` or `NotSelf`")
    if not isinstance(found, list):
        raise Malformed(f"`{key}` is not a list")
    return Related(Relation(key), tuple(sorted({text(one, "label key") for one in found})))


def _optional(value: Any) -> Selector:
    return EVERYTHING if value is None else selector(value, "namespaceSelector")


def _ip_block(value: object) -> Block:
    if not isinstance(value, dict):
        raise Malformed("`ipBlock` is not a map")
    excepts = value.get("except")
    if excepts is not None and not isinstance(excepts, list):
        raise Malformed("`except` is not a list")
    return Block(_cidr(value.get("cidr")), tuple(sorted({_cidr(one) for one in excepts or ()})))


def _cidr(value: object) -> Span:
    found = parse_cidr(value)
    if found is None:
        raise Malformed(f"`{value}` is not a CIDR")
    return found

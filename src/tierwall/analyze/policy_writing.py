"""Writes parts of network policies in the words of ClusterNetworkPolicy and NetworkPolicy (docs/compare.md#convert).

Both kinds are written from the one rule form, so whatever generation a policy is of, the same code reads and writes it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, assert_never

from tierwall.core.labels import EVERYTHING, Requirement, Selector
from tierwall.network.model.endpoints import LAST_PORT, NAMESPACE_NAME, PROTOCOLS
from tierwall.network.model.rules import (
    AddressPeer,
    DomainPeer,
    NamedPort,
    NetworkRule,
    NodePeer,
    Peer,
    PodPeer,
    Port,
    PortRange,
    Related,
    Relation,
)
from tierwall.resources.resource import Resource
from tierwall.values.addresses import LAST_IPV4, Span, format_address

# What an API server or kubectl writes, and nobody keeps in a manifest.
_LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"


class CannotExpress(ValueError):
    """The other kind of policy has no words for this; `rule` is the rule that needs them."""

    def __init__(self, message: str, rule: NetworkRule | None = None) -> None:
        super().__init__(message)
        self.rule = rule


@contextmanager
def at_rule(rule: NetworkRule) -> Iterator[None]:
    """Add the rule to whatever cannot be expressed inside."""
    try:
        yield
    except CannotExpress as error:
        raise CannotExpress(str(error), rule) from None


def metadata(resource: Resource, name: str, namespace: str = "") -> dict[str, Any]:
    """Return the metadata of a converted policy: labels and annotations are kept."""
    written: dict[str, Any] = {"name": name}
    if namespace:
        written["namespace"] = namespace
    for key in ("labels", "annotations"):
        values = resource.metadata.get(key)
        if isinstance(values, Mapping):
            kept = {label: value for label, value in values.items() if label != _LAST_APPLIED}
            if kept:
                written[key] = kept
    return written


def selector(value: Selector) -> dict[str, Any]:
    """Write a label selector; `{}` selects everything."""
    labels: dict[str, str] = {}
    expressions: list[dict[str, Any]] = []
    for key, operator, values in value.requirements:
        if operator == "In" and len(values) == 1 and key not in labels:
            labels[key] = values[0]
        elif operator in ("In", "NotIn"):
            expressions.append({"key": key, "operator": operator, "values": list(values)})
        else:
            expressions.append({"key": key, "operator": operator})
    written: dict[str, Any] = {}
    if labels:
        written["matchLabels"] = labels
    if expressions:
        written["matchExpressions"] = expressions
    return written


def cluster_subject(namespaces: Selector, pods: Selector) -> dict[str, Any]:
    """Write the pods of a ClusterNetworkPolicy, as subject or as peer."""
    if pods == EVERYTHING:
        return {"namespaces": selector(namespaces)}
    return {"pods": {"namespaceSelector": selector(namespaces), "podSelector": selector(pods)}}


def cluster_peer(peer: Peer) -> dict[str, Any]:
    """Write a peer of a ClusterNetworkPolicy. Raise CannotExpress for a relation between namespaces."""
    match peer:
        case PodPeer(namespaces, pods):
            if isinstance(namespaces, Related):
                relation = namespaces.relation
                word = f"related: {relation}" if relation.compares_names else f"{relation}"
                raise CannotExpress(f"a ClusterNetworkPolicy cannot compare namespaces (`{word}`)")
            return cluster_subject(namespaces, pods)
        case AddressPeer(blocks):
            return {"networks": list(dict.fromkeys(_cidr(block.span) for block in blocks))}
        case NodePeer(nodes):
            return {"nodes": selector(nodes)}
        case DomainPeer(names):
            return {"domainNames": list(names)}
        case _:
            assert_never(peer)


def cluster_protocol(port: Port) -> dict[str, Any]:
    """Write an entry of `protocols` of a ClusterNetworkPolicy."""
    match port:
        case NamedPort(name):
            return {"destinationNamedPort": name}
        case PortRange(protocol, first, last):
            where = {"number": first} if first == last else {"range": {"start": first, "end": last}}
            return {protocol.lower(): {"destinationPort": where}}
        case _:
            assert_never(port)


def network_policy_peers(peer: Peer, namespace: str, labels: Mapping[str, str]) -> Iterator[dict[str, Any]]:
    """Write a peer of a NetworkPolicy in a namespace with these labels. Raise CannotExpress if it has no words."""
    match peer:
        case PodPeer(namespaces, pods):
            if isinstance(namespaces, Related):
                yield from _related_peers(namespaces.relation, namespaces.keys, pods, namespace, labels)
            else:
                yield _pod_peer(namespaces, pods)
        case AddressPeer(blocks):
            for block in blocks:
                excepts = {"except": [_cidr(span) for span in block.excepts]} if block.excepts else {}
                yield {"ipBlock": {"cidr": _cidr(block.span), **excepts}}
        case NodePeer():
            raise CannotExpress("a NetworkPolicy has no `nodes`")
        case DomainPeer():
            raise CannotExpress("a NetworkPolicy has no `domainNames`")
        case _:
            assert_never(peer)


def _pod_peer(namespaces: Selector, pods: Selector) -> dict[str, Any]:
    chosen = {"podSelector": selector(pods)} if pods != EVERYTHING else {}
    return {"namespaceSelector": selector(namespaces), **chosen}


def _related_peers(
    relation: Relation, keys: tuple[str, ...], pods: Selector, namespace: str, labels: Mapping[str, str]
) -> Iterator[dict[str, Any]]:
    """Write a relation for one namespace: its own values take the place of the comparison."""
    match relation:
        case Relation.SELF:
            yield {"podSelector": selector(pods)}
        case Relation.NOT_SELF:
            yield _pod_peer(Selector((Requirement(NAMESPACE_NAME, "NotIn", (namespace,)),)), pods)
        case Relation.SAME_LABELS:
            if keys and all(key in labels for key in keys):
                yield _pod_peer(Selector(tuple(Requirement(key, "In", (labels[key],)) for key in keys)), pods)
        case Relation.NOT_SAME_LABELS:
            if all(key in labels for key in keys):
                for key in keys:
                    present = (Requirement(other, "Exists") for other in keys)
                    differs = Requirement(key, "NotIn", (labels[key],))
                    yield _pod_peer(Selector(tuple(sorted((*present, differs)))), pods)
        case _:
            assert_never(relation)


def network_policy_ports(port: Port) -> Iterator[dict[str, Any]]:
    """Write entries of `ports` of a NetworkPolicy; a name without a protocol is a name of every protocol."""
    match port:
        case NamedPort(name, protocol):
            yield from ({"protocol": word, "port": name} for word in ([protocol] if protocol else PROTOCOLS))
        case PortRange(protocol, first, last):
            if (first, last) == (1, LAST_PORT):
                yield {"protocol": protocol}
            else:
                yield {"protocol": protocol, "port": first, **({"endPort": last} if last != first else {})}
        case _:
            assert_never(port)


def _cidr(span: Span) -> str:
    """Write a span that was read from a CIDR."""
    zeros = (span.high - span.low + 1).bit_length() - 1
    return f"{format_address(span.low)}/{(32 if span.low <= LAST_IPV4 else 128) - zeros}"

"""Subjects, peers and ports as each dialect writes them, read into the one rule form.

Peers are flat (v0.1.3 and later, v1alpha2), nested (KEP-2091, v0.1.0 to v0.1.2) or NetworkPolicy's. A `namespaces` peer
is nested if it has one of namespaceSelector, sameLabels, notSameLabels, related; `namespaces: {}` is every namespace,
but `pods.namespaces` is always nested, so `{}` there fails closed (docs/semantics.md#nested-and-plain-peers).

Port entries are `ports` of v1alpha1 and of NetworkPolicy, and `protocols` of v1alpha2. An entry without protocol is
TCP; a NetworkPolicy entry without port is every port of its protocol
(docs/semantics.md#a-port-without-a-protocol-is-tcp).

What is not understood raises Malformed, and its rule fails closed.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from tierwall.core.labels import EVERYTHING, Selector, SelectorError
from tierwall.core.source import format_path
from tierwall.network.model.endpoints import LAST_PORT, PROTOCOLS
from tierwall.network.model.rules import (
    AddressPeer,
    Direction,
    DomainPeer,
    NamedPort,
    NodePeer,
    Peer,
    PodPeer,
    Port,
    PortRange,
    Related,
    Relation,
)
from tierwall.values.addresses import Block, Span, parse_cidr

NESTED = ("namespaceSelector", "sameLabels", "notSameLabels", "related")
INGRESS_PEER = ("namespaces", "pods")
BASELINE_EGRESS_PEER = (*INGRESS_PEER, "networks", "nodes")
EGRESS_PEER = (*BASELINE_EGRESS_PEER, "domainNames")
NETWORK_POLICY_PEER = ("podSelector", "namespaceSelector", "ipBlock")
ADMIN_ENTRY = ("portNumber", "portRange", "namedPort")
CLUSTER_ENTRY = ("tcp", "udp", "sctp", "destinationNamedPort")


class MalformedRule(ValueError):
    """A part of a rule cannot be understood; the words say which and why."""


def read_selector(value: object, what: str) -> Selector:
    """A label selector that must be there, if only as `{}`."""
    if value is None:
        raise MalformedRule(f"`{what}` is missing")
    try:
        return Selector.parse(value)
    except SelectorError as error:
        raise MalformedRule(f"`{format_path((what, *error.path))}`: {error}") from None


def _optional(value: Any) -> Selector:
    return EVERYTHING if value is None else read_selector(value, "namespaceSelector")


def _one_of(value: object, known: Collection[str], what: str) -> tuple[str, Any]:
    """The one field of a union that is set. A field that nobody knows is passed over if a known one is there."""
    fields = as_map(value, what)
    found = [key for key in fields if key in known and fields[key] is not None]
    if len(found) != 1:
        names = ", ".join(f"`{key}`" for key in (found or fields)) or "nothing"
        wanted = f"one of {', '.join(known)}"
        raise MalformedRule(f"{what} has {names}, expected {'only ' if found else ''}{wanted}")
    return found[0], fields[found[0]]


def as_map(value: object, what: str) -> Mapping[str, Any]:
    """A value that must be a map."""
    if not isinstance(value, dict):
        raise MalformedRule(f"{what} is not a map")
    return value


def as_list(value: object, key: str) -> list[Any]:
    """A value that must be a list, if only an empty one."""
    if not isinstance(value, list):
        raise MalformedRule(f"`{key}` is not a list")
    return value


def _items(value: object, what: str) -> list[Any]:
    """A list with at least one item."""
    if not isinstance(value, list) or not value:
        raise MalformedRule(f"no list of {what}" if value else f"an empty list of {what}")
    return value


def _text(value: object, what: str) -> str:
    if not isinstance(value, str) or not value:
        raise MalformedRule(f"{what} `{value}` is not a text")
    return value


def read_subject(value: object) -> tuple[Selector, Selector]:
    """The namespaces and pods a cluster-scoped policy is about."""
    key, chosen = _one_of(value, INGRESS_PEER, "subject")
    if key == "namespaces":
        return read_selector(chosen, key), EVERYTHING
    fields = as_map(chosen, "`pods`")
    return _optional(fields.get("namespaceSelector")), read_selector(fields.get("podSelector"), "podSelector")


def widest_subject(value: object) -> tuple[Selector, Selector]:
    """The most that a malformed subject could be about: what is understood of it still narrows it."""
    try:
        return _optional(value["pods"]["namespaceSelector"]), EVERYTHING  # type: ignore[index]
    except (MalformedRule, KeyError, TypeError, IndexError):
        return EVERYTHING, EVERYTHING


def _written(fields: Mapping[str, Any], direction: Direction) -> Any:
    """The peers of a rule as they are written; Malformed if they stand where the other direction has them."""
    key = direction.peers_key
    for other in Direction:
        if other is not direction and fields.get(other.peers_key) is not None:
            raise MalformedRule(f"`{other.peers_key}` in an {direction} rule, expected `{key}`")
    return fields.get(key)


def read_admin_peers(fields: Mapping[str, Any], direction: Direction, known: tuple[str, ...]) -> tuple[Peer, ...]:
    """The peers of a rule of the Admin and Baseline tiers; `known` are the fields such a peer may have."""
    written = _items(_written(fields, direction), f"peers in `{direction.peers_key}`")
    return tuple(dict.fromkeys(_admin_peer(peer, known) for peer in written))


def read_network_policy_peers(fields: Mapping[str, Any], direction: Direction) -> tuple[Peer, ...] | None:
    """The peers of a rule of a NetworkPolicy; no peers and an empty list are everybody."""
    written = _written(fields, direction)
    if written is None or written == []:
        return None
    return tuple(dict.fromkeys(map(_network_policy_peer, as_list(written, direction.peers_key))))


def _admin_peer(value: object, known: tuple[str, ...]) -> Peer:
    key, chosen = _one_of(value, known, "peer")
    if key == "namespaces":
        nested = isinstance(chosen, dict) and any(name in chosen for name in NESTED)
        return PodPeer(_namespaces(chosen) if nested else read_selector(chosen, key))
    if key == "pods":
        return _pods(as_map(chosen, "`pods`"))
    if key == "networks":
        return AddressPeer(tuple(Block(_cidr(cidr)) for cidr in _items(chosen, key)))
    if key == "nodes":
        return NodePeer(read_selector(chosen, key))
    names = {_text(name, "domain name").lower().rstrip(".") for name in _items(chosen, key)}
    return DomainPeer(tuple(sorted(names)))


def _pods(fields: Mapping[str, Any]) -> PodPeer:
    pods = read_selector(fields.get("podSelector"), "podSelector")
    if "namespaces" not in fields:
        return PodPeer(_optional(fields.get("namespaceSelector")), pods)
    if fields.get("namespaceSelector") is not None:
        raise MalformedRule("`pods` has `namespaces` and `namespaceSelector`, expected only one of them")
    return PodPeer(_namespaces(fields["namespaces"]), pods)


def _namespaces(value: object) -> Selector | Related:
    key, chosen = _one_of(value, NESTED, "`namespaces`")
    if key == "namespaceSelector":
        return read_selector(chosen, key)
    if key == "related":
        for relation in (Relation.SELF, Relation.NOT_SELF):
            if isinstance(chosen, str) and chosen.lower() == relation.lower():
                return Related(relation)
        raise MalformedRule(f"`related` is `{chosen}`, expected `Self` or `NotSelf`")
    return Related(Relation(key), tuple(sorted({_text(label, "label key") for label in as_list(chosen, key)})))


def _network_policy_peer(value: object) -> Peer:
    """Selectors (of the policy's own namespace unless one selects namespaces), or an ipBlock."""
    fields = as_map(value, "peer")
    given = {key: fields[key] for key in NETWORK_POLICY_PEER if fields.get(key) is not None}
    if not given or ("ipBlock" in given and len(given) > 1):
        names = ", ".join(f"`{key}`" for key in (given or fields)) or "nothing"
        raise MalformedRule(f"peer has {names}, expected `ipBlock` alone, or `podSelector` and `namespaceSelector`")
    if "ipBlock" in given:
        block = as_map(given["ipBlock"], "`ipBlock`")
        excepts = as_list(block["except"], "except") if block.get("except") is not None else []
        return AddressPeer((Block(_cidr(block.get("cidr")), tuple(sorted(set(map(_cidr, excepts))))),))
    pods = read_selector(given["podSelector"], "podSelector") if "podSelector" in given else EVERYTHING
    if "namespaceSelector" not in given:
        return PodPeer(Related(Relation.SELF), pods)
    return PodPeer(read_selector(given["namespaceSelector"], "namespaceSelector"), pods)


def _cidr(value: object) -> Span:
    span = parse_cidr(value)
    if span is None:
        raise MalformedRule(f"`{value}` is not a CIDR")
    return span


def read_admin_ports(value: object) -> tuple[Port, ...] | None:
    """`ports` of AdminNetworkPolicy and BaselineAdminNetworkPolicy."""
    return None if value is None else tuple(map(_admin_port, _items(value, "port entries")))


def read_cluster_protocols(value: object) -> tuple[Port, ...] | None:
    """`protocols` of ClusterNetworkPolicy."""
    return None if value is None else tuple(map(_cluster_protocol, _items(value, "protocol entries")))


def read_network_policy_ports(value: object) -> tuple[Port, ...] | None:
    """`ports` of NetworkPolicy; an empty list is every port."""
    return None if value is None or value == [] else tuple(map(_network_policy_port, _items(value, "port entries")))


def _admin_port(entry: object) -> Port:
    key, chosen = _one_of(entry, ADMIN_ENTRY, "port entry")
    if key == "namedPort":
        return NamedPort(_text(chosen, "port name"))
    fields = as_map(chosen, f"`{key}`")
    if key == "portNumber":
        port = _port(fields.get("port"))
        return PortRange(_protocol(fields), port, port)
    return _range(_protocol(fields), fields.get("start"), fields.get("end"))


def _cluster_protocol(entry: object) -> Port:
    key, chosen = _one_of(entry, CLUSTER_ENTRY, "protocol entry")
    if key == "destinationNamedPort":
        return NamedPort(_text(chosen, "port name"))
    written = as_map(chosen, f"`{key}`").get("destinationPort")
    which, ports = _one_of(written, ("number", "range"), "destination port")
    if which == "number":
        return _range(key.upper(), ports, ports)
    fields = as_map(ports, "`range`")
    return _range(key.upper(), fields.get("start"), fields.get("end"))


def _network_policy_port(entry: object) -> Port:
    fields = as_map(entry, "`port entry`")
    protocol, port, end = _protocol(fields), fields.get("port"), fields.get("endPort")
    if isinstance(port, str) and end is None:
        return NamedPort(_text(port, "port name"), protocol)
    if port is None and end is None:
        return PortRange(protocol, 1, LAST_PORT)
    return _range(protocol, port, port if end is None else end)


def _range(protocol: str, start: object, end: object) -> PortRange:
    first, last = _port(start), _port(end)
    if last < first:
        raise MalformedRule(f"port range ends (`{last}`) before it starts (`{first}`)")
    return PortRange(protocol, first, last)


def _port(value: object) -> int:
    if type(value) is not int or not 1 <= value <= LAST_PORT:
        raise MalformedRule(f"port `{value}` is not a number from 1 to {LAST_PORT}")
    return value


def _protocol(fields: Mapping[str, Any]) -> str:
    protocol = fields.get("protocol") or "TCP"
    if protocol not in PROTOCOLS:
        raise MalformedRule(f"protocol `{protocol}` is not one of {', '.join(PROTOCOLS)}")
    return str(protocol)

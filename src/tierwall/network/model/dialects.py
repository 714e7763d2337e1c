"""Reads subjects, peers and ports of each API version into the one rule form.

Peers have one of three forms: flat (v0.1.3 and later, v1alpha2), nested (KEP-2091, v0.1.0 to v0.1.2), or that of
NetworkPolicy. A `namespaces` peer is nested if it has namespaceSelector, sameLabels, notSameLabels or related.
`namespaces: {}` selects every namespace, but `pods.namespaces` is always nested, so `{}` there fails closed
(docs/semantics.md#nested-and-plain-peers).

Ports are written in `ports` of v1alpha1 and NetworkPolicy, and in `protocols` of v1alpha2. An entry without a protocol
means TCP. A NetworkPolicy entry without a port means every port of its protocol
(docs/semantics.md#a-port-without-a-protocol-is-tcp).

A part that cannot be understood raises MalformedRule, and its rule fails closed.
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
    """A part of a rule cannot be understood; the message says which part and why."""


def _unexpected(expected: str, value: object) -> MalformedRule:
    return MalformedRule(f"expected {expected}, found {'nothing' if value is None else f'`{str(value)[:80]}`'}")


def read_selector(value: object, what: str) -> Selector:
    """Read a required label selector; `{}` is enough."""
    if value is None:
        raise _unexpected(f"a label selector as `{what}`", None)
    try:
        return Selector.parse(value)
    except SelectorError as error:
        raise MalformedRule(f"`{format_path((what, *error.path))}`: {error}") from None


def _optional_selector(value: Any) -> Selector:
    return EVERYTHING if value is None else read_selector(value, "namespaceSelector")


def _one_of(value: object, known: Collection[str], what: str) -> tuple[str, Any]:
    """Return the one field of a union that is set. Unknown fields are ignored if a known one is set."""
    fields = as_map(value, what)
    known_keys = [key for key in fields if key in known and fields[key] is not None]
    if len(known_keys) != 1:
        names = ", ".join(f"`{key}`" for key in (known_keys or fields)) or "nothing"
        wanted = f"{'only ' if known_keys else ''}one of {', '.join(known)}"
        raise MalformedRule(f"expected {wanted} in {what}, found {names}")
    return known_keys[0], fields[known_keys[0]]


def as_map(value: object, what: str) -> Mapping[str, Any]:
    """Return the value, which must be a map."""
    if not isinstance(value, dict):
        raise _unexpected(f"a map as {what}", value)
    return value


def only_known(fields: Mapping[str, Any], known: Collection[str], what: str) -> None:
    """Raise MalformedRule if a field is unknown: it may be a misspelled restriction, without which all would match."""
    for key in fields:
        if key not in known:
            raise MalformedRule(f"expected one of {', '.join(known)} in {what}, found `{str(key)[:80]}`")


def as_list(value: object, key: str) -> list[Any]:
    """Return the value, which must be a list; it may be empty."""
    if not isinstance(value, list):
        raise _unexpected(f"a list as `{key}`", value)
    return value


def _items(value: object, what: str) -> list[Any]:
    """Return the value, which must be a list with at least one item."""
    if not isinstance(value, list) or not value:
        raise _unexpected(f"a non-empty list of {what}", value)
    return value


def _string(value: object, what: str) -> str:
    if not isinstance(value, str) or not value:
        raise _unexpected(f"a non-empty string as {what}", value)
    return value


def read_subject(value: object) -> tuple[Selector, Selector]:
    """Read the namespaces and pods that a cluster-scoped policy applies to."""
    key, chosen = _one_of(value, INGRESS_PEER, "`subject`")
    if key == "namespaces":
        return read_selector(chosen, key), EVERYTHING
    fields = as_map(chosen, "`pods`")
    return _optional_selector(fields.get("namespaceSelector")), read_selector(fields.get("podSelector"), "podSelector")


def widest_subject(value: object) -> tuple[Selector, Selector]:
    """Return the widest subject that a malformed one could mean; the parts that can be understood still narrow it."""
    try:
        return _optional_selector(value["pods"]["namespaceSelector"]), EVERYTHING  # type: ignore[index]
    except (MalformedRule, KeyError, TypeError, IndexError):
        return EVERYTHING, EVERYTHING


def _written(fields: Mapping[str, Any], direction: Direction) -> Any:
    """Return the peers of a rule as written. Raise MalformedRule if they are under the key of the other direction."""
    key = direction.peers_key
    for other in Direction:
        if other is not direction and fields.get(other.peers_key) is not None:
            raise MalformedRule(f"expected `{key}` in an {direction} rule, found `{other.peers_key}`")
    return fields.get(key)


def read_admin_peers(fields: Mapping[str, Any], direction: Direction, known: tuple[str, ...]) -> tuple[Peer, ...]:
    """Read the peers of a rule of the Admin or Baseline tier; `known` are the fields that such a peer may have."""
    written = _items(_written(fields, direction), f"peers in `{direction.peers_key}`")
    return tuple(dict.fromkeys(_admin_peer(peer, known) for peer in written))


def read_network_policy_peers(fields: Mapping[str, Any], direction: Direction) -> tuple[Peer, ...] | None:
    """Read the peers of a NetworkPolicy rule; None (everybody) if they are missing or an empty list."""
    written = _written(fields, direction)
    if written is None or written == []:
        return None
    return tuple(dict.fromkeys(map(_network_policy_peer, as_list(written, direction.peers_key))))


def _admin_peer(value: object, known: tuple[str, ...]) -> Peer:
    key, chosen = _one_of(value, known, "a peer")
    if key == "namespaces":
        nested = isinstance(chosen, dict) and any(name in chosen for name in NESTED)
        return PodPeer(_namespaces(chosen) if nested else read_selector(chosen, key))
    if key == "pods":
        return _pods(as_map(chosen, "`pods`"))
    if key == "networks":
        return AddressPeer(tuple(Block(_cidr(cidr)) for cidr in _items(chosen, key)))
    if key == "nodes":
        return NodePeer(read_selector(chosen, key))
    names = {_string(name, "domain name").lower().rstrip(".") for name in _items(chosen, key)}
    return DomainPeer(tuple(sorted(names)))


def _pods(fields: Mapping[str, Any]) -> PodPeer:
    pods = read_selector(fields.get("podSelector"), "podSelector")
    if "namespaces" not in fields:
        return PodPeer(_optional_selector(fields.get("namespaceSelector")), pods)
    if fields.get("namespaceSelector") is not None:
        raise MalformedRule("expected `namespaces` or `namespaceSelector` in `pods`, found both")
    return PodPeer(_namespaces(fields["namespaces"]), pods)


def _namespaces(value: object) -> Selector | Related:
    key, chosen = _one_of(value, NESTED, "`namespaces`")
    if key == "namespaceSelector":
        return read_selector(chosen, key)
    if key == "related":
        for relation in (Relation.SELF, Relation.NOT_SELF):
            if isinstance(chosen, str) and chosen.lower() == relation.lower():
                return Related(relation)
        raise _unexpected("`Self` or `NotSelf` as `related`", chosen)
    return Related(Relation(key), tuple(sorted({_string(label, "label key") for label in as_list(chosen, key)})))


def _network_policy_peer(value: object) -> Peer:
    """Read an ipBlock, or selectors, which select in the policy's namespace unless one of them selects namespaces."""
    fields = as_map(value, "a peer")
    only_known(fields, NETWORK_POLICY_PEER, "a peer")
    given = {key: fields[key] for key in NETWORK_POLICY_PEER if fields.get(key) is not None}
    if not given or ("ipBlock" in given and len(given) > 1):
        names = ", ".join(f"`{key}`" for key in (given or fields)) or "nothing"
        raise MalformedRule(f"expected either `ipBlock` or selectors of pods and namespaces in a peer, found {names}")
    if "ipBlock" in given:
        block = as_map(given["ipBlock"], "`ipBlock`")
        only_known(block, ("cidr", "except"), "`ipBlock`")
        excepts = as_list(block["except"], "except") if block.get("except") is not None else []
        return AddressPeer((Block(_cidr(block.get("cidr")), tuple(sorted(set(map(_cidr, excepts))))),))
    pods = read_selector(given["podSelector"], "podSelector") if "podSelector" in given else EVERYTHING
    if "namespaceSelector" not in given:
        return PodPeer(Related(Relation.SELF), pods)
    return PodPeer(read_selector(given["namespaceSelector"], "namespaceSelector"), pods)


def _cidr(value: object) -> Span:
    span = parse_cidr(value)
    if span is None:
        raise _unexpected("a CIDR", value)
    return span


def read_admin_ports(value: object) -> tuple[Port, ...] | None:
    """Read `ports` of AdminNetworkPolicy and BaselineAdminNetworkPolicy."""
    return None if value is None else tuple(map(_admin_port, _items(value, "ports")))


def read_cluster_protocols(value: object) -> tuple[Port, ...] | None:
    """Read `protocols` of ClusterNetworkPolicy."""
    return None if value is None else tuple(map(_cluster_protocol, _items(value, "protocols")))


def read_network_policy_ports(value: object) -> tuple[Port, ...] | None:
    """Read `ports` of NetworkPolicy; an empty list means every port."""
    return None if value is None or value == [] else tuple(map(_network_policy_port, _items(value, "ports")))


def _admin_port(entry: object) -> Port:
    key, chosen = _one_of(entry, ADMIN_ENTRY, "a port")
    if key == "namedPort":
        return NamedPort(_string(chosen, "port name"))
    fields = as_map(chosen, f"`{key}`")
    if key == "portNumber":
        port = _port(fields.get("port"))
        return PortRange(_protocol(fields), port, port)
    return _range(_protocol(fields), fields.get("start"), fields.get("end"))


def _cluster_protocol(entry: object) -> Port:
    key, chosen = _one_of(entry, CLUSTER_ENTRY, "a protocol")
    if key == "destinationNamedPort":
        return NamedPort(_string(chosen, "port name"))
    written = as_map(chosen, f"`{key}`").get("destinationPort")
    which, ports = _one_of(written, ("number", "range"), "`destinationPort`")
    if which == "number":
        return _range(key.upper(), ports, ports)
    fields = as_map(ports, "`range`")
    return _range(key.upper(), fields.get("start"), fields.get("end"))


def _network_policy_port(entry: object) -> Port:
    fields = as_map(entry, "a port")
    only_known(fields, ("protocol", "port", "endPort"), "a port")
    protocol, port, end = _protocol(fields), fields.get("port"), fields.get("endPort")
    if isinstance(port, str) and end is None:
        return NamedPort(_string(port, "port name"), protocol)
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
        raise _unexpected(f"a number from 1 to {LAST_PORT} as port", value)
    return value


def _protocol(fields: Mapping[str, Any]) -> str:
    protocol = "TCP" if fields.get("protocol") in (None, "") else fields["protocol"]
    if protocol not in PROTOCOLS:
        raise _unexpected(f"one of {', '.join(PROTOCOLS)} as `protocol`", protocol)
    return str(protocol)

"""Port entries of the three dialects: `ports` of v1alpha1 and of NetworkPolicy, `protocols` of v1alpha2.

An entry without protocol is TCP; a NetworkPolicy entry without port is every port of its protocol
(docs/semantics.md#a-port-without-a-protocol-is-tcp). What is not understood raises Malformed, and the rule fails
closed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tierwall.network.model.ends import LAST_PORT, PROTOCOLS
from tierwall.network.model.malformed import Malformed, items, number, one_of, text
from tierwall.network.model.rules import NamedPort, Port, PortRange

ADMIN_ENTRY = ("portNumber", "portRange", "namedPort")
CLUSTER_ENTRY = ("tcp", "udp", "sctp", "destinationNamedPort")


def admin_ports(value: object) -> tuple[Port, ...] | None:
    """`ports` of AdminNetworkPolicy and BaselineAdminNetworkPolicy."""
    return None if value is None else tuple(_admin(one) for one in items(value, "port entries"))


def cluster_protocols(value: object) -> tuple[Port, ...] | None:
    """`protocols` of ClusterNetworkPolicy."""
    return None if value is None else tuple(_cluster(one) for one in items(value, "protocol entries"))


def network_policy_ports(value: object) -> tuple[Port, ...] | None:
    """`ports` of NetworkPolicy; an empty list is every port."""
    if value is None or value == []:
        return None
    return tuple(_network_policy(one) for one in items(value, "port entries"))


def _admin(entry: object) -> Port:
    key, value = one_of(entry, ADMIN_ENTRY, "port entry")
    if key == "namedPort":
        return NamedPort(text(value, "port name"))
    fields = _map(value, key)
    if key == "portNumber":
        single = _port(fields.get("port"))
        return PortRange(_protocol(fields), single, single)
    return _range(_protocol(fields), fields)


def _cluster(entry: object) -> Port:
    key, value = one_of(entry, CLUSTER_ENTRY, "protocol entry")
    if key == "destinationNamedPort":
        return NamedPort(text(value, "port name"))
    protocol = key.upper()
    which, found = one_of(_map(value, key).get("destinationPort"), ("number", "range"), "destination port")
    if which == "number":
        return PortRange(protocol, _port(found), _port(found))
    return _range(protocol, _map(found, "range"))


def _network_policy(entry: object) -> Port:
    fields = _map(entry, "port entry")
    protocol, port, end = _protocol(fields), fields.get("port"), fields.get("endPort")
    if isinstance(port, str) and end is None:
        return NamedPort(text(port, "port name"), protocol)
    if port is None and end is None:
        return PortRange(protocol, 1, LAST_PORT)
    return _range(protocol, {"start": port, "end": port if end is None else end})


def _range(protocol: str, fields: Mapping[str, Any]) -> PortRange:
    first, last = _port(fields.get("start")), _port(fields.get("end"))
    if last < first:
        raise Malformed(f"port range ends (`{last}`) before it starts (`{first}`)")
    return PortRange(protocol, first, last)


def _port(value: object) -> int:
    return number(value, 1, LAST_PORT, "port")


def _protocol(fields: Mapping[str, Any]) -> str:
    found = fields.get("protocol") or "TCP"
    if found not in PROTOCOLS:
        raise Malformed(f"protocol `{found}` is not one of {', '.join(PROTOCOLS)}")
    return str(found)


def _map(value: object, what: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise Malformed(f"`{what}` is not a map")
    return value

"""The kernel's connection tracking: cut open connections that the policies now forbid.

Established traffic passes before any rule is asked, so a new policy alone would leave open connections open. Each
tracked connection is judged as a new one would be, on the address and port behind a Service. A forbidden connection is
deleted from the tracking, so its next packet is judged as new and dropped. Packets from the peer of a deleted TCP
connection would then look like a connection of their own, opened in the middle. They are dropped until an idle
connection would have given up asking whether its peer is alive.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from tierwall.core.verdict import StepVerdict
from tierwall.engines.nftables.kernel.elements import add_flows
from tierwall.engines.nftables.kernel.netlink import (
    NFNL_SUBSYS_CTNETLINK,
    NFPROTO_UNSPEC,
    Netlink,
    NetlinkError,
    NetlinkMessage,
    attribute,
    read_attributes,
)
from tierwall.engines.nftables.kernel.nflog import PacketFlow
from tierwall.engines.nftables.table.compile import TableCompiler
from tierwall.network.decide import decide
from tierwall.network.model.endpoints import Endpoint, address_endpoint
from tierwall.network.model.model import NetworkModel
from tierwall.values.addresses import IPV6, Address

_GET, _DELETE = 1, 2
_TUPLE_ORIG, _TUPLE_REPLY, _ID, _ZONE = 1, 2, 12, 18
_TUPLE_IP, _TUPLE_PROTO = 1, 2
_V4_SRC, _V4_DST, _V6_SRC, _V6_DST = 1, 2, 3, 4
_PROTO_NUM, _SRC_PORT, _DST_PORT = 1, 2, 3
_NAMES = {6: "TCP", 17: "UDP", 132: "SCTP"}
_NOT_FOUND = 2


class TrackedConnection(NamedTuple):
    """A tracked connection: its flow as the opener sees it, the flow of the answers, and its key in the kernel."""

    flow: PacketFlow
    reply: PacketFlow
    family: int
    key: bytes


def connections() -> Iterator[TrackedConnection]:
    """Yield all tracked TCP, UDP and SCTP connections of this network namespace."""
    with Netlink() as netlink:
        # Both families at once: the kernel walks its whole table for each dump, which takes 10 to 20 ms.
        for message in netlink.dump(NFNL_SUBSYS_CTNETLINK, NetlinkMessage(_GET, NFPROTO_UNSPEC, b"")):
            parts = read_attributes(message.attributes)
            flow, reply = _flow(parts.get(_TUPLE_ORIG, b"")), _flow(parts.get(_TUPLE_REPLY, b""))
            if flow is not None and reply is not None:
                yield TrackedConnection(flow, reply, message.family, _key(parts))


def forget(connection: TrackedConnection) -> bool:
    """Delete one connection from the tracking; False if it had already ended."""
    with Netlink() as netlink:
        try:
            netlink.request(NFNL_SUBSYS_CTNETLINK, NetlinkMessage(_DELETE, connection.family, connection.key))
        except NetlinkError as error:
            if error.errno == _NOT_FOUND:
                return False
            raise
    return True


def forget_all() -> None:
    """Delete every connection of this network namespace from the tracking."""
    with Netlink() as netlink:
        netlink.request(NFNL_SUBSYS_CTNETLINK, NetlinkMessage(_DELETE, NFPROTO_UNSPEC, b""))


def _key(parts: dict[int, bytes]) -> bytes:
    rest = (attribute(kind, parts[kind]) for kind in (_ID, _ZONE) if kind in parts)
    return attribute(_TUPLE_ORIG | 0x8000, parts[_TUPLE_ORIG]) + b"".join(rest)


def _flow(data: bytes) -> PacketFlow | None:
    parts = read_attributes(data)
    ip, proto = read_attributes(parts.get(_TUPLE_IP, b"")), read_attributes(parts.get(_TUPLE_PROTO, b""))
    name = _NAMES.get(proto.get(_PROTO_NUM, b"\0")[0])
    if name is None or _SRC_PORT not in proto or _DST_PORT not in proto:
        return None
    if _V4_SRC in ip:
        source, destination = (int.from_bytes(ip[field], "big") for field in (_V4_SRC, _V4_DST))
    elif _V6_SRC in ip:
        source, destination = (IPV6 + int.from_bytes(ip[field], "big") for field in (_V6_SRC, _V6_DST))
    else:
        return None
    ports = (int.from_bytes(proto[field], "big") for field in (_SRC_PORT, _DST_PORT))
    return PacketFlow(name, source, next(ports), destination, next(ports))


# Linux sends the first keepalive after two hours and gives up eleven minutes later.
_CUT_SECONDS = 3 * 60 * 60


def cut(model: NetworkModel, compiler: TableCompiler) -> int:
    """Cut the connections that a model of the enforced policies forbids, and return their number."""
    judge = _Judge(model, compiler)
    forbidden = [connection for connection in connections() if judge.forbids(connection)]
    add_flows((_peer_flow(connection) for connection in forbidden if connection.flow.protocol == "TCP"), _CUT_SECONDS)
    return sum(forget(connection) for connection in forbidden)


class _Judge:
    def __init__(self, model: NetworkModel, compiler: TableCompiler) -> None:
        self._model, self._compiler = model, compiler
        self._nodes = {address: node for node in model.nodes for address in node.addresses}

    def forbids(self, connection: TrackedConnection) -> bool:
        """Whether the table would drop a new connection like this one."""
        source, destination = self._endpoint_at(connection.flow.source), self._endpoint_at(connection.reply.source)
        judged = [self._compiler.is_judged(endpoint) for endpoint in (source, destination)]
        if not any(judged) or source is destination or self._is_probe(source, destination):
            return False
        decision = decide(self._model, source, destination, connection.flow.protocol, connection.reply.source_port)
        outcomes = (decision.egress.outcome.verdict, decision.ingress.outcome.verdict)
        return any(
            ours and verdict in (StepVerdict.DENY, StepVerdict.CONDITIONAL)
            for ours, verdict in zip(judged, outcomes, strict=True)
        )

    def _is_probe(self, source: Endpoint, destination: Endpoint) -> bool:
        """Whether a node sends to its own pod, and that is exempt."""
        is_own = source.kind == "node" and source.name == destination.node
        return is_own and self._compiler.options.exempt_probes

    def _endpoint_at(self, address: Address) -> Endpoint:
        return self._model.pod_at(address) or self._nodes.get(address) or address_endpoint(address)


def _peer_flow(connection: TrackedConnection) -> PacketFlow:
    """Return the flow of the peer's packets, as the table sees them."""
    flow, reply = connection.flow, connection.reply
    return PacketFlow(flow.protocol, reply.source, reply.source_port, flow.source, flow.source_port)

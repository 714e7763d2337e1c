"""The kernel's connection tracking: listing open connections and forgetting them."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

from tierwall.engines.nftables.netlink import (
    NFNL_SUBSYS_CTNETLINK,
    NFPROTO_IPV4,
    NFPROTO_IPV6,
    NFPROTO_UNSPEC,
    Message,
    Netlink,
    NetlinkError,
    attribute,
    attributes,
    number,
)
from tierwall.engines.nftables.nflog import Flow
from tierwall.network.model.addresses import IPV6

_GET, _DELETE = 1, 2
_TUPLE_ORIG, _TUPLE_REPLY, _ID, _ZONE = 1, 2, 12, 18
_TUPLE_IP, _TUPLE_PROTO = 1, 2
_V4_SRC, _V4_DST, _V6_SRC, _V6_DST = 1, 2, 3, 4
_PROTO_NUM, _SRC_PORT, _DST_PORT = 1, 2, 3
_NAMES = {6: "TCP", 17: "UDP", 132: "SCTP"}
_NOT_FOUND = 2


class Connection(NamedTuple):
    """A tracked connection: as its opener sees it, as the answers show it, and what names it to the kernel."""

    flow: Flow
    reply: Flow
    family: int
    key: bytes


def connections() -> Iterator[Connection]:
    """All tracked TCP, UDP and SCTP connections of this network namespace."""
    with Netlink() as netlink:
        for family in (NFPROTO_IPV4, NFPROTO_IPV6):
            for message in netlink.dump(NFNL_SUBSYS_CTNETLINK, Message(_GET, family, b"")):
                found = attributes(message.attributes)
                flow, reply = _flow(found.get(_TUPLE_ORIG, b"")), _flow(found.get(_TUPLE_REPLY, b""))
                if flow is not None and reply is not None:
                    yield Connection(flow, reply, family, _key(found))


def forget(found: Connection) -> bool:
    """Drop one connection from the tracking; False if it had ended by itself."""
    with Netlink() as netlink:
        try:
            netlink.request(NFNL_SUBSYS_CTNETLINK, Message(_DELETE, found.family, found.key))
        except NetlinkError as error:
            if error.errno == _NOT_FOUND:
                return False
            raise
    return True


def forget_all() -> None:
    """Drop every connection from the tracking of this network namespace."""
    with Netlink() as netlink:
        netlink.request(NFNL_SUBSYS_CTNETLINK, Message(_DELETE, NFPROTO_UNSPEC, b""))


def _key(found: dict[int, bytes]) -> bytes:
    out = attribute(_TUPLE_ORIG | 0x8000, found[_TUPLE_ORIG])
    if _ID in found:
        out += number(_ID, struct.unpack("!I", found[_ID])[0])
    if _ZONE in found:
        out += attribute(_ZONE, found[_ZONE])
    return out


def _flow(data: bytes) -> Flow | None:
    parts = attributes(data)
    ip, proto = attributes(parts.get(_TUPLE_IP, b"")), attributes(parts.get(_TUPLE_PROTO, b""))
    name = _NAMES.get(proto.get(_PROTO_NUM, b"\0")[0])
    if name is None or _SRC_PORT not in proto or _DST_PORT not in proto:
        return None
    if _V4_SRC in ip:
        source, destination = (int.from_bytes(ip[one], "big") for one in (_V4_SRC, _V4_DST))
    elif _V6_SRC in ip:
        source, destination = (IPV6 + int.from_bytes(ip[one], "big") for one in (_V6_SRC, _V6_DST))
    else:
        return None
    ports = (int.from_bytes(proto[one], "big") for one in (_SRC_PORT, _DST_PORT))
    return Flow(name, source, next(ports), destination, next(ports))

"""Reading NFLOG: packets that rules of the table log, each with the rule's prefix.

The prefix is `tierwall` and the label of the rule: `tierwall Deny egress[0] AdminNetworkPolicy/x (no-internet)`.
"""

from __future__ import annotations

import errno
import struct
from collections.abc import Iterator
from typing import NamedTuple

from tierwall.core.diagnostics import Diagnostic, InputError
from tierwall.engines.nftables.kernel.netlink import (
    NFNL_SUBSYS_ULOG,
    NFPROTO_UNSPEC,
    Netlink,
    NetlinkMessage,
    attribute,
    number_attribute,
    read_attributes,
)
from tierwall.engines.nftables.table.builder import LEAD
from tierwall.engines.nftables.table.names import Label
from tierwall.values.addresses import IPV6, Address

_PACKET, _CONFIG = 0, 1
_CFG_CMD, _CFG_MODE, _CFG_TIMEOUT, _CFG_QTHRESH = 1, 2, 4, 5
_BIND, _COPY_PACKET = 1, 2
_PAYLOAD, _PREFIX = 9, 10
_COPY_RANGE = 128
_PROTOCOLS = {6: "TCP", 17: "UDP", 132: "SCTP", 1: "ICMP", 58: "ICMPv6"}
_WITH_PORTS = ("TCP", "UDP", "SCTP")
_BUFFER = 16 << 20
_CAP_NET_ADMIN = 12


class PacketFlow(NamedTuple):
    """The connection that a packet belongs to; ports are 0 if the protocol has none."""

    protocol: str
    source: Address
    source_port: int
    destination: Address
    port: int


class LoggedPacket(NamedTuple):
    """One logged packet: the prefix as the kernel has it, the label read from it, and the packet's flow."""

    prefix: str
    label: Label
    flow: PacketFlow


class LogReader:
    """Reads the packets logged to one group, in the network namespace in which it is made."""

    def __init__(self, group: int, at_once: bool = False) -> None:
        """Start reading; InputError says why the log cannot be read."""
        try:
            self._netlink = Netlink(receive_buffer=_BUFFER)
        except OSError as error:
            raise InputError([_refused(group, error)]) from None
        try:
            self._bind(group, at_once)
        except OSError as error:
            self.close()
            raise InputError([_refused(group, error)]) from None

    def _bind(self, group: int, at_once: bool) -> None:
        mode = struct.pack("!IBx", _COPY_RANGE, _COPY_PACKET)
        for setting in (
            attribute(_CFG_CMD, bytes([_BIND])),
            attribute(_CFG_MODE, mode),
            number_attribute(_CFG_QTHRESH, 1 if at_once else 32),
            number_attribute(_CFG_TIMEOUT, 10),
        ):
            self._netlink.request(NFNL_SUBSYS_ULOG, NetlinkMessage(_CONFIG, NFPROTO_UNSPEC, setting, group))

    def fileno(self) -> int:
        """Return the file descriptor, for selectors."""
        return self._netlink.fileno()

    def close(self) -> None:
        """Stop reading."""
        self._netlink.close()

    def read(self) -> Iterator[LoggedPacket]:
        """Yield the packets logged since the last call, without waiting."""
        for message in self._netlink.messages():
            parts = read_attributes(message.attributes)
            prefix = parts.get(_PREFIX, b"").rstrip(b"\0").decode(errors="replace")
            label = Label.parse(prefix.removeprefix(LEAD)) if prefix.startswith(LEAD) else None
            flow = parse_packet(parts.get(_PAYLOAD, b""))
            if message.kind == _PACKET and flow is not None and label is not None:
                yield LoggedPacket(prefix, label, flow)


def parse_packet(packet: bytes) -> PacketFlow | None:
    """Return the flow of an IP packet; None if it is not an IP packet."""
    if len(packet) >= 20 and packet[0] >> 4 == 4:
        protocol, start = packet[9], (packet[0] & 15) * 4
        source, destination = (int.from_bytes(packet[at : at + 4], "big") for at in (12, 16))
    elif len(packet) >= 40 and packet[0] >> 4 == 6:
        protocol, start = packet[6], 40
        source, destination = (IPV6 + int.from_bytes(packet[at : at + 16], "big") for at in (8, 24))
    else:
        return None
    name = _PROTOCOLS.get(protocol, str(protocol))
    ports = (0, 0)
    if name in _WITH_PORTS and len(packet) >= start + 4:
        ports = struct.unpack_from("!HH", packet, start)
    return PacketFlow(name, source, ports[0], destination, ports[1])


def address_bytes(value: Address) -> bytes:
    """Return an address in network order."""
    return (value - IPV6).to_bytes(16, "big") if value >= IPV6 else value.to_bytes(4, "big")


def _refused(group: int, error: OSError) -> Diagnostic:
    if error.errno == errno.EBUSY or (error.errno == errno.EPERM and _is_network_admin()):
        # The kernel also answers EPERM if the group belongs to another reader.
        message = f"another program already reads NFLOG group {group}"
        return Diagnostic("TW601", message, hint="use another group for both, with --log-group")
    if error.errno in (errno.EPERM, errno.EACCES):
        return Diagnostic("TW601", "reading the log is not permitted", hint="run as root, or with CAP_NET_ADMIN")
    message = f"the kernel has no logging to NFLOG (CONFIG_NETFILTER_NETLINK_LOG): {str(error.strerror).lower()}"
    return Diagnostic("TW603", message)


def _is_network_admin() -> bool:
    """Whether this process has CAP_NET_ADMIN."""
    with open("/proc/self/status", encoding="ascii", errors="replace") as file:
        capabilities = next((line.split()[1] for line in file if line.startswith("CapEff:")), "0")
    return bool(int(capabilities, 16) >> _CAP_NET_ADMIN & 1)

"""Real packets between namespaces, each with its result.

Both endpoints and the kernel's log are in one process, so every probe ends with evidence: the packet arrived, or the
table logged that it dropped it. TCP and UDP use sockets. SCTP is an INIT chunk in a raw packet, because kernels need
not have SCTP sockets.
"""

from __future__ import annotations

import selectors
import socket
import struct
import time
from collections.abc import Iterable, Sequence
from contextlib import closing
from typing import NamedTuple, cast

from tierwall.engines.nftables.kernel.nflog import LoggedPacket, LogReader, PacketFlow
from tierwall.engines.nftables.probe.topology import Topology
from tierwall.network.model.rules import RuleAction
from tierwall.values.addresses import IPV6, Address, format_address

_AT_ONCE = 256
# Far longer than a packet takes on a busy machine. Only a probe without evidence waits so long.
PATIENCE = 5.0
_FIRST_SCTP_PORT = 20000
_REFUSED = 111


class Probe(NamedTuple):
    """One connection to try."""

    source: Address
    destination: Address
    protocol: str
    port: int


class ProbeResult(NamedTuple):
    """The result of a probe: it arrived or was dropped; neither if nothing was seen."""

    arrived: bool = False
    dropped: LoggedPacket | None = None
    error: str = ""


def send_probes(
    topology: Topology, probes: Sequence[Probe], log: LogReader, patience: float = PATIENCE, attempts: int = 1
) -> list[ProbeResult]:
    """Send probes and return the result of each, in order.

    A probe of which nothing is seen is sent again if `attempts` allow it: on a busy machine, a kernel may lose a
    packet, or a line of its log.
    """
    results = [ProbeResult()] * len(probes)
    for _ in range(attempts):
        unseen = [index for index, result in enumerate(results) if result == ProbeResult()]
        for start in range(0, len(unseen), _AT_ONCE):
            indexes = unseen[start : start + _AT_ONCE]
            with closing(_ProbeRound(topology, log, patience)) as sending:
                for index, result in zip(indexes, sending.results([probes[each] for each in indexes]), strict=True):
                    results[index] = result
    return results


class _ProbeRound:
    """One round of probes: their sockets, those without a result yet, and the results."""

    def __init__(self, topology: Topology, log: LogReader, patience: float) -> None:
        self._topology, self._log, self._patience = topology, log, patience
        self._selector = selectors.DefaultSelector()
        self._sockets: list[socket.socket] = []
        self._open: dict[PacketFlow, int] = {}
        self._results: dict[int, ProbeResult] = {}

    def close(self) -> None:
        self._selector.close()
        for opened in self._sockets:
            opened.close()

    def results(self, probes: Sequence[Probe]) -> list[ProbeResult]:
        self._listen(probes)
        for _ in self._log.read():
            continue  # left over from earlier rounds
        self._selector.register(self._log, selectors.EVENT_READ, None)
        by_source: dict[int, list[int]] = {}
        for index, probe in enumerate(probes):
            by_source.setdefault(self._topology.at(probe.source).descriptor, []).append(index)
        for indexes in by_source.values():
            with self._topology.at(probes[indexes[0]].source).entered():
                for index in indexes:
                    self._send(index, probes[index])
        deadline = time.monotonic() + self._patience
        while self._open and (left := deadline - time.monotonic()) > 0:
            for key, _ in self._selector.select(left):
                self._observe(key.fileobj, key.data)
        return [self._results.get(index, ProbeResult()) for index in range(len(probes))]

    def _listen(self, probes: Iterable[Probe]) -> None:
        for address, protocol, port in sorted({(probe.destination, probe.protocol, probe.port) for probe in probes}):
            with self._topology.at(address).entered():
                if protocol == "SCTP":
                    listener = self._socket(address, socket.SOCK_RAW, socket.IPPROTO_SCTP)
                    listener.bind((format_address(address), 0))
                else:
                    listener = self._socket(address, _TYPES[protocol])
                    listener.bind((format_address(address), port))
                    if protocol == "TCP":
                        listener.listen(_AT_ONCE)
            if protocol != "TCP":  # a TCP connection is observed where it is opened
                self._selector.register(listener, selectors.EVENT_READ, (protocol, address))

    def _send(self, index: int, probe: Probe) -> None:
        source, destination = format_address(probe.source), format_address(probe.destination)
        port = 0
        try:
            if probe.protocol == "SCTP":
                port = _FIRST_SCTP_PORT + index
                raw = self._socket(probe.source, socket.SOCK_RAW, socket.IPPROTO_SCTP)
                raw.bind((source, 0))
                self._open[PacketFlow("SCTP", probe.source, port, probe.destination, probe.port)] = index
                raw.sendto(sctp_init(port, probe.port), (destination, 0))
                return
            sender = self._socket(probe.source, _TYPES[probe.protocol])
            sender.bind((source, 0))
            flow = PacketFlow(probe.protocol, probe.source, sender.getsockname()[1], probe.destination, probe.port)
            self._open[flow] = index
            if probe.protocol == "TCP":
                sender.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                sender.connect_ex((destination, probe.port))
                self._selector.register(sender, selectors.EVENT_WRITE, flow)
            else:
                sender.connect((destination, probe.port))
                sender.send(b"tierwall")
        except OSError as error:
            self._results[index] = ProbeResult(error=str(error))
            self._open = {flow: number for flow, number in self._open.items() if number != index}

    def _observe(self, source: object, data: object) -> None:
        if data is None:
            for logged in self._log.read():
                if logged.label.action is RuleAction.DENY and not logged.label.shadow:
                    self._finish(logged.flow, ProbeResult(dropped=logged))
            return
        receiver = cast(socket.socket, source)
        if isinstance(data, PacketFlow):
            code = receiver.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            self._selector.unregister(receiver)
            if code in (0, _REFUSED):  # the peer refused the connection, so the packet arrived
                self._finish(data, ProbeResult(arrived=True))
            return
        protocol, address = cast(tuple[str, Address], data)
        packet, peer = receiver.recvfrom(2048)
        if protocol == "UDP":
            self._finish(
                PacketFlow("UDP", _address(peer[0]), peer[1], address, receiver.getsockname()[1]),
                ProbeResult(arrived=True),
            )
            return
        if address < IPV6:
            packet = packet[(packet[0] & 15) * 4 :]  # IPv4 raw sockets see the header, IPv6 ones do not
        if len(packet) >= 4:
            source_port, port = struct.unpack_from("!HH", packet)
            self._finish(PacketFlow("SCTP", _address(peer[0]), source_port, address, port), ProbeResult(arrived=True))

    def _finish(self, flow: PacketFlow, result: ProbeResult) -> None:
        index = self._open.pop(flow, None)
        if index is not None:
            self._results[index] = result

    def _socket(self, address: Address, kind: int, protocol: int = 0) -> socket.socket:
        opened = socket.socket(socket.AF_INET6 if address >= IPV6 else socket.AF_INET, kind, protocol)
        self._sockets.append(opened)
        opened.setblocking(False)
        if kind != socket.SOCK_RAW:
            opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        return opened


_TYPES = {"TCP": socket.SOCK_STREAM, "UDP": socket.SOCK_DGRAM}


def _address(written: str) -> Address:
    family = socket.AF_INET6 if ":" in written else socket.AF_INET
    value = int.from_bytes(socket.inet_pton(family, written.partition("%")[0]), "big")
    return IPV6 + value if family == socket.AF_INET6 else value


def sctp_problem() -> str:
    """Return the reason why SCTP cannot be probed here; empty if it can."""
    try:
        socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_SCTP).close()
    except OSError as error:
        return f"SCTP needs raw sockets ({str(error.strerror).lower()})"
    return ""


def sctp_init(source_port: int, port: int) -> bytes:
    """Build an SCTP packet with an INIT chunk, a client's first packet (RFC 9260, sections 3.1 and 3.3.2)."""
    chunk = struct.pack("!BBHIIHHI", 1, 0, 20, 0x74696572, 0x10000, 1, 1, 1)
    header = struct.pack("!HHI", source_port, port, 0)
    checksum = struct.pack("<I", crc32c(header + b"\0\0\0\0" + chunk))
    return header + checksum + chunk


def crc32c(data: bytes) -> int:
    """Compute the checksum of SCTP (RFC 9260, appendix A)."""
    value = 0xFFFFFFFF
    for byte in data:
        value ^= byte
        for _ in range(8):
            value = (value >> 1) ^ (0x82F63B78 if value & 1 else 0)
    return value ^ 0xFFFFFFFF

"""Netlink messages of the netfilter subsystems: the protocol between nft, conntrack and the kernel.

Only the parts that are needed here: attributes, requests with an answer, dumps, batches, and a listening socket.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
from collections.abc import Iterable, Iterator
from typing import NamedTuple, Self

NETLINK_NETFILTER = 12
NFNL_SUBSYS_CTNETLINK, NFNL_SUBSYS_ULOG, NFNL_SUBSYS_NFTABLES = 1, 4, 10
NLM_F_REQUEST, NLM_F_ACK, NLM_F_DUMP, NLM_F_CREATE = 1, 4, 0x300, 0x400
NLMSG_ERROR, NLMSG_DONE = 2, 3
NFNL_MSG_BATCH_BEGIN, NFNL_MSG_BATCH_END = 0x10, 0x11
NFPROTO_UNSPEC, NFPROTO_INET, NFPROTO_IPV4, NFPROTO_IPV6 = 0, 1, 2, 10

_HEADER = struct.Struct("=IHHII")
_NESTED, _TYPE = 0x8000, 0x3FFF
_BUFFER = 1 << 20
_SOL_NETLINK, _NO_ENOBUFS = 270, 5


class NetlinkError(OSError):
    """The kernel refused a message."""


class NetlinkMessage(NamedTuple):
    """One message: its type, the address family and resource of its nfnetlink header, and its attributes."""

    kind: int
    family: int
    attributes: bytes
    resource: int = 0


def attribute(kind: int, value: bytes) -> bytes:
    """Encode one attribute, padded."""
    return struct.pack("=HH", len(value) + 4, kind) + value + b"\0" * (-len(value) % 4)


def nested_attribute(kind: int, *attributes: bytes) -> bytes:
    """Encode an attribute that holds attributes."""
    return attribute(kind | _NESTED, b"".join(attributes))


def string_attribute(kind: int, value: str) -> bytes:
    """Encode a string attribute with its closing zero."""
    return attribute(kind, value.encode() + b"\0")


def number_attribute(kind: int, value: int) -> bytes:
    """Encode a 32-bit number in network order."""
    return attribute(kind, struct.pack("!I", value))


def read_attributes(data: bytes) -> dict[int, bytes]:
    """Read the attributes of a message up to the first malformed one."""
    out: dict[int, bytes] = {}
    offset = 0
    while offset + 4 <= len(data):
        length, kind = struct.unpack_from("=HH", data, offset)
        if length < 4:
            break
        out[kind & _TYPE] = data[offset + 4 : offset + length]
        offset += length + (-length % 4)
    return out


class Netlink:
    """A socket to the netfilter subsystems of the network namespace in which it is made."""

    # The protocol of the socket: a subclass may speak to another part of the kernel.
    protocol = NETLINK_NETFILTER

    def __init__(self, receive_buffer: int = 0, groups: int = 0, tells_losses: bool = False) -> None:
        """`groups`: a mask of the multicast groups to listen to; `tells_losses`: losing a message raises ENOBUFS."""
        self._socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, self.protocol)
        if receive_buffer:
            try:
                self._socket.setsockopt(socket.SOL_SOCKET, 33, receive_buffer)  # SO_RCVBUFFORCE
            except PermissionError:
                self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
            self._socket.setsockopt(_SOL_NETLINK, _NO_ENOBUFS, not tells_losses)
        self._socket.bind((0, groups))
        self._sequence = int.from_bytes(os.urandom(2), "big")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()

    def fileno(self) -> int:
        """Return the file descriptor, for selectors."""
        return self._socket.fileno()

    def request(self, subsystem: int, message: NetlinkMessage, flags: int = 0) -> None:
        """Send one message and wait until the kernel has acted on it; NetlinkError if it refuses."""
        self._socket.send(self._pack(subsystem << 8, message, NLM_F_REQUEST | NLM_F_ACK | flags))
        self._wait_for_answer(self._sequence)

    def dump(self, subsystem: int, message: NetlinkMessage) -> Iterator[NetlinkMessage]:
        """Yield everything that the kernel lists in answer to a request."""
        self._socket.send(self._pack(subsystem << 8, message, NLM_F_REQUEST | NLM_F_DUMP))
        wanted = self._sequence
        while True:
            for kind, sequence, body in self._receive():
                if sequence != wanted:
                    continue
                if kind == NLMSG_DONE:
                    return
                if kind == NLMSG_ERROR:
                    raise_error(body)
                yield NetlinkMessage(kind & 0xFF, body[0], body[4:])

    def batch(self, subsystem: int, messages: Iterable[tuple[NetlinkMessage, int]]) -> None:
        """Send messages (with flags) as one transaction. After a NetlinkError none of them has taken effect."""
        whole = [self._pack(NFNL_MSG_BATCH_BEGIN, NetlinkMessage(0, 0, b"", subsystem), NLM_F_REQUEST)]
        for message, flags in messages:
            whole.append(self._pack(subsystem << 8, message, NLM_F_REQUEST | flags))
        whole.append(self._pack(NFNL_MSG_BATCH_END, NetlinkMessage(0, 0, b"", subsystem), NLM_F_REQUEST | NLM_F_ACK))
        data = b"".join(whole)
        self._socket.setsockopt(socket.SOL_SOCKET, 32, len(data) * 2)  # SO_SNDBUFFORCE
        self._socket.send(data)
        self._wait_for_answer(self._sequence)

    def messages(self) -> Iterator[NetlinkMessage]:
        """Yield the messages that have arrived, without waiting."""
        try:
            while True:
                for kind, _, body in self._receive(socket.MSG_DONTWAIT):
                    if kind not in (NLMSG_ERROR, NLMSG_DONE):
                        yield NetlinkMessage(kind & 0xFF, body[0], body[4:])
        except BlockingIOError:
            return

    def _pack(self, base: int, message: NetlinkMessage, flags: int) -> bytes:
        self._sequence += 1
        body = struct.pack("!BBH", message.family, 0, message.resource) + message.attributes
        return _HEADER.pack(len(body) + 16, base | message.kind, flags, self._sequence, 0) + body

    def _wait_for_answer(self, wanted: int) -> None:
        while True:
            for kind, sequence, body in self._receive():
                if kind == NLMSG_ERROR:
                    raise_error(body)
                    if sequence == wanted:
                        return

    def _receive(self, flags: int = 0) -> Iterator[tuple[int, int, bytes]]:
        data = self._socket.recv(_BUFFER, flags)
        offset = 0
        while offset + 16 <= len(data):
            length, kind, _, sequence, _ = _HEADER.unpack_from(data, offset)
            if length < 16:
                return
            yield kind, sequence, data[offset + 16 : offset + length]
            offset += length + (-length % 4)


def raise_error(body: bytes) -> None:
    """Raise the error that a message reports, if it reports one."""
    (code,) = struct.unpack_from("=i", body)
    if code:
        raise NetlinkError(-code, os.strerror(-code), errno.errorcode.get(-code, ""))

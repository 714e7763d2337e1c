"""IP addresses and CIDR blocks as numbers on one line: IPv4 first, IPv6 after it, so the two never match each other.

Host bits of a CIDR are masked; an `except` is looked at for the same address that the block holds
(docs/semantics.md#any-address-of-an-end-counts).
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable
from typing import NamedTuple, TypeAlias

Address: TypeAlias = int

# The first IPv6 address; every IPv4 address is below it.
IPV6 = 1 << 32
LAST_IPV4 = IPV6 - 1
LAST = IPV6 + (1 << 128) - 1

_LEADING_ZEROS = re.compile(r"(?<![0-9a-fA-F:])0+(?=[0-9]+(?:\.|/|$))")


class Span(NamedTuple):
    """All addresses from `low` to `high`, both included."""

    low: Address
    high: Address

    def __str__(self) -> str:
        return f"{show(self.low)}-{show(self.high)}"


class Block(NamedTuple):
    """A CIDR without some others: `networks` items and `ipBlock`."""

    span: Span
    excepts: tuple[Span, ...] = ()

    def holds(self, address: Address) -> bool:
        """Whether an address is in the block and in none of its exceptions."""
        low, high = self.span
        return low <= address <= high and not any(low <= address <= high for low, high in self.excepts)


def parse_address(text: object) -> Address | None:
    """An address, or None if the text is none; an IPv4 address written as IPv6 (`::ffff:10.0.0.1`) is the IPv4 one."""
    if not isinstance(text, str) or "%" in text or "/" in text:
        return None
    try:
        found = ipaddress.ip_address(text)
    except ValueError:
        return None
    if isinstance(found, ipaddress.IPv6Address):
        return int(found.ipv4_mapped) if found.ipv4_mapped is not None else IPV6 + int(found)
    return int(found)


def parse_cidr(text: object) -> Span | None:
    """A CIDR with its host bits masked, or None if the text is none; octets with leading zeros are decimal."""
    if not isinstance(text, str) or "/" not in text or "%" in text:
        return None
    if "." in text:
        text = _LEADING_ZEROS.sub("", text)
    address, _, length = text.partition("/")
    if not (length.isascii() and length.isdigit()):
        return None
    try:
        found = ipaddress.ip_network((address, int(length)), strict=False)
    except ValueError:
        return None
    low, high = int(found.network_address), int(found.broadcast_address)
    if isinstance(found, ipaddress.IPv6Network):
        if found.network_address.ipv4_mapped is not None and found.prefixlen >= 96:
            return None  # Kubernetes refuses IPv4 blocks written as IPv6: implementations disagree on their meaning
        return Span(IPV6 + low, IPV6 + high)
    return Span(low, high)


def show(address: Address) -> str:
    """An address as people write it."""
    return str(ipaddress.IPv6Address(address - IPV6) if address >= IPV6 else ipaddress.IPv4Address(address))


def joined(spans: Iterable[Span]) -> list[Span]:
    """Spans that do not overlap, in order, neighbours of one family made one."""
    out: list[Span] = []
    for low, high in sorted(spans):
        if out and out[-1].high + 1 == low != IPV6:
            out[-1] = Span(out[-1].low, high)
        else:
            out.append(Span(low, high))
    return out

"""IP addresses and CIDR blocks as integers: IPv4 first, then IPv6, so that the two never match each other.

Host bits of a CIDR are masked. An `except` applies to the very address that the block contains
(docs/semantics.md#any-address-of-an-end-counts).
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Container, Iterable, Iterator
from typing import NamedTuple, TypeAlias

from tierwall.values.pattern import pattern

Address: TypeAlias = int
IP: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address

# The first IPv6 address; every IPv4 address is below it.
IPV6 = 1 << 32
LAST_IPV4 = IPV6 - 1
# The prefix of an IPv4 address that is written as IPv6 (`::ffff:0:0/96`).
_MAPPED = 0xFFFF
LAST = IPV6 + (1 << 128) - 1

_LEADING_ZEROS = pattern(r"(?<![0-9a-fA-F])0+(?=[0-9]+(?:\.|$))", re.ASCII)


class Span(NamedTuple):
    """All addresses from `low` to `high`, inclusive."""

    low: Address
    high: Address

    def __str__(self) -> str:
        low = format_address(self.low)
        return low if self.low == self.high else f"{low}-{format_address(self.high)}"


class Block(NamedTuple):
    """A CIDR with exceptions: an item of `networks`, or an `ipBlock`."""

    span: Span
    excepts: tuple[Span, ...] = ()

    def contains(self, address: Address) -> bool:
        """Whether an address is in the block and not in an exception."""
        low, high = self.span
        return low <= address <= high and not any(low <= address <= high for low, high in self.excepts)

    def ranges(self) -> Iterator[Span]:
        """Yield the addresses of the block as spans that do not overlap."""
        low, high = self.span
        for except_low, except_high in sorted(self.excepts):
            if except_high < low or except_low > high:
                continue
            if except_low > low:
                yield Span(low, except_low - 1)
            low = except_high + 1
        if low <= high:
            yield Span(low, high)


def parse_address(text: object) -> Address | None:
    """Parse an address; None if it is invalid. IPv4 written as IPv6 (`::ffff:10.0.0.1`) is the IPv4 address."""
    ip = read_ip(text)
    if ip is None or ip.version == 4:
        return None if ip is None else int(ip)
    number = int(ip)
    return number & LAST_IPV4 if number >> 32 == _MAPPED else IPV6 + number


def parse_cidr(text: object) -> Span | None:
    """Parse a CIDR and mask its host bits; None if it is invalid."""
    cidr = read_cidr(text)
    if cidr is None:
        return None
    ip, length = cidr
    size = 1 << ip.max_prefixlen - length
    low = int(ip) & -size
    if ip.version == 4:
        return Span(low, low + size - 1)
    if low >> 32 == _MAPPED and length >= 96:
        return None  # Kubernetes refuses IPv4 blocks written as IPv6: implementations disagree on their meaning
    return Span(IPV6 + low, IPV6 + low + size - 1)


def read_ip(text: object) -> IP | None:
    """Parse an address as Go's `net.ParseIP` does, without zone or leading zeros; None if it is invalid."""
    if not isinstance(text, str) or "%" in text or "/" in text:
        return None
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        return None


def read_ip_sloppily(text: str) -> IP | None:
    """Parse an address as Go did before 1.17, with leading zeros; Kubernetes still does so for old fields."""
    return read_ip(text) or (read_ip(_LEADING_ZEROS.sub("", text)) if "." in text else None)


def read_cidr(text: object) -> tuple[IP, int] | None:
    """Parse the address and length of a CIDR as Go's sloppy parser does: host bits and leading zeros are valid."""
    if not isinstance(text, str):
        return None
    address, slash, bits = text.partition("/")
    # Python refuses to parse a number with thousands of digits.
    if not slash or not (bits.isascii() and bits.isdigit()) or len(bits) > 1000:
        return None
    ip = read_ip_sloppily(address)
    length = int(bits)
    return None if ip is None or length > ip.max_prefixlen else (ip, length)


def format_address(address: Address) -> str:
    """Format an address in the usual notation."""
    return str(ipaddress.IPv6Address(address - IPV6) if address >= IPV6 else ipaddress.IPv4Address(address))


def free_addresses(spans: Iterable[Span], taken: Container[Address]) -> Iterator[Address]:
    """Yield the addresses of some spans that are not taken, in order: in IPv6, more than anybody can walk through."""
    return (address for low, high in spans for address in range(low, high + 1) if address not in taken)


def merge_ranges(spans: Iterable[Span]) -> list[Span]:
    """Sort spans, and merge those that overlap or are adjacent in one family."""
    out: list[Span] = []
    for low, high in sorted(spans):
        # The last IPv4 address and the first IPv6 address are adjacent only as numbers.
        if out and low <= out[-1].high + (low != IPV6):
            out[-1] = Span(out[-1].low, max(high, out[-1].high))
        else:
            out.append(Span(low, high))
    return out

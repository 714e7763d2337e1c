"""IP addresses and CIDR ranges (apiserver pkg/cel/library/ip.go and cidr.go).

An address has no zone, no leading zeros and is not an IPv4-mapped IPv6 one. A range keeps its host bits; families never
mix.
"""

from __future__ import annotations

import ipaddress
import re
from typing import ClassVar

import msgspec

from tierwall.cel.errors import EvaluationError
from tierwall.cel.library import cost
from tierwall.cel.library.table import Overload, is_parsed_by, member_overloads
from tierwall.cel.types import BOOL, INT, STRING, Type
from tierwall.cel.values import OpaqueValue, size_of
from tierwall.values.pattern import pattern

_MAPPED = 0xFFFF << 32
_MAX_LENGTH = 64
_BITS = pattern(r"0|[1-9][0-9]{0,2}", re.ASCII)


class IP(OpaqueValue, msgspec.Struct, frozen=True, gc=False):
    """An IPv4 or IPv6 address."""

    cel_type: ClassVar[str] = "net.IP"
    reader: ClassVar[str] = "ip"
    version: int
    number: int

    @property
    def width(self) -> int:
        """The number of bits of an address of this family."""
        return 32 if self.version == 4 else 128

    @property
    def plain(self) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
        """The address as Python has it."""
        return ipaddress.IPv4Address(self.number) if self.version == 4 else ipaddress.IPv6Address(self.number)

    def size(self) -> int:
        """Return the number of its bytes."""
        return self.width // 8

    def notation(self) -> str:
        """Return the canonical form."""
        return str(self.plain)


class CIDR(OpaqueValue, msgspec.Struct, frozen=True, gc=False):
    """An address with a prefix length; host bits are kept."""

    cel_type: ClassVar[str] = "net.CIDR"
    reader: ClassVar[str] = "cidr"
    address: IP
    bits: int

    def size(self) -> int:
        """Return the number of bytes that its prefix reaches into."""
        return -(-self.bits // 8)

    def notation(self) -> str:
        """Return the address in canonical form, and the length."""
        return f"{self.address.notation()}/{self.bits}"


IP_TYPE, CIDR_TYPE = Type(IP.cel_type), Type(CIDR.cel_type)


def parse_ip(text: str) -> IP:
    """`ip(text)`."""
    try:
        if len(text) > _MAX_LENGTH or not text.isascii():
            raise ValueError("not an address")
        address = ipaddress.ip_address(text)
    except ValueError:
        raise EvaluationError(f"IP Address `{text[:_MAX_LENGTH]}` parse error during conversion from string") from None
    if address.version == 6 and address.scope_id is not None:
        raise EvaluationError(f"IP address `{text}` with zone value is not allowed")
    number = int(address)
    if address.version == 6 and number >> 32 == _MAPPED >> 32:
        raise EvaluationError(f"IPv4-mapped IPv6 address `{text}` is not allowed")
    return IP(address.version, number)


def is_canonical(text: str) -> bool:
    """Whether the string is the canonical form of an address; an error if it is not an address."""
    return parse_ip(text).notation() == text


def is_link_local_multicast(ip: IP) -> bool:
    """224.0.0.0/24 or ff02 of any flags."""
    return ip.number >> 8 == 0xE00000 if ip.version == 4 else (ip.number >> 112) & 0xFF0F == 0xFF02


def is_global_unicast(ip: IP) -> bool:
    """Neither broadcast, unspecified, loopback, multicast nor link-local; private addresses count."""
    if ip.number == 0 or (ip.version == 4 and ip.number == 0xFFFFFFFF):
        return False
    address = ip.plain
    return not (address.is_loopback or address.is_multicast or address.is_link_local)


def parse_cidr(text: str) -> CIDR:
    """`cidr(text)`."""
    address, slash, bits = text.rpartition("/")
    if slash and _BITS.fullmatch(bits):
        parsed = parse_ip(address)
        if int(bits) <= parsed.width:
            return CIDR(parsed, int(bits))
    raise EvaluationError(f"network address parse error during conversion from string: `{text[:80]}`")


def masked(cidr: CIDR) -> CIDR:
    """Return the range with its host bits cleared."""
    shift = cidr.address.width - cidr.bits
    return CIDR(IP(cidr.address.version, cidr.address.number >> shift << shift), cidr.bits)


def contains_ip(cidr: CIDR, address: IP | str) -> bool:
    """Whether the address is in the range."""
    other = parse_ip(address) if isinstance(address, str) else address
    shift = cidr.address.width - cidr.bits
    return other.version == cidr.address.version and other.number >> shift == cidr.address.number >> shift


def contains_cidr(cidr: CIDR, other: CIDR | str) -> bool:
    """Whether the whole other range is in this one."""
    inner = parse_cidr(other) if isinstance(other, str) else other
    return cidr.bits <= inner.bits and contains_ip(cidr, inner.address)


def _contains_ip_cost(cidr: object, other: object) -> int:
    twice = -(-2 * size_of(cidr) // 10)
    return twice + (cost.scan(other) if isinstance(other, str) else 0)


def _contains_cidr_cost(cidr: object, other: object) -> int:
    return _contains_ip_cost(cidr, other) + cost.scan(cidr) + 1


_of_ip, _of_cidr = member_overloads(IP_TYPE, since=30), member_overloads(CIDR_TYPE, since=30)

OVERLOADS: tuple[Overload, ...] = (
    Overload("ip", (STRING,), IP_TYPE, parse_ip, cost=cost.scan, since=30),
    Overload("isIP", (STRING,), BOOL, is_parsed_by(parse_ip), cost=cost.scan, since=30),
    Overload("ip.isCanonical", (STRING,), BOOL, is_canonical, cost=cost.scan_first_twice, since=30),
    Overload("string", (IP_TYPE,), STRING, IP.notation, since=30),
    _of_ip("family", (), INT, lambda ip: ip.version),
    _of_ip("isUnspecified", (), BOOL, lambda ip: ip.number == 0),
    _of_ip("isLoopback", (), BOOL, lambda ip: ip.plain.is_loopback),
    _of_ip("isLinkLocalMulticast", (), BOOL, is_link_local_multicast),
    _of_ip("isLinkLocalUnicast", (), BOOL, lambda ip: ip.plain.is_link_local),
    _of_ip("isGlobalUnicast", (), BOOL, is_global_unicast),
    Overload("cidr", (STRING,), CIDR_TYPE, parse_cidr, cost=cost.scan, since=30),
    Overload("isCIDR", (STRING,), BOOL, is_parsed_by(parse_cidr), cost=cost.scan, since=30),
    Overload("string", (CIDR_TYPE,), STRING, CIDR.notation, since=30),
    _of_cidr("containsIP", (STRING,), BOOL, contains_ip, cost=_contains_ip_cost),
    _of_cidr("containsIP", (IP_TYPE,), BOOL, contains_ip, cost=_contains_ip_cost),
    _of_cidr("containsCIDR", (STRING,), BOOL, contains_cidr, cost=_contains_cidr_cost),
    _of_cidr("containsCIDR", (CIDR_TYPE,), BOOL, contains_cidr, cost=_contains_cidr_cost),
    _of_cidr("ip", (), IP_TYPE, lambda cidr: cidr.address),
    _of_cidr("prefixLength", (), INT, lambda cidr: cidr.bits),
    _of_cidr("masked", (), CIDR_TYPE, masked),
)

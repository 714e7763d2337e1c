"""IP addresses (apiserver pkg/cel/library/ip.go): no zones, no leading zeros, no IPv4-mapped IPv6."""

from __future__ import annotations

import ipaddress

from tierwall.cel.errors import EvaluationError
from tierwall.cel.library import cost
from tierwall.cel.library.table import Overload
from tierwall.cel.types import BOOL, INT, STRING, Type
from tierwall.cel.values import IP

IP_TYPE = Type(IP.cel_type)

_MAPPED = 0xFFFF << 32
_LONGEST = 64


def parse(text: str) -> IP:
    """`ip(text)`."""
    try:
        if len(text) > _LONGEST or not text.isascii():
            raise ValueError("not an address")
        address = ipaddress.ip_address(text)
    except ValueError:
        raise EvaluationError(f"IP Address `{text[:_LONGEST]}` parse error during conversion from string") from None
    if address.version == 6 and address.scope_id is not None:
        raise EvaluationError(f"IP address `{text}` with zone value is not allowed")
    number = int(address)
    if address.version == 6 and number >> 32 == _MAPPED >> 32:
        raise EvaluationError(f"IPv4-mapped IPv6 address `{text}` is not allowed")
    return IP(address.version, number)


def address_of(ip: IP) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    """The address as Python has it."""
    return ipaddress.IPv4Address(ip.number) if ip.version == 4 else ipaddress.IPv6Address(ip.number)


def text_of(ip: IP) -> str:
    """The canonical form."""
    return str(address_of(ip))


def is_ip(text: str) -> bool:
    """Whether `ip(text)` gives an address."""
    try:
        parse(text)
    except EvaluationError:
        return False
    return True


def is_canonical(text: str) -> bool:
    """Whether the text is how the address is written back; an error if it is none."""
    return text_of(parse(text)) == text


def _in(ip: IP, four: tuple[str, ...], six: tuple[str, ...]) -> bool:
    address = address_of(ip)
    return any(address in ipaddress.ip_network(network) for network in (four if ip.version == 4 else six))


def is_loopback(ip: IP) -> bool:
    """127.0.0.0/8 or ::1."""
    return _in(ip, ("127.0.0.0/8",), ("::1/128",))


def is_link_local_multicast(ip: IP) -> bool:
    """224.0.0.0/24 or ff02 of any flags."""
    if ip.version == 4:
        return _in(ip, ("224.0.0.0/24",), ())
    return (ip.number >> 112) & 0xFF0F == 0xFF02


def is_link_local_unicast(ip: IP) -> bool:
    """169.254.0.0/16 or fe80::/10."""
    return _in(ip, ("169.254.0.0/16",), ("fe80::/10",))


def is_global_unicast(ip: IP) -> bool:
    """Neither broadcast, unspecified, loopback, multicast nor link-local; private addresses count."""
    if ip.number == 0 or (ip.version == 4 and ip.number == 0xFFFFFFFF):
        return False
    return not (is_loopback(ip) or address_of(ip).is_multicast or is_link_local_unicast(ip))


def _member(name: str, id: str, result: Type, call: object) -> Overload:
    return Overload(name, id, (IP_TYPE,), result, call, member=True, since=30)  # type: ignore[arg-type]


OVERLOADS: tuple[Overload, ...] = (
    Overload("ip", "string_to_ip", (STRING,), IP_TYPE, parse, cost=cost.scan_first, since=30),
    Overload("isIP", "is_ip", (STRING,), BOOL, is_ip, cost=cost.scan_first, since=30),
    Overload("ip.isCanonical", "ip_is_canonical", (STRING,), BOOL, is_canonical, cost=cost.scan_first_twice, since=30),
    Overload("string", "ip_to_string", (IP_TYPE,), STRING, text_of, since=30),
    _member("family", "ip_family", INT, lambda ip: ip.version),
    _member("isUnspecified", "ip_is_unspecified", BOOL, lambda ip: ip.number == 0),
    _member("isLoopback", "ip_is_loopback", BOOL, is_loopback),
    _member("isLinkLocalMulticast", "ip_is_link_local_multicast", BOOL, is_link_local_multicast),
    _member("isLinkLocalUnicast", "ip_is_link_local_unicast", BOOL, is_link_local_unicast),
    _member("isGlobalUnicast", "ip_is_global_unicast", BOOL, is_global_unicast),
)

"""CIDR ranges (apiserver pkg/cel/library/cidr.go). Host bits are kept; families never mix."""

from __future__ import annotations

import re

from tierwall.cel.errors import EvaluationError
from tierwall.cel.library import cost, ip
from tierwall.cel.library.ip import IP_TYPE
from tierwall.cel.library.table import Overload
from tierwall.cel.types import BOOL, INT, STRING, Type
from tierwall.cel.values import CIDR, IP, size_of

CIDR_TYPE = Type(CIDR.cel_type)

_BITS = re.compile(r"0|[1-9][0-9]{0,2}", re.ASCII)


def parse(text: str) -> CIDR:
    """`cidr(text)`."""
    address, slash, bits = text.rpartition("/")
    if slash and _BITS.fullmatch(bits):
        parsed = ip.parse(address)
        if int(bits) <= _width(parsed):
            return CIDR(parsed, int(bits))
    raise EvaluationError(f"network address parse error during conversion from string: `{text[:80]}`")


def _width(address: IP) -> int:
    return 32 if address.version == 4 else 128


def is_cidr(text: str) -> bool:
    """Whether `cidr(text)` gives a range."""
    try:
        parse(text)
    except EvaluationError:
        return False
    return True


def text_of(cidr: CIDR) -> str:
    """The address in canonical form, and the length."""
    return f"{ip.text_of(cidr.address)}/{cidr.bits}"


def masked(cidr: CIDR) -> CIDR:
    """The range with its host bits cleared."""
    shift = _width(cidr.address) - cidr.bits
    return CIDR(IP(cidr.address.version, cidr.address.number >> shift << shift), cidr.bits)


def contains_ip(cidr: CIDR, address: IP | str) -> bool:
    """Whether the address is in the range."""
    other = ip.parse(address) if isinstance(address, str) else address
    shift = _width(cidr.address) - cidr.bits
    return other.version == cidr.address.version and other.number >> shift == cidr.address.number >> shift


def contains_cidr(cidr: CIDR, other: CIDR | str) -> bool:
    """Whether the whole other range is in this one."""
    inner = parse(other) if isinstance(other, str) else other
    return cidr.bits <= inner.bits and contains_ip(cidr, inner.address)


def _contains_ip_cost(cidr: object, other: object) -> int:
    twice = -(-2 * size_of(cidr) // 10)
    return twice + (cost.scan(other) if isinstance(other, str) else 0)


def _contains_cidr_cost(cidr: object, other: object) -> int:
    return _contains_ip_cost(cidr, other) + cost.scan(cidr) + 1


def _member(name: str, id: str, more: tuple[Type, ...], result: Type, call: object, **rest: object) -> Overload:
    return Overload(name, id, (CIDR_TYPE, *more), result, call, member=True, since=30, **rest)  # type: ignore[arg-type]


OVERLOADS: tuple[Overload, ...] = (
    Overload("cidr", "string_to_cidr", (STRING,), CIDR_TYPE, parse, cost=cost.scan_first, since=30),
    Overload("isCIDR", "is_cidr", (STRING,), BOOL, is_cidr, cost=cost.scan_first, since=30),
    Overload("string", "cidr_to_string", (CIDR_TYPE,), STRING, text_of, since=30),
    _member("containsIP", "cidr_contains_ip_string", (STRING,), BOOL, contains_ip, cost=_contains_ip_cost),
    _member("containsIP", "cidr_contains_ip_ip", (IP_TYPE,), BOOL, contains_ip, cost=_contains_ip_cost),
    _member("containsCIDR", "cidr_contains_cidr_string", (STRING,), BOOL, contains_cidr, cost=_contains_cidr_cost),
    _member("containsCIDR", "cidr_contains_cidr", (CIDR_TYPE,), BOOL, contains_cidr, cost=_contains_cidr_cost),
    _member("ip", "cidr_ip", (), IP_TYPE, lambda cidr: cidr.address),
    _member("prefixLength", "cidr_prefix_length", (), INT, lambda cidr: cidr.bits),
    _member("masked", "cidr_masked", (), CIDR_TYPE, masked),
)

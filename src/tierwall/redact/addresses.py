"""Stand-ins for addresses that keep their structure (docs/clusters.md#redact).

A block contains an address, or another block, exactly if its stand-in contains the other's stand-in: bit by bit, an
address is flipped or not, depending only on the bits before (as in Crypto-PAn). The flips follow from a key that is a
digest of everything that is replaced, so the same objects give the same stand-ins, and nobody can compute the
addresses without having the objects. Ranges with a meaning of their own, such as `10.0.0.0/8` and loopback addresses,
stay what they are; addresses inside them change.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Iterator
from functools import cache
from hashlib import blake2b

from tierwall.values.addresses import IP, read_cidr, read_ip

_SPECIAL = (
    *("0.0.0.0/8", "0.0.0.0/32", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "127.0.0.1/32", "169.254.0.0/16"),
    *("169.254.169.254/32", "172.16.0.0/12", "192.168.0.0/16", "224.0.0.0/4", "224.0.0.0/24", "240.0.0.0/4"),
    *("255.255.255.255/32", "::/128", "::1/128", "::ffff:0:0/96", "64:ff9b::/96", "fc00::/7", "fd00::/8", "fe80::/10"),
    *("ff00::/8", "ff01::/16", "ff02::/16", "2001:db8::/32"),
)
_MAPPED = 0xFFFF
# So many keys are tried, unless there are so many addresses that some stand-in always is another's address.
_MAX_TRIES, _MANY = 8, 500


@cache
def _fixed(version: int) -> frozenset[tuple[int, int]]:
    """Return the first bits of addresses, and how many, after which no bit is flipped: they lead to special ranges."""
    networks = (ipaddress.ip_network(text) for text in _SPECIAL)
    return frozenset(
        (length, int(network.network_address) >> network.max_prefixlen - length)
        for network in networks
        if network.version == version
        for length in range(network.prefixlen)
    )


class AddressTranslator:
    """Translates addresses and blocks under one key; those that are kept stay as they are."""

    def __init__(self, key: bytes, kept: Iterable[str] = ()) -> None:
        self._key = key
        beginnings = [beginning for text in kept for beginning in _beginnings(text)]
        self._fixed = {
            version: _fixed(version).union(bits for of, bits in beginnings if of == version) for version in (4, 6)
        }
        self._digests: dict[tuple[int, bytes], bytes] = {}
        self._bytes: dict[tuple[int, bytes, int], int] = {}

    def translate(self, text: str) -> str:
        """Return the stand-in of an address or block, in the usual notation; another text stays as it is."""
        ip = read_ip(text)
        if ip is not None:
            return self._translate(ip, 0)
        cidr = read_cidr(text)
        if cidr is None:
            return text
        ip, length = cidr
        host_bits = ip.max_prefixlen - length
        # The host bits of a block mean nothing. Where the block has none, neither has its stand-in.
        is_masked = int(ip) & (1 << host_bits) - 1 == 0
        return f"{self._translate(ip, host_bits if is_masked else 0)}/{length}"

    def _translate(self, ip: IP, cleared: int) -> str:
        number, version = int(ip), ip.version
        if version == 6 and number >> 32 == _MAPPED:
            inner = self._map(4, (number & 0xFFFFFFFF).to_bytes(4, "big")) & -(1 << cleared)
            return f"::ffff:{ipaddress.IPv4Address(inner)}"
        size = ip.max_prefixlen // 8
        mapped = self._map(version, number.to_bytes(size, "big")) & -(1 << cleared)
        return str(ipaddress.IPv4Address(mapped) if version == 4 else ipaddress.IPv6Address(mapped))

    def _map(self, version: int, address: bytes) -> int:
        result = 0
        for place, byte in enumerate(address):
            before = address[:place]
            known = self._bytes.get((version, before, byte))
            if known is None:
                known = self._bytes[version, before, byte] = self._map_byte(version, before, byte)
            result = result << 8 | known
        return result

    def _map_byte(self, version: int, before: bytes, byte: int) -> int:
        """Flip the bits of a byte. One digest has a bit for each of the 255 beginnings of a byte."""
        digest = self._digests.get((version, before))
        if digest is None:
            text = bytes((version, *before))
            digest = self._digests[version, before] = blake2b(text, key=self._key, digest_size=32).digest()
        fixed = self._fixed[version]
        prefix, length = int.from_bytes(before, "big"), 8 * len(before)
        node, result = 1, 0
        for shift in range(7, -1, -1):
            bit = byte >> shift & 1
            flip = 0 if (length, prefix) in fixed else digest[node >> 3] >> (node & 7) & 1
            result = result << 1 | bit ^ flip
            node, prefix, length = node << 1 | bit, prefix << 1 | bit, length + 1
        return result


def _beginnings(text: str) -> Iterator[tuple[int, tuple[int, int]]]:
    """Yield how an address or block begins, with its version: the number of bits, and the bits."""
    ip = read_ip(text)
    cidr = (ip, ip.max_prefixlen) if ip is not None else read_cidr(text)
    if cidr is None:
        return
    ip, size = cidr
    number, version, width = int(ip), ip.version, ip.max_prefixlen
    if version == 6 and number >> 32 == _MAPPED:
        number, version, width, size = number & 0xFFFFFFFF, 4, 32, max(0, size - 96)
    yield from ((version, (length, number >> width - length)) for length in range(size))


def address_translator(texts: Iterable[str], key: bytes, kept: Iterable[str] = ()) -> AddressTranslator:
    """Return a translator under whose key no stand-in is one of the addresses, if there is such a key."""
    fixed = frozenset(kept)
    known = frozenset(texts) - fixed
    best: tuple[int, AddressTranslator] | None = None
    for attempt in range(_MAX_TRIES if len(known) < _MANY else 1):
        translator = AddressTranslator(blake2b(bytes((attempt,)), key=key, digest_size=32).digest(), fixed)
        same = sum(translator.translate(text) in known for text in known) if len(known) < _MANY else 0
        if best is None or same < best[0]:
            best = same, translator
        if not same:
            break
    assert best is not None
    return best[1]

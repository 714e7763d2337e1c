"""Sets as bits of whole numbers, and the two lines that rules cut into pieces: all ports, and all addresses.

A line is cut at every bound that some policy names, so that no policy tells apart what lies in one piece. Families
(the protocols; IPv4 and IPv6) follow each other on their line and have no piece in common.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable, Iterator
from itertools import accumulate
from operator import xor

from tierwall.network.model.endpoints import LAST_PORT, PROTOCOLS
from tierwall.network.model.rules import PortRange
from tierwall.values.addresses import IPV6, LAST, Address, Block, Span, merge_ranges

# The numbers of the bits that are set in each octet.
_BITS_OF = [tuple(number for number in range(8) if octet >> number & 1) for octet in range(256)]
# Where each protocol begins on the line of ports, on which port 1 of TCP is 0.
_BEGINS = {protocol: number * LAST_PORT for number, protocol in enumerate(PROTOCOLS)}


def mask_of(numbers: Iterable[int]) -> int:
    """A set of numbers as bits."""
    members = list(numbers)
    if len(members) < 64:
        return union(1 << number for number in members)
    octets = bytearray(max(members) // 8 + 1)
    for number in members:
        octets[number >> 3] |= 1 << (number & 7)
    return int.from_bytes(octets, "little")


def bits(mask: int) -> Iterator[int]:
    """The numbers in a set, in order."""
    if mask.bit_count() < 64:
        while mask:
            low = mask & -mask
            yield low.bit_length() - 1
            mask ^= low
        return
    for position, octet in enumerate(mask.to_bytes((mask.bit_length() + 7) // 8, "little")):
        if octet:
            for number in _BITS_OF[octet]:
                yield position * 8 + number


def union(masks: Iterable[int]) -> int:
    """All that is in one of the sets."""
    out = 0
    for mask in masks:
        out |= mask
    return out


def cut(pieces: Iterable[int], mask: int) -> list[int]:
    """Disjoint sets, cut where another set holds only a part of one."""
    return [part for piece in pieces for part in (piece & mask, piece & ~mask) if part]


class NumberLine:
    """Numbers from 0 to `last`, cut into pieces at the bounds of spans and where families begin; sets are bits."""

    def __init__(self, families: Collection[int], last: int, spans: Iterable[Span]) -> None:
        starts = set(families)
        for low, high in spans:
            starts.update((low, high + 1))
        starts.discard(last + 1)
        self._families = families
        self._starts = sorted(starts)
        self.pieces = list(map(Span, self._starts, [*(start - 1 for start in self._starts[1:]), last]))
        self.everything = (1 << len(self.pieces)) - 1

    def number(self, point: int) -> int:
        """The number of the piece that holds a point."""
        return bisect_right(self._starts, point) - 1

    def mask(self, span: Span) -> int:
        """The pieces of a span, which must be one of those that cut the line."""
        return (1 << bisect_right(self._starts, span.high)) - (1 << bisect_left(self._starts, span.low))

    def spans(self, mask: int) -> list[Span]:
        """A set of pieces as spans in order, neighbours of one family joined."""
        out: list[Span] = []
        for number in bits(mask):
            piece = self.pieces[number]
            if out and out[-1].high + 1 == piece.low and piece.low not in self._families:
                out[-1] = Span(out[-1].low, piece.high)
            else:
                out.append(piece)
        return out


class PortSpace:
    """All ports of all protocols."""

    def __init__(self, ranges: Iterable[PortRange]) -> None:
        spans = (span for ports in ranges if (span := _on_line(ports)) is not None)
        self._line = NumberLine(_BEGINS.values(), len(PROTOCOLS) * LAST_PORT - 1, spans)
        self.everything = self._line.everything

    def mask(self, ports: PortRange) -> int:
        """The pieces of a range, which must be one of those that the space was made of."""
        span = _on_line(ports)
        return 0 if span is None else self._line.mask(span)

    def ranges(self, mask: int) -> Iterator[PortRange]:
        """A set of ports as ranges, neighbours joined, in order."""
        for low, high in self._line.spans(mask):
            yield PortRange(PROTOCOLS[low // LAST_PORT], low % LAST_PORT + 1, high % LAST_PORT + 1)

    def show(self, mask: int) -> str:
        """`all`, or `TCP 80,443,8000-8080; UDP all`."""
        if mask == self.everything:
            return "all"
        texts: dict[str, list[str]] = {}
        for protocol, first, last in self.ranges(mask):
            whole = (first, last) == (1, LAST_PORT)
            text = "all" if whole else str(first) if first == last else f"{first}-{last}"
            texts.setdefault(protocol, []).append(text)
        return "; ".join(f"{protocol} {','.join(listed)}" for protocol, listed in texts.items())


def _on_line(ports: PortRange) -> Span | None:
    """Where a range lies on the line of ports; None if it holds no port, as a container's port of -1 does."""
    first, last = max(ports.first, 1), min(ports.last, LAST_PORT)
    begin = _BEGINS[ports.protocol] - 1
    return Span(begin + first, begin + last) if first <= last else None


class AddressSpace:
    """All addresses. Those in the same blocks have the same signature: a set of blocks as bits."""

    def __init__(self, blocks: Iterable[Block]) -> None:
        self.blocks = {block: 1 << number for number, block in enumerate(blocks)}
        held = [(span, bit) for block, bit in self.blocks.items() for span in block.ranges()]
        self._line = NumberLine((0, IPV6), LAST, (span for span, _ in held))
        self.everything = self._line.everything
        toggles = dict.fromkeys((piece.low for piece in self._line.pieces), 0)
        for (low, high), bit in held:
            toggles[low] ^= bit
            if high < LAST:
                toggles[high + 1] ^= bit
        self._signatures: list[int] = list(accumulate(toggles.values(), xor))

    def mask(self, block: Block) -> int:
        """The pieces of a block, which must be one of those that the space was made of."""
        return union(map(self._line.mask, block.ranges()))

    def signature(self, address: Address) -> int:
        """The blocks that hold an address."""
        return self._signatures[self._line.number(address)]

    def pieces(self) -> Iterator[tuple[int, bool, list[Span]]]:
        """Per signature and family (IPv6 or not): the spans that have it, neighbours joined, in order."""
        found: dict[tuple[bool, int], list[Span]] = {}
        for piece, signature in zip(self._line.pieces, self._signatures, strict=True):
            found.setdefault((piece.low >= IPV6, signature), []).append(piece)
        for (is_ipv6, signature), spans in sorted(found.items(), key=lambda item: item[1]):
            yield signature, is_ipv6, merge_ranges(spans)

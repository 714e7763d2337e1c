"""Sets as bits of integers, and two number lines that rules divide into pieces: all ports, and all addresses.

A line is divided at every bound that a policy mentions, so that no policy distinguishes two points of one piece. The
families of a line (the protocols of ports; IPv4 and IPv6) follow each other and never share a piece.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import accumulate
from operator import xor

from tierwall.network.model.endpoints import LAST_PORT, PROTOCOLS
from tierwall.network.model.rules import PortRange
from tierwall.values.addresses import IPV6, LAST, Address, Block, Span, merge_ranges

# The numbers of the bits that are set in each byte.
_BITS_OF = [tuple(number for number in range(8) if byte >> number & 1) for byte in range(256)]
# Sets in which fewer than one of so many numbers occurs are transposed number by number, others in bands of columns.
_SPARSE, _BAND = 16, 1024
# The first point of each protocol on the line of ports. Port 1 of TCP is point 0.
_BEGINS = {protocol: number * LAST_PORT for number, protocol in enumerate(PROTOCOLS)}


def mask_of(numbers: Iterable[int]) -> int:
    """Return a set of numbers as bits."""
    members = list(numbers)
    if len(members) < 64:
        return union(1 << number for number in members)
    data = bytearray(max(members) // 8 + 1)
    for number in members:
        data[number >> 3] |= 1 << (number & 7)
    return int.from_bytes(data, "little")


def bits(mask: int) -> Iterator[int]:
    """Yield the numbers in a set, in order."""
    if mask.bit_count() < 64:
        while mask:
            low = mask & -mask
            yield low.bit_length() - 1
            mask ^= low
        return
    for position, byte in enumerate(mask.to_bytes((mask.bit_length() + 7) // 8, "little")):
        if byte:
            for number in _BITS_OF[byte]:
                yield position * 8 + number


def union(masks: Iterable[int]) -> int:
    """Return the union of some sets."""
    whole = 0
    for mask in masks:
        whole |= mask
    return whole


def transposed(sets: Sequence[int]) -> list[int]:
    """Return for each number the set of those places at which `sets` has a set with this number."""
    width = max(map(int.bit_length, sets), default=0)
    if sum(map(int.bit_count, sets)) * _SPARSE < len(sets) * width:
        places: list[list[int]] = [[] for _ in range(width)]
        for place, members in enumerate(sets):
            for number in bits(members):
                places[number].append(place)
        return list(map(mask_of, places))
    # The sets as rows of binary digits, the last set first. So the digits of a column are a set of places.
    columns: list[int] = []
    for begin in range(0, width, _BAND):
        digits = "".join([f"{members >> begin & (1 << _BAND) - 1:0{_BAND}b}" for members in reversed(sets)])
        columns += [int(digits[column::_BAND], 2) for column in reversed(range(_BAND))]
    return columns[:width]


def cut(pieces: Iterable[int], mask: int) -> list[int]:
    """Split each of some disjoint sets into its part inside another set and its part outside."""
    return [part for piece in pieces for part in (piece & mask, piece & ~mask) if part]


class NumberLine:
    """The numbers from 0 to `last`, divided at the bounds of spans and where families begin.

    Each piece has one bit, and a set of pieces is an integer.
    """

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
        """Return the number of the piece that contains a point."""
        return bisect_right(self._starts, point) - 1

    def mask(self, span: Span) -> int:
        """Return the pieces of a span, which must be one of the spans that divide the line."""
        return (1 << bisect_right(self._starts, span.high)) - (1 << bisect_left(self._starts, span.low))

    def spans(self, mask: int) -> list[Span]:
        """Return a set of pieces as spans, in order. Adjacent pieces of one family are joined."""
        spans: list[Span] = []
        for number in bits(mask):
            piece = self.pieces[number]
            if spans and spans[-1].high + 1 == piece.low and piece.low not in self._families:
                spans[-1] = Span(spans[-1].low, piece.high)
            else:
                spans.append(piece)
        return spans


class PortSpace:
    """All ports of all protocols."""

    def __init__(self, ranges: Iterable[PortRange]) -> None:
        spans = (span for ports in ranges if (span := _on_line(ports)) is not None)
        self._line = NumberLine(_BEGINS.values(), len(PROTOCOLS) * LAST_PORT - 1, spans)
        self.everything = self._line.everything

    def mask(self, ports: PortRange) -> int:
        """Return the pieces of a range, which must be one of the ranges of the space."""
        span = _on_line(ports)
        return 0 if span is None else self._line.mask(span)

    def ranges(self, mask: int) -> Iterator[PortRange]:
        """Yield a set of ports as ranges, in order. Adjacent ranges are joined."""
        for low, high in self._line.spans(mask):
            yield PortRange(PROTOCOLS[low // LAST_PORT], low % LAST_PORT + 1, high % LAST_PORT + 1)

    def show(self, mask: int) -> str:
        """Return `all`, or a string such as `TCP 80,443,8000-8080; UDP all`."""
        if mask == self.everything:
            return "all"
        texts: dict[str, list[str]] = {}
        for protocol, first, last in self.ranges(mask):
            whole = (first, last) == (1, LAST_PORT)
            text = "all" if whole else str(first) if first == last else f"{first}-{last}"
            texts.setdefault(protocol, []).append(text)
        return "; ".join(f"{protocol} {','.join(listed)}" for protocol, listed in texts.items())


def _on_line(ports: PortRange) -> Span | None:
    """Return the span of a range on the line of ports, or None if it has no port, such as a container port of -1."""
    first, last = max(ports.first, 1), min(ports.last, LAST_PORT)
    begin = _BEGINS[ports.protocol] - 1
    return Span(begin + first, begin + last) if first <= last else None


class AddressSpace:
    """All addresses. The signature of an address is the set of blocks that contain it, as bits."""

    def __init__(self, blocks: Iterable[Block]) -> None:
        self.blocks = {block: 1 << number for number, block in enumerate(blocks)}
        block_spans = [(span, bit) for block, bit in self.blocks.items() for span in block.ranges()]
        self._line = NumberLine((0, IPV6), LAST, (span for span, _ in block_spans))
        self.everything = self._line.everything
        toggles = dict.fromkeys((piece.low for piece in self._line.pieces), 0)
        for (low, high), bit in block_spans:
            toggles[low] ^= bit
            if high < LAST:
                toggles[high + 1] ^= bit
        self._signatures: list[int] = list(accumulate(toggles.values(), xor))

    def mask(self, block: Block) -> int:
        """Return the pieces of a block, which must be one of the blocks of the space."""
        return union(map(self._line.mask, block.ranges()))

    def spans(self, mask: int) -> list[Span]:
        """Return a set of pieces as spans, in order. Adjacent pieces of one family are joined."""
        return self._line.spans(mask)

    @property
    def firsts(self) -> list[Address]:
        """The first address of each piece."""
        return [piece.low for piece in self._line.pieces]

    def signature(self, address: Address) -> int:
        """Return the blocks that contain an address."""
        return self._signatures[self._line.number(address)]

    def pieces(self) -> Iterator[tuple[int, bool, list[Span]]]:
        """Yield each signature, whether it is of IPv6, and its spans in order, with adjacent ones joined."""
        by_signature: dict[tuple[bool, int], list[Span]] = {}
        for piece, signature in zip(self._line.pieces, self._signatures, strict=True):
            by_signature.setdefault((piece.low >= IPV6, signature), []).append(piece)
        for (is_ipv6, signature), spans in sorted(by_signature.items(), key=lambda item: item[1]):
            yield signature, is_ipv6, merge_ranges(spans)

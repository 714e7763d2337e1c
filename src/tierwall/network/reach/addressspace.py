"""The line of all addresses, cut at the bounds of the blocks that policies name.

Two addresses in the same blocks have the same signature: a set of blocks as bits. What lies outside the cluster is
listed by these pieces.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator

from tierwall.values.addresses import IPV6, LAST, Address, Block, Span, joined


class AddressSpace:
    """Pieces of the line, each with its signature."""

    def __init__(self, blocks: Iterable[Block]) -> None:
        self.blocks = {block: 1 << number for number, block in enumerate(blocks)}
        toggles: dict[Address, int] = {0: 0, IPV6: 0}
        for block, bit in self.blocks.items():
            for low, high in block.parts():
                toggles[low] = toggles.get(low, 0) ^ bit
                toggles[high + 1] = toggles.get(high + 1, 0) ^ bit
        toggles.pop(LAST + 1, None)
        self._starts = sorted(toggles)
        self._signatures: list[int] = []
        signature = 0
        for start in self._starts:
            signature ^= toggles[start]
            self._signatures.append(signature)

    def mask(self, block: Block) -> int:
        """The pieces of a block, as bits; it must be one of those the space was made of."""
        pieces = 0
        for low, high in block.parts():
            pieces |= (1 << bisect_right(self._starts, high)) - (1 << bisect_left(self._starts, low))
        return pieces

    @property
    def everything(self) -> int:
        """All pieces."""
        return (1 << len(self._starts)) - 1

    def signature(self, address: Address) -> int:
        """The blocks that hold an address."""
        return self._signatures[bisect_right(self._starts, address) - 1]

    def pieces(self) -> Iterator[tuple[int, bool, list[Span]]]:
        """Per signature and family (IPv6 or not): the spans that have it, neighbours joined, in order."""
        found: dict[tuple[bool, int], list[Span]] = {}
        ends = [*(start - 1 for start in self._starts[1:]), LAST]
        for low, high, signature in zip(self._starts, ends, self._signatures, strict=True):
            found.setdefault((low >= IPV6, signature), []).append(Span(low, high))
        for (is_ipv6, signature), spans in sorted(found.items(), key=lambda item: item[1]):
            yield signature, is_ipv6, joined(spans)

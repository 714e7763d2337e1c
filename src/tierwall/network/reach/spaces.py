"""All ports of all protocols, cut at the bounds that policies look at; sets of ports are bits over the pieces."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator

from tierwall.network.model.ends import LAST_PORT, PROTOCOLS
from tierwall.network.model.rules import PortRange


class PortSpace:
    """Pieces of the port numbers that no policy tells apart inside, numbered through the protocols."""

    def __init__(self, ranges: Iterable[PortRange]) -> None:
        starts: dict[str, set[int]] = {protocol: {1} for protocol in PROTOCOLS}
        for one in set(ranges):
            starts[one.protocol].update((one.first, one.last + 1))
        self._starts = {
            protocol: sorted(start for start in found if 1 <= start <= LAST_PORT) for protocol, found in starts.items()
        }
        self._offsets: dict[str, int] = {}
        total = 0
        for protocol in PROTOCOLS:
            self._offsets[protocol] = total
            total += len(self._starts[protocol])
        self.everything = (1 << total) - 1

    def mask(self, ports: PortRange) -> int:
        """The pieces of a range; its bounds must have been among the ranges the space was made of."""
        starts, offset = self._starts[ports.protocol], self._offsets[ports.protocol]
        low, high = max(ports.first, 1), min(ports.last, LAST_PORT)
        if high < low:
            return 0
        first, past = bisect_left(starts, low), bisect_right(starts, high)
        return ((1 << (past - first)) - 1) << (offset + first)

    def at(self, protocol: str, port: int) -> int:
        """The piece that holds one port, as a mask."""
        return 1 << (self._offsets[protocol] + bisect_right(self._starts[protocol], port) - 1)

    def ranges(self, mask: int) -> Iterator[PortRange]:
        """A set of ports as ranges, neighbours joined, in order."""
        for protocol in PROTOCOLS:
            starts, offset = self._starts[protocol], self._offsets[protocol]
            first: int | None = None
            for number, start in enumerate(starts):
                if mask >> (offset + number) & 1:
                    first = start if first is None else first
                elif first is not None:
                    yield PortRange(protocol, first, start - 1)
                    first = None
            if first is not None:
                yield PortRange(protocol, first, LAST_PORT)

    def show(self, mask: int) -> str:
        """`all`, or `TCP 80,443,8000-8080; UDP all`."""
        if mask == self.everything:
            return "all"
        texts: dict[str, list[str]] = {}
        for protocol, first, last in self.ranges(mask):
            whole = (first, last) == (1, LAST_PORT)
            text = "all" if whole else str(first) if first == last else f"{first}-{last}"
            texts.setdefault(protocol, []).append(text)
        return "; ".join(f"{protocol} {','.join(found)}" for protocol, found in texts.items())

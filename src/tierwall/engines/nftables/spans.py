"""Unions of address blocks as spans that neither overlap nor touch, which is how the kernel wants interval sets."""

from __future__ import annotations

from collections.abc import Iterable

from tierwall.network.model.addresses import LAST_IPV4, Address, Block, Span


def merged(blocks: Iterable[Block]) -> list[Span]:
    """All addresses that one of the blocks holds."""
    return _joined(part for block in blocks for part in _minus([block.span], block.excepts))


def without(spans: Iterable[Span], addresses: Iterable[Address]) -> list[Span]:
    """Spans without some single addresses."""
    return _minus(spans, [Span(one, one) for one in addresses])


def _minus(spans: Iterable[Span], holes: Iterable[Span]) -> list[Span]:
    found = list(spans)
    for low, high in sorted(holes):
        left: list[Span] = []
        for span in found:
            if high < span.low or low > span.high:
                left.append(span)
                continue
            if span.low < low:
                left.append(Span(span.low, low - 1))
            if high < span.high:
                left.append(Span(high + 1, span.high))
        found = left
    return found


def _joined(spans: Iterable[Span]) -> list[Span]:
    out: list[Span] = []
    for span in sorted(spans):
        # The last IPv4 address and the first IPv6 one are neighbours as numbers only.
        if out and span.low <= out[-1].high + (out[-1].high != LAST_IPV4):
            out[-1] = Span(out[-1].low, max(out[-1].high, span.high))
        else:
            out.append(span)
    return out

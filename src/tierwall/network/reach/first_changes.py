"""The first of very many changed connections: what a page shows while somebody waits.

A person reads some hundred lines, and a policy for every pod may change connections between all groups of them. So the
comparison goes through the destinations part by part, until it has found enough.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import NamedTuple

from tierwall.network.reach.classes import EndpointClass, EndpointClasses
from tierwall.network.reach.compare import differences, joined_changes, named_changes
from tierwall.network.reach.listing import ConnectionEntry
from tierwall.resources.snapshot import Snapshot

# A bounded comparison ends after so many changes, and begins with so many destinations.
MAX_CHANGES, FIRST_PART = 500, 32


class ComparisonLimits:
    """Ends a comparison that finds very many changes: the destinations that are `left` were not compared."""

    def __init__(self, most: int) -> None:
        self.most, self.found = most, 0
        self.left: list[EndpointClass] = []

    def parts(self, candidates: Mapping[int, int], classes: EndpointClasses) -> Iterator[Mapping[int, int]]:
        """Yield some destinations after the other, each with its sources, as long as few changes are `found`."""
        waiting, done, size = list(candidates), 0, FIRST_PART
        while done < len(waiting) and self.found < self.most:
            yield {bit: candidates[bit] for bit in waiting[done : done + size]}
            done += size
            # As many as may be left to find.
            size = max(FIRST_PART, min(2 * size, (self.most - self.found) * done // max(self.found, 1)))
        self.left = [classes.all[bit] for bit in waiting[done:]]


class FirstChanges(NamedTuple):
    """The first changes with names, how many `more` there are of each kind, and how many destinations were left out.

    To name the ends of a change takes longer than to find it.
    """

    entries: tuple[ConnectionEntry, ...]
    more: Mapping[str, int]
    uncompared: int


def first_changes(before: Snapshot, after: Snapshot, most: int) -> FirstChanges:
    """Return up to `most` changes, of a comparison that ends after MAX_CHANGES or a few more."""
    bound = ComparisonLimits(MAX_CHANGES)
    joined = joined_changes(differences(before, after, bound))
    entries = tuple(named_changes(islice(joined, most)))
    more = Counter(changed.change for changed in joined)
    return FirstChanges(entries, more, sum(len(each.members) for each in bound.left))

"""All connections of a snapshot, whole or for some ends and ports, as a value that can be read again and again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from msgspec import Struct

from tierwall.core.answer import Omission
from tierwall.network.reach.ask import Asked, find
from tierwall.network.reach.listing import Entry, entries, pair_entries
from tierwall.network.reach.matrix import Matrix
from tierwall.resources.snapshot import Snapshot

if TYPE_CHECKING:
    from tierwall.core.protocols import Progress


class Connections(Struct, frozen=True, eq=False):
    """Who can reach whom on which ports. Iterating gives groups of ends that fare alike, destination by destination."""

    matrix: Matrix
    # Whether entries name who settled each direction.
    explain: bool = False
    not_considered: tuple[Omission, ...] = ()

    def __iter__(self) -> Iterator[Entry]:
        return entries(self.matrix, self.explain)

    def pairs(self) -> Iterator[Entry]:
        """One entry for every pair of ends."""
        return pair_entries(self.matrix, self.explain)


def connections(
    snapshot: Snapshot,
    sources: Sequence[str] = (),
    destinations: Sequence[str] = (),
    ports: Sequence[str] = (),
    explain: bool = False,
    denied: bool = False,
    progress: Progress | None = None,
) -> Connections:
    """The connections between some ends, or all; InputError names every end and port that does not exist."""
    return Connections(find(snapshot, Asked(sources, destinations, ports, explain, denied), progress), explain)

"""Kinds that could not be read from a cluster (docs/reference/sources.md#what-could-not-be-read).

A snapshot carries them, so that every answer that they could change says so (`resources.gaps`).
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct


class UnlistedKind(Struct, frozen=True, rename="camel", omit_defaults=True, order=True):
    """A kind that could not be read, everywhere or in some namespaces.

    `reason` is `forbidden` (this user may not list it), `unavailable` (its API did not answer) or `replaced` (a file
    has the workload whose pods these were). `read_namespaces` are those in which it was read all the same;
    `namespaces` those in which it was not, where they are known and not all. An empty kind stands for all kinds of the
    group.
    """

    kind: str
    group: str
    reason: str
    message: str
    read_namespaces: tuple[str, ...] = ()
    namespaces: tuple[str, ...] = ()
    count: int = 1
    is_namespaced: bool = False

    def is_missing_in(self, namespace: str) -> bool:
        """Whether objects of this kind in a namespace are not known."""
        if self.namespaces:
            return namespace in self.namespaces
        return namespace not in self.read_namespaces

    def missing(self, namespaces: Iterable[str] | None) -> tuple[str, ...] | None:
        """Return those of some namespaces (None stands for all) of which objects are not known; None if of none.

        An empty result stands for all of them, or for some that are not known by name.
        """
        if not self.namespaces and not self.read_namespaces:
            return () if namespaces is None or any(namespaces) else None
        if namespaces is None:
            return self.namespaces
        return tuple(sorted(filter(self.is_missing_in, filter(None, namespaces)))) or None

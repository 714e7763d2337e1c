"""Kinds that could not be read from a cluster (docs/reference/sources.md#what-is-not-considered).

A snapshot carries them, so that every answer that they could change says so.
"""

from __future__ import annotations

from msgspec import Struct


class UnlistedKind(Struct, frozen=True):
    """A kind that could not be read, everywhere or in some namespaces.

    `reason` is `forbidden` (this user may not list it), `unavailable` (its API did not answer) or `replaced` (a file
    has the workload whose pods these were). `read_namespaces` are those in which it was read all the same;
    `namespaces` those in which it was not, where they are known and not all.
    """

    kind: str
    group: str
    reason: str
    message: str
    read_namespaces: tuple[str, ...] = ()
    namespaces: tuple[str, ...] = ()
    count: int = 1

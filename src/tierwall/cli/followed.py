"""Clusters that a command enforces: followed, or read once for a preview (docs/clusters.md#following)."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING

from msgspec.structs import replace

from tierwall.cli.collector import restore_collector
from tierwall.cli.objects import ObjectParams
from tierwall.cluster.wanted import followed_kinds
from tierwall.core.diagnostics import Diagnostic, InputError
from tierwall.resources.load import LoadResult
from tierwall.resources.removal import without
from tierwall.serve.cluster import ClusterSource
from tierwall.serve.follower import ObjectSource, until_signalled

if TYPE_CHECKING:
    import asyncio


class CommandClusterSource(ClusterSource):
    """A cluster as a source, in a process that does nothing else.

    The garbage collector is kept away from what was read first (`cli.collector`).
    """

    def read(self) -> LoadResult | None:
        """Return all objects as they are now; None if nothing has changed."""
        is_first, loaded = self.is_first, super().read()
        if is_first:
            gc.freeze()
            restore_collector()
        return loaded


def has_begun(source: ObjectSource) -> bool:
    """Wait until a source can be read; False if SIGINT or SIGTERM comes first."""
    if not isinstance(source, ClusterSource):
        return True
    has_read = False

    async def wait(stop: asyncio.Event) -> None:
        nonlocal has_read
        has_read = await source.wait(stop)

    until_signalled(wait)
    return has_read


class LoadedSource:
    """Objects that were read once, to show what would be enforced."""

    def __init__(self, loaded: LoadResult) -> None:
        self._loaded = loaded

    def read(self) -> LoadResult:
        """Return the objects."""
        return self._loaded


def read_once(params: ObjectParams) -> LoadedSource:
    """Read a cluster, with files over it; InputError if this user may not read all that would be enforced."""
    wanted, read = followed_kinds(params.asked_planes, params.names_files), params.cluster_snapshot
    assert read is not None
    missing = [kind for kind in read.unlisted if (kind.group, kind.kind) in wanted]
    if missing:
        raise InputError([Diagnostic("TW042", f"{kind.kind} cannot be read: {kind.message}") for kind in missing])
    loaded = params.load(params.all_paths)
    (snapshot,) = without([loaded.snapshot], params.without, params.object_namespace)
    return LoadedSource(replace(loaded, snapshot=snapshot))

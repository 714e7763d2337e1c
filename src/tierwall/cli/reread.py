"""A cluster that may not be followed, read again and again as every other command reads it (docs/explorer.md).

To follow a cluster, one must be allowed to list and watch every kind in all namespaces. Whoever may read less sees what
commands see; what could not be read is named in the answers. Files over the cluster are followed.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Callable
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from tierwall.cli.objects import ObjectParams
from tierwall.cluster.load import lay_over, read_whole
from tierwall.resources.load import LoadResult
from tierwall.resources.removal import without, without_those_known
from tierwall.resources.snapshot import Snapshot
from tierwall.serve.files import FileSource

if TYPE_CHECKING:
    import asyncio

# How often the cluster is read, in seconds.
AGAIN_S = 60.0


class RereadSource:
    """The objects of a cluster, with files over it. Only another state of either is a change."""

    def __init__(self, params: ObjectParams, clock: Callable[[], float] = time.monotonic) -> None:
        from tierwall.cli.collector import CommandLoader

        self._params, self._clock = params, clock
        self._files = FileSource(CommandLoader(params.all_paths, params.settings), AGAIN_S)
        self._from_files: LoadResult | None = None
        self._due = 0.0
        # Whether something is to be told that was not: news, or that the cluster can be read again.
        self._is_new = self._is_first = True
        # What the cluster said, as plain values, and its objects.
        self._told: Any = None
        self._snapshot: Snapshot | None = None

    def read(self) -> LoadResult | None:
        """Return all objects as they are now; None if nothing has changed. InputError if nothing can be read."""
        read_files = self._files.read()
        if read_files is not None:
            self._from_files = read_files
        is_new, self._is_new = self._is_new or read_files is not None, True
        if self._snapshot is None or self._clock() >= self._due:
            is_new |= self._read_cluster()
        loaded = self._loaded() if is_new else None
        self._is_new = False
        return loaded

    def _loaded(self) -> LoadResult:
        """Return the objects of the cluster with those of the files over them, and without those of `--without`.

        At first, these must exist; later, they may come and go.
        """
        assert self._snapshot is not None
        assert self._from_files is not None
        loaded = lay_over(self._snapshot, self._from_files)
        references, namespace = self._params.without, self._params.object_namespace
        if self._is_first:
            (snapshot,) = without([loaded.snapshot], references, namespace)
        else:
            snapshot = without_those_known(loaded.snapshot, references, namespace)
        self._is_first = False
        return replace(loaded, snapshot=snapshot)

    def _read_cluster(self) -> bool:
        """Read the cluster; False if it says what it said before."""
        params = self._params
        cluster = params.cluster_to_read
        assert cluster is not None
        namespaces = {*params.named_namespaces}
        if self._from_files is not None:
            namespaces |= {resource.namespace for resource in self._from_files.resources}
        read = read_whole(cluster, params.asked_planes, params.cluster_access, None, namespaces)
        self._due = self._clock() + AGAIN_S * 0.9
        told = [resource.value for resource in read.resources], read.unlisted
        if told == self._told:
            return False
        self._told, self._snapshot = told, Snapshot.of(read.resources, read.unlisted)
        return True

    def changes(self, stop: asyncio.Event) -> AsyncGenerator[None, None]:
        """Yield when files may have changed, and when the cluster is due."""
        return self._files.changes(stop)

    def nudge(self) -> None:
        """Read both now."""
        self._due = 0.0
        self._files.nudge()

"""Load a cluster, and files over it: the one way for commands, Python, policy tests and servers (docs/clusters.md)."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Collection, Coroutine, Iterable
from typing import Any, TypeVar

from msgspec.structs import replace

from tierwall.cluster.access import ClusterAccess
from tierwall.cluster.cluster import Cluster
from tierwall.core.diagnostics import InputError
from tierwall.resources.load import LoadResult
from tierwall.resources.overlay import overlay
from tierwall.resources.snapshot import Snapshot

T = TypeVar("T")
PLANES = ("network", "ways", "tool", "gateway", "api")


def load_cluster(
    cluster: Cluster,
    planes: Iterable[str] = PLANES,
    access: ClusterAccess | None = None,
    progress: Callable[[str, int, int], None] | None = None,
    namespaces: Collection[str] = (),
) -> Snapshot:
    """Read the objects that questions about some planes need; InputError if the cluster does not answer.

    `namespaces` are those that the questions name, for users who may not list the namespaces.
    """
    access = access or cluster.access()
    return _run(_read(cluster, access, tuple(planes), progress, namespaces))


def lay_over(snapshot: Snapshot, loaded: LoadResult) -> LoadResult:
    """Lay what was loaded from files over the objects of a cluster."""
    over = overlay(snapshot, loaded.resources)
    return replace(loaded, resources=(*snapshot, *loaded.resources), snapshot=over)


async def _read(
    cluster: Cluster,
    access: ClusterAccess,
    planes: tuple[str, ...],
    progress: Callable[[str, int, int], None] | None,
    namespaces: Collection[str],
) -> Snapshot:
    # Commands that read files alone start without a client for HTTP.
    from tierwall.cluster.connection import Connection
    from tierwall.cluster.failures import ClusterError
    from tierwall.cluster.reading import read_cluster
    from tierwall.cluster.wanted import wanted_kinds

    connection = Connection(access, cluster.timeout)
    try:
        read = await read_cluster(connection, wanted_kinds(planes), progress, namespaces)
    except ClusterError as error:
        raise InputError([error.diagnostic()]) from None
    finally:
        await connection.close()
    return Snapshot.of(read.resources, read.unlisted)


def _run(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end, in a thread of its own if this one has a running event loop already."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(work)
    results: list[T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(asyncio.run(work))
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run, name="cluster")
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return results[0]

"""Load a cluster, and files over it: the one way for commands, Python, policy tests and servers (docs/clusters.md)."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Collection, Coroutine, Iterable
from typing import TYPE_CHECKING, Any, TypeVar

from msgspec.structs import replace

from tierwall.cluster.access import ClusterAccess
from tierwall.cluster.cluster import Cluster
from tierwall.core.diagnostics import InputError, sorted_diagnostics
from tierwall.resources.load import LoadResult
from tierwall.resources.overlay import overlay
from tierwall.resources.snapshot import Snapshot
from tierwall.resources.snapshot_document import over_cluster

if TYPE_CHECKING:
    from tierwall.cluster.reading import ClusterRead

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
    read = read_whole(cluster, planes, access, progress, namespaces)
    return Snapshot.of(read.resources, read.unlisted)


def read_whole(
    cluster: Cluster,
    planes: Iterable[str] = PLANES,
    access: ClusterAccess | None = None,
    progress: Callable[[str, int, int], None] | None = None,
    namespaces: Collection[str] = (),
    *,
    with_version: bool = False,
) -> ClusterRead:
    """Read the same objects, and say what was read; with the version of the API server if it is wanted."""
    access = access or cluster.access()
    return _run(_read(cluster, access, tuple(planes), progress, namespaces, with_version))


def lay_over(snapshot: Snapshot, loaded: LoadResult) -> LoadResult:
    """Lay what was loaded from files over the objects of a cluster."""
    over = overlay(snapshot, loaded.resources)
    diagnostics = loaded.diagnostics
    if loaded.cluster_snapshot is not None:
        diagnostics = sorted_diagnostics([*diagnostics, over_cluster()])
    return replace(loaded, resources=(*snapshot, *loaded.resources), snapshot=over, diagnostics=diagnostics)


def narrowed(loaded: LoadResult, planes: Iterable[str]) -> LoadResult:
    """Take from a snapshot file what questions about some planes would not read of its cluster.

    A snapshot has the kinds of all planes. Its answers are those of the cluster, whatever else it has.
    """
    if loaded.cluster_snapshot is None:
        return loaded
    from tierwall.cluster.wanted import wanted_kinds

    wanted = wanted_kinds(planes)

    def is_wanted(group: str, kind: str) -> bool:
        return (group, kind) in wanted or (group, "*") in wanted

    def left(snapshot: Snapshot) -> Snapshot:
        drop = [resource for resource in snapshot if resource.is_live and not is_wanted(resource.group, resource.kind)]
        unlisted = tuple(entry for entry in snapshot.unlisted if is_wanted(entry.group, entry.kind))
        return snapshot.with_changes(drop=drop).without_unlisted().with_unlisted(unlisted)

    return replace(
        loaded,
        resources=tuple(
            resource
            for resource in loaded.resources
            if not resource.is_live or is_wanted(resource.group, resource.kind)
        ),
        snapshot=left(loaded.snapshot),
        cluster_snapshot=left(loaded.cluster_snapshot),
    )


async def _read(
    cluster: Cluster,
    access: ClusterAccess,
    planes: tuple[str, ...],
    progress: Callable[[str, int, int], None] | None,
    namespaces: Collection[str],
    with_version: bool,
) -> ClusterRead:
    # Commands that read files alone start without a client for HTTP.
    from tierwall.cluster.connection import Connection
    from tierwall.cluster.failures import ClusterError
    from tierwall.cluster.reading import read_cluster
    from tierwall.cluster.wanted import wanted_kinds

    connection = Connection(access, cluster.timeout)
    try:
        return await read_cluster(connection, wanted_kinds(planes), progress, namespaces, with_version=with_version)
    except ClusterError as error:
        raise InputError([error.diagnostic()]) from None
    finally:
        await connection.close()


def _run(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end, in a thread of its own if this one has a running event loop already."""
    results: list[T] = []
    errors: list[BaseException] = []

    async def main() -> None:
        # Not returned: where `asyncio.run` takes its handler of signals away, Python writes the result of the task into
        # the words of an error that nobody sees, which takes seconds for a large cluster.
        results.append(await work)

    def run() -> None:
        try:
            asyncio.run(main())
        except BaseException as error:
            errors.append(error)

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        asyncio.run(main())
        return results[0]
    thread = threading.Thread(target=run, name="cluster")
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return results[0]

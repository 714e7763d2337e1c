"""Reading a cluster once: the kinds that a question needs, side by side, in pages (docs/clusters.md#reading).

What this user may not list, and what did not answer, is said: it could have changed the answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, TypeAlias

import msgspec
from msgspec import Struct

from tierwall.cluster.connection import Connection
from tierwall.cluster.decoding import AnswerError, ItemReader, UndecodedObject, name_of
from tierwall.cluster.discovery import Discovery, ServedKind, discover
from tierwall.cluster.failures import ApiServerError
from tierwall.cluster.origin import ClusterOrigin
from tierwall.cluster.pages import read_all
from tierwall.cluster.sharing import SharedParts, share_parts
from tierwall.resources.kinds.registry import find_kind
from tierwall.resources.resource import Resource
from tierwall.resources.unlisted import UnlistedKind

KindKey: TypeAlias = tuple[str, str]

# So many lists are read at the same time; more would only wait for each other in the API server.
_LISTS_AT_ONCE = 8
_LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"


class ClusterRead(Struct, frozen=True):
    """The objects of a cluster, and what could not be read."""

    resources: tuple[Resource, ...]
    unlisted: tuple[UnlistedKind, ...]


async def read_cluster(
    connection: Connection,
    wanted: Mapping[KindKey, type[Any]],
    progress: Callable[[str, int, int], None] | None = None,
) -> ClusterRead:
    """Read all objects of these kinds that the cluster has."""
    discovery = await discover(connection)
    reader = _ClusterReader(connection, discovery, progress)
    keys = _expand(wanted, discovery)
    results = await asyncio.gather(*(reader.read(key, shape) for key, shape in keys.items()))
    resources = tuple(resource for result in results for resource in result)
    return ClusterRead(resources, tuple(reader.unlisted))


def _expand(wanted: Mapping[KindKey, type[Any]], discovery: Discovery) -> Mapping[KindKey, type[Any]]:
    """Replace `*`, which stands for all kinds of a group, by the kinds that are served."""
    keys: dict[KindKey, type[Any]] = {}
    for (group, name), shape in wanted.items():
        names = [kind for served, kind in discovery.kinds if served == group] if name == "*" else [name]
        keys |= {(group, kind): shape for kind in names}
    return keys


def readable_version(versions: Iterable[ServedKind]) -> ServedKind | None:
    """Return the first version that can be listed, and that Tierwall knows if it knows any."""
    listable = [version for version in versions if "list" in version.verbs]
    known = (version for version in listable if find_kind(version.api_version, version.kind) is not None)
    return next(known, listable[0] if listable else None)


def as_resource(item: Any, kind: ServedKind, cluster: str, parts: SharedParts) -> Resource:
    """Make a resource of a decoded object of a cluster, which is named in positions; of any form, but with a name.

    What it has in common with earlier objects is in `parts`.
    """
    if isinstance(item, UndecodedObject):
        item = item.as_it_is
    value: dict[str, Any] = {"apiVersion": kind.api_version, "kind": kind.kind}
    value.update(msgspec.to_builtins(item))
    value["apiVersion"], value["kind"] = kind.api_version, kind.kind
    metadata = value["metadata"]
    if isinstance(annotations := metadata.get("annotations"), dict):
        annotations.pop(_LAST_APPLIED, None)
    share_parts(value, parts)
    named, origin = item.metadata, ClusterOrigin(cluster, value)
    return Resource(kind.group, kind.version, kind.kind, named.namespace, named.name, value, origin, is_live=True)


class _ClusterReader:
    def __init__(
        self, connection: Connection, discovery: Discovery, progress: Callable[[str, int, int], None] | None
    ) -> None:
        self.unlisted: list[UnlistedKind] = []
        self._connection, self._discovery, self._progress = connection, discovery, progress
        self._cluster = connection.access.context or connection.access.server
        self._turn = asyncio.Semaphore(_LISTS_AT_ONCE)
        self._parts: SharedParts = {}
        self._namespaces: asyncio.Task[tuple[str, ...]] | None = None

    async def read(self, key: KindKey, shape: type[Any]) -> list[Resource]:
        """Read the objects of one kind; none if the kind is not served."""
        group, _ = key
        kind = readable_version(self._discovery.kinds.get(key, ()))
        if kind is None:
            if group in self._discovery.stale:
                self._leave_out(key, "unavailable", "its API server does not answer")
            return []
        try:
            return await self._list(kind, shape)
        except ApiServerError as error:
            if error.code == 403 and kind.namespaced:
                return await self._list_namespaces(kind, shape, error)
            if error.code == 404:
                # Removed since discovery.
                return []
            self._leave_out(key, "forbidden" if error.code == 403 else "unavailable", error.message)
            return []
        except AnswerError as error:
            self._leave_out(key, "unavailable", str(error))
            return []

    async def _list(self, kind: ServedKind, shape: type[Any], namespace: str = "") -> list[Resource]:
        def report(read: int, total: int) -> None:
            if self._progress is not None:
                self._progress(f"reading {self._cluster}: {kind.plural}", read, total)

        async with self._turn:
            report(0, 0)
            everything = await read_all(
                self._connection, kind, ItemReader(shape), namespace, report, convert=partial(self._resources, kind)
            )
        return everything.items

    def _resources(self, kind: ServedKind, items: Iterable[Any]) -> list[Resource]:
        return [as_resource(item, kind, self._cluster, self._parts) for item in items if name_of(item)[1]]

    async def _list_namespaces(self, kind: ServedKind, shape: type[Any], refusal: ApiServerError) -> list[Resource]:
        """Read a kind in those namespaces where this user may list it."""
        resources: list[Resource] = []
        read: list[str] = []
        for namespace in await self._known_namespaces():
            try:
                resources += await self._list(kind, shape, namespace)
                read.append(namespace)
            except ApiServerError as error:
                if error.code not in (403, 404):
                    raise
        unlisted = UnlistedKind(kind.kind, kind.group, "forbidden", refusal.message, tuple(read))
        self.unlisted.append(unlisted)
        return resources

    async def _known_namespaces(self) -> tuple[str, ...]:
        if self._namespaces is None:
            self._namespaces = asyncio.create_task(self._list_namespace_names())
        return await self._namespaces

    async def _list_namespace_names(self) -> tuple[str, ...]:
        from tierwall.cluster.shapes import MetadataObject

        kind = self._discovery.kinds["", "Namespace"][0]
        try:
            return tuple(resource.name for resource in await self._list(kind, MetadataObject))
        except ApiServerError:
            return (self._connection.access.namespace,)

    def _leave_out(self, key: KindKey, reason: str, message: str) -> None:
        self.unlisted.append(UnlistedKind(key[1], key[0], reason, message))


__all__ = ["ClusterRead", "as_resource", "read_cluster", "readable_version"]

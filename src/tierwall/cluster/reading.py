"""Reading a cluster once: the kinds that a question needs, side by side, in pages (docs/clusters.md#reading).

What this user may not list, and what did not answer, is said: it could have changed the answer. A kind that may not be
listed in all namespaces is listed in each of them. The result depends on the cluster alone, not on which answer comes
first.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import msgspec
from msgspec import Struct

from tierwall.cluster.connection import Connection
from tierwall.cluster.decoding import AnswerError, ItemReader, UndecodedObject, name_of
from tierwall.cluster.discovery import Discovery, ServedKind, discover
from tierwall.cluster.failures import ApiServerError, ClusterError, UnreachableError
from tierwall.cluster.origin import ClusterOrigin
from tierwall.cluster.pages import read_all
from tierwall.cluster.reflector import is_ready
from tierwall.cluster.shapes import MetadataObject
from tierwall.cluster.sharing import SharedParts, share_parts
from tierwall.resources.kinds.registry import find_kind
from tierwall.resources.resource import Resource
from tierwall.resources.unlisted import UnlistedKind
from tierwall.values.pattern import pattern

KindKey: TypeAlias = tuple[str, str]
Progress: TypeAlias = Callable[[str, int, int], None]

# So many lists are read at the same time; more would only wait for each other in the API server.
_LISTS_AT_ONCE = 8
# A server that has just started refuses what it allows a moment later.
_STARTING_SECONDS = 10.0
_LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
_NAME = pattern("[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_NAMESPACE: KindKey = ("", "Namespace")


class ClusterRead(Struct, frozen=True):
    """The objects of a cluster, what could not be read, the kinds that were, and the version of the server."""

    resources: tuple[Resource, ...]
    unlisted: tuple[UnlistedKind, ...]
    kinds: tuple[ServedKind, ...] = ()
    server_version: str = ""


class _VersionInfo(Struct, frozen=True, rename="camel"):
    git_version: str = ""


_VERSION = msgspec.json.Decoder(_VersionInfo)


async def read_cluster(
    connection: Connection,
    wanted: Mapping[KindKey, type[Any]],
    progress: Progress | None = None,
    namespaces: Collection[str] = (),
    *,
    with_version: bool = False,
) -> ClusterRead:
    """Read all objects of these kinds that the cluster has, and the version of the server if it is wanted.

    `namespaces` are those that the question names. They are read, and that of the context, if this user may list
    neither a kind nor the namespaces.
    """
    version = (await connection.get("/version")).decode(_VERSION).git_version if with_version else ""
    end = asyncio.get_running_loop().time() + _STARTING_SECONDS
    while True:
        read = await _read_once(connection, wanted, progress, namespaces)
        is_refused = any(entry.reason == "forbidden" for entry in read.unlisted)
        if not is_refused or asyncio.get_running_loop().time() > end or await is_ready(connection):
            return msgspec.structs.replace(read, server_version=version)
        await asyncio.sleep(0.5)


async def _read_once(
    connection: Connection,
    wanted: Mapping[KindKey, type[Any]],
    progress: Progress | None,
    namespaces: Collection[str],
) -> ClusterRead:
    discovery = await discover(connection)
    reader = _ClusterReader(connection, discovery, progress, namespaces)
    shapes = _expand(wanted, discovery)
    results = await asyncio.gather(*(reader.read(key, shapes[key]) for key in shapes))
    if not reader.has_answer and reader.failure is not None:
        raise reader.failure
    resources = tuple(resource for result in results for resource in result.resources)
    unlisted = sorted(entry for result in results for entry in result.unlisted)
    return ClusterRead(resources, tuple(unlisted), tuple(reader.kinds))


def _expand(wanted: Mapping[KindKey, type[Any]], discovery: Discovery) -> Mapping[KindKey, type[Any]]:
    """Replace `*`, which stands for all kinds of a group, by the kinds that are served; none if that is not known."""
    shapes: dict[KindKey, type[Any]] = {}
    for (group, name), shape in wanted.items():
        names = [name]
        if name == "*":
            names = sorted(kind for served, kind in discovery.kinds if served == group)
            names += [""] if group in discovery.stale else []
        for kind in names:
            shapes.setdefault((group, kind), shape)
    return shapes


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


class _KindRead(NamedTuple):
    resources: list[Resource]
    unlisted: tuple[UnlistedKind, ...] = ()


class _ClusterReader:
    def __init__(
        self,
        connection: Connection,
        discovery: Discovery,
        progress: Progress | None,
        namespaces: Collection[str],
    ) -> None:
        # Whether the server has answered any list, and why another one was not answered.
        self.has_answer = False
        self.failure: ClusterError | None = None
        # The kinds of which a list was answered.
        self.kinds: dict[ServedKind, None] = {}
        self._connection, self._discovery, self._progress = connection, discovery, progress
        self._cluster = connection.access.context or connection.access.server
        self._turn = asyncio.Semaphore(_LISTS_AT_ONCE)
        self._parts: SharedParts = {}
        self._named = sorted(filter(_NAME.fullmatch, {*namespaces, connection.access.namespace}))
        self._namespaces: asyncio.Task[tuple[tuple[str, ...], bool]] | None = None

    async def read(self, key: KindKey, shape: type[Any]) -> _KindRead:
        """Read the objects of one kind; none if the kind is not served."""
        group, name = key
        kind = readable_version(self._discovery.kinds.get(key, ()))
        if kind is None:
            if group not in self._discovery.stale:
                return _KindRead([])
            return _KindRead([], (UnlistedKind(name, group, "unavailable", "their API server does not answer"),))
        try:
            return _KindRead(await self._list(kind, shape))
        except (ClusterError, AnswerError) as error:
            if isinstance(error, ApiServerError) and error.code == 403:
                if key == _NAMESPACE:
                    return await self._get_namespaces(kind, shape, error)
                if kind.namespaced:
                    return await self._list_namespaces(kind, shape, error)
            reason, message = self._reason(error)
            entry = UnlistedKind(name, group, reason, message, is_namespaced=kind.namespaced)
            return _KindRead([], (entry,) if reason else ())

    def _reason(self, error: ClusterError | AnswerError) -> tuple[str, str]:
        """Return why a list has failed: the reason and the server's words. No reason if there is nothing to list."""
        if isinstance(error, ApiServerError):
            if error.code == 401:
                raise error
            self.has_answer = True
            # 404: removed since discovery.
            return {403: "forbidden", 404: ""}.get(error.code, "unavailable"), error.message
        if isinstance(error, UnreachableError):
            self.failure = self.failure or error
            return "unavailable", error.problem
        return "unavailable", str(error)

    async def _list(self, kind: ServedKind, shape: type[Any], namespace: str = "") -> list[Resource]:
        def report(read: int, total: int) -> None:
            if self._progress is not None:
                self._progress(f"reading {self._cluster}: {kind.plural}", read, total)

        async with self._turn:
            report(0, 0)
            everything = await read_all(
                self._connection, kind, ItemReader(shape), namespace, report, convert=partial(self._resources, kind)
            )
        self.has_answer = True
        self.kinds[kind] = None
        resources: list[Resource] = everything.items
        resources.sort(key=lambda resource: (resource.namespace, resource.name))
        return resources

    def _resources(self, kind: ServedKind, items: Iterable[Any]) -> list[Resource]:
        return [as_resource(item, kind, self._cluster, self._parts) for item in items if name_of(item)[1]]

    async def _list_namespaces(self, kind: ServedKind, shape: type[Any], refusal: ApiServerError) -> _KindRead:
        """Read a kind in those namespaces where this user may list it."""
        self.has_answer = True
        namespaces, are_all = await self._known_namespaces()
        resources: list[Resource] = []
        read: list[str] = []
        failed: dict[tuple[str, str], list[str]] = {}

        async def read_one(namespace: str) -> list[Resource] | tuple[str, str]:
            try:
                return await self._list(kind, shape, namespace)
            except (ClusterError, AnswerError) as error:
                reason, message = self._reason(error)
                return (reason, message if reason != "forbidden" else refusal.message) if reason else []

        results = await asyncio.gather(*map(read_one, namespaces))
        for namespace, result in zip(namespaces, results, strict=True):
            if isinstance(result, tuple):
                failed.setdefault(result, []).append(namespace)
            else:
                resources += result
                read.append(namespace)
        if not are_all:
            # There may be others.
            failed.setdefault(("forbidden", refusal.message), [])
        unlisted = []
        for (reason, message), missing in failed.items():
            is_everywhere = not read and (not are_all or len(failed) == 1)
            known = () if is_everywhere or (reason == "forbidden" and not are_all) else tuple(missing)
            unlisted.append(
                UnlistedKind(kind.kind, kind.group, reason, message, tuple(read), known, is_namespaced=True)
            )
        return _KindRead(resources, tuple(unlisted))

    async def _get_namespaces(self, kind: ServedKind, shape: type[Any], refusal: ApiServerError) -> _KindRead:
        """Read the namespaces that the question names, one by one: who has rights in one may mostly get it."""
        self.has_answer = True

        async def get_one(name: str) -> Any:
            try:
                reply = await self._connection.get(f"{kind.path()}/{name}")
                return ItemReader(shape).object(msgspec.Raw(reply.content))
            except (ClusterError, AnswerError):
                return None

        items = [item for item in await asyncio.gather(*map(get_one, self._named)) if item is not None]
        resources = self._resources(kind, items)
        names = tuple(resource.name for resource in resources)
        entry = UnlistedKind(kind.kind, kind.group, "forbidden", refusal.message, names, is_namespaced=True)
        return _KindRead(resources, (entry,))

    async def _known_namespaces(self) -> tuple[tuple[str, ...], bool]:
        """Return the namespaces, and whether these are all."""
        if self._namespaces is None:
            self._namespaces = asyncio.create_task(self._list_namespace_names())
        return await self._namespaces

    async def _list_namespace_names(self) -> tuple[tuple[str, ...], bool]:
        kind = readable_version(self._discovery.kinds.get(_NAMESPACE, ()))
        if kind is None:
            return tuple(self._named), False
        try:
            return tuple(resource.name for resource in await self._list(kind, MetadataObject)), True
        except (ClusterError, AnswerError):
            return tuple(self._named), False


__all__ = ["ClusterRead", "as_resource", "read_cluster", "readable_version"]

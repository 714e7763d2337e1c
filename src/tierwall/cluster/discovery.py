"""The kinds that an API server serves: its aggregated discovery, or the plain one of older servers (docs/clusters.md).

A group whose server does not answer is "stale" there: its kinds are unknown, not absent. So is a group with a name that
no API server would accept: an extension server names its own resources, and `../../../api/v1/secrets` leads to others.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TypeAlias

import msgspec
from msgspec import Struct

from tierwall.cluster.connection import Connection
from tierwall.cluster.failures import ApiServerError
from tierwall.cluster.reply import ServerReply
from tierwall.values.pattern import pattern

KindKey: TypeAlias = tuple[str, str]

_AGGREGATED = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
_ACCEPT = f"{_AGGREGATED},application/json"
_NAME = pattern(r"[A-Za-z0-9](?:[-_.A-Za-z0-9]*[A-Za-z0-9])?")


class ServedKind(Struct, frozen=True):
    """One version of a kind that an API server serves."""

    group: str
    version: str
    kind: str
    plural: str
    namespaced: bool
    verbs: frozenset[str]

    def path(self, namespace: str = "") -> str:
        """Return the path of the objects of this kind, in all namespaces or in one."""
        prefix = f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"
        return f"{prefix}/namespaces/{namespace}/{self.plural}" if namespace else f"{prefix}/{self.plural}"

    @property
    def is_named_well(self) -> bool:
        """Whether its names are names: its path then leads to its own objects."""
        return all(_NAME.fullmatch(name) is not None for name in (self.group or "core", self.version, self.plural))

    @property
    def api_version(self) -> str:
        """`group/version`, or the version alone for the core group."""
        return f"{self.group}/{self.version}" if self.group else self.version


class Discovery(Struct, frozen=True):
    """The kinds that are served, preferred version first, and the groups whose servers do not answer."""

    kinds: Mapping[KindKey, tuple[ServedKind, ...]]
    stale: frozenset[str] = frozenset()


class _ResponseKind(Struct, frozen=True):
    kind: str = ""


class _Resource(Struct, frozen=True, rename="camel"):
    resource: str = ""
    response_kind: _ResponseKind | None = None
    scope: str = ""
    verbs: tuple[str, ...] | None = None


class _Version(Struct, frozen=True):
    version: str = ""
    resources: tuple[_Resource, ...] | None = None
    freshness: str = ""


class _Metadata(Struct, frozen=True):
    name: str = ""


class _Group(Struct, frozen=True):
    metadata: _Metadata = _Metadata()
    versions: tuple[_Version, ...] | None = None


class _GroupList(Struct, frozen=True):
    items: tuple[_Group, ...] | None = None


class _PlainVersion(Struct, frozen=True, rename="camel"):
    group_version: str = ""
    version: str = ""


class _PlainGroup(Struct, frozen=True, rename="camel"):
    name: str = ""
    versions: tuple[_PlainVersion, ...] | None = None
    preferred_version: _PlainVersion = _PlainVersion()


class _PlainGroups(Struct, frozen=True):
    groups: tuple[_PlainGroup, ...] | None = None


class _PlainVersions(Struct, frozen=True):
    versions: tuple[str, ...] | None = None


class _PlainResource(Struct, frozen=True):
    name: str = ""
    kind: str = ""
    namespaced: bool = False
    verbs: tuple[str, ...] | None = None


class _PlainResources(Struct, frozen=True):
    resources: tuple[_PlainResource, ...] | None = None


_GROUPS = msgspec.json.Decoder(_GroupList)
_PLAIN_GROUPS = msgspec.json.Decoder(_PlainGroups)
_PLAIN_VERSIONS = msgspec.json.Decoder(_PlainVersions)
_PLAIN_RESOURCES = msgspec.json.Decoder(_PlainResources)


async def discover(connection: Connection) -> Discovery:
    """Ask which kinds are served."""
    kinds: dict[KindKey, list[ServedKind]] = {}
    stale: set[str] = set()
    for path in ("/api", "/apis"):
        reply = await connection.get(path, accept=_ACCEPT)
        if "apidiscovery.k8s.io" not in reply.content_type:
            await _discover_plainly(connection, path, reply, kinds, stale)
            continue
        for group in reply.decode(_GROUPS).items or ():
            for version in group.versions or ():
                if version.freshness == "Stale":
                    stale.add(group.metadata.name)
                for served in _aggregated(group.metadata.name, version):
                    _note(served, kinds, stale)
    return Discovery({key: tuple(versions) for key, versions in kinds.items()}, frozenset(stale))


def _note(served: ServedKind, kinds: dict[KindKey, list[ServedKind]], stale: set[str]) -> None:
    if served.is_named_well:
        kinds.setdefault((served.group, served.kind), []).append(served)
    else:
        stale.add(served.group)


def _aggregated(group: str, version: _Version) -> Iterator[ServedKind]:
    for resource in version.resources or ():
        if resource.response_kind is not None and resource.resource and resource.response_kind.kind:
            verbs = frozenset(resource.verbs or ())
            kind = resource.response_kind.kind
            yield ServedKind(group, version.version, kind, resource.resource, resource.scope == "Namespaced", verbs)


async def _discover_plainly(
    connection: Connection, path: str, reply: ServerReply, kinds: dict[KindKey, list[ServedKind]], stale: set[str]
) -> None:
    """Ask group by group, as servers before 1.30 need it."""
    if path == "/api":
        group_versions = [("", version) for version in reply.decode(_PLAIN_VERSIONS).versions or ()]
    else:
        group_versions = [
            (group.name, version.version)
            for group in reply.decode(_PLAIN_GROUPS).groups or ()
            # The preferred version first; the order of the others stays.
            for version in sorted(group.versions or (), key=lambda version: version != group.preferred_version)
        ]
    for group, version in group_versions:
        try:
            listed = await connection.get(f"{path}/{group}/{version}" if group else f"{path}/{version}")
        except ApiServerError as error:
            if error.code < 500:
                raise
            stale.add(group)
            continue
        for resource in listed.decode(_PLAIN_RESOURCES).resources or ():
            if "/" not in resource.name:
                served = ServedKind(
                    group, version, resource.kind, resource.name, resource.namespaced, frozenset(resource.verbs or ())
                )
                _note(served, kinds, stale)

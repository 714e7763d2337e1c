"""Versions of known kinds that no supported API server serves (docs/reference/sources.md#versions-that-are-not-served).

`data/kubernetes.json` lists the kinds of Kubernetes and Gateway API, and the versions that Kubernetes has removed, with
the group that their kinds moved to. Any other version of a known kind never was. Workloads in such a version are read
like those of today; policies take no part, except those that close what they guard (`_CLOSING`). A
CustomResourceDefinition among the objects may still serve the version.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache, lru_cache

import msgspec

from tierwall.resources.kinds.registry import Scope, find_kind, is_built_in, judged_kinds, read_data, versions_of

RBAC = "rbac.authorization.k8s.io"
_ROUTES = "route.openshift.io"
# Policies of these groups fail closed as a whole (docs/semantics.md#an-invalid-policy-closes-its-targets).
_CLOSING = frozenset({"agentic.networking.x-k8s.io", "agentic.prototype.x-k8s.io", "tierwall.io"})


class KindsOfGroup(msgspec.Struct, frozen=True):
    """The kinds of one API group, by scope."""

    group: str
    namespaced: tuple[str, ...] = ()
    cluster: tuple[str, ...] = ()


class RetiredGroup(msgspec.Struct, frozen=True, rename="camel"):
    """A version that Kubernetes has removed: the group that serves its kinds today, and the release without it."""

    api_version: str
    home: str
    kinds: tuple[str, ...]
    removed: str


class KubernetesTable(msgspec.Struct, frozen=True):
    """The content of `data/kubernetes.json`."""

    kinds: tuple[KindsOfGroup, ...]
    retired: tuple[RetiredGroup, ...]


@cache
def _table() -> KubernetesTable:
    return msgspec.convert(read_data("kubernetes.json"), KubernetesTable)


@cache
def _scopes() -> dict[tuple[str, str], Scope]:
    scopes: dict[tuple[str, str], Scope] = {}
    for line in _table().kinds:
        scopes |= {(line.group, kind): "Namespaced" for kind in line.namespaced}
        scopes |= {(line.group, kind): "Cluster" for kind in line.cluster}
    return scopes


def is_kubernetes_group(group: str) -> bool:
    """Whether a group is built into Kubernetes, today or before."""
    return any(line.group == group for line in _table().kinds if line.group != _ROUTES) or group == "extensions"


def is_kubernetes_kind(group: str, kind: str) -> bool:
    """Whether Kubernetes or Gateway API has a kind, today or in a version that was removed."""
    return (group, kind) in _scopes() or home_group(group, kind) != group


def _takes_no_part(group: str, kind: str) -> bool:
    """Whether a known kind is of policies (`…Policy`, GEP-713, and RBAC) that do not close what they guard."""
    return (kind.endswith("Policy") and group not in _CLOSING) or group == RBAC


def home_group(group: str, kind: str) -> str:
    """Return the group that a kind is in today; the group itself if it did not move."""
    return next(
        (
            version.home
            for version in (_table().retired if not is_built_in(group, kind) else ())
            if version.api_version.partition("/")[0] == group and kind in version.kinds
        ),
        group,
    )


@lru_cache(maxsize=4096)
def scope_of(api_version: str, kind: str) -> Scope | None:
    """Return the scope of a kind of Kubernetes, Gateway API, Tierwall or another system; None if it is unknown."""
    known = find_kind(api_version, kind)
    if known is not None:
        return known.scope
    group = home_group(api_version.rpartition("/")[0], kind)
    if is_built_in(group, kind):
        return next(iter(versions_of(group, kind).values())).scope
    return _scopes().get((group, kind)) or ("Namespaced" if kind in foreign_kinds(group, "namespaced") else None)


def has_cluster_scope(group: str, names: Iterable[str]) -> bool:
    """Whether a kind of Kubernetes, Gateway API or Tierwall with one of some names in lower case has no namespace."""
    return any((group, name) in _cluster_kinds() for name in names)


@cache
def _cluster_kinds() -> frozenset[tuple[str, str]]:
    scopes = _scopes() | {
        (group, kind): version.scope
        for group, kinds in judged_kinds().items()
        for kind in kinds
        for version in versions_of(group, kind).values()
    }
    return frozenset((group, kind.lower()) for (group, kind), scope in scopes.items() if scope == "Cluster")


@lru_cache(maxsize=256)
def foreign_kinds(group: str, *scopes: str) -> frozenset[str]:
    """Return the kinds of a group in the table of foreign kinds that are `namespaced`, or apply `everywhere`."""
    lines = read_data("foreign.json")
    return frozenset(
        kind for line in lines if line["group"] == group for scope in scopes for kind in line.get(scope, ())
    )


@lru_cache(maxsize=4096)
def storage_key(group: str, version: str, kind: str) -> tuple[str, str]:
    """Return the group and kind by which a snapshot finds objects of a version.

    Kinds that are only read are found in their group of today. Policies in a version that is not served are found by
    nobody who asks for a group: theirs is `group/version`.
    """
    api_version = f"{group}/{version}" if group else version
    home = home_group(group, kind)
    if not is_built_in(home, kind) or find_kind(api_version, kind) is not None:
        return group, kind
    if _takes_no_part(home, kind):
        return f"{group}/{version}", kind
    return (home, kind) if _is_only_read(home, kind) else (group, kind)


def is_set_aside(key: tuple[str, str]) -> bool:
    """Whether a key of `storage_key` is of policies that take no part."""
    return "/" in key[0]


class UnservedKind(msgspec.Struct, frozen=True):
    """A version of a known kind that is not served: whether its objects take no part or are read, and what to do."""

    takes_no_part: bool
    is_read: bool
    hint: str


def unserved_version(api_version: str, kind: str) -> UnservedKind | None:
    """Return what is wrong with the version of a known kind; None if the kind is unknown or the version is served."""
    group = api_version.rpartition("/")[0]
    home = home_group(group, kind)
    if not is_built_in(home, kind) or find_kind(api_version, kind) is not None:
        return None
    served = " or ".join(f"`{version}`" for version in versions_of(home, kind))
    hint = f"use apiVersion {served}"
    removed = next(
        (line.removed for line in _table().retired if line.api_version == api_version and kind in line.kinds), None
    )
    if removed:
        hint += f": Kubernetes {removed} removed `{api_version}`"
    no_part, is_read = _takes_no_part(home, kind), _is_only_read(home, kind)
    if no_part:
        hint += "; until then the policy takes no part"
    elif is_read:
        hint += "; the object is read all the same"
    return UnservedKind(no_part, is_read, hint)


def _is_only_read(group: str, kind: str) -> bool:
    return any(not version.strict for version in versions_of(group, kind).values())

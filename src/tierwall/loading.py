"""Reading a world: files, text, plain objects, and a cluster below them (docs/python-api.md)."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, get_args

from tierwall.core.diagnostics import Diagnostic, InputError
from tierwall.core.words import as_given
from tierwall.resources.load import LoadResult, LoadSettings, load_text
from tierwall.resources.load import load as load_paths
from tierwall.resources.snapshot import BackendRefGrants
from tierwall.world import Path, World, strings

if TYPE_CHECKING:
    from tierwall.cluster.cluster import Cluster
    from tierwall.core.protocols import Progress


def load(
    *paths: Path,
    objects: Iterable[Mapping[str, Any]] = (),
    namespace: str | None = None,
    exclude: Sequence[str] = (),
    cluster: Cluster | None = None,
    strict: bool = False,
    progress: Progress | None = None,
    backend_ref_grants: BackendRefGrants = "route",
) -> World:
    """Read a cluster if one is given, files and folders over it, then plain objects over them.

    InputError has everything that cannot be read. Objects that an API server would refuse are in `World.diagnostics`
    and are judged all the same: what they guard fails closed. `strict` raises where something was not considered.
    `namespace` is that of names and objects without one: if none is given, that of the context or of a snapshot among
    the files, or else `default`. `backend_ref_grants` says which references to backends elsewhere need a
    ReferenceGrant: those of routes, or with `strict` also those of agentgateway's policies and backends.
    """
    if backend_ref_grants not in (known := get_args(BackendRefGrants)):
        message = f"expected one of {', '.join(known)} as `backend_ref_grants`, found {as_given(backend_ref_grants)}"
        raise InputError([Diagnostic("TW703", message)])
    access = cluster.access() if cluster is not None else None
    namespace = namespace or (access.namespace if access is not None else "")
    settings = LoadSettings(namespace, strings(exclude), backend_ref_grants=backend_ref_grants)
    loaded = load_paths([os.fspath(path) for path in paths], settings)
    if cluster is not None:
        from tierwall.cluster.load import lay_over, load_cluster

        named = {namespace, *(resource.namespace for resource in loaded.resources)}
        live = load_cluster(cluster, access=access, progress=progress, namespaces=named)
        loaded = lay_over(live.with_backend_ref_grants(backend_ref_grants), loaded)
    return _world(loaded, objects, strict)


def loads(
    text: str | bytes,
    name: str = "<text>",
    *,
    objects: Iterable[Mapping[str, Any]] = (),
    namespace: str | None = None,
    strict: bool = False,
) -> World:
    """Read a string as `load` reads a file; `name` stands for the file in positions."""
    return _world(load_text(text, name, namespace or ""), objects, strict)


def _world(loaded: LoadResult, objects: Iterable[Mapping[str, Any]], strict: bool) -> World:
    if loaded.errors:
        raise InputError(loaded.errors)
    from tierwall.resources.plain_objects import objects_over

    world = World.of(loaded).with_snapshot(objects_over(loaded.snapshot, objects, loaded.namespace))
    left_out = [entry for entry in world.not_considered if not entry.is_harmless] if strict else []
    if left_out:
        raise InputError(Diagnostic("TW703", f"not considered: {entry}", hint=entry.effect) for entry in left_out)
    return world

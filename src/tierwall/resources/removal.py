"""Leave objects out as if they were not there (`--without`, `World.without`; docs/reference/sources.md)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tierwall.core.diagnostics import Diagnostic, input_error
from tierwall.core.reference import Reference, full_reference
from tierwall.resources.finder import ResourceFinder
from tierwall.resources.resource import Resource
from tierwall.resources.snapshot import Snapshot


def find_named(
    snapshot: Snapshot, reference: str | Reference, namespace: str, problems: list[Diagnostic]
) -> Resource | None:
    """Find what a reference names: without a namespace, a cluster-scoped object, or else one in `namespace`."""
    text = str(reference)
    full = full_reference(text, namespace)
    if full != text and snapshot.find(Reference.parse(text)) is None:
        resource = snapshot.find(Reference.parse(full))
        if resource is not None:
            return resource
    return ResourceFinder(snapshot, problems).by_any_reference(reference)


def without(
    snapshots: Sequence[Snapshot], references: Iterable[str | Reference], namespace: str
) -> tuple[Snapshot, ...]:
    """Return snapshots without some objects. UnknownName if an object is in none of them."""
    gone: list[list[Resource]] = [[] for _ in snapshots]
    unknown: list[Diagnostic] = []
    for reference in references:
        problems: list[Diagnostic] = []
        named = [find_named(snapshot, reference, namespace, problems) for snapshot in snapshots]
        if not any(named):
            unknown += problems[:1]
        for resources, resource in zip(gone, named, strict=True):
            if resource is not None:
                resources.append(resource)
    if unknown:
        raise input_error(unknown)
    pairs = zip(snapshots, gone, strict=True)
    return tuple(snapshot.with_changes(drop=resources) if resources else snapshot for snapshot, resources in pairs)


def without_those_known(snapshot: Snapshot, references: Iterable[str | Reference], namespace: str) -> Snapshot:
    """Return a snapshot without some objects, which may come and go."""
    named = (find_named(snapshot, reference, namespace, []) for reference in references)
    gone = [resource for resource in named if resource is not None]
    return snapshot.with_changes(drop=gone) if gone else snapshot

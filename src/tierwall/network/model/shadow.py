"""Policies that are only watched: annotation `tierwall.io/mode: shadow`.

They take no part in any decision. The kernel counts and logs what they would do, and `explain` says it.
"""

from __future__ import annotations

from collections.abc import Iterator

from tierwall.core.diagnostics import Diagnostic
from tierwall.network.model import admin, networkpolicy
from tierwall.resources.resource import Resource
from tierwall.resources.snapshot import Snapshot

ANNOTATION, MODE = "tierwall.io/mode", "shadow"

_POLICIES = (
    *((admin.GROUP, kind) for kind in (admin.ADMIN, admin.BASELINE, admin.CLUSTER)),
    (networkpolicy.GROUP, networkpolicy.KIND),
)


def is_shadow(resource: Resource) -> bool:
    """Whether a policy is only watched."""
    annotations = resource.metadata.get("annotations")
    return isinstance(annotations, dict) and annotations.get(ANNOTATION) == MODE


def watched(snapshot: Snapshot) -> list[Resource]:
    """The network policies that are only watched."""
    return [one for place in _POLICIES for one in snapshot.of_kind(*place) if is_shadow(one)]


def enforced(snapshot: Snapshot) -> Snapshot:
    """The snapshot without policies that are only watched."""
    found = watched(snapshot)
    return snapshot.changed(drop=found) if found else snapshot


def notes(snapshot: Snapshot) -> Iterator[Diagnostic]:
    """A note for every network policy that is only watched."""
    for one in watched(snapshot):
        yield Diagnostic(
            "TW209",
            f"{one.reference} is in shadow mode: it is watched, and no connection is judged by it",
            one.position(("metadata", "annotations", ANNOTATION), key=True),
            reference=one.reference,
        )

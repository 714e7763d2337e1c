"""Policies that are only watched: annotation `tierwall.io/mode: shadow`.

They are compiled to lines that count and log, and take no part in what is enforced.
"""

from __future__ import annotations

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


def enforced(snapshot: Snapshot) -> Snapshot:
    """The snapshot without policies that are only watched."""
    watched = [one for place in _POLICIES for one in snapshot.of_kind(*place) if is_shadow(one)]
    return snapshot.changed(drop=watched) if watched else snapshot

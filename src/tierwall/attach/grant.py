"""ReferenceGrant: whether an object may refer to an object of another namespace (Gateway API)."""

from __future__ import annotations

from tierwall.attach.place import GATEWAY_API, Place
from tierwall.attach.section import maps
from tierwall.resources.resource import Resource
from tierwall.resources.snapshot import Snapshot


def permitted(snapshot: Snapshot, source: Resource, target: Place) -> bool:
    """Whether `source` may refer to `target`: in its own namespace always, elsewhere if a grant there says so."""
    if source.namespace == target.namespace:
        return True
    for grant in snapshot.in_namespace(GATEWAY_API, "ReferenceGrant", target.namespace):
        from_here = any(
            (one.get("group"), one.get("kind"), one.get("namespace")) == (source.group, source.kind, source.namespace)
            for one in maps(grant.spec.get("from"))
        )
        to_there = any(
            (one.get("group"), one.get("kind")) == target.key and one.get("name") in (None, "", target.name)
            for one in maps(grant.spec.get("to"))
        )
        if from_here and to_there:
            return True
    return False

"""Find what an invalid AccessPolicy may have guarded although its targets cannot be read.

docs/semantics.md#an-invalid-policy-closes-its-targets. An entry of `targetRefs` that can be read names its target, also
in an invalid policy (`target`). What cannot be read may have named any Gateway or backend in the namespace of the
policy: those with its name if the name can be read, or else all of them. A valid policy closes nothing in this way. The
limits of a target count only the policies that name it, so that an invalid policy cannot push out a valid one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from tierwall.attach.place import GATEWAY, Place
from tierwall.attach.target import ACCESS_GROUPS
from tierwall.resources.once import per_resource
from tierwall.resources.resource import Resource
from tierwall.resources.snapshot import Snapshot
from tierwall.values.names import dns_subdomain

BACKEND_KINDS = tuple((group, "XBackend") for group in ACCESS_GROUPS)
# The kinds that an AccessPolicy guards. The current API version accepts any other kind as well.
GUARDED = (GATEWAY, *BACKEND_KINDS)
MAX_NAME = 253


class ClosingScope(NamedTuple):
    """The Gateways and backends in a namespace that unreadable entries may have named: all, or those of some names."""

    names: frozenset[str] = frozenset()
    everything: bool = False

    def covers(self, place: Place) -> bool:
        """Whether an object of the policy's namespace is in the scope."""
        return (self.everything or place.name in self.names) and place.key in GUARDED


NO_SCOPE = ClosingScope()


@per_resource
def closing_scope(policy: Resource) -> ClosingScope:
    """Return what the unreadable entries of an AccessPolicy may have named, if the policy is invalid."""
    entries = policy.spec.get("targetRefs")
    if not isinstance(entries, list) or not entries:
        return ClosingScope(everything=True)
    names = set()
    for entry in entries:
        name = entry.get("name") if isinstance(entry, Mapping) else None
        if not isinstance(name, str) or not 0 < len(name) <= MAX_NAME:
            return ClosingScope(everything=True)
        if not _is_readable(policy, entry):
            names.add(name)
    return ClosingScope(frozenset(names)) if names else NO_SCOPE


def _is_readable(policy: Resource, entry: Mapping[str, Any]) -> bool:
    """Whether an entry says which object it names, and which section of it."""
    key = entry.get("group"), entry.get("kind")
    # In the older versions a policy guards the backends of its own group only.
    if key not in GUARDED or (policy.version == "v0alpha0" and key not in (GATEWAY, (policy.group, "XBackend"))):
        return False
    section = entry.get("sectionName")
    return entry.get("port") is None and (
        section is None or (isinstance(section, str) and section != "" and not dns_subdomain(section))
    )


def closed_places(snapshot: Snapshot, policy: Resource) -> Iterator[Place]:
    """Yield the objects that an invalid policy closes besides its targets, by kind and name."""
    scope = closing_scope(policy)
    if scope == NO_SCOPE:
        return
    for group, kind in GUARDED:
        for resource in sorted(
            snapshot.in_namespace(group, kind, policy.namespace), key=lambda resource: resource.name
        ):
            if scope.covers(place := Place.of(resource)):
                yield place

"""What a policy targets: `targetRefs` by name, `targetSelectors` by label, always in the policy's own namespace.

One reading for AgentgatewayPolicy and AccessPolicy. Several entries that name one place are one target
(docs/semantics.md#equal-precedence-is-a-conflict). Policies that admission refuses are read as far as they can be,
because the tool plane closes what such a policy was meant to guard.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from tierwall.attach.place import INFERENCE_POOL, SERVICE, Place, service_port
from tierwall.core.labels import Requirement, Selector
from tierwall.resources.resource import Resource
from tierwall.resources.snapshot import Snapshot


class Entry(NamedTuple):
    """One entry of `targetRefs` (`name`) or `targetSelectors` (`selector`) as it was written."""

    group: str
    kind: str
    section: str
    port: int
    path: tuple[str | int, ...]
    name: str = ""
    selector: Selector | None = None


class Target(NamedTuple):
    """A place that a policy targets; `resource` is None where there is no such object."""

    place: Place
    resource: Resource | None
    path: tuple[str | int, ...]


def entries(policy: Resource) -> Iterator[Entry]:
    """The entries of both lists, in order; what cannot be read is left out."""
    for field in ("targetRefs", "targetSelectors"):
        listed = policy.spec.get(field)
        for index, value in enumerate(listed if isinstance(listed, list) else ()):
            if isinstance(value, dict) and (entry := _entry(field, index, value)) is not None:
                yield entry


def _entry(field: str, index: int, value: Mapping[str, Any]) -> Entry | None:
    group, kind = value.get("group", ""), value.get("kind")
    if not isinstance(group, str) or not isinstance(kind, str):
        return None
    section, port = value.get("sectionName"), value.get("port")
    section = section if isinstance(section, str) else ""
    port = port if type(port) is int else 0
    if (group, kind) == SERVICE and section:
        section = service_port(section)
    if (group, kind) == INFERENCE_POOL:
        section = ""  # a pool has no sections: the name is ignored (docs/gateway.md#where-a-policy-attaches)
    path = ("spec", field, index)
    if field == "targetRefs":
        name = value.get("name")
        return Entry(group, kind, section, port, path, name) if isinstance(name, str) and name else None
    labels = value.get("matchLabels")
    if not isinstance(labels, dict) or not all(isinstance(text, str) for text in labels.values()):
        return None
    requirements = sorted(Requirement(key, "In", (text,)) for key, text in labels.items())
    return Entry(group, kind, section, port, path, selector=Selector(tuple(requirements)))


def resolve(snapshot: Snapshot, policy: Resource, entry: Entry) -> tuple[Target, ...]:
    """The targets of one entry; a selector that selects nothing has none."""
    if entry.selector is None:
        place = Place(entry.group, entry.kind, policy.namespace, entry.name, entry.section, entry.port)
        return (Target(place, place.resource(snapshot), entry.path),)
    found = snapshot.selected(entry.group, entry.kind, entry.selector, policy.namespace)
    return tuple(
        Target(Place.of(one, entry.section, entry.port), one, entry.path)
        for one in sorted(found, key=lambda one: one.name)
    )


def targets(snapshot: Snapshot, policy: Resource) -> tuple[Target, ...]:
    """All targets of a policy, each place once."""
    found: dict[Place, Target] = {}
    for entry in entries(policy):
        for target in resolve(snapshot, policy, entry):
            found.setdefault(target.place, target)
    return tuple(found.values())

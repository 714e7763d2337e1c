"""The targets that a refused AgentgatewayPolicy may have been about (docs/gateway.md#obeyed-by-run).

Nobody knows what such a policy would have restricted, so it closes its targets. An entry that lacks its group, or names
a port of a Service by a word, attaches to nothing: it still says what was meant. What cannot be read of an entry may
have been anything in the namespace of the policy.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from tierwall.attach.place import (
    BACKEND,
    GATEWAY,
    INFERENCE_POOL,
    LISTENER_SET,
    ROUTES,
    SERVICE,
    Place,
    service_port,
)
from tierwall.core.labels import EVERYTHING, Selector, SelectorError
from tierwall.resources.once import per_resource
from tierwall.resources.resource import Resource
from tierwall.resources.snapshot import Snapshot

# The kinds that such policies can be about.
KINDS = frozenset(kind for _, kind in (GATEWAY, LISTENER_SET, *ROUTES, SERVICE, BACKEND, INFERENCE_POOL))


class MeantTarget(NamedTuple):
    """Objects in the namespace of a policy, of which it means the whole, or one section or port."""

    # Empty for every kind, and for every name.
    kind: str = ""
    name: str = ""
    selector: Selector = EVERYTHING
    section: str = ""
    port: int = 0

    def is_object(self, place: Place, labels: Mapping[str, str]) -> bool:
        """Whether it may mean the object of a place, which has these labels, or a part of it."""
        return self.kind in ("", place.kind) and self.name in ("", place.name) and self.selector.matches(labels)

    def is_part(self, place: Place) -> bool:
        """Whether it means this section or port of the object, or the whole if the place is that."""
        return (self.section, self.port) == (place.section, place.port)


@per_resource
def meant_targets(policy: Resource) -> tuple[MeantTarget, ...]:
    """Return what the entries of a policy may mean; without any entry, everything in its namespace."""
    return tuple(_meant(policy)) or (MeantTarget(),)


def may_mean(snapshot: Snapshot, policy: Resource, places: Iterable[Place], *, whole: bool = False) -> bool:
    """Whether a policy may be about one of these places; `whole` says that any part of their objects will do."""
    for place in places:
        if place.namespace == policy.namespace:
            resource = place.resource(snapshot)
            labels = resource.labels if resource is not None else {}
            for target in meant_targets(policy):
                if target.is_object(place, labels) and (whole or target.is_part(place)):
                    return True
    return False


def _meant(policy: Resource) -> Iterator[MeantTarget]:
    for field in ("targetRefs", "targetSelectors"):
        entries = policy.spec.get(field)
        for entry in entries if isinstance(entries, list) else () if entries is None else (entries,):
            if not isinstance(entry, Mapping):
                yield MeantTarget()
                continue
            kind = entry.get("kind")
            # Of a kind that cannot be read: what would be a port of a Service may be a section of something else.
            kinds = (kind,) if isinstance(kind, str) and kind in KINDS else ("", SERVICE[1])
            yield from (_target(entry, each) for each in kinds)


def _target(entry: Mapping[str, Any], kind: str) -> MeantTarget:
    name, section, port = entry.get("name"), entry.get("sectionName"), entry.get("port")
    section = str(section) if isinstance(section, str) or type(section) is int else ""
    port = port if type(port) is int else 0
    if kind == SERVICE[1]:
        section = number if (number := service_port(section)).isascii() and number.isdigit() else ""
    if kind == INFERENCE_POOL[1] or (section and port):
        section, port = "", 0
    try:
        selector = Selector.parse({"matchLabels": entry.get("matchLabels")})
    except SelectorError:
        selector = EVERYTHING
    return MeantTarget(kind, name if isinstance(name, str) else "", selector, section, port)

"""Where the settings of an object are written.

To find one position is to read the object's text again, and `effective --all` shows the same few settings at every
place; so all settings of an object are found together, when the first of them is shown.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from tierwall.attach.backend import backend_refs
from tierwall.attach.place import BACKEND, ROUTES
from tierwall.attach.section import sub_backends
from tierwall.attach.target import GATEWAY_POLICIES
from tierwall.core.source import Path, Position
from tierwall.gateway.model.fields import SECTIONS, written
from tierwall.gateway.model.profile import Section
from tierwall.resources.once import per_resource
from tierwall.resources.resource import Resource


class SettingsOf(NamedTuple):
    """An object as the origin of its settings, each of which stands where its key does: at `timeouts:`."""

    resource: Resource

    def position(self, path: Path = (), key: bool = True) -> Position | None:
        """Where the setting at `path` is written."""
        place = tuple(path)
        positions = _positions(self.resource)
        return positions[place] if place in positions else self.resource.position(place, key=True)


@per_resource
def _positions(resource: Resource) -> Mapping[tuple[str | int, ...], Position | None]:
    return {
        path: resource.position(path, key=True)
        for prefix, section, value in _sections(resource)
        for path in dict.fromkeys((*prefix, *said.path) for said in written(section, value))
    }


def _sections(resource: Resource) -> Iterator[tuple[tuple[str | int, ...], Section, object]]:
    """The sections of a policy, and the inline sections of a backend or a route; each with where it stands."""
    kind = resource.group, resource.kind
    if kind in GATEWAY_POLICIES:
        yield from ((("spec", section), section, resource.spec.get(section)) for section in SECTIONS)
    elif kind == BACKEND:
        yield ("spec", "policies"), "backend", resource.spec.get("policies")
        yield from ((sub.path, "backend", sub.policies) for sub in sub_backends(resource))
    elif kind in ROUTES:
        yield from (((*ref.path, "policies"), "backend", ref.value.get("policies")) for ref in backend_refs(resource))

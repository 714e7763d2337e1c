"""The references to backends inside policies and backends: authorization services, rate limits, MCP servers, traces."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from tierwall.attach.backend import refer
from tierwall.attach.grant import permitted
from tierwall.attach.place import Place
from tierwall.resources.resource import Resource
from tierwall.resources.snapshot import Snapshot

_DEEPEST = 40  # levels; no schema goes as deep


class Nested(NamedTuple):
    """A `backendRef` somewhere in an object; `port` is 0 where it names none."""

    owner: Resource
    place: Place
    port: int
    path: tuple[str | int, ...]

    def problem(self, snapshot: Snapshot) -> tuple[str, str] | None:
        """The reason and message of `ResolvedRefs` where the reference does not lead anywhere."""
        name = f"{self.place.kind} {self.place.namespace}/{self.place.name}"
        if not permitted(snapshot, self.owner, self.place):
            return "RefNotPermitted", f"no ReferenceGrant in namespace {self.place.namespace} permits {name}"
        if self.place.resource(snapshot) is None:
            return "BackendNotFound", f"{name} not found"
        return None


def nested_refs(owner: Resource) -> Iterator[Nested]:
    """Every `backendRef` inside an object's spec."""
    yield from _inside(owner, owner.spec, ("spec",))


def _inside(owner: Resource, value: object, path: tuple[str | int, ...]) -> Iterator[Nested]:
    if len(path) > _DEEPEST:
        return
    if isinstance(value, list):
        for index, item in enumerate(value):
            yield from _inside(owner, item, (*path, index))
    elif isinstance(value, dict):
        for key, item in value.items():
            if key == "backendRef" and isinstance(item, dict):
                place = refer(item, owner.namespace)
                if place is not None:
                    port = item.get("port", value.get("port"))  # an MCP target has its port beside the reference
                    yield Nested(owner, place, port if type(port) is int else 0, (*path, key))
            else:
                yield from _inside(owner, item, (*path, key))

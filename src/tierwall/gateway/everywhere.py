"""Every place that a request can reach: each way from a listener through a route's rule to a backend."""

from __future__ import annotations

from collections.abc import Iterator

from tierwall.attach.listener import gateway_listeners
from tierwall.attach.place import BACKEND, INFERENCE_POOL, SERVICE
from tierwall.attach.reach import Way, reach
from tierwall.attach.section import sub_backends
from tierwall.gateway.levels import Asked
from tierwall.resources.snapshot import Snapshot

_BACKENDS = (SERVICE, BACKEND, INFERENCE_POOL)


def ways(snapshot: Snapshot) -> Iterator[Asked]:
    """The places, in a fixed order; a listener without routes is a place of its own."""
    used = set()
    for way in reach(snapshot).ways():
        used.add((id(way.gateway), id(way.listener.owner), way.listener.number))
        yield from _along(snapshot, way)
    for gateway in reach(snapshot).gateways_all:
        for listener in gateway_listeners(snapshot, gateway):
            if (id(gateway), id(listener.owner), listener.number) not in used:
                added = None if listener.owner is gateway else listener.owner
                yield Asked(gateway, added, listener)


def _along(snapshot: Snapshot, way: Way) -> Iterator[Asked]:
    added = None if way.listener.owner is way.gateway else way.listener.owner
    here = Asked(way.gateway, added, way.listener, way.routes[-1], way.rule)
    backend = way.backend.place.resource(snapshot) if way.backend is not None else None
    if way.backend is None or backend is None or way.backend.place.key not in _BACKENDS:
        yield here
        return
    here = here._replace(backend=backend)
    if way.backend.place.key == SERVICE:
        yield here._replace(section=str(way.backend.port) if way.backend.port else "")
        return
    names = tuple(dict.fromkeys(one.name for one in sub_backends(backend))) if way.backend.place.key == BACKEND else ()
    for name in names or ("",):
        yield here._replace(section=name)

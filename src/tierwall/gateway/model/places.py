"""Every place that a request can reach, each way from a listener by a route's rule to a backend, and those to come.

Routes and ListenerSets are written by others than the owner of a Gateway or of a backend, so settings there are also
defaults for what does not exist yet.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import assert_never

from tierwall.attach.listener import Listener, gateway_listeners, lets_listeners_in
from tierwall.attach.place import BACKEND, INFERENCE_POOL, SERVICE
from tierwall.attach.reach import Way, reach
from tierwall.attach.section import sections
from tierwall.gateway.model.levels import Asked, BackendKind
from tierwall.resources.resource import Resource
from tierwall.resources.snapshot import Snapshot

_BACKENDS = (SERVICE, BACKEND, INFERENCE_POOL)


def ways(snapshot: Snapshot) -> Iterator[Asked]:
    """The places, in a fixed order; a listener without routes is a place of its own."""
    used = set()
    for way in reach(snapshot).ways():
        used.add((way.gateway, way.listener.owner, way.listener.number))
        yield from _along(snapshot, way)
    for gateway in reach(snapshot).gateways_all:
        for listener in gateway_listeners(snapshot, gateway):
            if (gateway, listener.owner, listener.number) not in used:
                yield _at(gateway, listener)


def to_come(snapshot: Snapshot) -> Iterator[Asked]:
    """The places of routes and ListenerSets that may be added, with no policy of their own.

    A route at any listener; a listener where a Gateway lets ListenerSets in; a route to a backend, and to any port of
    a Service, by a listener that already leads to it.
    """
    for gateway in reach(snapshot).gateways_all:
        if lets_listeners_in(gateway):
            yield Asked(gateway)
        for listener in gateway_listeners(snapshot, gateway):
            yield _at(gateway, listener)
    for way in reach(snapshot).ways():
        for asked in _along(snapshot, way):
            if asked.backend is not None:
                here = asked._replace(route=None, rule=None)
                yield here
                if way.backend is not None and way.backend.place.key == SERVICE:
                    yield from (here._replace(section=port) for port in sections(asked.backend))


def _at(gateway: Resource, listener: Listener) -> Asked:
    return Asked(gateway, None if listener.owner is gateway else listener.owner, listener)


def _along(snapshot: Snapshot, way: Way) -> Iterator[Asked]:
    here = _at(way.gateway, way.listener)._replace(route=way.routes[-1], rule=way.rule)
    backend = way.backend.place.resource(snapshot) if way.backend is not None else None
    if way.backend is None or backend is None or way.backend.place.key not in _BACKENDS:
        yield here
        return
    here = here._replace(backend=backend)
    match BackendKind(backend.kind):
        case BackendKind.SERVICE:
            yield here._replace(section=str(way.backend.port) if way.backend.port else "")
        case BackendKind.AGENTGATEWAY_BACKEND:
            yield from (here._replace(section=name) for name in sections(backend) or ("",))
        case BackendKind.INFERENCE_POOL:
            yield here
        case unknown:
            assert_never(unknown)

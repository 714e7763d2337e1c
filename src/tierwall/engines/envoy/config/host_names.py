"""Host names of requests: the listener and the routes that match one, most specific first (Gateway API, `hostname`)."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

from tierwall.attach.listener import Listener, narrower_hostname
from tierwall.attach.route import RouteOnListener
from tierwall.resources.resource import Resource


def first_routes(attached: Iterable[RouteOnListener]) -> dict[str, Resource]:
    """Return the first route of each host name, of routes on a listener by age: other kinds of routes do not get it.

    A host name has HTTPRoutes or GRPCRoutes, as its most senior route does (Gateway API, GRPCRoute).
    """
    first: dict[str, Resource] = {}
    for each in attached:
        for host in each.hostnames or ("*",):
            first.setdefault(host, each.route)
    return first


def most_specific(host: str, listeners: Iterable[Listener]) -> Listener:
    """Return the listener with the most specific host name that matches a host; at least one matches."""
    matching = (
        listener
        for listener in listeners
        if not listener.hostname or narrower_hostname(listener.hostname, host) == host
    )
    return max(matching, key=_specificity)


def _specificity(listener: Listener) -> tuple[bool, bool, int]:
    name = listener.hostname
    return bool(name), not name.startswith("*"), len(name)


def wider_names(host: str, hosts: Collection[str]) -> Iterator[str]:
    """Yield a host name, then the wildcard names that match it, longest first."""
    yield host
    name = host.removeprefix("*")
    while name:
        _, dot, rest = name[1:].partition(".")
        name = f".{rest}" if dot else ""
        if f"*{name}" in hosts:
            yield f"*{name}"

"""Host names of listeners and routes: where they meet (Gateway API, `Listener.hostname` and `HTTPRoute.hostnames`)."""

from __future__ import annotations

from collections.abc import Iterable


def meet(one: str, other: str) -> str | None:
    """The narrower of two host names if they meet, else None. `*.x` stands for every name below x, at any depth."""
    one, other = one.lower(), other.lower()
    if one == other:
        return one
    for wide, narrow in ((one, other), (other, one)):
        # `*.a.b` ends with `.b` too: of two wildcards the longer is the narrower.
        if wide.startswith("*.") and narrow.endswith(wide[1:]):
            return narrow
    return None


def shared(listener: str, route: Iterable[str]) -> tuple[str, ...] | None:
    """The host names that a route serves on a listener (`()`: every one), or None if the two have none in common."""
    wanted = tuple(route)
    if not listener or not wanted:
        return wanted or ((listener,) if listener else ())
    found = tuple(dict.fromkeys(name for each in wanted if (name := meet(listener, each)) is not None))
    return found or None

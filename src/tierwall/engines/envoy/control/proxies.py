"""Proxies that get the same configuration: what each has acknowledged, and what it refuses.

Proxies are independent of each other. Each has its own stream and its own unacknowledged responses, so a proxy that
never acknowledges does not delay the others.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Hashable, Sequence
from typing import NamedTuple

from tierwall.engines.envoy.config.compile import XdsResources
from tierwall.engines.envoy.control.cache import ResourceCache
from tierwall.engines.envoy.control.refusal import ProxyAnswers
from tierwall.engines.envoy.control.stream import IsFresh, Proxy, XdsStream

# How long a disconnected proxy is expected back, in seconds, and how many such proxies are remembered.
ABSENT_SECONDS, MAX_ABSENT = 600.0, 10_000
# A proxy that has been silent for this long, in seconds, is not waited for.
SILENT_SECONDS = 2.0


class ProxyStatus(NamedTuple):
    """The status of a proxy: whether it has everything in force, and what it refuses."""

    proxy: Proxy
    is_current: bool
    refusals: tuple[str, ...]


class GatewayCondition(NamedTuple):
    """A condition of the Gateway API."""

    status: str
    reason: str
    message: str


def programmed(proxy_statuses: Sequence[ProxyStatus], is_published: bool) -> GatewayCondition:
    """Return the `Programmed` condition; a refusal contains the proxy's own message."""
    if not is_published:
        return GatewayCondition("False", "Pending", "no configuration is in force yet")
    refusing = [status for status in proxy_statuses if status.refusals]
    if refusing:
        words = "; ".join(f"{status.proxy.id} refuses {text}" for status in refusing for text in status.refusals)
        return GatewayCondition("False", "Invalid", words)
    if not proxy_statuses:
        return GatewayCondition("False", "Pending", "no proxy is connected")
    waiting = [status.proxy.id for status in proxy_statuses if not status.is_current]
    if waiting:
        return GatewayCondition("False", "Pending", f"not acknowledged yet by {', '.join(waiting)}")
    return GatewayCondition(
        "True", "Programmed", f"acknowledged by {', '.join(status.proxy.id for status in proxy_statuses)}"
    )


class ProxyGroup:
    """A configuration and the proxies that get it. It calls `changed` when one connects, disconnects or answers."""

    def __init__(self, changed: Callable[[], None] = lambda: None, is_fresh: IsFresh = lambda moment: True) -> None:
        """`is_fresh` is for control planes with several replicas (`stream`)."""
        self.cache = ResourceCache()
        self.streams: list[XdsStream] = []
        self._changed, self._is_fresh = changed, is_fresh
        self._absent: dict[str, float] = {}

    def publish(self, resources: XdsResources) -> dict[str, set[str]]:
        """Put a configuration in force; return the changed names by type URL. Call it in the server's event loop."""
        first = not self.cache.is_published
        changed = self.cache.publish(resources)
        if changed or first:
            for stream in self.streams:
                stream.wake()
        self._notify()
        return changed

    def release(self) -> None:
        """Send what was held back, as far as what is in force is fresh now."""
        for stream in self.streams:
            stream.wake()

    @property
    def proxy_statuses(self) -> list[ProxyStatus]:
        """The status of every connected proxy, sorted by id."""
        known = [
            ProxyStatus(stream.proxy, stream.is_current and self.cache.is_published, tuple(map(str, stream.refusals)))
            for stream in self.streams
            if stream.subscriptions
        ]
        return sorted(known)

    @property
    def programmed(self) -> GatewayCondition:
        """The `Programmed` condition over all proxies."""
        return programmed(self.proxy_statuses, self.cache.is_published)

    @property
    def is_acknowledged(self) -> bool:
        """Whether every proxy has acknowledged everything; a recently disconnected proxy may not have."""
        now = time.monotonic()
        self._absent = {name: since for name, since in self._absent.items() if now - since < ABSENT_SECONDS}
        return not self._absent and all(stream.is_acknowledged for stream in self.streams)

    def answers(self, ignored: Collection[Hashable] = ()) -> ProxyAnswers:
        """Return what proxies say about the configuration in force. `ignored` proxies are not waited for."""
        now = time.monotonic()
        known = [stream for stream in self.streams if stream.subscriptions]
        awaited = [
            stream
            for stream in known
            if stream not in ignored and (stream.is_acknowledged or now - stream.last_message < SILENT_SECONDS)
        ]
        return ProxyAnswers(
            {stream: tuple(stream.refusals) for stream in known if stream.refusals},
            all(stream.is_settled for stream in awaited),
            bool(awaited) and all(stream.is_acknowledged for stream in awaited),
        )

    def _notify(self, stream: XdsStream | None = None) -> None:
        if stream is not None:
            self._absent.pop(stream.proxy.id, None)
        self._changed()

    def connect(self) -> XdsStream:
        """Return the stream of a proxy that connects."""
        stream = XdsStream(self.cache, self._notify, self._is_fresh)
        self.streams.append(stream)
        return stream

    def disconnect(self, stream: XdsStream) -> None:
        """Forget the stream of a proxy, which is expected back for a while."""
        self.streams.remove(stream)
        there = {stream.proxy.id for stream in self.streams}
        if stream.proxy.id not in there and len(self._absent) < MAX_ABSENT:
            self._absent[stream.proxy.id] = time.monotonic()
        self._notify()

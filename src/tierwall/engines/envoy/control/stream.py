"""The xDS exchange with one proxy: receives its requests, and sends what it lacks, kind by kind in sending order.

At most one response per kind is unacknowledged at a time (xDS protocol, "Incremental xDS"). Changes in the meantime are
not queued: the next response is the difference between what the proxy was sent and what is in force at that time. So a
proxy that never answers costs no memory, and a slow proxy skips intermediate states.

A later kind is never sent while an earlier kind has changes and an unacknowledged response: a proxy processes a stream
in order, so it has not read what it has not acknowledged. Removals are sent after all additions, in the opposite order.
Routes need filter configurations. A proxy that has not taken those, or refuses them, keeps its routes. What it keeps in
place of a refused resource may need clusters and secrets, so those are not removed, either.

A proxy that comes back may come from another control plane, which knows more than this one. As long as that is possible
(`is_fresh`), nothing that it has is changed or removed; it goes on with what it has. Then it gets routes that carry
their policies before any filter changes (`crossing`).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, NamedTuple

from tierwall.engines.envoy.control.cache import (
    CLUSTER,
    EXTENSION,
    ORDER,
    ROUTE,
    SECRET,
    ResourceCache,
    ended,
)
from tierwall.engines.envoy.control.crossing import policy_filters
from tierwall.engines.envoy.control.refusal import ProxyRefusal
from tierwall.engines.envoy.control.subscription import Subscription

# The longest error message and the longest name of a proxy to keep, in characters.
MAX_WORDS, MAX_ID = 1000, 253
Send = Callable[[Any], Awaitable[None]]
MessageListener = Callable[["XdsStream"], None]
# Returns whether what is in force is at least as new as everything that others had published before a moment.
IsFresh = Callable[[float], bool]
_REFERRED = (CLUSTER, SECRET)


class Proxy(NamedTuple):
    """The proxy at the other end of a stream."""

    id: str
    version: str

    @classmethod
    def of(cls, node: Any) -> Proxy:
        """Return the proxy of a node, as in its first request."""
        number = node.user_agent_build_version.version
        return cls(node.id[:MAX_ID], f"{number.major_number}.{number.minor_number}.{number.patch}")


def _words(message: str) -> str:
    """Return an error message on one line, and not without end: it may repeat what a tenant wrote."""
    words = " ".join(message.split())
    return words if len(words) <= MAX_WORDS else f"{words[:MAX_WORDS]}…"


class XdsStream:
    """One aggregated delta stream."""

    def __init__(
        self, cache: ResourceCache, on_message: MessageListener, is_fresh: IsFresh = lambda moment: True
    ) -> None:
        self._cache = cache
        self._on_message, self._is_fresh = on_message, is_fresh
        self._connected = time.monotonic()
        self._news = asyncio.Event()
        self.subscriptions: dict[str, Subscription] = {}
        self.proxy = Proxy("", "")
        # Whether the proxy was sent routes that carry their policies, then routes without anything, because it refused
        # those, and whether all of this is behind it.
        self._is_crossing = self._is_ending = self._is_crossed = False
        # When the last message was received or sent.
        self.last_message = time.monotonic()

    def wake(self) -> None:
        """Send what is newly in force."""
        self._news.set()

    async def run(self, requests: AsyncIterator[Any], send: Send) -> None:
        """Serve the proxy until it disconnects."""
        reading = asyncio.ensure_future(self._read(requests))
        writing = asyncio.ensure_future(self._write(send))
        try:
            done, _ = await asyncio.wait((reading, writing), return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in (reading, writing):
                task.cancel()
            await asyncio.gather(reading, writing, return_exceptions=True)

    async def _read(self, requests: AsyncIterator[Any]) -> None:
        async for request in requests:
            self.receive(request)

    def receive(self, request: Any) -> None:
        """Process a request: its names, and the ACK or NACK of the last response."""
        self.last_message = time.monotonic()
        if request.HasField("node"):
            self.proxy = Proxy.of(request.node)
        type_url = request.type_url
        if type_url not in ORDER:
            return
        subscription = self.subscriptions.get(type_url)
        if subscription is None:
            subscription = self.subscriptions[type_url] = Subscription(type_url)
        if request.response_nonce:
            error = _words(request.error_detail.message) if request.HasField("error_detail") else None
            subscription.acknowledge(request.response_nonce, error)
        subscription.subscribe(
            request.resource_names_subscribe, request.resource_names_unsubscribe, request.initial_resource_versions
        )
        self._on_message(self)
        self._news.set()

    async def _write(self, send: Send) -> None:
        while True:
            await self._news.wait()
            self._news.clear()
            if self._cache.is_published:
                for response in self.responses():
                    self.last_message = time.monotonic()
                    await send(response)

    def responses(self) -> list[Any]:
        """Return the responses that can be sent now: additions in order, then removals in the opposite order."""
        out: list[Any] = []
        if self.is_held:
            return out
        self._is_crossed = self._is_crossed or self._is_in_step
        subscriptions = [self.subscriptions[type_url] for type_url in ORDER if type_url in self.subscriptions]
        for subscription in subscriptions:
            news, _ = subscription.pending(self._cache.of(subscription.type_url))
            if not news and not subscription.owes_first:
                continue
            if subscription.is_waiting or (subscription.type_url == ROUTE and self._may_lack_filters):
                return out
            # Other filters come before policies, as those routes may need them.
            is_policy = subscription.type_url == EXTENSION and news[0].wire.name in policy_filters()
            if is_policy and self._must_cross(out):
                return out
            out.append(subscription.respond(news, (), self._cache.generation))
            if subscription.pending(self._cache.of(subscription.type_url))[0]:
                return out
        for subscription in reversed(subscriptions):
            _, gone = subscription.pending(self._cache.of(subscription.type_url))
            if not gone:
                continue
            if subscription.is_waiting or (subscription.type_url in _REFERRED and self._refuses):
                break
            out.append(subscription.respond((), gone, self._cache.generation))
        return out

    def _must_cross(self, out: list[Any]) -> bool:
        """Whether policies must wait for routes that carry theirs; those are added to `out` when it is time."""
        filters, routes = self.subscriptions[EXTENSION], self.subscriptions.get(ROUTE)
        if self._is_crossed or not filters.came_back:
            return False
        if routes is None:
            # A proxy with filters has routes, and subscribes to them next.
            return True
        if routes.is_waiting:
            return True
        if not self._is_crossing:
            changed = filters.lacking(self._cache.of(EXTENSION))
            is_one_policy = len(changed) == 1 and not routes.lacking(self._cache.of(ROUTE))
            sent = [] if is_one_policy else self._cache.crossing(routes.held)
            self._is_crossing = bool(sent)
        elif routes.refused_last and not self._is_ending:
            # It goes on with what it has, which the policies must not change in part.
            sent = [ended(name) for name in routes.held]
            self._is_ending = True
        else:
            sent = []
        self._is_crossed = not sent
        if sent:
            out.append(routes.respond(sent, (), self._cache.generation))
        return bool(sent)

    @property
    def _is_in_step(self) -> bool:
        """Whether the proxy has filters and routes of this control plane only."""
        kinds = (EXTENSION, ROUTE)
        return all(
            kind in self.subscriptions and not self.subscriptions[kind].lacking(self._cache.of(kind)) for kind in kinds
        )

    @property
    def is_held(self) -> bool:
        """Whether the proxy came back with something else than what is in force, and may have come from a newer one."""
        return (
            not self._is_fresh(self._connected)
            and any(subscription.came_back for subscription in self.subscriptions.values())
            and any(
                subscription.pending(self._cache.of(type_url)) != ([], [])
                for type_url, subscription in self.subscriptions.items()
            )
        )

    @property
    def _may_lack_filters(self) -> bool:
        filters = self.subscriptions.get(EXTENSION)
        if filters is None:
            # A proxy with routes has filters, too, and subscribes to them next.
            return bool(self._cache.of(EXTENSION))
        return filters.is_waiting or filters.is_refused(self._cache.of(EXTENSION))

    @property
    def _refuses(self) -> bool:
        return any(
            subscription.is_refused(self._cache.of(type_url)) for type_url, subscription in self.subscriptions.items()
        )

    @property
    def is_current(self) -> bool:
        """Whether the proxy has acknowledged everything in force; a proxy without subscriptions has not."""
        return bool(self.subscriptions) and all(
            subscription.is_current(self._cache.of(type_url)) for type_url, subscription in self.subscriptions.items()
        )

    @property
    def is_acknowledged(self) -> bool:
        """Whether the proxy is current and has subscribed to filters and routes, if there are any."""
        has_subscribed = all(
            type_url in self.subscriptions for type_url in (EXTENSION, ROUTE) if self._cache.of(type_url)
        )
        return has_subscribed and self.is_current

    @property
    def is_settled(self) -> bool:
        """Whether the proxy has answered everything that it can be sent; it may have refused some of it."""
        for type_url, subscription in self.subscriptions.items():
            news, gone = subscription.pending(self._cache.of(type_url))
            is_kept = type_url in _REFERRED and self._refuses
            is_held = type_url == ROUTE and self._may_lack_filters
            if subscription.is_waiting or (news and not is_held) or (gone and not is_kept):
                return False
        return True

    @property
    def refusals(self) -> list[ProxyRefusal]:
        """The resources in force that the proxy refuses."""
        return [
            refusal
            for type_url, subscription in sorted(self.subscriptions.items())
            for refusal in subscription.refusals(self._cache.of(type_url))
        ]

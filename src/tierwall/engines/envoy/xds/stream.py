"""The conversation with one proxy: its requests in, what it lacks out, kind by kind in the order of `types`.

A later kind never overtakes an earlier one that has changes and an unanswered response: a proxy works a stream off in
order, so what it has not answered it has not read. Removals are sent after all additions, in the opposite order. Routes
need filter configurations, so a proxy that has not taken those, or refuses them, keeps the routes that it has; and what
it refuses may be in the place of something that needs clusters and secrets, so those stay, too.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from tierwall.engines.envoy.xds.cache import Cache
from tierwall.engines.envoy.xds.proxy import Proxy
from tierwall.engines.envoy.xds.subscription import Subscription
from tierwall.engines.envoy.xds.types import CLUSTER, ENDPOINT, EXTENSION, ORDER, ROUTE, SECRET, short

Send = Callable[[Any], Awaitable[None]]
Heard = Callable[["Stream"], None]
_REFERRED = (CLUSTER, ENDPOINT, SECRET)


class Stream:
    """One aggregated delta stream."""

    def __init__(self, cache: Cache, heard: Heard) -> None:
        self._cache = cache
        self._heard = heard
        self._news = asyncio.Event()
        self.subscriptions: dict[str, Subscription] = {}
        self.proxy = Proxy("", "")

    def wake(self) -> None:
        """Something is in force that was not before."""
        self._news.set()

    async def converse(self, requests: AsyncIterator[Any], send: Send) -> None:
        """Until the proxy hangs up."""
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
            self.take(request)

    def take(self, request: Any) -> None:
        """Take in one request: names, and what the proxy says to the last response."""
        if request.HasField("node"):
            self.proxy = Proxy.of(request.node)
        type_url = request.type_url
        if type_url not in ORDER:
            return
        subscription = self.subscriptions.get(type_url)
        if subscription is None:
            subscription = self.subscriptions[type_url] = Subscription(type_url)
        if request.response_nonce:
            error = request.error_detail.message if request.HasField("error_detail") else None
            subscription.answer(request.response_nonce, error)
        subscription.ask(
            request.resource_names_subscribe, request.resource_names_unsubscribe, request.initial_resource_versions
        )
        self._heard(self)
        self._news.set()

    async def _write(self, send: Send) -> None:
        while True:
            await self._news.wait()
            self._news.clear()
            if self._cache.is_published:
                for response in self.responses():
                    await send(response)

    def responses(self) -> list[Any]:
        """What can be said now: additions in order, then removals in the opposite order."""
        out: list[Any] = []
        blocked = False
        for type_url in ORDER:
            subscription = self.subscriptions.get(type_url)
            if subscription is None:
                continue
            news, _ = subscription.pending(self._cache.of(type_url))
            if not news and not subscription.owes_first:
                continue
            if type_url == ROUTE and self._may_lack_filters:
                blocked = True
                break
            if subscription.is_waiting:
                blocked = True
                break
            out.append(subscription.respond(news, (), self._cache.generation))
        for type_url in reversed(ORDER) if not blocked else ():
            subscription = self.subscriptions.get(type_url)
            if subscription is None:
                continue
            _, gone = subscription.pending(self._cache.of(type_url))
            if not gone:
                continue
            if subscription.is_waiting or (type_url in _REFERRED and self._refuses):
                break
            out.append(subscription.respond((), gone, self._cache.generation))
        return out

    @property
    def _may_lack_filters(self) -> bool:
        filters = self.subscriptions.get(EXTENSION)
        if filters is None:
            # One that comes back has routes, and asks for filters next.
            return self.subscriptions[ROUTE].came_back and bool(self._cache.of(EXTENSION))
        return filters.is_waiting or filters.is_refused(self._cache.of(EXTENSION))

    @property
    def _refuses(self) -> bool:
        return any(one.is_refused(self._cache.of(type_url)) for type_url, one in self.subscriptions.items())

    @property
    def is_current(self) -> bool:
        """Whether the proxy has acknowledged everything in force; one that has asked for nothing yet has not."""
        return bool(self.subscriptions) and all(
            one.is_current(self._cache.of(type_url)) for type_url, one in self.subscriptions.items()
        )

    @property
    def is_settled(self) -> bool:
        """Whether it is current, and has come to ask for filters and routes, if there are any."""
        asked = all(one in self.subscriptions for one in (EXTENSION, ROUTE) if self._cache.of(one))
        return asked and self.is_current

    @property
    def refusals(self) -> list[str]:
        """What the proxy refused, with its own words."""
        return [
            f"{short(type_url)} {', '.join(sorted(one.refused))}: {one.words}"
            for type_url, one in sorted(self.subscriptions.items())
            if one.refused
        ]

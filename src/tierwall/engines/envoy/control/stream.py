"""The conversation with one proxy: its requests in, what it lacks out, kind by kind in the order of sending.

At most one response of a kind is unanswered at a time (xDS protocol, "Incremental xDS"). Changes that come meanwhile
are not queued: what is sent next is the difference between what the proxy was sent and what is then in force. So a
proxy that never answers costs no memory, and one that is slow skips states in between.

A later kind never overtakes an earlier one that has changes and an unanswered response: a proxy works a stream off in
order, so what it has not answered it has not read. Removals are sent after all additions, in the opposite order. Routes
need filter configurations, so a proxy that has not taken those, or refuses them, keeps the routes that it has; and what
it refuses may be in the place of something that needs clusters and secrets, so those stay, too.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from typing import Any, NamedTuple

from envoy.service.discovery.v3 import discovery_pb2

from tierwall.engines.envoy.control.cache import (
    CLUSTER,
    EXTENSION,
    ORDER,
    ROUTE,
    SECRET,
    WILDCARD,
    CachedResource,
    ResourceCache,
    kind_name,
)

MOST_NAMES = 100_000
Send = Callable[[Any], Awaitable[None]]
Heard = Callable[["XdsStream"], None]
_REFERRED = (CLUSTER, SECRET)


class Proxy(NamedTuple):
    """Who is on the other end of a stream."""

    id: str
    version: str

    @classmethod
    def of(cls, node: Any) -> Proxy:
        """A proxy from the node of its first request."""
        number = node.user_agent_build_version.version
        return cls(node.id, f"{number.major_number}.{number.minor_number}.{number.patch}")


class Subscription:
    """One kind's part of the conversation with a proxy."""

    def __init__(self, type_url: str) -> None:
        self.type_url = type_url
        self.is_wildcard = False
        self._names: set[str] = set()
        self._has: dict[str, str] = {}
        self._owed: set[str] = set()
        self._begun = False
        self._owes_first = False
        self._answered = True
        self._nonce = 0
        self._sent_last: dict[str, str] = {}
        # Of responses that were refused: what is sent again, one by one, because a proxy may have taken nothing of what
        # came with something that it refuses.
        self._suspects: set[str] = set()
        # Whether the proxy was here before: it has brought along what it has.
        self.came_back = False
        # Resources that the proxy refused, with the version it refused; and its own words for it.
        self.refused: dict[str, str] = {}
        self.words = ""

    @property
    def is_waiting(self) -> bool:
        """Whether a response is unanswered."""
        return not self._answered

    def subscribe(self, subscribe: Iterable[str], unsubscribe: Iterable[str], has: Mapping[str, str]) -> None:
        """Take in the names of a request; `has` are the versions that a proxy brings along from before."""
        names = set(subscribe)
        if not self._begun:
            self._begun = True
            self.is_wildcard = not names and self.type_url in WILDCARD
            self._has.update(has)
            self.came_back = bool(has)
            self._owes_first = True
        if "*" in names:
            self.is_wildcard = True
            names.discard("*")
        self._names |= names
        # A name that is asked for is owed an answer, also if the proxy had one before.
        self._owed |= {name for name in names if name not in has}
        for name in unsubscribe:
            if name == "*":
                self.is_wildcard = False
            self._names.discard(name)
            self._owed.discard(name)
            self._has.pop(name, None)
            self._suspects.discard(name)
            self.refused.pop(name, None)
        if len(self._names) > MOST_NAMES:
            raise OverflowError(f"more than {MOST_NAMES} names")

    def acknowledge(self, nonce: str, error: str | None) -> bool:
        """Take in the ACK (no error) or NACK of a response; False if it is about an older response."""
        if self._answered or nonce != str(self._nonce):
            return False
        self._answered = True
        self._suspects -= self._sent_last.keys()
        if error is None:
            for name, version in self._sent_last.items():
                if self.refused.get(name) != version:
                    self.refused.pop(name, None)
            if not self.refused:
                self.words = ""
        else:
            wanted = self._sent_last.keys() if self.is_wildcard else self._sent_last.keys() & self._names
            sent = {name: self._sent_last[name] for name in wanted if self._sent_last[name]}
            self.words = error
            if len(self._sent_last) > 1:
                self._suspects |= sent.keys()
                # What it has of these is not known.
                self._has |= dict.fromkeys(sent.keys() & self._has.keys(), "")
            # Envoy acknowledges a filter that it has refused if it comes again, and does not take it.
            if len(self._sent_last) == 1 or self.type_url == EXTENSION:
                self.refused |= sent
        return True

    def pending(self, items: Mapping[str, CachedResource]) -> tuple[list[CachedResource], list[str]]:
        """What the proxy must be sent next, and what it must be told to drop; both by name."""
        wanted = items if self.is_wildcard else {name: items[name] for name in self._names if name in items}
        news = [
            item
            for name, item in sorted(wanted.items())
            if self._has.get(name) != item.version or (name in self._owed and name in self._names)
        ]
        alone = [item for item in news if item.wire.name in self._suspects]
        if alone:
            news = alone[:1]
        gone = {name for name in self._has if name not in wanted} | {name for name in self._owed if name not in items}
        return news, sorted(gone)

    def respond(self, news: Iterable[CachedResource], gone: Iterable[str], generation: int) -> Any:
        """The response that brings these; it counts as sent."""
        self._nonce += 1
        self._answered = False
        self._owes_first = False
        out = discovery_pb2.DeltaDiscoveryResponse(
            system_version_info=str(generation), type_url=self.type_url, nonce=str(self._nonce)
        )
        self._sent_last = {}
        for item in news:
            out.resources.append(item.wire)
            name = item.wire.name
            self._has[name] = self._sent_last[name] = item.version
            self._owed.discard(name)
        for name in gone:
            out.removed_resources.append(name)
            self._has.pop(name, None)
            self._sent_last[name] = ""
            self._owed.discard(name)
        return out

    @property
    def owes_first(self) -> bool:
        """Whether the proxy waits for a first answer, be it an empty one."""
        return self._owes_first and self.is_wildcard

    def is_refused(self, items: Mapping[str, CachedResource]) -> bool:
        """Whether the proxy refused something that is in force."""
        return any(name in items and items[name].version == version for name, version in self.refused.items())

    def is_current(self, items: Mapping[str, CachedResource]) -> bool:
        """Whether the proxy has taken everything in force that it asked for."""
        return not self.is_waiting and not self.refused and self.pending(items) == ([], [])


class XdsStream:
    """One aggregated delta stream."""

    def __init__(self, cache: ResourceCache, heard: Heard) -> None:
        self._cache = cache
        self._heard = heard
        self._news = asyncio.Event()
        self.subscriptions: dict[str, Subscription] = {}
        self.proxy = Proxy("", "")

    def wake(self) -> None:
        """Something is in force that was not before."""
        self._news.set()

    async def run(self, requests: AsyncIterator[Any], send: Send) -> None:
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
            self.receive(request)

    def receive(self, request: Any) -> None:
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
            subscription.acknowledge(request.response_nonce, error)
        subscription.subscribe(
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
        subscriptions = [self.subscriptions[type_url] for type_url in ORDER if type_url in self.subscriptions]
        for subscription in subscriptions:
            news, _ = subscription.pending(self._cache.of(subscription.type_url))
            if not news and not subscription.owes_first:
                continue
            if subscription.is_waiting or (subscription.type_url == ROUTE and self._may_lack_filters):
                return out
            out.append(subscription.respond(news, (), self._cache.generation))
        for subscription in reversed(subscriptions):
            _, gone = subscription.pending(self._cache.of(subscription.type_url))
            if not gone:
                continue
            if subscription.is_waiting or (subscription.type_url in _REFERRED and self._refuses):
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
        return any(
            subscription.is_refused(self._cache.of(type_url)) for type_url, subscription in self.subscriptions.items()
        )

    @property
    def is_current(self) -> bool:
        """Whether the proxy has acknowledged everything in force; one that has asked for nothing yet has not."""
        return bool(self.subscriptions) and all(
            subscription.is_current(self._cache.of(type_url)) for type_url, subscription in self.subscriptions.items()
        )

    @property
    def is_acknowledged(self) -> bool:
        """Whether it is current, and has come to ask for filters and routes, if there are any."""
        asked = all(type_url in self.subscriptions for type_url in (EXTENSION, ROUTE) if self._cache.of(type_url))
        return asked and self.is_current

    @property
    def refusals(self) -> list[str]:
        """What the proxy refused, with its own words."""
        return [
            f"{kind_name(type_url)} {', '.join(sorted(subscription.refused))}: {subscription.words}"
            for type_url, subscription in sorted(self.subscriptions.items())
            if subscription.refused
        ]

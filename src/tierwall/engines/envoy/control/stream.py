"""The xDS exchange with one proxy: receives its requests, and sends what it lacks, kind by kind in sending order.

At most one response per kind is unacknowledged at a time (xDS protocol, "Incremental xDS"). Changes in the meantime are
not queued: the next response is the difference between what the proxy was sent and what is in force at that time. So a
proxy that never answers costs no memory, and a slow proxy skips intermediate states.

A later kind is never sent while an earlier kind has changes and an unacknowledged response: a proxy processes a stream
in order, so it has not read what it has not acknowledged. Removals are sent after all additions, in the opposite order.
Routes need filter configurations. A proxy that has not taken those, or refuses them, keeps its routes. What it keeps in
place of a refused resource may need clusters and secrets, so those are not removed, either.

A proxy that comes back may come from another control plane, which knows more than this one. As long as that is possible
(`is_fresh`), nothing that it has is changed or removed; it goes on with what it has.

A refusal is about exactly one resource. Envoy says which response it refuses, not which resource, so a refused response
is sent again in parts. Filter configurations are sent one by one from the start: if Envoy gets one again that it has
refused, it acknowledges it without taking it.
"""

from __future__ import annotations

import asyncio
import time
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
)
from tierwall.engines.envoy.control.refusal import ProxyRefusal

MAX_NAMES = 100_000
# The longest error message to keep, in characters.
MAX_WORDS = 1000
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
        return cls(node.id, f"{number.major_number}.{number.minor_number}.{number.patch}")


class Subscription:
    """The state of one kind in the exchange with a proxy."""

    def __init__(self, type_url: str) -> None:
        self.type_url = type_url
        self.is_wildcard = False
        self._names: set[str] = set()
        self._has: dict[str, str] = {}
        self._owed: set[str] = set()
        self._is_started = False
        self._owes_first = False
        self._answered = True
        self._nonce = 0
        self._sent_last: dict[str, str] = {}
        # The parts of refused responses. Each is sent again alone, because a proxy may have dropped everything in a
        # response with a resource that it refuses.
        self._parts: list[frozenset[str]] = []
        # Whether the proxy was connected before: its first request listed the resources it has.
        self.came_back = False
        # Resources that the proxy refused: the refused version, and the proxy's error message.
        self.refused: dict[str, tuple[str, str]] = {}

    @property
    def is_waiting(self) -> bool:
        """Whether a response is unacknowledged."""
        return not self._answered

    def subscribe(self, subscribe: Iterable[str], unsubscribe: Iterable[str], has: Mapping[str, str]) -> None:
        """Process the names of a request; `has` are the versions that a reconnecting proxy already has."""
        names = set(subscribe)
        if not self._is_started:
            self._is_started = True
            self.is_wildcard = not names and self.type_url in WILDCARD
            self._has.update(has)
            self.came_back = bool(has)
            self._owes_first = True
        if "*" in names:
            self.is_wildcard = True
            names.discard("*")
        self._names |= names
        # Every requested name must be answered, even if the proxy had the resource before.
        self._owed |= {name for name in names if name not in has}
        for name in unsubscribe:
            if name == "*":
                self.is_wildcard = False
            self._names.discard(name)
            self._owed.discard(name)
            self._has.pop(name, None)
            self.refused.pop(name, None)
        if len(self._names) > MAX_NAMES:
            raise OverflowError(f"more than {MAX_NAMES} names")

    def acknowledge(self, nonce: str, error: str | None) -> bool:
        """Process the ACK (no error) or NACK of a response; return False if it is for an older response."""
        if self._answered or nonce != str(self._nonce):
            return False
        self._answered = True
        self._parts = [part for rest in self._parts if (part := rest - self._sent_last.keys())]
        if error is None:
            for name, version in self._sent_last.items():
                if name in self.refused and self.refused[name][0] != version:
                    del self.refused[name]
            return True
        wanted = self._sent_last.keys() if self.is_wildcard else self._sent_last.keys() & self._names
        sent = {name: self._sent_last[name] for name in wanted if self._sent_last[name]}
        if len(self._sent_last) == 1:
            self.refused |= {name: (version, error) for name, version in sent.items()}
        else:
            self._parts += _parts(sorted(sent), error)
            # The proxy may or may not have these.
            self._has |= dict.fromkeys(sent.keys() & self._has.keys(), "")
        return True

    def pending(self, items: Mapping[str, CachedResource]) -> tuple[list[CachedResource], list[str]]:
        """Return the resources to send next, and the names to remove; both sorted by name."""
        wanted = items if self.is_wildcard else {name: items[name] for name in self._names if name in items}
        news = [
            item
            for name, item in sorted(wanted.items())
            if self._has.get(name) != item.version or (name in self._owed and name in self._names)
        ]
        parts = ([item for item in news if item.wire.name in part] for part in self._parts)
        news = next(filter(None, parts), news)
        if self.type_url == EXTENSION:
            news = news[:1]
        gone = {name for name in self._has if name not in wanted} | {name for name in self._owed if name not in items}
        return news, sorted(gone)

    def respond(self, news: Iterable[CachedResource], gone: Iterable[str], generation: int) -> Any:
        """Return the response with these resources and removals, and count it as sent."""
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
        """Whether the proxy waits for a first response, even an empty one."""
        return self._owes_first and self.is_wildcard

    def is_refused(self, items: Mapping[str, CachedResource]) -> bool:
        """Whether the proxy refused a resource that is in force."""
        return bool(self.refusals(items))

    def refusals(self, items: Mapping[str, CachedResource]) -> list[ProxyRefusal]:
        """Return the resources in force that the proxy refused, sorted by name."""
        return [
            ProxyRefusal(self.type_url, name, words)
            for name, (version, words) in sorted(self.refused.items())
            if name in items and items[name].version == version
        ]

    def is_current(self, items: Mapping[str, CachedResource]) -> bool:
        """Whether the proxy has acknowledged everything in force that it subscribed to."""
        return not self.is_waiting and not self.refused and self.pending(items) == ([], [])


def _words(message: str) -> str:
    """Return an error message on one line, and not without end: it may repeat what a tenant wrote."""
    words = " ".join(message.split())
    return words if len(words) <= MAX_WORDS else f"{words[:MAX_WORDS]}…"


def _parts(names: list[str], error: str) -> list[frozenset[str]]:
    """Return the parts of a refused response: those that the error does not name, then each that it names.

    If the error names all of them or none, each half is a part.
    """
    named = [name for name in names if name in error]
    if not named or len(named) == len(names):
        middle = len(names) // 2
        return [frozenset(names[:middle]), frozenset(names[middle:])]
    return [frozenset(names) - set(named), *(frozenset((name,)) for name in named)]


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
        subscriptions = [self.subscriptions[type_url] for type_url in ORDER if type_url in self.subscriptions]
        for subscription in subscriptions:
            news, _ = subscription.pending(self._cache.of(subscription.type_url))
            if not news and not subscription.owes_first:
                continue
            if subscription.is_waiting or (subscription.type_url == ROUTE and self._may_lack_filters):
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
            # A reconnecting proxy has routes, and subscribes to filters next.
            return self.subscriptions[ROUTE].came_back and bool(self._cache.of(EXTENSION))
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

"""One kind of resource in the exchange with a proxy: what it wants, what it has, and what it refuses.

A refusal is about exactly one resource. Envoy says which response it refuses, not which resource, so a refused response
is sent again in parts. Filter configurations are sent one by one from the start: if Envoy gets one again that it has
refused, it acknowledges it without taking it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from envoy.service.discovery.v3 import discovery_pb2

from tierwall.engines.envoy.control.cache import EXTENSION, WILDCARD, CachedResource
from tierwall.engines.envoy.control.crossing import policy_filters
from tierwall.engines.envoy.control.refusal import ProxyRefusal

MAX_NAMES = 100_000


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
        # Whether the proxy refused something of the last response that it answered.
        self.refused_last = False
        # Whether the proxy was connected before: its first request listed the resources it has.
        self.came_back = False
        # Resources that the proxy refused: the refused version, and the proxy's error message.
        self.refused: dict[str, tuple[str, str]] = {}

    @property
    def is_waiting(self) -> bool:
        """Whether a response is unacknowledged."""
        return not self._answered

    @property
    def held(self) -> list[str]:
        """The names of the resources that the proxy has and wants, in whatever version; sorted."""
        return sorted(self._names & self._has.keys())

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
        self._answered, self.refused_last = True, error is not None
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

    def lacking(self, items: Mapping[str, CachedResource]) -> list[CachedResource]:
        """Return all resources that the proxy wants and does not have as they are in force, sorted by name."""
        wanted = items if self.is_wildcard else {name: items[name] for name in self._names if name in items}
        return [
            item
            for name, item in sorted(wanted.items())
            if self._has.get(name) != item.version or (name in self._owed and name in self._names)
        ]

    def pending(self, items: Mapping[str, CachedResource]) -> tuple[list[CachedResource], list[str]]:
        """Return the resources to send next, and the names to remove; both sorted by name."""
        news = self.lacking(items)
        parts = ([item for item in news if item.wire.name in part] for part in self._parts)
        news = next(filter(None, parts), news)
        if self.type_url == EXTENSION:
            # Policies last: routes that carry theirs (`crossing`) may name something in other filters.
            news = sorted(news, key=_holds_policies)[:1]
        gone = {name for name in (*self._has, *self._owed) if name not in items}
        if not self.is_wildcard:
            gone |= self._has.keys() - self._names
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


def _holds_policies(item: CachedResource) -> bool:
    return item.wire.name in policy_filters()


def _parts(names: list[str], error: str) -> list[frozenset[str]]:
    """Return the parts of a refused response: those that the error does not name, then each that it names.

    If the error names all of them or none, each half is a part.
    """
    named = [name for name in names if name in error]
    if not named or len(named) == len(names):
        middle = len(names) // 2
        return [frozenset(names[:middle]), frozenset(names[middle:])]
    return [frozenset(names) - set(named), *(frozenset((name,)) for name in named)]

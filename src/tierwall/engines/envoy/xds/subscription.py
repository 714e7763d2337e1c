"""What one proxy asked for of one kind, what it was sent, and what it said to it (xDS protocol, "Incremental xDS").

At most one response of a kind is unanswered at a time. Changes that come meanwhile are not queued: what is sent next is
the difference between what the proxy was sent and what is then in force. So a proxy that never answers costs no memory,
and one that is slow skips states in between.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from envoy.service.discovery.v3 import discovery_pb2

from tierwall.engines.envoy.xds.cache import Item
from tierwall.engines.envoy.xds.types import EXTENSION, WILDCARD

MOST_NAMES = 100_000


class Subscription:
    """One kind's part of the conversation with a proxy."""

    def __init__(self, type_url: str) -> None:
        self.type_url = type_url
        self.is_wildcard = False
        self._names: set[str] = set()
        self._has: dict[str, str] = {}
        self._owed: set[str] = set()
        self._begun = False
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

    def ask(self, subscribe: Iterable[str], unsubscribe: Iterable[str], has: Mapping[str, str]) -> None:
        """Take in the names of a request; `has` are the versions that a proxy brings along from before."""
        names = set(subscribe)
        if not self._begun:
            self._begun = True
            self.is_wildcard = not names and self.type_url in WILDCARD
            self._has.update(has)
            self.came_back = bool(has)
            self._owed_first = True
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

    _owed_first = False

    def answer(self, nonce: str, error: str | None) -> bool:
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

    def pending(self, items: Mapping[str, Item]) -> tuple[list[Item], list[str]]:
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

    def respond(self, news: Iterable[Item], gone: Iterable[str], generation: int) -> Any:
        """The response that brings these; it counts as sent."""
        self._nonce += 1
        self._answered = False
        self._owed_first = False
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
        return self._owed_first and self.is_wildcard

    def is_refused(self, items: Mapping[str, Item]) -> bool:
        """Whether the proxy refused something that is in force."""
        return any(name in items and items[name].version == version for name, version in self.refused.items())

    def is_current(self, items: Mapping[str, Item]) -> bool:
        """Whether the proxy has taken everything in force that it asked for."""
        return not self.is_waiting and not self.refused and self.pending(items) == ([], [])

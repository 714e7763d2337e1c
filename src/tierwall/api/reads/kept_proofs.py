"""The proofs that are kept: those that were used last, as far as their size allows."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from threading import Lock
from typing import Generic, Protocol, TypeVar


class SizedResult(Protocol):
    """A thing of a known size."""

    @property
    def size(self) -> int:
        """How large it is, in kilobytes at most."""


Kept = TypeVar("Kept", bound=SizedResult)


class KeptProofs(Generic[Kept]):
    """A cache with a limit of size, for any number of threads. The last one stays, however large."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._size = 0
        self._kept: OrderedDict[Hashable, Kept] = OrderedDict()
        self._lock = Lock()

    @property
    def size(self) -> int:
        """How large all are together."""
        return self._size

    def get(self, key: Hashable, make: Callable[[], Kept]) -> Kept:
        """Return what is kept under a key; make it if there is nothing, which may happen twice."""
        with self._lock:
            kept = self._kept.get(key)
            if kept is not None:
                self._kept.move_to_end(key)
                return kept
        made = make()
        with self._lock:
            kept = self._kept.setdefault(key, made)
            if kept is made:
                self._size += made.size
            while self._size > self._most and len(self._kept) > 1:
                _, oldest = self._kept.popitem(last=False)
                self._size -= oldest.size
        return kept

    def clear(self) -> None:
        """Forget all."""
        with self._lock:
            self._kept.clear()
            self._size = 0

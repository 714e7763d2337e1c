"""Answers that were given before: an access review is a pure function of its bytes, the policies and the sealing key.

The API server is told to keep no answers, so that a change of policies counts at once; here they are kept for exactly
as long as the policies and the key are in force. Two generations bound the memory: when the younger is full, it becomes
the older, and what was not asked for again since is forgotten.
"""

from __future__ import annotations

from typing import Generic, TypeVar

T = TypeVar("T")

MOST_ENTRIES = 4096
# A user can blow up a request; long ones are not kept, or a few users could fill the memory.
LONGEST_OCTETS = 2048


class KeptAnswers(Generic[T]):
    """Answers by request, under one state of the world at a time."""

    def __init__(self, most: int = MOST_ENTRIES) -> None:
        self._most = most
        self._state: object = None
        self._young: dict[bytes, T] = {}
        self._old: dict[bytes, T] = {}

    def get(self, state: object, request: bytes) -> T | None:
        """The answer that was given in this state; another state forgets everything."""
        if state != self._state:
            self._state, self._young, self._old = state, {}, {}
            return None
        found = self._young.get(request)
        if found is None and (found := self._old.get(request)) is not None:
            self.put(state, request, found)
        return found

    def put(self, state: object, request: bytes, answer: T) -> None:
        """Keep an answer given in this state."""
        if state != self._state or len(request) > LONGEST_OCTETS:
            return
        if len(self._young) >= self._most:
            self._old, self._young = self._young, {}
        self._young[request] = answer

"""Answers that were given before: an access review is a pure function of its bytes, the policies and the sealing key.

The API server is told to keep no answers, so that a change of policies counts at once; here they are kept for exactly
as long as the policies and the key are in force. Two generations bound the memory: when the younger is full, it becomes
the older, and what was not asked for again since is forgotten. Policies that ask another server are no such function.
"""

from __future__ import annotations

from typing import Generic, NamedTuple, TypeVar

T = TypeVar("T")

MOST_ENTRIES = 4096
# A user can blow up a request; long ones are not kept, or a few users could fill the memory.
LONGEST_OCTETS = 2048


class _Kept(NamedTuple, Generic[T]):
    """The answers of one state."""

    state: object
    young: dict[bytes, T]
    old: dict[bytes, T]


class KeptAnswers(Generic[T]):
    """Answers by request, under one state of the world at a time.

    INVARIANT: a state and its answers are replaced together, so that no thread puts an answer of one state among those
    of another.
    """

    def __init__(self, most: int = MOST_ENTRIES) -> None:
        self._most = most
        self._kept: _Kept[T] = _Kept(None, {}, {})

    def get(self, state: object, request: bytes) -> T | None:
        """The answer that was given in this state; another state forgets everything."""
        kept = self._kept
        if state != kept.state:
            self._kept = _Kept(state, {}, {})
            return None
        found = kept.young.get(request)
        if found is None and (found := kept.old.get(request)) is not None:
            self.put(state, request, found)
        return found

    def put(self, state: object, request: bytes, answer: T) -> None:
        """Keep an answer given in this state."""
        kept = self._kept
        if state != kept.state or len(request) > LONGEST_OCTETS:
            return
        if len(kept.young) >= self._most:
            kept = self._kept = _Kept(state, {}, kept.young)
        kept.young[request] = answer

"""The agents of nodes that were heard from lately, by their Leases `tierwall-node-NODE` (docs/controller.md#nodes).

A Lease is fresh for a while after this process has seen it change. No time in it is compared with a clock. Whether an
agent still renews a Lease that was there from the start is not known before it changes, so it is unconfirmed; so are
all Leases when nothing was heard of any for a while, since then this process may be the one that is cut off. The
leader's own Lease is in the same namespace and changes all the time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Any, NamedTuple

from tierwall.resources.resource import Resource
from tierwall.serve.heartbeat import HEARTBEAT_PREFIX


class NodeStanding(StrEnum):
    """What is known about the agent of a node."""

    REPORTING = "reporting"
    UNCONFIRMED = "unconfirmed"
    SILENT = "silent"
    WITHOUT_AGENT = "without-agent"


class _Beat(NamedTuple):
    spec: Mapping[str, Any]
    at: float
    is_confirmed: bool


class NodeHeartbeats:
    """The Leases of a namespace over time. Every `now` is of a clock that never goes back."""

    def __init__(self, timeout: float) -> None:
        """A Lease that has not changed for `timeout` seconds is silent."""
        self._timeout = timeout
        self._beats: dict[str, _Beat] = {}
        self._heard: float | None = None

    def see(self, leases: Iterable[Resource], now: float) -> None:
        """Take the Leases as they are now."""
        is_deaf = self._heard is None or self._is_deaf(now)
        before, after, has_news = self._beats, dict[str, _Beat](), False
        for lease in leases:
            known = before.get(lease.name)
            if known is None or (known.spec is not lease.spec and known.spec != lease.spec):
                has_news = True
                after[lease.name] = _Beat(lease.spec, now, not is_deaf)
            else:
                after[lease.name] = known
        if has_news and is_deaf:
            # Whatever did not change may have changed unheard.
            after = {name: _Beat(beat.spec, now, False) for name, beat in after.items()}
        self._beats = after
        if has_news:
            self._heard = now

    def _is_deaf(self, now: float) -> bool:
        return self._heard is None or now - self._heard > self._timeout / 2

    def standing(self, node: str, now: float) -> NodeStanding:
        """Return what is known about the agent of a node by its Lease."""
        beat = self._beats.get(HEARTBEAT_PREFIX + node)
        if beat is None:
            return NodeStanding.WITHOUT_AGENT
        if self._is_deaf(now):
            return NodeStanding.UNCONFIRMED
        if now - beat.at >= self._timeout:
            return NodeStanding.SILENT
        return NodeStanding.REPORTING if beat.is_confirmed else NodeStanding.UNCONFIRMED

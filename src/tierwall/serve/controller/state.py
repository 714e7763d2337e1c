"""Shared by the parts of the controller: the objects as they are now, and the process that they belong to.

To add a part, write a subclass of `ControllerPart` and add it to `parts_of` in `run.py`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from msgspec import Struct
from prometheus_client import CollectorRegistry
from starlette.routing import BaseRoute

from tierwall.cluster.access import ClusterAccess
from tierwall.core.diagnostics import Diagnostic
from tierwall.core.protocols import EngineReport
from tierwall.resources.snapshot import Snapshot
from tierwall.serve.pages import Readiness

if TYPE_CHECKING:
    from tierwall.serve.controller.leadership import Leadership


class ControllerState(Struct, frozen=True):
    """The cluster as one accepted load has it.

    `snapshot` has every object as it is, with its status, its uid and its generation. `judged` has those that answers
    depend on, without what controllers write: it is the same value as before if nothing else has changed, so whatever
    was computed from it still holds.
    """

    snapshot: Snapshot
    judged: Snapshot
    # Counts the accepted loads.
    revision: int
    # Everything that is wrong with the objects.
    diagnostics: tuple[Diagnostic, ...] = ()


class ControllerContext(Struct, frozen=True):
    """The process that a part belongs to."""

    access: ClusterAccess
    # The limit of one request, in seconds; None for no limit.
    timeout: float | None
    # Where Leases, NodeReports and Secrets of this installation are.
    release_namespace: str
    # The name of this replica.
    identity: str
    # Every write checks it.
    leadership: Leadership
    registry: CollectorRegistry
    # Prints a line, with diagnostics if there are any.
    send_report: Callable[[EngineReport], None]


class ControllerPart:
    """One task of the controller. All its methods are called in the event loop; long work belongs in a thread."""

    async def begin(self) -> None:
        """Start what must not wait for the first state; InputError ends the process."""

    async def end(self) -> None:
        """End what `begin` started; called even if it was not."""

    def take(self, state: ControllerState) -> None:
        """Take the newest state; called after every accepted load, on every replica."""

    async def run(self, stop: asyncio.Event) -> None:
        """Work until `stop` is set. Called after the first `take`. What it raises ends the process."""
        await stop.wait()

    def checks(self) -> Mapping[str, Callable[[], Readiness]]:
        """Return what `/readyz` asks, by name."""
        return {}

    def routes(self) -> Sequence[BaseRoute]:
        """Return pages to serve beside health and metrics."""
        return ()


async def first_of(*events: asyncio.Event, seconds: float | None = None) -> None:
    """Wait until one of these is set, for so many seconds."""
    waiting = [asyncio.ensure_future(event.wait()) for event in events]
    try:
        await asyncio.wait(waiting, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for future in waiting:
            future.cancel()

"""Writes statuses to an API server, as the leader only (docs/controller.md#status).

Every object is read before it is written: the write carries the `resourceVersion` that was read in this term, and what
the object says already is not written again. Conditions of network policies are applied (server-side apply with the
field manager `tierwall`). Elsewhere lists are atomic, so the whole status is put, with the entries of others as they
were read; if somebody was faster, the object is read again.

Writes are limited: a storm of them could cost the lease. Namespaces take turns, so that thousands of policies in one of
them hold up no other. An object that cannot be written, or whose status somebody else changes again and again, waits
longer each time, and no other object waits for it.
"""

from __future__ import annotations

import asyncio
import heapq
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, NamedTuple
from urllib.parse import quote

import msgspec
from msgspec import Struct

from tierwall.cluster.connection import Connection
from tierwall.cluster.discovery import ServedKind, discover
from tierwall.cluster.failures import ApiServerError, ClusterError, failure_reason
from tierwall.core.protocols import EngineReport
from tierwall.core.reference import Reference
from tierwall.resources.resource import Identity, Resource
from tierwall.serve.controller.desired import DesiredStatus
from tierwall.serve.controller.kinds import ADMIN_POLICIES
from tierwall.serve.controller.leadership import FencedConnection, NotLeadingError
from tierwall.serve.controller.state import ControllerContext, first_of
from tierwall.serve.controller.status_document import observed_generation, our_conditions, status_with

FIELD_MANAGER = "tierwall"
# So many statuses may be written at once, then so many a second, by so many tasks.
BURST, RATE, _TASKS = 50, 20.0, 4
# An object waits from so many to so many seconds after a failure, or when somebody has changed what was written.
FIRST_WAIT_S, LONGEST_WAIT_S = 1.0, 300.0
# A status that stood for so many seconds counts as settled.
_SETTLED_S = 600.0
# How often somebody must have changed a status before it is said.
_UNDONE_TO_SAY = 3
# How often a write is tried again at once because somebody was faster.
_CONFLICTS = 5


class _Owner(Struct):
    manager: str = ""
    subresource: str = ""
    time: str = ""


class _Metadata(Struct, rename="camel"):
    uid: str = ""
    resource_version: str = ""
    generation: int = 0
    managed_fields: list[_Owner] = msgspec.field(default_factory=list)


class _LiveObject(Struct):
    metadata: _Metadata = msgspec.field(default_factory=_Metadata)
    status: dict[str, Any] | None = None


_DECODER = msgspec.json.Decoder(_LiveObject)


class _Pending(NamedTuple):
    """A status that is to be written, the term in which it was planned, and the object as it was followed then."""

    desired: DesiredStatus
    term: int
    followed: Resource


class _Written(Struct):
    """The last write on an object, and what became of it."""

    pending: _Pending
    # The status that the server answered with.
    status: Mapping[str, Any]
    at: float
    # How often somebody has changed what was written, and whether that was counted since the last time.
    undone: int = 0
    is_counted: bool = False


class StatusWriter:
    """Writes the newest planned statuses, one after the other.

    INVARIANT: everything happens in one event loop. Of an object only the newest status waits.
    """

    def __init__(
        self,
        context: ControllerContext,
        written: Callable[[Mapping[str, Any], DesiredStatus], None],
        count: Callable[[str], None] = lambda result: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`written` gets each status before a write, and what was written; `count` gets the result of each attempt."""
        self._leadership, self._send_report = context.leadership, context.send_report
        self._connection = Connection(context.access, context.timeout)
        self._fenced = FencedConnection(self._connection, context.leadership)
        self._written, self._count, self._clock = written, count, clock
        self._pending: dict[Identity, _Pending] = {}
        # The turns of objects: when, in which order, and which.
        self._turns: list[tuple[float, int, Identity]] = []
        self._turn_of: dict[Identity, tuple[float, int]] = {}
        self._number = 0
        # The objects whose turn has come, by rounds in which each namespace has one, and the round of the last one.
        self._ready: list[tuple[int, int, Identity]] = []
        self._rounds: dict[str, int] = {}
        self._round = 0
        self._in_hand: dict[Identity, _Pending] = {}
        self._history: dict[Identity, _Written] = {}
        self._failures: dict[Identity, int] = {}
        self._served: Mapping[tuple[str, str], tuple[ServedKind, ...]] = {}
        self._said: dict[tuple[str, str], float] = {}
        self._tokens, self._filled = float(BURST), clock()
        self._news = asyncio.Event()

    def put(self, term: int, wanted: Mapping[Identity, tuple[DesiredStatus, Resource]]) -> None:
        """Write these statuses, which differ from those of the followed objects, and no others that wait."""
        now = self._clock()
        self._history = {key: known for key, known in self._history.items() if now - known.at < _SETTLED_S}
        self._failures = {key: number for key, number in self._failures.items() if key in wanted}
        before, self._pending = self._pending, {}
        for identity, (desired, followed) in wanted.items():
            pending = _Pending(desired, term, followed)
            in_hand = self._in_hand.get(identity)
            if self._is_done(identity, pending) or (in_hand is not None and in_hand[:2] == pending[:2]):
                continue
            self._pending[identity] = pending
            known = before.get(identity)
            due, turn = self._due(identity, known, desired, now), self._turn_of.get(identity)
            is_new = known is None or known.desired != desired
            # An object that waits for its turn and changes meanwhile keeps its place.
            if turn is None or (is_new and due < turn[0]):
                self._take_turn(identity, due)
        self._turn_of = {identity: turn for identity, turn in self._turn_of.items() if identity in self._pending}
        self._rounds = {namespace: last for namespace, last in self._rounds.items() if last > self._round}
        self._news.set()

    @property
    def is_idle(self) -> bool:
        """Whether nothing waits to be written."""
        return not self._pending and not self._in_hand

    def _is_done(self, identity: Identity, pending: _Pending) -> bool:
        """Whether a status was written, and either the followed object is older or it is as the server left it."""
        known = self._history.get(identity)
        if known is None or known.pending.desired != pending.desired:
            return False
        followed = pending.followed.value.get("status") or {}
        return known.pending.followed is pending.followed or followed == known.status

    def _due(self, identity: Identity, known: _Pending | None, desired: DesiredStatus, now: float) -> float:
        """Return when it is the turn of an object: a change of the object itself does not wait for failures."""
        failures = self._failures.get(identity, 0)
        is_same = known is not None and known.desired.generation == desired.generation
        return now + _wait(failures) if failures and is_same else now

    def _take_turn(self, identity: Identity, due: float) -> None:
        self._number += 1
        self._turn_of[identity] = due, self._number
        heapq.heappush(self._turns, (due, self._number, identity))

    async def run(self, stop: asyncio.Event) -> None:
        """Write until `stop` is set. A write that was begun is finished."""
        try:
            await asyncio.gather(*(self._work(stop) for _ in range(_TASKS)))
        finally:
            await self._connection.close()

    async def _work(self, stop: asyncio.Event) -> None:
        while not stop.is_set():
            if seconds := self._token_in():
                await first_of(stop, seconds=seconds)
                continue
            identity = self._next()
            if identity is None:
                await first_of(self._news, stop, seconds=self._next_in())
                continue
            self._tokens -= 1
            pending = self._in_hand[identity] = self._pending.pop(identity)
            try:
                await self._settle(identity, pending)
            finally:
                del self._in_hand[identity]
                # Another status of this object may have had to wait.
                self._news.set()

    def _token_in(self) -> float:
        """Return in how many seconds something may be written; 0 if now."""
        now = self._clock()
        self._tokens, self._filled = min(BURST, self._tokens + (now - self._filled) * RATE), now
        return 0.0 if self._tokens >= 1 else (1 - self._tokens) / RATE

    def _next(self) -> Identity | None:
        """Take the next object whose turn it is."""
        now = self._clock()
        while self._turns and self._turns[0][0] <= now:
            due, number, identity = heapq.heappop(self._turns)
            if self._turn_of.get(identity) == (due, number):
                # Once in a round.
                turn = self._rounds[identity[2]] = max(self._rounds.get(identity[2], 0), self._round) + 1
                heapq.heappush(self._ready, (turn, number, identity))
        busy: list[tuple[int, int, Identity]] = []
        ready = None
        while self._ready and ready is None:
            turn, number, identity = heapq.heappop(self._ready)
            if identity not in self._pending or self._turn_of.get(identity, (0, -1))[1] != number:
                continue
            if identity in self._in_hand:
                busy.append((turn, number, identity))
            else:
                del self._turn_of[identity]
                self._round, ready = turn, identity
        for waiting in busy:
            heapq.heappush(self._ready, waiting)
        if ready is None:
            self._news.clear()
        return ready

    def _next_in(self) -> float:
        """Return in how many seconds to look again, unless there are news."""
        return min(max(self._turns[0][0] - self._clock(), 0.05), 60.0) if self._turns else 60.0

    def _again(self, identity: Identity, pending: _Pending, seconds: float) -> None:
        """Let a status wait for another turn, unless a newer one does."""
        if identity not in self._pending:
            self._pending[identity] = pending
            self._take_turn(identity, self._clock() + seconds)

    async def _settle(self, identity: Identity, pending: _Pending) -> None:
        """Bring the status of one object to what is wanted, or let it wait; say why it cannot be written."""
        try:
            result = await self._write(identity, pending)
        except NotLeadingError:
            # The next term plans anew.
            return
        except ApiServerError as error:
            result = {404: "gone", 409: "conflict"}.get(error.code, "refused" if error.code < 500 else "failed")
            if error.code != 404:
                self._failed(identity, pending, error)
            elif "page not found" in error.message:
                self._served = {}
        except (ClusterError, msgspec.DecodeError) as error:
            result = "failed"
            self._failed(identity, pending, error)
        else:
            self._failures.pop(identity, None)
        self._count(result)

    def _failed(self, identity: Identity, pending: _Pending, error: Exception) -> None:
        failures = self._failures[identity] = self._failures.get(identity, 0) + 1
        self._again(identity, pending, _wait(failures))
        code = str(error.code) if isinstance(error, ApiServerError) else ""
        if code != "409":
            self._say(identity, code, f"cannot be written: {failure_reason(error)}")

    def _say(self, identity: Identity, about: str, words: str) -> None:
        """Say something about an object, once in a while about each kind."""
        _, kind, namespace, name = identity
        now = self._clock()
        if now - self._said.get((kind, about), now - _SETTLED_S) >= _SETTLED_S:
            self._said[kind, about] = now
            self._send_report(EngineReport(f"the status of {Reference(kind, namespace, name)} {words}"))

    async def _write(self, identity: Identity, pending: _Pending) -> str:
        """Read an object and write its status if it differs; return the result."""
        desired, term, _ = pending
        path = await self._path(identity, desired.version)
        if not path:
            return "gone"
        for attempt in range(_CONFLICTS + 1):
            live = (await self._connection.get(path)).decode(_DECODER)
            if (live.metadata.uid, live.metadata.generation) != (desired.uid, desired.generation):
                # It was judged in another state: a newer judgement is on its way.
                return "superseded"
            before = live.status or {}
            status = status_with(before, desired, _wall_time())
            if status == before:
                self._remember(identity, pending, before)
                return "unchanged"
            if (observed := observed_generation(before, desired)) > desired.generation:
                self._say(identity, "observed", f"is about generation {observed} and stays until there is one")
                self._again(identity, pending, LONGEST_WAIT_S)
                return "superseded"
            if seconds := self._undone_wait(identity, desired.uid, before, live.metadata.managed_fields):
                self._again(identity, pending, seconds)
                return "delayed"
            try:
                after = await self._send(term, path, identity, desired, live, status)
            except ApiServerError as error:
                if error.code != 409 or attempt == _CONFLICTS:
                    raise
                continue
            self._remember(identity, pending, after.status or {})
            self._written(before, desired)
            return "written"
        raise AssertionError("the last attempt returns or raises")

    async def _send(
        self,
        term: int,
        path: str,
        identity: Identity,
        desired: DesiredStatus,
        live: _LiveObject,
        status: dict[str, Any],
    ) -> _LiveObject:
        group, kind, namespace, name = identity
        metadata = {"name": name, "uid": live.metadata.uid, "resourceVersion": live.metadata.resource_version}
        if namespace:
            metadata["namespace"] = namespace
        document: dict[str, Any] = {"apiVersion": f"{group}/{desired.version}", "kind": kind, "metadata": metadata}
        query = {"fieldManager": FIELD_MANAGER}
        method, content_type = "PUT", "application/json"
        if (group, kind) in ADMIN_POLICIES:
            status = {"conditions": our_conditions(status, desired)}
            query["force"] = "true"
            # JSON is YAML.
            method, content_type = "PATCH", "application/apply-patch+yaml"
        content = msgspec.json.encode(document | {"status": status})
        reply = await self._fenced.send(term, method, f"{path}/status", content, query, content_type)
        return reply.decode(_DECODER)

    async def _path(self, identity: Identity, version: str) -> str:
        """Return the path of an object; empty if its kind is not served in this version."""
        group, kind, namespace, name = identity
        for is_fresh in (False, True):
            for served in self._served.get((group, kind), ()):
                if served.version == version:
                    return f"{served.path(quote(namespace))}/{quote(name)}"
            if not is_fresh:
                self._served = (await discover(self._connection)).kinds
        return ""

    def _remember(self, identity: Identity, pending: _Pending, status: Mapping[str, Any]) -> None:
        known = self._history.get(identity)
        undone = known.undone if known is not None else 0
        self._history[identity] = _Written(pending, status, self._clock(), undone)

    def _undone_wait(self, identity: Identity, uid: str, status: Mapping[str, Any], owners: list[_Owner]) -> float:
        """Return how long to wait because somebody changes what was written; 0 if nobody does."""
        known = self._history.get(identity)
        if known is None or known.pending.desired.uid != uid:
            return 0.0
        if not known.is_counted:
            if status_with(status, known.pending.desired, "") == status:
                return 0.0
            known.is_counted = True
            known.undone += 1
            if known.undone >= _UNDONE_TO_SAY:
                others = [owner for owner in owners if owner.subresource and owner.manager != FIELD_MANAGER]
                who = f"`{max(others, key=lambda owner: owner.time).manager}`" if others else "somebody"
                words = f"is changed by {who} again and again; it is written less and less often"
                self._say(identity, "undone", words)
        return max(known.at + _wait(known.undone) - self._clock(), 0.0)


def _wait(times: int) -> float:
    """Return how long an object waits after so many failures."""
    return min(FIRST_WAIT_S * 2.0 ** (min(times, 20) - 1), LONGEST_WAIT_S)


def _wall_time() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")

"""Writes the NodeReport of a node and its heartbeat to the API server, in a thread of its own.

Enforcement never waits for it: whatever the API server does, only the newest report counts, and it is sent until it is
there. The heartbeat says that the report is what is in force, so it pauses while a report cannot be written
(docs/enforce-network.md#reports).
"""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import msgspec
from msgspec import Struct

from tierwall.cluster.access import ClusterAccess
from tierwall.cluster.connection import Connection
from tierwall.cluster.failures import ApiServerError, failure_reason
from tierwall.serve.heartbeat import HeartbeatSender
from tierwall.serve.node_report import NodeReport

_REPORTS = "/apis/tierwall.io/v1alpha1/namespaces/{}/nodereports"
_MANAGER = {"fieldManager": "tierwall-node-agent"}
# The limit of one request, in seconds, where the user gives a longer one or none: a heartbeat is due soon.
_TIMEOUT = 10.0


class ReportTiming(Struct, frozen=True):
    """How often the sender writes, in seconds."""

    heartbeat: float = 20.0
    # A Lease that another agent holds is taken back when it has not changed for so long.
    abandoned: float = 60.0
    # Every so many heartbeats the report is read again: somebody may have deleted it.
    look_every: int = 3
    # So many reports may follow each other at once, then one in so many seconds.
    burst: int = 5
    rest: float = 2.0
    # After a failure the sender waits from so long to so long.
    first_wait: float = 0.5
    longest_wait: float = 10.0


class _OwnerReference(Struct, rename="camel"):
    api_version: str = "v1"
    kind: str = "Node"
    name: str = ""
    uid: str = ""


class _Metadata(Struct, rename="camel"):
    uid: str = ""
    resource_version: str = ""
    owner_references: list[_OwnerReference] | None = None


class _Object(Struct):
    metadata: _Metadata = msgspec.field(default_factory=_Metadata)
    # Of any form: it may have been written by another release.
    status: Any = None


_DECODER = msgspec.json.Decoder(_Object)


class ReportSender:
    """Sends the newest report of a node until it is closed.

    INVARIANT: only its own thread talks to the API server. `put` may be called from any thread.
    """

    def __init__(
        self,
        access: ClusterAccess,
        timeout: float | None,
        node: str,
        namespace: str,
        send_message: Callable[[str], None],
        timing: ReportTiming | None = None,
    ) -> None:
        """`namespace` is that of reports and Leases; `send_message` gets what keeps them from being written."""
        self._access, self._timeout = access, min(timeout or _TIMEOUT, _TIMEOUT)
        self._node, self._namespace = node, namespace
        self._send_message, self._timing = send_message, timing or ReportTiming()
        self._heartbeat = HeartbeatSender(node, namespace, self._timing.abandoned)
        self._path = _REPORTS.format(namespace)
        # The `resourceVersion` of the report on the server; empty if it must be read first.
        self._version = ""
        # What was last said about the report and about the heartbeat.
        self._said: dict[str, str] = {}
        # Since when each of them meets conflicts.
        self._conflicting_since: dict[str, float] = {}
        self._lock = threading.Lock()
        # The newest report, and since when it is not written; None if it is.
        self._wanted: NodeReport | None = None
        self._unwritten_since: float | None = None
        self._is_closing = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None
        self._news = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="node-report", daemon=True)

    def start(self) -> None:
        """Begin to send. Nothing is sent before the first report."""
        self._thread.start()

    def put(self, report: NodeReport) -> None:
        """Send this report instead of every earlier one."""
        with self._lock:
            if report == self._wanted:
                return
            self._wanted = report
            if self._unwritten_since is None:
                self._unwritten_since = time.monotonic()
            if self._loop is not None and not self._loop.is_closed():
                self._loop.call_soon_threadsafe(self._news.set)

    def close(self) -> None:
        """Stop sending, whatever is going on."""
        with self._lock:
            self._is_closing = True
            if self._task is not None and self._loop is not None and not self._loop.is_closed():
                self._loop.call_soon_threadsafe(self._task.cancel)
        if self._thread.ident is not None:
            self._thread.join()

    def send_last(self, report: NodeReport) -> None:
        """Send one report without a thread; ClusterError if it cannot be written."""

        async def send() -> None:
            connection = Connection(self._access, self._timeout)
            try:
                await self._write(connection, report)
            finally:
                await connection.close()

        asyncio.run(send())

    # In the thread of the sender

    def _run(self) -> None:
        with suppress(asyncio.CancelledError):
            asyncio.run(self._main())

    async def _main(self) -> None:
        with self._lock:
            if self._is_closing:
                return
            self._loop, self._task = asyncio.get_running_loop(), asyncio.current_task()
            if self._wanted is not None:
                self._news.set()
        await self._news.wait()
        connection = Connection(self._access, self._timeout)
        try:
            await asyncio.gather(self._send_reports(connection), self._send_heartbeats(connection))
        finally:
            await connection.close()

    async def _send_reports(self, connection: Connection) -> None:
        """Write the newest report whenever there is one."""
        timing = self._timing
        wait, tokens, filled = timing.first_wait, float(timing.burst), time.monotonic()
        while True:
            await self._news.wait()
            now = time.monotonic()
            tokens, filled = min(timing.burst, tokens + (now - filled) / timing.rest), now
            if tokens < 1:
                await asyncio.sleep((1 - tokens) * timing.rest)
                continue
            self._news.clear()
            wanted = self._wanted
            assert wanted is not None, "nothing wakes this task before the first report"
            if self._heartbeat.replaced_by:
                continue
            try:
                tokens -= await self._write(connection, wanted)
            except Exception as error:
                self._say("NodeReport", error)
                self._news.set()
                await asyncio.sleep(wait * random.uniform(0.5, 1.5))
                wait = min(2 * wait, timing.longest_wait)
                continue
            wait = timing.first_wait
            self._succeed("NodeReport")
            with self._lock:
                if self._wanted == wanted:
                    self._unwritten_since = None

    async def _send_heartbeats(self, connection: Connection) -> None:
        """Renew the Lease, and look now and then whether the report is still there."""
        timing, heartbeat = self._timing, self._heartbeat
        number = 0
        while True:
            wait = timing.heartbeat
            with self._lock:
                since = self._unwritten_since
            before = heartbeat.replaced_by
            if before or since is None or time.monotonic() - since < timing.heartbeat:
                try:
                    await heartbeat.beat(connection)
                except Exception as error:
                    self._say("heartbeat", error)
                    wait = min(wait, 4 * timing.first_wait) * random.uniform(0.5, 1.5)
                else:
                    self._succeed("heartbeat")
                    number += 1
                if heartbeat.replaced_by and not before:
                    self._send_message(f"`{heartbeat.replaced_by}` reports for the node `{self._node}` now")
                if number >= timing.look_every or (before and not heartbeat.replaced_by):
                    number, self._version = 0, ""
                    self._news.set()
            await asyncio.sleep(wait)

    async def _write(self, connection: Connection, report: NodeReport) -> bool:
        """Bring the report on the server to this state; False if it was there already."""
        status = msgspec.to_builtins(report)
        if not self._version:
            known = await self._find(connection)
            if known.status == status:
                self._version = known.metadata.resource_version
                return False
            self._version = known.metadata.resource_version
        version, self._version = self._version, ""
        body = self._body(version, status=status)
        # After a failure it is read again: somebody may have written or deleted it.
        reply = await connection.send("PUT", f"{self._path}/{self._node}/status", body, _MANAGER)
        self._version = reply.decode(_DECODER).metadata.resource_version
        return True

    async def _find(self, connection: Connection) -> _Object:
        """Return the report on the server, made if it was not there. It belongs to the Node as it is now."""
        node = (await connection.get(f"/api/v1/nodes/{self._node}")).decode(_DECODER)
        owners = [_OwnerReference(name=self._node, uid=node.metadata.uid)]
        own_path = f"{self._path}/{self._node}"
        try:
            known = (await connection.get(own_path)).decode(_DECODER)
        except ApiServerError as error:
            if error.code != 404:
                raise
            body = self._body(owners=owners)
            return (await connection.send("POST", self._path, body, _MANAGER)).decode(_DECODER)
        if known.metadata.owner_references != owners:
            body = self._body(known.metadata.resource_version, owners=owners)
            return (await connection.send("PUT", own_path, body, _MANAGER)).decode(_DECODER)
        return known

    def _body(self, version: str = "", owners: list[_OwnerReference] | None = None, status: Any = None) -> bytes:
        metadata: dict[str, Any] = {"name": self._node, "namespace": self._namespace}
        if version:
            metadata["resourceVersion"] = version
        if owners is not None:
            metadata["ownerReferences"] = msgspec.to_builtins(owners)
        value = {"apiVersion": "tierwall.io/v1alpha1", "kind": "NodeReport", "metadata": metadata}
        return msgspec.json.encode(value if status is None else value | {"status": status})

    def _succeed(self, subject: str) -> None:
        """Forget what was said: the same problem is news when it comes again."""
        self._said.pop(subject, None)
        self._conflicting_since.pop(subject, None)

    def _say(self, subject: str, error: Exception) -> None:
        """Say why something cannot be written, unless that was said last."""
        if isinstance(error, ApiServerError) and error.code == 409:
            # Somebody wrote in between, and it is read again. Two agents of a node meet like this until the earlier one
            # finds that it is replaced, so only a conflict that lasts longer is worth a message.
            since = self._conflicting_since.setdefault(subject, time.monotonic())
            if time.monotonic() - since < self._timing.abandoned:
                return
        reason = failure_reason(error)
        if isinstance(error, ApiServerError) and error.code == 404 and "page not found" in error.message:
            reason = "the cluster does not know this kind (`tierwall crds` prints its definition)"
        if self._said.get(subject) != reason:
            self._said[subject] = reason
            self._send_message(f"the {subject} of the node `{self._node}` cannot be written: {reason}")

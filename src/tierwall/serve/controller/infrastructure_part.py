"""The part of the controller that keeps the Deployments and Services of Gateways as they should be.

Only the leader writes, with the `resourceVersion` that it has read in the same term. It touches only objects that have
its label and belong to a Gateway. An object of somebody else with the same name stays as it is, and is reported. The
garbage collector of Kubernetes deletes what belongs to a Gateway that is gone; the leader does, too, because the
Gateway may still be there and have another class.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Collection, Iterator
from typing import Any, NamedTuple

from msgspec import Struct
from prometheus_client import Counter

from tierwall.attach.place import GATEWAY
from tierwall.cluster.connection import Connection
from tierwall.cluster.failures import ApiServerError, ClusterError, failure_reason
from tierwall.core.protocols import EngineReport
from tierwall.resources.resource import Resource
from tierwall.resources.snapshot import Snapshot
from tierwall.serve.cluster import first_of
from tierwall.serve.controller.gateway_class import GATEWAY_CLASS, full_name, served_gateways
from tierwall.serve.controller.infrastructure import (
    MANAGED_BY,
    OURS,
    InfrastructureTemplate,
    Value,
    is_ours,
    owner_uid,
    updated,
    wanted_objects,
)
from tierwall.serve.controller.leadership import FencedConnection, NotLeadingError
from tierwall.serve.controller.state import ControllerContext, ControllerPart, ControllerState

_PATHS = {"Deployment": "/apis/apps/v1/namespaces/{}/deployments", "Service": "/api/v1/namespaces/{}/services"}


class InfrastructureTiming(Struct, frozen=True):
    """How often to look, in seconds."""

    # Objects are read again after so long, because somebody may have changed or deleted them.
    look: float = 60.0
    # Changes that follow each other closely are written together.
    pause: float = 0.2
    retry: float = 5.0
    # The same object is not written twice in the same way within so long: somebody else may write it otherwise.
    repeat: float = 60.0


class _ObjectName(NamedTuple):
    kind: str
    namespace: str
    name: str

    @classmethod
    def of(cls, value: Value) -> _ObjectName:
        metadata = value["metadata"]
        return cls(value["kind"], metadata["namespace"], metadata["name"])


class InfrastructurePart(ControllerPart):
    """Creates, updates and deletes the Deployments and Services of Gateways."""

    def __init__(
        self,
        context: ControllerContext,
        template: InfrastructureTemplate,
        namespaces: Collection[str],
        authority: Callable[[], bytes | None],
        timing: InfrastructureTiming | None = None,
    ) -> None:
        """`authority` returns the CA certificates that Envoys trust controllers by; None before there are any."""
        self._context, self._template, self._namespaces = context, template, sorted(namespaces)
        self._authority, self._timing = authority, timing or InfrastructureTiming()
        self._connection = Connection(context.access, context.timeout)
        self._fenced = FencedConnection(self._connection, context.leadership)
        self._latest = Snapshot({})
        self._news = asyncio.Event()
        # What was last wanted, and what was last written of each object, and when.
        self._wanted: tuple[Value, ...] | None = None
        self._written: dict[_ObjectName, tuple[Value, float]] = {}
        self._said: frozenset[str] = frozenset()
        words = "Writes of Deployments and Services for Gateways."
        self._writes = Counter("tierwall_gateway_writes_total", words, ("result",), registry=context.registry)

    def take(self, state: ControllerState) -> None:
        """Take the newest state."""
        self._latest = state.snapshot
        self._news.set()

    async def run(self, stop: asyncio.Event) -> None:
        """Write until `stop` is set."""
        due, term = float("-inf"), -1
        try:
            while await self._context.leadership.wait_to_lead(stop):
                self._news.clear()
                wanted = self._all_wanted()
                is_due = time.monotonic() >= due or term != self._context.leadership.term
                if wanted is not None and (is_due or wanted != self._wanted):
                    term, self._wanted = self._context.leadership.term, wanted
                    is_done = await self._attempt(wanted, term)
                    due = time.monotonic() + (self._timing.look if is_done else self._timing.retry)
                await first_of(None, stop, self._timing.pause)
                await first_of(self._news, stop, max(0.0, min(due - time.monotonic(), self._timing.retry)))
        finally:
            await self._connection.close()

    async def _attempt(self, wanted: tuple[Value, ...], term: int) -> bool:
        try:
            return await self._reconcile(wanted, term)
        except NotLeadingError:
            return False
        except ClusterError as error:
            self._say([f"Deployments and Services of Gateways cannot be read: {failure_reason(error)}"])
            return False

    def _all_wanted(self) -> tuple[Value, ...] | None:
        authority = self._authority()
        if authority is None:
            return None
        gateways = served_gateways(self._latest, self._namespaces)
        return tuple(
            value
            for gateway in gateways
            if gateway.metadata.get("uid") and not gateway.metadata.get("deletionTimestamp")
            for value in wanted_objects(self._latest, gateway, self._template, authority.decode())
        )

    async def _reconcile(self, wanted: tuple[Value, ...], term: int) -> bool:
        """Bring all objects to the wanted state; False if a write failed, which keeps none of the others."""
        snapshot, problems = self._latest, []
        actual = {_ObjectName.of(value): value for value in await self._read()}
        for value in wanted:
            name = _ObjectName.of(value)
            try:
                await self._put(name, value, actual.pop(name, None), term)
            except ClusterError as error:
                self._count(error)
                problems.append(f"{name.kind} {name.namespace}/{name.name} cannot be written: {failure_reason(error)}")
        for name, value in actual.items():
            if not _is_orphan(snapshot, value, self._namespaces):
                continue
            try:
                await self._delete(name, value, term)
            except ClusterError as error:
                self._count(error)
                problems.append(f"{name.kind} {name.namespace}/{name.name} cannot be deleted: {failure_reason(error)}")
        self._say(problems)
        return not problems

    async def _read(self) -> list[Value]:
        """Return all objects of ours."""
        objects: list[Value] = []
        for namespace in self._namespaces:
            for kind, path in _PATHS.items():
                selector = {"labelSelector": f"{MANAGED_BY}={OURS}"}
                items = json.loads((await self._connection.get(path.format(namespace), selector)).content)["items"]
                version = "apps/v1" if kind == "Deployment" else "v1"
                objects += [{**item, "apiVersion": version, "kind": kind} for item in items if is_ours(item)]
        return objects

    async def _put(self, name: _ObjectName, wanted: Value, actual: Value | None, term: int) -> None:
        path = _PATHS[name.kind].format(name.namespace)
        if actual is None:
            try:
                await self._send(term, "POST", path, wanted)
            except ApiServerError as error:
                if error.code != 409:
                    raise
                # It is not one of ours, or somebody has taken our label away from it.
                raise ApiServerError(409, "Conflict", "it exists, and this controller did not make it") from None
            return
        if owner_uid(actual) != owner_uid(wanted):
            # A Gateway of the same name was there before. Its objects go first.
            await self._delete(name, actual, term)
            await self._send(term, "POST", path, wanted)
            return
        body = updated(actual, wanted)
        before, moment = self._written.get(name, ({}, float("-inf")))
        if body is None or (before == wanted and time.monotonic() - moment < self._timing.repeat):
            return
        await self._send(term, "PUT", f"{path}/{name.name}", body)
        self._written[name] = wanted, time.monotonic()

    async def _delete(self, name: _ObjectName, value: Value, term: int) -> None:
        metadata = value["metadata"]
        options = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "propagationPolicy": "Background",
            "preconditions": {"uid": metadata["uid"], "resourceVersion": metadata["resourceVersion"]},
        }
        path = f"{_PATHS[name.kind].format(name.namespace)}/{name.name}"
        try:
            await self._send(term, "DELETE", path, options)
        except ApiServerError as error:
            if error.code != 404:
                raise
        self._written.pop(name, None)

    async def _send(self, term: int, method: str, path: str, value: Value) -> None:
        await self._fenced.send(term, method, path, json.dumps(value).encode(), {"fieldManager": "tierwall"})
        self._writes.labels("done").inc()

    def _count(self, error: ClusterError) -> None:
        is_conflict = isinstance(error, ApiServerError) and error.code == 409
        self._writes.labels("conflict" if is_conflict else "failed").inc()

    def _say(self, problems: Collection[str]) -> None:
        for problem in sorted(set(problems) - self._said):
            self._context.send_report(EngineReport(problem))
        self._said = frozenset(problems)


def _is_orphan(snapshot: Snapshot, value: dict[str, Any], namespaces: Collection[str]) -> bool:
    """Whether an object belongs to no Gateway that is served. If only its class is missing, it stays."""
    uid = owner_uid(value)
    gateway = next((each for each in _gateways(snapshot, value) if each.metadata.get("uid") == uid), None)
    if gateway is None or full_name(gateway) in map(full_name, served_gateways(snapshot, namespaces)):
        # Of a Gateway that is served, only what it no longer wants is left.
        return True
    return snapshot.get(*GATEWAY_CLASS, "", str(gateway.spec.get("gatewayClassName"))) is not None


def _gateways(snapshot: Snapshot, value: dict[str, Any]) -> Iterator[Resource]:
    yield from snapshot.in_namespace(*GATEWAY, value["metadata"]["namespace"])

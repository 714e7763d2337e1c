"""Writes Events of `events.k8s.io/v1` about policies, as the leader only (docs/controller.md#events).

An Event is a courtesy: what cannot be written is dropped, and nothing waits for it. Changes of a status are told when
the status was written. What stands in no status (NetworkPolicies, targets that are missing, a list that is full) is
told when it begins. It has a name by which a new leader finds out whether the one before has told it already.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

import msgspec

from tierwall.cluster.connection import Connection
from tierwall.cluster.failures import ApiServerError, ClusterError, failure_reason
from tierwall.core.protocols import EngineReport
from tierwall.resources.resource import Identity
from tierwall.resources.snapshot import Snapshot
from tierwall.serve.controller.desired import CONTROLLER_NAME, DesiredStatus
from tierwall.serve.controller.leadership import FencedConnection, NotLeadingError
from tierwall.serve.controller.policy_events import (
    EventLimit,
    PolicyEvent,
    condition_events,
    event_note,
    status_events,
)
from tierwall.serve.controller.policy_statuses import PlannedStatuses, PolicyProblem
from tierwall.serve.controller.state import ControllerContext, ControllerPart

# The pause between two Events, in seconds: a storm of them could cost the lease.
_PAUSE_S = 0.05
_ACTIONS = {"TargetNotFound": "Resolve", "StatusFull": "Report"}
_MAX_INSTANCE = 128


class EventWriter(ControllerPart):
    """Tells about policies."""

    def __init__(self, context: ControllerContext, clock: Callable[[], float] = time.monotonic) -> None:
        self._leadership, self._send_report = context.leadership, context.send_report
        self._instance = context.identity[:_MAX_INSTANCE]
        self._connection = Connection(context.access, context.timeout)
        self._fenced = FencedConnection(self._connection, context.leadership)
        self._limit = EventLimit(clock)
        self._newest: tuple[PlannedStatuses, Snapshot] | None = None
        # What this process saw last while it led, and in which term.
        self._seen: PlannedStatuses | None = None
        self._term = -1
        self._news = asyncio.Event()
        self._last_failure = ""

    def written(self, before: Mapping[str, Any], desired: DesiredStatus) -> None:
        """Tell about a status that was written; `before` is what it was."""
        self._add(status_events(before, desired))

    def observe(self, planned: PlannedStatuses, live: Snapshot) -> None:
        """Take what is planned, to tell about what stands in no status."""
        self._newest = planned, live
        self._news.set()

    def _add(self, events: Iterator[PolicyEvent]) -> None:
        for event in events:
            self._limit.add(event)
            self._news.set()

    async def run(self, stop: asyncio.Event) -> None:
        """Tell until `stop` is set, while this process leads."""
        try:
            while await self._leadership.wait_to_lead(stop):
                self._news.clear()
                self._look()
                if (event := self._limit.take()) is not None:
                    await self._tell(event)
                    await _sleep(stop, _PAUSE_S)
                    continue
                waiting = asyncio.ensure_future(self._news.wait())
                stopping = asyncio.ensure_future(stop.wait())
                await asyncio.wait((waiting, stopping), timeout=self._limit.next_s, return_when=asyncio.FIRST_COMPLETED)
                waiting.cancel()
                stopping.cancel()
        finally:
            await self._connection.close()

    def _look(self) -> None:
        """Find what is new in what stands in no status."""
        if self._newest is None:
            return
        if self._term != self._leadership.term:
            self._term, self._seen = self._leadership.term, None
        (planned, live), seen = self._newest, self._seen
        self._seen = planned
        if seen is planned:
            return
        self._add(_network_policy_events(planned, seen, live))
        self._add(_problem_events(planned, seen, live))

    async def _tell(self, event: PolicyEvent) -> None:
        name = event.policy[3][:200].rstrip("-.")
        standing = hashlib.sha256(repr((event.uid, event.reason, event.note)).encode()).hexdigest()[:16]
        passing = f"{time.time_ns():x}"
        names = (standing, passing) if event.is_standing else (passing,)
        failure = ""
        for suffix in names[:1] if event.is_old else names:
            try:
                await self._send(event, f"{name}.{suffix}")
            except NotLeadingError:
                pass
            except ApiServerError as error:
                if error.code == 409:
                    # It has been told in the last hour.
                    continue
                failure = failure_reason(error)
            except ClusterError as error:
                failure = failure_reason(error)
            break
        if failure and failure != self._last_failure:
            self._send_report(EngineReport(f"Events cannot be written: {failure}"))
        self._last_failure = failure

    async def _send(self, event: PolicyEvent, name: str) -> None:
        group, kind, namespace, policy = event.policy
        regarding = {"apiVersion": f"{group}/{event.version}", "kind": kind, "name": policy, "uid": event.uid}
        # Events about cluster-scoped objects are in this namespace.
        where = namespace or "default"
        document = {
            "apiVersion": "events.k8s.io/v1",
            "kind": "Event",
            "metadata": {"name": name, "namespace": where},
            "eventTime": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
            "reportingController": CONTROLLER_NAME,
            "reportingInstance": self._instance,
            "action": event.action,
            "reason": event.reason,
            "type": "Warning" if event.is_warning else "Normal",
            "note": event_note(event.note),
            "regarding": regarding | ({"namespace": namespace} if namespace else {}),
        }
        path = f"/apis/events.k8s.io/v1/namespaces/{quote(where)}/events"
        await self._fenced.send(self._leadership.term, "POST", path, msgspec.json.encode(document))


def _network_policy_events(
    planned: PlannedStatuses, seen: PlannedStatuses | None, live: Snapshot
) -> Iterator[PolicyEvent]:
    """Yield what changed about NetworkPolicies. At first only what is wrong is told, unless it has been told before."""
    for identity, after in planned.unwritten.items():
        before = seen.unwritten.get(identity, ()) if seen is not None else ()
        if before is after or before == after:
            continue
        version, uid = _version_and_uid(live, identity)
        for event in condition_events(identity, version, uid, before, after):
            if seen is not None or event.reason == "Rejected":
                is_standing = event.reason == "Rejected"
                yield event._replace(is_standing=is_standing, is_old=seen is None)


def _problem_events(planned: PlannedStatuses, seen: PlannedStatuses | None, live: Snapshot) -> Iterator[PolicyEvent]:
    """Yield the problems that are new; one event about all that a policy has for one reason."""
    problems: dict[tuple[Identity, str], list[PolicyProblem]] = {}
    for problem in planned.problems:
        problems.setdefault((problem.policy, problem.reason), []).append(problem)
    known = frozenset(seen.problems) if seen is not None else frozenset[PolicyProblem]()
    for (identity, reason), together in problems.items():
        if any(problem not in known for problem in together):
            version, uid = _version_and_uid(live, identity)
            note = "\n".join(problem.message for problem in together)
            action = _ACTIONS[reason]
            yield PolicyEvent(identity, version, uid, action, reason, note, True, True, seen is None)


def _version_and_uid(live: Snapshot, identity: Identity) -> tuple[str, str]:
    resource = live.get(*identity)
    return (resource.version, str(resource.metadata.get("uid", ""))) if resource is not None else ("", "")


async def _sleep(stop: asyncio.Event, seconds: float) -> None:
    with suppress(TimeoutError):
        await asyncio.wait_for(stop.wait(), seconds)

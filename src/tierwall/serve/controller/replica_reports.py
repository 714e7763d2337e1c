"""The reports of all replicas about their Envoys: writes those of this one, reads them all (docs/fleet.md#replicas).

Reports are Leases of the release namespace. Each replica also has a Lease that is its heartbeat: reports of a replica
whose heartbeat stands still count for nothing after a while. No time in a Lease is compared with a clock. The Leases
belong to the replica's pod, and Kubernetes deletes them with it.

The heartbeat says one thing more. When a replica sees its own heartbeat come back through its watch, it knows what the
API server knew when it sent it. That is how it knows that it has caught up with the others.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Mapping

import msgspec
from msgspec import Struct

from tierwall.cluster.connection import Connection
from tierwall.cluster.failures import ClusterError, failure_reason
from tierwall.core.protocols import EngineReport
from tierwall.resources.snapshot import Snapshot
from tierwall.serve.cluster import first_of
from tierwall.serve.controller.envoy_report import (
    GATEWAY_ANNOTATION,
    LABEL,
    LABEL_VALUE,
    REPORT_ANNOTATION,
    EnvoyReport,
    decode_report,
    encode_report,
    report_lease_name,
    report_metadata,
)
from tierwall.serve.controller.kinds import LEASE
from tierwall.serve.leases import LeaseClient, LeaseRecord, LeaseSpec, wall_time


class ReplicaTiming(Struct, frozen=True):
    """How often a replica writes, and how long it is believed, in seconds."""

    heartbeat: float = 10.0
    # A replica whose heartbeat was not seen for so long has no Envoys.
    stale: float = 30.0
    # The pause between two writes, and between two heartbeats that are in a hurry.
    pause: float = 0.1
    hurry: float = 0.5
    # After the heartbeat came back, the watches of other kinds, and a load, may take so long.
    settle: float = 1.0
    # After a failure it waits so long.
    retry: float = 2.0


class ReplicaReports:
    """The reports of all replicas. Everything happens in the event loop of the connection."""

    def __init__(
        self,
        connection: Connection,
        namespace: str,
        identity: str,
        send_report: Callable[[EngineReport], None],
        timing: ReplicaTiming | None = None,
    ) -> None:
        """`namespace` is that of the release; `identity` the name of this replica."""
        self._connection, self._namespace, self._identity = connection, namespace, identity
        self._send_report, self._timing = send_report, timing or ReplicaTiming()
        self._leases = LeaseClient(namespace, "tierwall")
        # The reports of this replica as they should be, and as they were written, by Gateway.
        self._wanted: dict[str, EnvoyReport] = {}
        self._written: dict[str, str] = {}
        self._versions: dict[str, str] = {}
        self._owner: dict[str, str] | None = None
        self._news = asyncio.Event()
        # Of each replica: the heartbeat that was last seen, and when it was new.
        self._seen: dict[str, tuple[str, float]] = {}
        self._others: list[tuple[str, str, EnvoyReport]] = []
        self._decoded: dict[tuple[str, str], EnvoyReport] = {}
        # Heartbeats that were sent, with the moments when that began; and the moments of those that came back.
        self._sent: deque[tuple[str, float]] = deque(maxlen=16)
        self._came_back: deque[tuple[float, float]] = deque(maxlen=16)
        self._settled = -float("inf")
        self._last_failure = ""

    # Reading

    def take(self, snapshot: Snapshot, now: float) -> None:
        """Read the Leases of a snapshot. `now` is in monotonic seconds."""
        others: list[tuple[str, str, EnvoyReport]] = []
        decoded: dict[tuple[str, str], EnvoyReport] = {}
        for lease in snapshot.of_kind(*LEASE):
            if lease.namespace != self._namespace or lease.labels.get(LABEL) != LABEL_VALUE:
                continue
            identity, annotations = str(lease.spec.get("holderIdentity") or ""), lease.metadata.get("annotations") or {}
            gateway = annotations.get(GATEWAY_ANNOTATION, "")
            if lease.name != report_lease_name(identity, gateway):
                # Node agents may write a Lease, too, with whatever label they like, but under no name of these.
                continue
            if not gateway:
                self._note_heartbeat(identity, str(lease.spec.get("renewTime")), now)
            elif identity != self._identity:
                text = annotations.get(REPORT_ANNOTATION, "")
                report = self._decoded.get((identity, text)) or _decoded(identity, text)
                decoded[identity, text] = report
                others.append((identity, gateway, report))
        self._others, self._decoded = others, decoded
        pod = snapshot.get("", "Pod", self._namespace, self._identity)
        if pod is not None and isinstance(uid := pod.metadata.get("uid"), str):
            self._owner = {"apiVersion": "v1", "kind": "Pod", "name": self._identity, "uid": uid}

    def _note_heartbeat(self, identity: str, beat: str, now: float) -> None:
        if self._seen.get(identity, ("", 0.0))[0] == beat:
            return
        heard_until = self._heard_until(now)
        if identity == self._identity and heard_until < now:
            # It hears again. Who was not silent before has as long as ever to be heard.
            for name, (last, seen) in self._seen.items():
                self._seen[name] = last, now if heard_until - seen < self._timing.stale else seen
        self._seen[identity] = beat, now
        if identity == self._identity:
            self._came_back.extend((moment, now) for sent, moment in self._sent if sent == beat)

    def of_all(self, now: float) -> list[tuple[str, EnvoyReport]]:
        """Return the reports of all replicas that are there, each with its Gateway; those of this one as they are."""
        heard_until = self._heard_until(now)
        there = {name for name, (_, seen) in self._seen.items() if heard_until - seen < self._timing.stale}
        others = [(gateway, report) for identity, gateway, report in self._others if identity in there]
        return [*self._wanted.items(), *others]

    def _heard_until(self, now: float) -> float:
        """Return the moment up to which this replica knows who is silent: it was cut off if its own heart is not heard.

        Beats come more often than twice in the time after which a replica is silent.
        """
        mine = self._seen.get(self._identity)
        return now if mine is None else min(now, mine[1] + self._timing.stale / 2)

    def settled(self, now: float) -> float:
        """Return the latest moment up to which this replica knows everything that others knew, in monotonic seconds."""
        while self._came_back and now - self._came_back[0][1] >= self._timing.settle:
            self._settled = max(self._settled, self._came_back.popleft()[0])
        return self._settled

    def is_heard(self, now: float) -> bool:
        """Whether a heartbeat of this replica came back lately: what it knows is what the API server knows."""
        _, seen = self._seen.get(self._identity, ("", -float("inf")))
        return now - seen < self._timing.stale

    # Writing

    def put(self, reports: Mapping[str, EnvoyReport]) -> None:
        """Write these reports instead of the earlier ones. A Gateway without one is reported to have no Envoys."""
        wanted = dict.fromkeys(self._written, EnvoyReport()) | dict(reports)
        if wanted != self._wanted:
            self._wanted = wanted
            self._news.set()

    def hurry(self, now: float) -> None:
        """Send a heartbeat soon: somebody waits for this replica to catch up."""
        if not self._sent or now - self._sent[-1][1] >= self._timing.hurry:
            self._news.set()

    async def run(self, stop: asyncio.Event) -> None:
        """Write until `stop` is set."""
        timing, due = self._timing, 0.0
        while not stop.is_set():
            self._news.clear()
            pause = timing.pause
            try:
                await self._write_reports()
                await self._beat()
                due = time.monotonic() + timing.heartbeat
                self._last_failure = ""
            except (ClusterError, msgspec.DecodeError) as error:
                self._say(failure_reason(error))
                pause, due = timing.retry, 0.0
            await first_of(None, stop, pause)
            await first_of(self._news, stop, max(0.0, due - time.monotonic()))

    async def _write_reports(self) -> None:
        for gateway, report in list(self._wanted.items()):
            text = encode_report(report)
            if self._written.get(gateway) == text:
                continue
            await self._write(gateway, text, LeaseSpec(self._identity))
            self._written[gateway] = text
            await asyncio.sleep(self._timing.pause)

    async def _beat(self) -> None:
        # Reports come first: who sees the heartbeat sees the reports that were there before it.
        beat = wall_time()
        self._sent.append((beat, time.monotonic()))
        await self._write("", "", LeaseSpec(self._identity, round(self._timing.stale) or 1, renew_time=beat))

    async def _write(self, gateway: str, text: str, spec: LeaseSpec) -> None:
        name, metadata = report_lease_name(self._identity, gateway), report_metadata(gateway, text)
        if self._owner is not None:
            metadata["ownerReferences"] = [self._owner]
        # Whatever fails, the version is read again before the next attempt.
        version = self._versions.pop(name, "")
        if not version and (known := await self._leases.read(self._connection, name)) is not None:
            version = known.version
        written = await self._leases.write(self._connection, name, LeaseRecord(spec, version), metadata)
        self._versions[name] = written.version

    def _say(self, failure: str) -> None:
        if failure != self._last_failure:
            self._last_failure = failure
            words = f"the Leases of `{self._identity}` about its Envoys cannot be written: {failure}"
            self._send_report(EngineReport(words))


def _decoded(identity: str, text: str) -> EnvoyReport:
    try:
        return decode_report(text)
    except ValueError:
        # Its Envoys may hold anything: nothing counts as held by all until the report can be read.
        name = f"of replica {identity}, whose report cannot be read,"
        return EnvoyReport(held={name: frozenset()})

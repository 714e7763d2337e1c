"""`tierwall controller` as a process: it follows a cluster, and hands every accepted load to its parts.

Everything runs in one event loop, except that threads follow the cluster and prepare loads.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from prometheus_client import Gauge
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector
from starlette.routing import Route

from tierwall.cluster.access import ClusterAccess
from tierwall.core.diagnostics import Diagnostics
from tierwall.core.protocols import EngineReport
from tierwall.core.words import count_noun
from tierwall.serve.cluster import ClusterSource
from tierwall.serve.controller.events import EventWriter
from tierwall.serve.controller.follower import ControllerFollower
from tierwall.serve.controller.infrastructure import service_addresses
from tierwall.serve.controller.leadership import Leadership
from tierwall.serve.controller.lease import LeaseTiming
from tierwall.serve.controller.reports import ReportWriter
from tierwall.serve.controller.state import ControllerContext, ControllerPart, ControllerState
from tierwall.serve.controller.statuses import StatusPart
from tierwall.serve.controller.warnings import WarningSettings, WarningsPart
from tierwall.serve.follower import Load, until_signalled
from tierwall.serve.pages import HttpServer, Readiness, RunMetrics, health

if TYPE_CHECKING:
    from tierwall.serve.controller.fleet_part import FleetPart, FleetSettings


class ControllerSettings(Struct, frozen=True, kw_only=True):
    """Settings of `tierwall controller`."""

    release_namespace: str
    identity: str
    lease: LeaseTiming = LeaseTiming()
    # After so many seconds an agent that is silent counts as away; None without agents.
    node_timeout: float | None = None
    http: tuple[str, int] = ("127.0.0.1", 0)
    # None: no webhook.
    warnings: WarningSettings | None = None
    # What Envoys get; None if none are served.
    fleet: FleetSettings | None = None


def parts_of(context: ControllerContext, settings: ControllerSettings) -> list[ControllerPart]:
    """Return the parts of the controller. This is the place to add one."""
    parts: list[ControllerPart] = []
    fleet: FleetPart | None = None
    if settings.fleet is not None:
        # gRPC and the compiler are loaded only where Envoys are served.
        from tierwall.serve.controller.fleet_part import FleetPart
        from tierwall.serve.controller.infrastructure_part import InfrastructurePart

        parts.append(fleet := FleetPart(context, settings.fleet))
        if (template := settings.fleet.template) is not None:
            namespaces = settings.fleet.namespaces or frozenset()
            parts.append(InfrastructurePart(context, template, namespaces, fleet.authority))
    events = EventWriter(context)
    # Envoys that others run have addresses that nobody here knows.
    is_ours = settings.fleet is not None and settings.fleet.template is not None
    addresses = service_addresses if is_ours else lambda snapshot, gateway: None
    # The chart grants the right to see the definition together with the GatewayClass.
    release = fleet.gateway_api.current if fleet is not None else None
    statuses = StatusPart(context, events, settings.node_timeout, fleet, addresses, release=release)
    parts += [statuses, events, ReportWriter(context)]
    if settings.warnings is not None:
        parts.append(WarningsPart(context, settings.warnings))
    return parts


class ControllerProcess:
    """The controller with everything that belongs to it. It must be made in the event loop that it runs in."""

    def __init__(
        self,
        access: ClusterAccess,
        timeout: float | None,
        settings: ControllerSettings,
        send_report: Callable[[EngineReport], None],
    ) -> None:
        self._settings, self._send_report = settings, send_report
        self.follower = ControllerFollower()
        self.metrics = RunMetrics()
        self.leadership = Leadership(access, settings.release_namespace, settings.identity, settings.lease, send_report)
        leads = Gauge("tierwall_leader", "1 on the replica that writes.", registry=self.metrics.registry)
        leads.set_function(lambda: self.leadership.may_write)
        self.context = ControllerContext(
            access,
            timeout,
            settings.release_namespace,
            settings.identity,
            self.leadership,
            self.metrics.registry,
            send_report,
        )
        self.parts = parts_of(self.context, settings)
        self._source: ClusterSource | None = None
        # Whether the last state of the cluster counts, because it cannot be followed.
        self._has_lost = False
        checks = {"cluster": self._cluster} | {
            name: check for part in self.parts for name, check in part.checks().items()
        }
        pages = [Route("/metrics", self.metrics.page), *(route for part in self.parts for route in part.routes())]
        self.http = HttpServer([*health(checks, {"cluster": self._is_turning}), *pages])

    async def run(self, source: ClusterSource, stop: asyncio.Event) -> None:
        """Follow the cluster until `stop` is set; InputError if it cannot be followed."""
        self._source = source
        self.metrics.registry.register(_WatchAges(source))
        host, port = self._settings.http
        self._send_report(EngineReport(f"health and metrics on http://{host}:{await self.http.start(host, port)}"))
        tasks: list[asyncio.Task[None]] = []
        failures: list[BaseException] = []

        def begin(work: Coroutine[Any, Any, None]) -> None:
            task = asyncio.create_task(work)
            tasks.append(task)
            task.add_done_callback(ended)

        def ended(task: asyncio.Task[None]) -> None:
            # A part that is gone would leave its work undone for good; Kubernetes starts the process again.
            if not task.cancelled() and (error := task.exception()) is not None:
                failures.append(error)
            stop.set()

        try:
            for part in self.parts:
                await part.begin()
            async with aclosing(self.follower.follow(source, stop)) as loads:
                async for load in loads:
                    self._take(load)
                    if not tasks:
                        begin(self.leadership.run(stop))
                        for part in self.parts:
                            begin(part.run(stop))
        finally:
            stop.set()
            await asyncio.gather(*tasks, return_exceptions=True)
            for part in self.parts:
                await part.end()
            await self.leadership.close()
            await self.http.stop()
        if failures:
            raise failures[0]

    def _take(self, load: Load[ControllerState]) -> None:
        self.metrics.count(load)
        if load.state is None:
            self._send_report(EngineReport("the last good state counts", load.unreported, load.loaded))
            return
        for part in self.parts:
            part.take(load.state)
        if load.state.revision == 1:
            errors = Diagnostics(load.diagnostics).errors
            words = f"; {count_noun(len(errors), 'error')} in them" if errors else ""
            self._send_report(EngineReport(f"following {count_noun(len(load.snapshot), 'object')}{words}"))
        # In an outage, and while kinds come back one after the other, there are many loads.
        lost = load.loaded.lost if load.loaded is not None else ()
        if unreported := tuple(problem for problem in lost if problem in load.unreported):
            self._send_report(EngineReport("statuses may go stale", unreported))
        elif self._has_lost and not lost:
            self._send_report(EngineReport("the cluster is followed again"))
        self._has_lost = bool(lost)

    def _cluster(self) -> Readiness:
        if self.follower.in_force is None:
            return Readiness(False, "not read yet")
        if refusal := self.follower.refusal:
            return Readiness(False, refusal[0].message)
        return Readiness(True, f"{len(self.follower.in_force.snapshot)} objects")

    def _is_turning(self) -> Readiness:
        is_turning = self._source is None or self._source.is_turning
        return Readiness(is_turning, "" if is_turning else "the thread that follows the cluster does not answer")


class _WatchAges(Collector):
    """`tierwall_watch_age_seconds{kind}`, as it is when somebody asks."""

    def __init__(self, source: ClusterSource) -> None:
        self._source = source

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Yield the seconds since the API server was last heard from about each kind."""
        words = "Seconds since the API server last sent something about a kind, a bookmark included."
        family = GaugeMetricFamily("tierwall_watch_age_seconds", words, labels=("kind",))
        for kind, heard in sorted(self._source.heard.items()):
            family.add_metric((kind,), max(0.0, time.monotonic() - heard))
        yield family


def run_controller(
    access: ClusterAccess,
    timeout: float | None,
    settings: ControllerSettings,
    source: ClusterSource,
    send_report: Callable[[EngineReport], None],
) -> None:
    """Run until SIGTERM or SIGINT; InputError if the cluster cannot be followed."""

    async def main(stop: asyncio.Event) -> None:
        await ControllerProcess(access, timeout, settings, send_report).run(source, stop)

    until_signalled(main)

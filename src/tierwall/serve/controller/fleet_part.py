"""The part of the controller that serves Envoys: it compiles every state, publishes it, and reports what Envoys hold.

Every replica does this, whether it leads or not (docs/fleet.md). It listens only after it has published something: an
Envoy that connects earlier would wait for nothing, and can try another replica.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping

from msgspec import Struct
from prometheus_client import Gauge

from tierwall.cluster.connection import Connection
from tierwall.core.protocols import EngineReport
from tierwall.core.words import count_noun
from tierwall.engines.envoy.config.options import EnvoyOptions
from tierwall.resources.snapshot import Snapshot
from tierwall.serve.certificate_files import CertificateFiles
from tierwall.serve.cluster import first_of
from tierwall.serve.controller.envoy_certificates import EnvoyCertificates
from tierwall.serve.controller.envoy_report import generation_of
from tierwall.serve.controller.fleet import FleetCompilation, FleetController
from tierwall.serve.controller.fleet_state import FleetState, FleetView, GatewayDemand
from tierwall.serve.controller.gateway_api_version import GatewayApiReader
from tierwall.serve.controller.gateway_class import full_name, gateway_pods, served_gateways
from tierwall.serve.controller.infrastructure import InfrastructureTemplate
from tierwall.serve.controller.pod_tokens import PodTokens
from tierwall.serve.controller.replica_reports import ReplicaReports, ReplicaTiming
from tierwall.serve.controller.state import ControllerContext, ControllerPart, ControllerState
from tierwall.serve.controller.xds_certificates import XdsCertificates
from tierwall.serve.pages import Readiness

# How long nothing must happen before names are made canonical, how long a change waits for answers that are due, and
# how often to look while an Envoy is held, in seconds.
IDLE_S, PATIENCE_S, HELD_S = 2.0, 0.3, 0.2


class FleetSettings(Struct, frozen=True, kw_only=True):
    """Settings of a controller that serves Envoys."""

    xds: tuple[str, int]
    # The certificate of the xDS server, its key, and the CA of Envoys; None for those that the controller makes.
    files: CertificateFiles | None = None
    # Where pods get their certificates; None if Envoys get them elsewhere.
    certificates: tuple[str, int] | None = None
    # What the Envoys of each Gateway are made of; None if others run them. It needs `certificates` and `namespaces`.
    template: InfrastructureTemplate | None = None
    # The namespaces whose Gateways are served; None for all.
    namespaces: frozenset[str] | None = None
    options: EnvoyOptions = EnvoyOptions()
    timing: ReplicaTiming = ReplicaTiming()


class FleetPart(ControllerPart):
    """Serves the Envoys of all Gateways of our class, and knows what the Envoys of all replicas hold."""

    def __init__(self, context: ControllerContext, settings: FleetSettings) -> None:
        self._context, self._settings = context, settings
        self._connection = Connection(context.access, context.timeout)
        self.fleet = FleetController(settings.options, settings.namespaces, self._wake)
        self.certificates = XdsCertificates(
            self._connection, context.release_namespace, settings.files, self._renew, context.send_report
        )
        self._reports = ReplicaReports(
            self._connection, context.release_namespace, context.identity, context.send_report, settings.timing
        )
        self.signing = EnvoyCertificates(
            PodTokens(self._connection), lambda: self.certificates.issued, self._snapshot, settings.namespaces
        )
        self.gateway_api = GatewayApiReader(self._connection)
        self._view = FleetView()
        self._latest: ControllerState | None = None
        # The state that was last published, and what was wrong with it.
        self._published: ControllerState | None = None
        self._problems: tuple[str, ...] = ()
        self._is_serving = False
        self._happened = time.monotonic()
        gauges: Mapping[str, tuple[str, Callable[[], float]]] = {
            "tierwall_proxies": ("Envoys that are connected to this replica.", self._number_connected),
            "tierwall_gateways": ("Gateways that are served.", lambda: len(tuple(self.fleet.gateways))),
        }
        for name, (words, count) in gauges.items():
            Gauge(name, words, registry=context.registry).set_function(count)

    def _snapshot(self) -> Snapshot:
        return self._latest.snapshot if self._latest is not None else Snapshot({})

    def _number_connected(self) -> float:
        return sum(len(envoys.proxies.streams) for envoys in self.fleet.gateways)

    @property
    def port(self) -> int:
        """The port of the xDS server; 0 while it does not listen."""
        return self.fleet.server.port

    def authority(self) -> bytes | None:
        """Return the CA certificates that Envoys trust this controller by; None before they were read."""
        return self.certificates.issued.authority if self.certificates.issued is not None else None

    def take(self, state: ControllerState) -> None:
        """Take the newest state."""
        self._latest = state
        self._reports.take(state.snapshot, time.monotonic())
        self._wake()

    def _wake(self) -> None:
        self.fleet.wake.set()

    def _renew(self) -> None:
        address = self.certificates.address(*self._settings.xds)
        if self._is_serving and address is not None:
            self.fleet.server.renew(address)
            if self.certificates.issued is not None:
                self.signing.renew()
        self._wake()

    async def run(self, stop: asyncio.Event) -> None:
        """Serve Envoys until `stop` is set; InputError if the address cannot be used."""
        beside = [asyncio.create_task(work) for work in (self.certificates.run(stop), self._reports.run(stop))]
        for task in beside:
            task.add_done_callback(lambda _: self._wake())
        try:
            while not stop.is_set():
                if failed := next((task for task in beside if task.done() and not stop.is_set()), None):
                    failed.result()
                await self._turn(stop)
        finally:
            await self.fleet.server.stop()
            await self.signing.stop()
            for task in beside:
                task.cancel()
            await asyncio.gather(*beside, return_exceptions=True)
            await self._connection.close()

    async def _turn(self, stop: asyncio.Event) -> None:
        """Publish the newest state, attend to answers, and wait until something happens."""
        is_idle = not self.fleet.wake.is_set() and time.monotonic() - self._happened >= IDLE_S
        if self.fleet.wake.is_set():
            self._happened = time.monotonic()
        self.fleet.wake.clear()
        # Whatever was known when the last heartbeat that came back was sent is in the newest state.
        settled, state = self._reports.settled(time.monotonic()), self._latest
        assert state is not None
        if state is not self._published:
            self._publish(state, await asyncio.to_thread(self.fleet.prepare, state.snapshot))
        self.fleet.release(settled)
        if not self._is_serving:
            await self._serve()
        is_due = await self.fleet.attend(is_idle)
        self._reports.put(self.fleet.reports)
        if has_held := self.fleet.has_held:
            self._reports.hurry(time.monotonic())
        await first_of(self.fleet.wake, stop, HELD_S if has_held else IDLE_S)
        if is_due and self._latest is not self._published:
            # Many changes a second must not starve the search for what Envoys refuse.
            await first_of(None, stop, PATIENCE_S)

    def _publish(self, state: ControllerState, prepared: FleetCompilation) -> None:
        self.fleet.enforce(prepared)
        self._published = state
        problems = tuple(problem.message for problem in prepared.problems)
        if problems and problems != self._problems:
            words = f"{count_noun(len(problems), 'Gateway')} cannot be compiled: their last good state stays in force"
            self._context.send_report(EngineReport(words, prepared.problems))
        self._problems = problems

    async def _serve(self) -> None:
        address = self.certificates.address(*self._settings.xds)
        if address is not None:
            await self.fleet.server.start(address)
            self._is_serving = True
            self._context.send_report(EngineReport(f"xDS on {address.host}:{self.port}"))
            if self._settings.certificates is not None:
                host, port = self._settings.certificates
                port = await self.signing.start(host, port)
                self._context.send_report(EngineReport(f"certificates for Envoys on https://{host}:{port}"))

    # What is in force

    def state(self) -> FleetState:
        """Return what is in force in the Envoys of all replicas. The leader asks, again and again."""
        snapshot, now = self._snapshot(), time.monotonic()
        served = {full_name(gateway): gateway for gateway in served_gateways(snapshot, self._settings.namespaces)}
        needs = {
            envoys.name: GatewayDemand(
                generation_of(gateway),
                self.fleet.demanded(envoys),
                envoys.refused,
                frozenset(gateway_pods(snapshot, gateway)),
                envoys.closed,
            )
            for envoys in self.fleet.gateways
            if (gateway := served.get(envoys.name)) is not None
        }
        return self._view.state(needs, self._reports.of_all(now), now)

    def checks(self) -> Mapping[str, Callable[[], Readiness]]:
        """Return what `/readyz` asks: whether Envoys get here what is in force in the cluster."""
        return {"envoys": self._is_ready}

    def _is_ready(self) -> Readiness:
        if not self._is_serving:
            words = "nothing is published yet" if self._published is None else "the certificates are not read yet"
            return Readiness(False, words)
        if self._problems:
            return Readiness(False, f"the last good state of some Gateways is in force: {self._problems[0]}")
        if not self._reports.is_heard(time.monotonic()):
            return Readiness(False, "the API server does not answer this replica, so what it serves may be old")
        return Readiness(True, f"{count_noun(len(tuple(self.fleet.gateways)), 'Gateway')}")

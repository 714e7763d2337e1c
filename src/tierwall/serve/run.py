"""`tierwall run`: watches manifests, feeds Envoy, keeps it running, and logs its decisions.

Everything runs in one event loop, except that a thread reads and compiles, so that proxies are answered meanwhile.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from contextlib import aclosing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from msgspec import Struct
from msgspec.structs import replace
from prometheus_client import Gauge
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from tierwall.core.diagnostics import Diagnostic, Diagnostics, InputError
from tierwall.core.protocols import DecisionEvent, EngineReport
from tierwall.core.unprintable import escape_unprintable
from tierwall.core.words import count_noun
from tierwall.engines.envoy.config.compile import XdsResources
from tierwall.engines.envoy.config.options import MAX_PROGRAM_SIZE, EnvoyOptions, MutualTlsAddress
from tierwall.engines.envoy.control import accesslog, responses
from tierwall.engines.envoy.control.cache import LISTENER
from tierwall.engines.envoy.control.process import EnvoyProcess, find_envoy
from tierwall.engines.envoy.control.proxies import GatewayCondition
from tierwall.engines.envoy.control.refusal import RefusedObject
from tierwall.engines.envoy.control.server import XdsServer
from tierwall.engines.private import private_folder
from tierwall.render.engines import proxies_document, request_document
from tierwall.serve.attended import AttendedSource
from tierwall.serve.certificate_files import CertificateFiles
from tierwall.serve.decisionlog import DecisionLog
from tierwall.serve.envoy import Compilation, EnvoyController
from tierwall.serve.follower import Load, ObjectSource, unexpected
from tierwall.serve.pages import HttpServer, Readiness, RunMetrics, health
from tierwall.serve.ports import PortCheck

REFUSED = "TW636"


class RunSettings(Struct, frozen=True, kw_only=True):
    """Settings of `tierwall run`: the addresses to listen on, and the Envoy to run."""

    # Where Envoys connect that others run: a Unix socket in a private folder, or an address with mutual TLS. None for a
    # socket of this run's own.
    xds: Path | MutualTlsAddress | None = None
    # What the options of the same names come from; None if they stay the same.
    files: CertificateFiles | None = None
    http: tuple[str, int] | None = ("127.0.0.1", 0)
    # The binary, None for the installed one. Without `runs_envoy`, Envoys that others run are only fed.
    envoy: str | None = None
    runs_envoy: bool = True
    concurrency: int | None = None
    filters_lists: bool = True
    decision_log: str | None = None


class ControlPlane:
    """A control plane with everything that belongs to it: xDS server, Envoy, decision log, health and metrics."""

    def __init__(
        self, options: EnvoyOptions, settings: RunSettings, send_report: Callable[[EngineReport], None]
    ) -> None:
        self._settings = settings
        self._send_report = send_report
        self.metrics = RunMetrics()
        self.log = DecisionLog.open(settings.decision_log)
        self.controller = EnvoyController(
            replace(
                options,
                access_logs=(*options.access_logs, accesslog.access_log()),
                http_filters=(*options.http_filters, responses.http_filter(settings.filters_lists)),
                max_program_size=MAX_PROGRAM_SIZE,
            ),
            self._publish,
            self.metrics.count,
        )
        self._responses = responses.ResponseService(
            self.controller.view_of, settings.filters_lists, self.controller.rules_of, self.controller.has_rules
        )
        self.server = XdsServer(self._proxies_changed, (accesslog.service(self._log_decision), self._responses.handler))
        self.process: EnvoyProcess | None = None
        self._folder: TemporaryDirectory[str] | None = None
        self._last_words = ""
        self._answered = asyncio.Event()
        self._last_refused: tuple[RefusedObject, ...] = ()
        self._ports = PortCheck(settings.runs_envoy)
        self._last_left_out: tuple[str, ...] = ()
        # Whether the files of options have changed since the last compilation.
        self._has_new_files = False
        # The number of resources that the last load in force changed for the proxies.
        self._changes = 0
        registry = self.metrics.registry
        connected = Gauge("tierwall_proxies", "Connected proxies.", registry=registry)
        connected.set_function(lambda: len(self.server.proxy_statuses))
        obeyed = Gauge("tierwall_programmed", "1 if every proxy obeys what is in force.", registry=registry)
        obeyed.set_function(lambda: self._condition.status == "True")
        pages = (Route("/metrics", self.metrics.page), Route("/status", self._status))
        self.http = HttpServer([*health({"manifests": self._manifests, "proxies": self._proxies}), *pages])

    async def run(self, source: ObjectSource, stop: asyncio.Event, started: Callable[[], None] = lambda: None) -> None:
        """Run until `stop` is set; InputError if it cannot start."""
        is_running = False
        try:
            envoy = find_envoy(self._settings.envoy) if self._settings.runs_envoy else None
            async with aclosing(
                self.controller.follow(AttendedSource(source, self._attend, self._answered), stop)
            ) as loads:
                async for load in loads:
                    if not is_running:
                        await self._begin(load, envoy)
                    self._report(load)
                    if not is_running:
                        is_running = True
                        started()
        finally:
            await self.close()

    async def _attend(self, idle: bool) -> bool:
        """Process what proxies answered; return whether further answers are due."""
        if self.controller.in_force is None:
            return False
        self._reload()
        try:
            if self._has_new_files:
                self.controller.put_again(await asyncio.to_thread(self.controller.recompile))
                self._has_new_files = False
                self._report_message("in force: the new files of --certificate, --key and --client-ca")
            answers = self.server.answers(self.controller.search.at_fault)
            refusals = [refusal for refused in answers.refusals.values() for refusal in refused]
            if self._ports.note_failures(
                {refusal.name: refusal.words for refusal in refusals if refusal.is_about_port}
            ):
                self.controller.publish_again()
                return True
            if self.controller.next_step(answers):
                self.controller.put_again(await asyncio.to_thread(self.controller.recompile))
                return True
            self._report_refused()
            if idle and self.controller.has_noncanonical_names and self.server.is_acknowledged:
                self.controller.put(await asyncio.to_thread(self.controller.canonicalize))
            elif idle and self._ports.any_became_free():
                self.controller.publish_again()
        except Exception as error:
            problem = unexpected(error)
            if problem.message != self._last_words:
                self._last_words = problem.message
                self._send_report(EngineReport("the proxies may not have everything that must be in force", (problem,)))
            return False
        return bool(refusals or self.controller.search.number_waiting) and not answers.is_settled

    def _reload(self) -> None:
        """Read the files of options again."""
        files = self._settings.files
        try:
            if files is None or not files.reload():
                return
        except InputError as error:
            self._send_report(EngineReport("the last certificate and client CA stay in force", error.diagnostics))
            return
        options = self.controller.options
        self.controller.options = replace(options, certificate=files.certificate, client_authority=files.authority)
        self._has_new_files = True

    def _publish(self, resources: XdsResources) -> None:
        self._changes = sum(map(len, self.server.publish(self._ports.usable(resources)).values()))
        self._responses.judge_again()

    def _report_refused(self) -> None:
        """Report the objects that are closed, once the search is over, and the ports that are not served."""
        load, search = self.controller.in_force, self.controller.search
        assert load is not None
        if not search.number_waiting and search.refused != self._last_refused:
            self._last_refused = search.refused
            if search.refused:
                problems = tuple(diagnostic for diagnostic in load.diagnostics if diagnostic.code == REFUSED)
                self._send_report(
                    EngineReport(f"in force, except what {_closed(search.refused)}", problems, load.loaded)
                )
        if self._ports.left_out != self._last_left_out:
            self._last_left_out = self._ports.left_out
            problems = self._ports.diagnostics(load.snapshot)
            words = f"not served: {count_noun(len(problems), 'port')}" if problems else "every port is served"
            self._send_report(EngineReport(words, problems, load.loaded))

    def _report(self, load: Load[Compilation]) -> None:
        """Report the outcome of a load, and its problems."""
        if load.state is None:
            message = f"{count_noun(len(load.refusal), 'error')}: the last good state stays in force"
        else:
            objects, changes = count_noun(len(load.snapshot), "object"), count_noun(self._changes, "resource")
            message = f"in force: {objects}, {changes} changed for the proxies"
        self._send_report(EngineReport(message, load.unreported, load.loaded))
        if load.state is not None and not load.state.resources.listeners:
            self._report_message("no Gateway opens a port: nothing is served")

    async def _begin(self, load: Load[Compilation], envoy: Any) -> None:
        assert load.state is not None
        resources = load.state.resources
        if not resources.listeners and Diagnostics(resources.diagnostics).errors:
            # A start that serves nothing for its errors is a failure; later, a listener may come back at any time.
            raise InputError(load.diagnostics, load.loaded)
        if self.log.diagnostics:
            self._send_report(EngineReport("the decision log is not private", self.log.diagnostics))
        xds = self._settings.xds or self._socket()
        await self.server.start(xds)
        self._report_message(f"xDS on {f'unix:{xds}' if isinstance(xds, Path) else f'{xds.host}:{self.server.port}'}")
        if self._settings.http is not None:
            http_host, http_port = self._settings.http
            self._report_message(
                f"health and metrics on http://{http_host}:{await self.http.start(http_host, http_port)}"
            )
        if envoy is None:
            return
        problems = self._ports.diagnostics(load.snapshot)
        if problems and not self.server.cache.of(LISTENER):
            raise InputError(problems, load.loaded)
        assert isinstance(xds, Path)
        concurrency, collector = self._settings.concurrency, self.controller.options.collector
        # Decisions and records on one output keep whole lines.
        records = self.log if self._settings.decision_log == "-" else DecisionLog.open("-")
        self.process = EnvoyProcess(
            envoy, xds, "tierwall", self._report_message, records.append, concurrency, collector
        )
        await self.process.start()

    def _socket(self) -> Path:
        """Return the path of the socket for this process' own Envoy."""
        self._folder = private_folder()
        return Path(self._folder.name) / "xds.sock"

    async def close(self) -> None:
        """Stop everything that was started."""
        if self.process is not None:
            await self.process.stop()
        await self.http.stop()
        await self.server.stop()
        if self._folder is not None:
            self._folder.cleanup()
        self.log.close()

    def _log_decision(self, event: DecisionEvent) -> None:
        self.log.write(request_document(event))
        (decider,) = event.decided_by
        by = str(decider.policy), decider.rule or "", decider.name or ""
        self.metrics.decisions.labels(event.plane, str(event.verdict), *map(escape_unprintable, by)).inc()

    def _proxies_changed(self) -> None:
        self._answered.set()
        if self.server.is_acknowledged:
            self.controller.acknowledge()
        condition = self._condition
        message = f"Programmed is {condition.status}: {condition.message}"
        if condition.reason == "Pending" or message == self._last_words:
            return
        self._last_words = message
        refused = (Diagnostic("TW633", condition.message),) if condition.reason == "Invalid" else ()
        self._send_report(EngineReport(message, refused))

    @property
    def _condition(self) -> GatewayCondition:
        """The `Programmed` condition; while objects at fault are searched for, it is not known yet."""
        condition, search = self.server.programmed, self.controller.search
        if search.number_waiting:
            words = f"{search.number_waiting} objects are closed while Envoy takes them one by one"
            return GatewayCondition("False", "Pending", words)
        if condition.reason == "Invalid" and self.server.answers().refusals.keys() - search.at_fault:
            return condition._replace(reason="Pending")
        if search.refused:
            return condition._replace(message=f"{condition.message}; {_closed(search.refused)}")
        return condition

    def _report_message(self, message: str) -> None:
        self._send_report(EngineReport(message))

    def _manifests(self) -> Readiness:
        if self.controller.in_force is None:
            return Readiness(False, "not read yet")
        if refusal := self.controller.refusal:
            return Readiness(False, f"what is newest is not in force, the last good state is: {refusal[0].message}")
        if self._has_new_files:
            return Readiness(False, "the new certificate or client CA is not in force yet")
        return Readiness(True, f"{len(self.controller.in_force.snapshot)} objects")

    def _proxies(self) -> Readiness:
        condition = self._condition
        # Without its own Envoy, a control plane is ready as soon as it has a configuration for proxies.
        alone = not self._settings.runs_envoy and not self.server.proxy_statuses and self.server.cache.is_published
        return Readiness(alone or condition.status == "True", condition.message)

    async def _status(self, request: Request) -> Response:
        latest = self.controller.newest
        diagnostics = latest.diagnostics if latest is not None else ()
        if self.controller.in_force is not None:
            diagnostics = (*diagnostics, *self._ports.diagnostics(self.controller.in_force.snapshot))
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        return JSONResponse(proxies_document(self._condition, self.server.proxy_statuses, diagnostics, now))


def _closed(refused: Iterable[RefusedObject]) -> str:
    """Return a clause that names the closed objects."""
    names = ", ".join(str(refusal.resource.reference) for refusal in refused)
    return f"Envoy refuses and is closed: {names}"

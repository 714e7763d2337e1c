"""The authorizer as a process and as an engine: listeners, watchers and signals around the pure parts."""

from __future__ import annotations

import asyncio
import gc
import resource
import signal
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from time import process_time
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec
import uvicorn

from tierwall.api.wire.review import WireShape
from tierwall.core.diagnostics import Diagnostic, Diagnostics, InputError
from tierwall.core.protocols import Engine, EngineReport
from tierwall.core.unprintable import printable_json_bytes
from tierwall.render.json import diagnostic_document
from tierwall.resources.snapshot import Snapshot
from tierwall.serve.authorizer.admission_state import ASSUMED, NOT_ASKED, AdmissionState
from tierwall.serve.authorizer.app import MAX_PROBLEMS, READ_SECONDS, App
from tierwall.serve.authorizer.connections import HEADER_SECONDS, Certificates
from tierwall.serve.authorizer.issuer import Issuer, sealing_key
from tierwall.serve.authorizer.metrics import AuthorizerMetrics
from tierwall.serve.authorizer.policies import GRACE_SECONDS, PolicyFollower, PolicySet, policy_set_of
from tierwall.serve.authorizer.reviews import Reviews
from tierwall.serve.decisionlog import DecisionLog
from tierwall.serve.follower import LoadOutcome, ObjectSource
from tierwall.serve.https_server import server_config
from tierwall.serve.server import SignallessServer, TlsFiles, TlsServer, bind
from tierwall.serve.watch import changes

if TYPE_CHECKING:
    from tierwall.cluster.access import ClusterAccess
    from tierwall.serve.authorizer.admission_watcher import AdmissionWatcher
    from tierwall.serve.authorizer.namespace_reflector import NamespaceReflector

LOOPBACK = ("127.0.0.1", "::1", "localhost")
MAX_CONNECTIONS = 2048
# Policies are prepared before the process reports that it is ready, for at most so many seconds of CPU. Between slices,
# requests are answered. What is left, and later policies, are prepared with pauses in between.
WARM_SECONDS, WARM_SLICE = 5.0, 0.002


class AuthorizerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How to serve."""

    host: str = "127.0.0.1"
    port: int = 9443
    health: tuple[str, int] | None = None
    tls: TlsFiles | None = None
    bridge: bool = False
    # The way to the API server that we answer, to prove that its admission asks us.
    api_server: ClusterAccess | None = None
    # Whether its Namespaces are followed as well: they are not among the followed objects.
    follows_namespaces: bool = False
    canary_namespace: str = "default"
    assume_admission: bool = False
    shape: WireShape = WireShape.CONDITIONS_CHAIN
    seal_key: str | None = None
    log: str | None = None
    grace: float = GRACE_SECONDS
    settle: float = 0.0
    read_seconds: float = READ_SECONDS
    header_seconds: float = HEADER_SECONDS


def log_event(event: str, **fields: Any) -> None:
    """Write one line about the process itself, as JSON on standard error."""
    now = datetime.now(UTC).isoformat(timespec="milliseconds")
    line = printable_json_bytes(msgspec.json.encode({"time": now, "event": event, **fields}))
    sys.stderr.write(line.decode() + "\n")
    sys.stderr.flush()


def settle_memory() -> None:
    """Hide long-lived objects, above all policies, from the garbage collector, which would visit them often."""
    gc.unfreeze()
    gc.collect()
    gc.freeze()


def run(source: ObjectSource, settings: AuthorizerSettings) -> None:
    """Serve until SIGTERM or SIGINT, in a process that does nothing else; InputError if it cannot begin."""
    if settings.host not in LOOPBACK and (settings.tls is None or settings.tls.client_ca is None):
        where = f"{settings.host}:{settings.port}"
        message = f"listening on `{where}` needs --tls-cert, --tls-key and --client-ca: anyone who reaches it could ask"
        raise InputError([Diagnostic("TW513", message)])
    _raise_file_limit()
    try:
        import uvloop
    except ImportError:
        asyncio.run(AuthorizerServer(source, settings).serve())
    else:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(AuthorizerServer(source, settings).serve())


def _raise_file_limit() -> None:
    """Allow as many open files as connections need: the usual limit is lower."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 2 * MAX_CONNECTIONS if hard == resource.RLIM_INFINITY else min(2 * MAX_CONNECTIONS, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


class AuthorizerServer:
    """The server of one process: its listeners, policies, certificates, metrics and log."""

    def __init__(self, source: ObjectSource, settings: AuthorizerSettings) -> None:
        self.source, self.settings = source, settings
        # Only admission asks for superseded policies.
        self.follower = PolicyFollower(settings.grace if settings.bridge else 0.0)
        self.follower.begin(source)
        self.certificates = Certificates(settings.tls) if settings.tls is not None else None
        self._tls_server: TlsServer | None = None
        key = sealing_key(settings.seal_key, settings.tls.key if settings.tls is not None else None)
        self.issuer = Issuer(key, settings.grace)
        self.metrics = AuthorizerMetrics(self.follower)
        self.log = DecisionLog.open(settings.log) if settings.log is not None else None
        self.reviews = Reviews(
            self.follower,
            self.issuer,
            bridged=settings.bridge,
            shape=settings.shape,
            settle=settings.settle,
            logged=self.log is not None,
            admission=lambda: ASSUMED if settings.assume_admission else NOT_ASKED,
        )
        self.watcher = self._admission_watcher()
        if settings.bridge:
            self.metrics.watch_admission(self.reviews.admission)
        self.app = App(
            self.reviews, self.follower, self.metrics, self.log, read_seconds=settings.read_seconds, log_event=log_event
        )
        self.app.warming = True
        self.namespaces = self._namespace_reflector()
        self.started, self.stop = asyncio.Event(), asyncio.Event()
        self._warming: asyncio.Task[None] | None = None

    async def serve(self) -> None:
        """Listen and follow the files until told to stop."""
        settings = self.settings
        sockets, servers = [bind(settings.host, settings.port)], [self._listener(self.app, self.certificates)]
        if settings.health is not None:
            sockets.append(bind(*settings.health))
            servers.append(self._listener(self.app.pages, None))
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.stop.set)
        loop.add_signal_handler(signal.SIGHUP, self.source.nudge)
        tasks = [
            loop.create_task(server.serve(sockets=[listening]))
            for server, listening in zip(servers, sockets, strict=True)
        ]
        tasks.append(loop.create_task(self.follow()))
        if settings.tls is not None:
            tasks.append(loop.create_task(self._follow_certificates(settings.tls.paths)))
        if self.watcher is not None:
            tasks.append(loop.create_task(self.watcher.run(self.stop)))
        if self.namespaces is not None:
            tasks.append(loop.create_task(self.namespaces.run(self.stop)))
        rest = loop.create_task(self._begin())
        await self.started.wait()
        addresses = ["{}:{}".format(*listening.getsockname()[:2]) for listening in sockets]
        log_event(
            "serving",
            address=addresses[0],
            **({"health": addresses[1]} if settings.health is not None else {}),
            tls=self.certificates is not None,
            bridge=settings.bridge,
            **({"admission": self.reviews.admission().words()} if settings.bridge else {}),
            policies=self.follower.current.policies,
            revision=self.follower.current.revision,
            **_problems(self.follower.newest_errors),
        )
        if self.log is not None and self.log.diagnostics:
            log_event("decision log", **_problems(self.log.diagnostics))
        stopped = loop.create_task(self.stop.wait())
        await asyncio.wait((stopped, *tasks), return_when=asyncio.FIRST_COMPLETED)
        self.stop.set()
        self.app.stopping = True
        for server in servers:
            server.should_exit = True
        results = await asyncio.gather(rest, *tasks, return_exceptions=True)
        if self.log is not None:
            self.log.close()
        log_event("stopped")
        for result in results:
            if isinstance(result, Exception):
                raise result

    def _admission_watcher(self) -> AdmissionWatcher | None:
        settings = self.settings
        if not settings.bridge or settings.api_server is None or settings.assume_admission:
            return None
        # Needs httpx, which the authorizer does without otherwise.
        from tierwall.serve.authorizer.admission_watcher import AdmissionWatcher

        watcher = AdmissionWatcher(
            settings.api_server, self.reviews.canaries, settings.canary_namespace, _report_admission
        )
        self.reviews.admission = watcher.state
        return watcher

    def _namespace_reflector(self) -> NamespaceReflector | None:
        settings = self.settings
        if settings.api_server is None or not settings.follows_namespaces:
            return None
        # Needs httpx, too.
        from tierwall.serve.authorizer.namespace_reflector import NamespaceReflector

        reflector = NamespaceReflector(settings.api_server, self.follower.live_namespaces)
        self.app.namespace_problem = lambda: reflector.problem
        return reflector

    async def follow(self) -> None:
        """Follow the policies until told to stop, and report what each load came to."""
        loop = asyncio.get_running_loop()
        async for load in self.follower.follow(self.source, self.stop):
            policies = self.follower.current
            match load.outcome:
                case LoadOutcome.REFUSED:
                    log_event("policies refused", kept=policies.revision, **_problems(load.refusal))
                case LoadOutcome.UNCHANGED if errors := Diagnostics(load.unreported).errors:
                    log_event("policies unchanged", revision=policies.revision, **_problems(errors))
                case LoadOutcome.TAKEN:
                    problems = _problems(Diagnostics(load.unreported).errors)
                    log_event("policies taken", revision=policies.revision, policies=policies.policies, **problems)
                    loop.call_later(self.follower.grace, self.follower.superseded.expire)
                    # In a task of its own, so that the next change need not wait for it.
                    self._warming = loop.create_task(self._warm(policies, policies.warm()))

    async def _begin(self) -> None:
        """Prepare the first policies, and report readiness. What would delay the start for long is done afterwards."""
        policies = self.follower.current
        steps, deadline = policies.warm(), process_time() + WARM_SECONDS
        while not (is_done := _run_steps(steps, WARM_SLICE)) and process_time() < deadline and not self.stop.is_set():
            await asyncio.sleep(0)
        settle_memory()
        self.app.warming = False
        self.started.set()
        if not is_done:
            await self._warm(policies, steps)
            gc.freeze()  # nothing is garbage yet, and a collection would delay requests

    async def _warm(self, policies: PolicySet, steps: Iterator[None]) -> None:
        """Prepare policies between requests, as long as they are in force."""
        while not _run_steps(steps, WARM_SLICE):
            await asyncio.sleep(3 * WARM_SLICE)
            if self.stop.is_set() or self.follower.current is not policies:
                return

    def renew(self) -> None:
        """Read the certificates again; files that do not fit together leave the old ones in force."""
        assert self.certificates is not None
        authority = self.certificates.authority
        try:
            if not self.certificates.reload():
                return
            if self.settings.seal_key is None:
                self.issuer.rekey(sealing_key(None, self.certificates.files.key))
        except InputError as error:
            self.metrics.certificate_reloads.labels("refused").inc()
            log_event(
                "certificates refused", problems=[diagnostic_document(diagnostic) for diagnostic in error.diagnostics]
            )
            return
        if self._tls_server is not None:
            self._tls_server.drain(self.certificates.authority != authority)
        self.metrics.certificate_reloads.labels("taken").inc()
        log_event("certificates taken")

    async def _follow_certificates(self, paths: tuple[str, ...]) -> None:
        async for _ in changes(paths, self.stop):
            self.renew()

    def _listener(self, app: Callable[..., Any], certificates: Certificates | None) -> uvicorn.Server:
        config = server_config(app, self.settings.header_seconds, MAX_CONNECTIONS)
        if certificates is None:
            return SignallessServer(config)
        self._tls_server = TlsServer(config, certificates.context, self.settings.read_seconds)
        return self._tls_server


def _report_admission(state: AdmissionState) -> None:
    log_event(
        "admission live" if state.is_live else "admission not live", **({"why": state.reason} if state.reason else {})
    )


def _problems(diagnostics: tuple[Diagnostic, ...]) -> dict[str, Any]:
    """Return the fields of an event about problems: the first ones, and how many there are."""
    if not diagnostics:
        return {}
    shown = [diagnostic_document(diagnostic) for diagnostic in diagnostics[:MAX_PROBLEMS]]
    return {"errors": len(diagnostics), "problems": shown}


def _run_steps(steps: Iterator[None], seconds: float) -> bool:
    """Take steps for so many seconds of CPU time, so that a busy machine makes no difference; True if none is left."""
    pause = process_time() + seconds
    return all(process_time() <= pause for _ in steps)


class AuthorizerEngine(Engine[Snapshot, ObjectSource, PolicySet]):
    """A process that API servers ask. Nothing is enforced without it, so `apply` is absent."""

    planes: ClassVar[tuple[str, ...]] = ("api",)

    def __init__(self, settings: AuthorizerSettings | None = None) -> None:
        self._settings = settings or AuthorizerSettings()

    def compile(self, snapshot: Snapshot) -> PolicySet:
        """Build the chain of authorizers; InputError with everything that is wrong."""
        return policy_set_of(snapshot)

    def follow(self, source: ObjectSource, send_report: Callable[[EngineReport], None]) -> None:
        """Serve until SIGTERM or SIGINT; InputError if it cannot begin.

        The process writes about itself as JSON lines on standard error, and writes its decisions to the configured log.
        """
        run(source, self._settings)

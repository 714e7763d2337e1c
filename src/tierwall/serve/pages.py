"""HTTP pages of a serving process: health, metrics, and pages that the process adds.

Health is for Kubernetes probes. `/livez`, also called `/healthz`, says that the process is alive, `/readyz` that it
does its job: 200 if every check passes, otherwise 503, with the message of each check in the body. Metrics are in
Prometheus' text format at `/metrics`. Every process has its own registry, so tests can have several.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, TypeAlias

import uvicorn
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import BaseRoute, Route
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from tierwall.serve.follower import Load, LoadOutcome
from tierwall.serve.server import SignallessServer, bind


class HttpServer:
    """Serves routes on one address, in the event loop of its owner."""

    def __init__(self, routes: Sequence[BaseRoute]) -> None:
        self._app = Starlette(routes=list(routes))
        self._server: SignallessServer | None = None
        self._task: asyncio.Task[None] | None = None
        self.port = 0

    async def start(self, host: str, port: int) -> int:
        """Listen and return the port; InputError if the address cannot be used."""
        listening = bind(host, port)
        self.port = int(listening.getsockname()[1])
        protocol = type("OnePageProtocol", (PageProtocol,), {"clients": {}})
        config = uvicorn.Config(self._app, http=protocol, lifespan="off", log_config=None, access_log=False)
        self._server = SignallessServer(config)
        self._task = asyncio.create_task(self._server.serve(sockets=[listening]))
        return self.port

    async def stop(self) -> None:
        """Finish open requests and stop."""
        if self._server is not None and self._task is not None:
            self._server.should_exit = True
            await self._task
            self._server = None


# Everybody who can reach the pages may connect, so the number of connections is limited.
MAX_CLIENTS = 128


class PageProtocol(HttpToolsProtocol):
    """Ends the oldest connection when there are too many: a flood of silent ones keeps nobody out."""

    # The connections of one server, the oldest first.
    clients: ClassVar[dict[PageProtocol, None]]

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Count the connection."""
        super().connection_made(transport)
        self.clients[self] = None
        if len(self.clients) > MAX_CLIENTS:
            oldest = next(iter(self.clients))
            del self.clients[oldest]
            oldest.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        self.clients.pop(self, None)
        super().connection_lost(exc)


class Readiness(NamedTuple):
    """The result of a readiness check, with a message."""

    is_ready: bool
    message: str = ""


Checks: TypeAlias = Mapping[str, Callable[[], Readiness]]


def health(checks: Checks, loops: Checks | None = None) -> list[Route]:
    """Return the routes `/livez`, `/healthz` and `/readyz`; checks must be quick and must not raise.

    `loops` says of each loop whether it still turns. That of the pages does if it answers at all.
    """

    async def alive(request: Request) -> Response:
        stuck = [
            f"{name}: {answer.message}\n" for name, check in (loops or {}).items() if not (answer := check()).is_ready
        ]
        return PlainTextResponse("".join(stuck) or "ok\n", 503 if stuck else 200)

    async def ready(request: Request) -> Response:
        answers = {name: check() for name, check in checks.items()}
        body = {name: {"ready": answer.is_ready, "message": answer.message} for name, answer in answers.items()}
        return JSONResponse(body, 200 if all(answer.is_ready for answer in answers.values()) else 503)

    return [Route("/livez", alive), Route("/healthz", alive), Route("/readyz", ready)]


SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)


class RunMetrics:
    """Metrics of every serving process. A plane or engine adds its own to `registry`."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.decisions = Counter(
            "tierwall_decisions",
            "Decisions by plane, verdict, and the policy and rule that settled it.",
            ("plane", "verdict", "policy", "rule", "name"),
            registry=self.registry,
        )
        self.loads = Counter(
            "tierwall_loads",
            "Loads of the manifests, by whether they came into force.",
            ("outcome",),
            registry=self.registry,
        )
        self.load_seconds = Histogram(
            "tierwall_load_seconds",
            "Time from a change of the manifests to a new configuration.",
            buckets=SECONDS,
            registry=self.registry,
        )
        self.objects = Gauge("tierwall_objects", "Objects in force.", registry=self.registry)

    def count(self, load: Load[Any]) -> None:
        """Count a load that came into force or was refused."""
        is_good = load.outcome is not LoadOutcome.REFUSED
        self.loads.labels("good" if is_good else "broken").inc()
        if is_good:
            self.load_seconds.observe(load.seconds)
            self.objects.set(len(load.snapshot))

    async def page(self, request: Request) -> Response:
        """Answer `/metrics`."""
        return Response(generate_latest(self.registry), media_type=CONTENT_TYPE_LATEST)

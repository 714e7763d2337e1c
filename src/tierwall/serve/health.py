"""Health as Kubernetes probes ask for it: `/healthz` (the process lives) and `/readyz` (it does its job), with reasons.

`/readyz` answers 200 when every check holds and 503 otherwise; the body names each check and why it does not hold.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route


class Readiness(NamedTuple):
    """Whether a part of the process does its job, and what there is to say about it."""

    holds: bool
    message: str = ""


class Health:
    """The checks of one process, by name."""

    def __init__(self) -> None:
        self._checks: dict[str, Callable[[], Readiness]] = {}

    def add(self, name: str, check: Callable[[], Readiness]) -> None:
        """Make readiness depend on one more check; it must be quick and must not raise."""
        self._checks[name] = check

    def readiness(self) -> dict[str, Readiness]:
        """Every check, asked now."""
        return {name: check() for name, check in self._checks.items()}

    def routes(self) -> list[Route]:
        """`/healthz` and `/readyz`."""
        return [Route("/healthz", _alive), Route("/readyz", self._ready)]

    async def _ready(self, request: Request) -> Response:
        found = self.readiness()
        body = {name: {"ready": one.holds, "message": one.message} for name, one in found.items()}
        return JSONResponse(body, 200 if all(one.holds for one in found.values()) else 503)


async def _alive(request: Request) -> Response:
    return PlainTextResponse("ok\n")

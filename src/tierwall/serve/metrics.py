"""Metrics in Prometheus' text format at `/metrics`; every process has its own registry, so tests can have many."""

from __future__ import annotations

from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from tierwall.serve.follower import Load, Outcome

SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)


class Metrics:
    """What every serving process counts. A plane or engine adds its own to `registry`."""

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
        """Count a load that was taken or refused."""
        is_good = load.outcome is not Outcome.REFUSED
        self.loads.labels("good" if is_good else "broken").inc()
        if is_good:
            self.load_seconds.observe(load.seconds)
            self.objects.set(len(load.snapshot))

    def routes(self) -> list[Route]:
        """`/metrics`."""
        return [Route("/metrics", self._page)]

    async def _page(self, request: Request) -> Response:
        return Response(generate_latest(self.registry), media_type=CONTENT_TYPE_LATEST)

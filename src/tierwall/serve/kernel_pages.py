"""The pages of `enforce nft --http`: health for probes, and metrics (docs/enforce-network.md#health)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from starlette.routing import Route

from tierwall.serve.follower import Follower, Load, ObjectSource
from tierwall.serve.pages import HttpServer, Readiness, RunMetrics, health


def kernel_pages(follower: Follower[Any], source: ObjectSource) -> tuple[HttpServer, Callable[[Load[Any]], None]]:
    """Return a server of the pages, not started yet, and what counts each load for the metrics."""
    metrics = RunMetrics()

    def table() -> Readiness:
        if follower.in_force is None:
            return Readiness(False, "no table is in force yet")
        if refusal := follower.refusal:
            return Readiness(False, f"the last good table is in force: {refusal[0].message}")
        return Readiness(True, f"{len(follower.in_force.snapshot)} objects")

    def cluster() -> Readiness:
        # Only the source of a cluster has a thread that could stand still.
        is_turning = getattr(source, "is_turning", True)
        return Readiness(is_turning, "" if is_turning else "the thread that follows the cluster does not answer")

    pages = [*health({"table": table}, {"cluster": cluster}), Route("/metrics", metrics.page)]
    return HttpServer(pages), metrics.count

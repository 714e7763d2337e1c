"""Metrics of the authorizer: decisions by authorizer, verdict and phase, latencies, refusals, and reloads.

Labels hold only names from the configuration and fixed words, so a caller cannot create new series.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator
from functools import partial
from itertools import accumulate
from typing import TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge
from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from tierwall.serve.authorizer.admission_state import AdmissionState
from tierwall.serve.authorizer.policies import PolicyFollower
from tierwall.serve.authorizer.record import DecisionRecord

MetricType = TypeVar("MetricType", Counter, Gauge)

SECONDS = (0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 10.0)
PREFIX = "tierwall_authorizer_"


class _Tally(Collector):
    """Counts decisions and their latencies for every request: without locks, in one thread."""

    def __init__(self) -> None:
        self._decisions: dict[tuple[str, str, str], int] = {}
        # By phase: the number of decisions in each latency bucket, and the sum of latencies.
        self._buckets: dict[str, list[int]] = {}
        self._seconds: dict[str, float] = {}

    def add(self, authorizer: str, verdict: str, phase: str, seconds: float) -> None:
        """Count one decision."""
        key = authorizer, verdict, phase
        self._decisions[key] = self._decisions.get(key, 0) + 1
        buckets = self._buckets.get(phase)
        if buckets is None:
            buckets, self._seconds[phase] = self._buckets.setdefault(phase, [0] * (len(SECONDS) + 1)), 0.0
        buckets[bisect_left(SECONDS, seconds)] += 1
        self._seconds[phase] += seconds

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics for Prometheus."""
        decisions = CounterMetricFamily(
            f"{PREFIX}decisions",
            "Decisions by verdict, phase and the authorizer that settled them or set the first conditions.",
            labels=("authorizer", "verdict", "phase"),
        )
        for key, count in self._decisions.items():
            decisions.add_metric(key, count)
        yield decisions
        seconds = HistogramMetricFamily(
            f"{PREFIX}request_duration_seconds",
            "From a review that was read to its answer, without the time that clients take to send and to read.",
            labels=("phase",),
        )
        for phase, buckets in self._buckets.items():
            bounds = zip((*map(floatToGoString, SECONDS), "+Inf"), accumulate(buckets), strict=True)
            seconds.add_metric((phase,), [(bound, float(count)) for bound, count in bounds], self._seconds[phase])
        yield seconds


class AuthorizerMetrics:
    """The metrics of one process, in a registry of their own."""

    def __init__(self, follower: PolicyFollower) -> None:
        self.registry = CollectorRegistry()
        self._tally = _Tally()
        self.registry.register(self._tally)
        counter, gauge = partial(self._metric, Counter), partial(self._metric, Gauge)
        refused = "Requests that were not reviews, by phase and HTTP status."
        self._refused = counter("refused_requests", refused, "phase", "status")
        self._errors = counter("evaluation_errors", "Decisions that an error had a part in, by phase.", "phase")
        self.log_failures = counter("log_failures", "Records that could not be logged.")
        renewed = "Changes to the certificate files, by whether they came into force."
        self.certificate_reloads = counter("certificate_reloads", renewed, "outcome")
        reloaded = "Changes to the policy files since the start, by outcome."
        reloads = gauge("policy_reloads", reloaded, "outcome")
        for outcome in follower.outcomes:
            reloads.labels(outcome.value).set_function(partial(follower.outcomes.__getitem__, outcome))
        stale = "1 while the last good policies or chain are in force because the newest cannot be used."
        gauge("policies_stale", stale).set_function(lambda: bool(follower.stale))
        gauge("object_errors", "Errors of the newest objects.").set_function(lambda: len(follower.newest_errors))
        gauge("policies", "Policies in force.").set_function(lambda: follower.current.policies)
        retained = "Superseded sets of policies whose conditional grants are still enforced."
        gauge("retained_policy_sets", retained).set_function(lambda: len(follower.retained))

    def watch_admission(self, admission: Callable[[], AdmissionState]) -> None:
        """Also tell whether admission is proved live."""
        documentation = "1 while admission is proved to enforce conditions."
        live = Gauge("tierwall_admission_live", documentation, registry=self.registry)
        live.set_function(lambda: admission().is_live)

    def _metric(self, kind: type[MetricType], name: str, documentation: str, *labels: str) -> MetricType:
        return kind(f"{PREFIX}{name}", documentation, labels, registry=self.registry)

    def observe(self, record: DecisionRecord, seconds: float) -> None:
        """Count one reply."""
        phase = record.phase
        if record.status != 200:
            self._refused.labels(phase, str(record.status)).inc()
        self._tally.add(record.authorizer, record.verdict, phase, seconds)
        if record.error:
            self._errors.labels(phase).inc()

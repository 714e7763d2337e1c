"""Counters of the authorizer: decisions by authorizer, verdict and phase, latencies, refusals, and reloads.

Labels hold only names from the configuration and words of ours: a caller cannot make new series.
"""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from tierwall.serve.authorizer.record import Record
from tierwall.serve.authorizer.store import Store

SECONDS = (0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 10.0)
CONTENT_TYPE = CONTENT_TYPE_LATEST.encode()


class Metrics:
    """The metrics of one process, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._decisions = Counter(
            "tierwall_authorizer_decisions",
            "Decisions by verdict, phase and the authorizer that settled them or set the first conditions.",
            ("authorizer", "verdict", "phase"),
            registry=self.registry,
        )
        self._seconds = Histogram(
            "tierwall_authorizer_request_duration_seconds",
            "From the first byte of a review's body to its answer.",
            ("phase",),
            buckets=SECONDS,
            registry=self.registry,
        )
        self._refused = Counter(
            "tierwall_authorizer_refused_requests",
            "Requests that were no reviews, by phase and HTTP status.",
            ("phase", "status"),
            registry=self.registry,
        )
        self._errors = Counter(
            "tierwall_authorizer_evaluation_errors",
            "Decisions that an error took part in, by phase.",
            ("phase",),
            registry=self.registry,
        )
        self.log_failures = Counter(
            "tierwall_authorizer_log_failures", "Records that could not be logged.", registry=self.registry
        )
        self.certificate_reloads = Counter(
            "tierwall_authorizer_certificate_reloads",
            "Changes of the certificate files, by whether they came into force.",
            ("outcome",),
            registry=self.registry,
        )
        self._reloads = Gauge(
            "tierwall_authorizer_policy_reloads",
            "Changes of the policy files since the start, by what became of them.",
            ("outcome",),
            registry=self.registry,
        )
        self._stale = Gauge(
            "tierwall_authorizer_policies_stale",
            "1 while the last good policies are in force because the files hold broken ones.",
            registry=self.registry,
        )
        self._policies = Gauge("tierwall_authorizer_policies", "Policies in force.", registry=self.registry)
        self._retained = Gauge(
            "tierwall_authorizer_retained_policy_sets",
            "Superseded sets of policies whose conditional grants are still enforced.",
            registry=self.registry,
        )
        # The children of a metric are looked up under a lock; a dictionary of our own is cheaper.
        self._decision_children: dict[tuple[str, str, str], Counter] = {}
        self._second_children: dict[str, Histogram] = {}

    def observe(self, record: Record, seconds: float) -> None:
        """Count one reply."""
        phase = record.phase
        if record.status != 200:
            self._refused.labels(phase, str(record.status)).inc()
        key = record.authorizer, record.verdict, phase
        child = self._decision_children.get(key)
        if child is None:
            child = self._decision_children[key] = self._decisions.labels(*key)
        child.inc()
        histogram = self._second_children.get(phase)
        if histogram is None:
            histogram = self._second_children[phase] = self._seconds.labels(phase)
        histogram.observe(seconds)
        if record.error:
            self._errors.labels(phase).inc()

    def page(self, store: Store) -> bytes:
        """Everything in Prometheus' text format."""
        for outcome, count in store.reloads.items():
            self._reloads.labels(outcome).set(count)
        self._stale.set(bool(store.trouble))
        self._policies.set(store.current.policies)
        self._retained.set(len(store.retained))
        return generate_latest(self.registry)

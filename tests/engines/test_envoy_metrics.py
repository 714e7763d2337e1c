"""Metrics of policies: a collector gets how often each policy and rule gave which verdict."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from envoy.extensions.filters.http.rbac.v3 import rbac_pb2
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2

from tests.labs.collector import Collector
from tests.labs.envoy_lab import lab, policy
from tests.labs.waiting import eventually
from tierwall.engines.envoy.config.bootstrap import bootstrap
from tierwall.engines.envoy.config.checkpoints import PolicyFilters
from tierwall.engines.envoy.config.matchers import packed

# Its messages have no types.
service: Any = metrics_service_pb2
# What admission refuses closes its targets under its own name, whatever that is.
HOSTILE = 'gate rules[0] "é:://it.allowed'


@pytest.fixture
def collector() -> Iterator[Collector]:
    running = Collector("opentelemetry.proto.collector.metrics.v1.MetricsService", service, "ExportMetricsService")
    yield running
    running.close()


def verdicts(request: Any) -> dict[tuple[str, ...], int]:
    """Return the verdicts of a report by policy, rule, its name, and verdict; there must be nothing else in it."""
    out: dict[tuple[str, ...], int] = {}
    for resource in request.resource_metrics:
        told = {item.key: item.value.string_value for item in resource.resource.attributes}
        assert told["service.name"] == "tierwall"
        # The generated messages have the earlier name of `scope_metrics`, which is the same on the wire.
        for scope in resource.instrumentation_library_metrics:
            for metric in scope.metrics:
                assert metric.name == "tierwall.policy.verdicts"
                assert metric.sum.is_monotonic
                for point in metric.sum.data_points:
                    got = {item.key.removeprefix("tierwall."): item.value.string_value for item in point.attributes}
                    key = tuple(got.pop(name, "") for name in ("policy", "rule", "rule.name", "verdict"))
                    assert not got
                    assert key not in out
                    out[key] = point.as_int
    return out


@pytest.mark.engine
@pytest.mark.usefixtures("needs_envoy")
def test_verdicts_are_counted_by_policy_and_rule(collector: Collector) -> None:
    team = policy("team.denied", "allowed", on="XBackend")
    team["spec"]["rules"].insert(0, {**team["spec"]["rules"][0], "name": "0.allowed"})
    team["spec"]["rules"][0]["authorization"] = {"type": "InlineTools", "tools": ["other"]}
    with lab(collector=collector.address) as running:
        running.publish([policy("gate.x.allowed", "allowed", "half", "other"), team])
        caller = running.caller()
        running.until_ready(caller, "allowed")
        ready = len(running.backend.calls)
        assert [caller.call(tool) for tool in ("allowed", "other")] == ["allowed", "allowed"]
        assert "team" in caller.call("half")
        assert "gate" in caller.call("forbidden")
        gate, team_name = "XAccessPolicy/shop/gate.x.allowed", "XAccessPolicy/shop/team.denied"
        expected = {
            (gate, "rules[0]", "it", "allowed"): ready + 3,
            (gate, "", "", "denied"): 1,
            (team_name, "rules[0]", "0.allowed", "allowed"): 1,
            (team_name, "rules[1]", "it", "allowed"): ready + 1,
            (team_name, "", "", "denied"): 1,
        }

        def newest() -> dict[tuple[str, ...], int]:
            return verdicts(collector.requests[-1]) if collector.requests else {}

        eventually(lambda: newest() == expected, lambda: (newest(), expected))

        running.publish([policy(HOSTILE, "allowed")])
        eventually(lambda: "gate" in caller.call("allowed"), lambda: caller.call("allowed"))
        eventually(lambda: len(newest()) > len(expected), newest)
        new = newest().keys() - expected.keys()
        written = HOSTILE.replace('"', '\\"').replace("é", "\\u00e9")
        assert new == {(f"XAccessPolicy/shop/{written}", "", "", "denied")}


def test_without_a_collector_envoy_counts_and_sends_nothing() -> None:
    plain = bootstrap(Path("xds.sock"), "node", Path("admin.sock"))
    assert not plain.keys() & {"stats_sinks", "stats_config"}
    assert [cluster["name"] for cluster in plain["static_resources"]["clusters"]] == ["tierwall"]
    silent = PolicyFilters.of({}).messages
    counting = PolicyFilters().after({}, number=1, acknowledged=0, counts=True).messages
    assert silent.keys() == counting.keys()
    for name, message in counting.items():
        policies = rbac_pb2.RBAC.FromString(message.typed_config.value)
        assert policies.track_per_rule_stats
        policies.ClearField("track_per_rule_stats")
        assert silent[name].typed_config == packed(policies)

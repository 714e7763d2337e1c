"""Settings of a rule beside its filters: `timeouts`, `retry` and `sessionPersistence` (Gateway API, `HTTPRouteRule`).

A rule with `retry` repeats requests that no backend took, and those whose answer has one of its codes. A request that a
backend may have begun is not repeated otherwise: a tool call may have had its effect.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tierwall.engines.envoy.config.rule_problems import settings_problem
from tierwall.engines.envoy.config.settings import traffic
from tierwall.resources.resource import nested_map
from tierwall.values.time import parse_seconds


def apply_settings(route: Any, rule: Mapping[str, Any]) -> str:
    """Apply the settings of a rule to an Envoy route to backends; return the first that cannot be applied."""
    if problem := settings_problem(rule):
        return problem
    timeouts, retry = nested_map(rule, "timeouts"), rule.get("retry")
    whole, single = parse_seconds(timeouts.get("request")), parse_seconds(timeouts.get("backendRequest"))
    if not isinstance(retry, dict):
        # Without retries, the timeout of a backend request is that of the whole request.
        whole = whole or single
    # An event stream lives as long as its session: no timeout unless the route sets one.
    route.route.timeout.FromNanoseconds(int((whole or 0) * 1e9))
    if not isinstance(retry, dict):
        return ""
    traffic.retry(retry)(route)
    if single:
        route.route.retry_policy.per_try_timeout.FromNanoseconds(int(single * 1e9))
    return ""

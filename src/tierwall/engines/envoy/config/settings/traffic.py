"""Settings of the traffic section that Envoy's router and its plain filters enforce, route by route."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from envoy.config.route.v3 import route_components_pb2
from envoy.extensions.filters.http.buffer.v3 import buffer_pb2
from envoy.extensions.filters.http.csrf.v3 import csrf_pb2
from envoy.extensions.filters.http.fault.v3 import fault_pb2

from tierwall.engines.envoy.config.matchers import packed
from tierwall.engines.envoy.config.names import CORS, NOWHERE
from tierwall.engines.envoy.config.options import EnvoyOptions
from tierwall.engines.envoy.config.route_rules import modify_headers, set_cors
from tierwall.engines.envoy.config.settings.expressions import constant
from tierwall.engines.envoy.config.settings.filters import BUFFER, CSRF, DELAY
from tierwall.engines.envoy.config.settings.measures import byte_count, nanoseconds
from tierwall.engines.envoy.config.settings.unenforceable import Unenforceable
from tierwall.resources.resource import list_of_maps, nested_map
from tierwall.values.time import NANOS

RouteChange = Callable[[Any], None]
# Envoy waits at most this long between attempts; no client waits longer than its own timeout anyway.
_MAX_RETRIES = 255
_RETRY_ON = "connect-failure,refused-stream,retriable-status-codes"


def timeouts(value: Mapping[str, Any]) -> RouteChange:
    """Limit the time from the end of the request to the end of the response."""
    timeout = nanoseconds(value.get("request"), "request")

    def apply(route: Any) -> None:
        if route.HasField("route"):
            route.route.timeout.FromNanoseconds(timeout)

    return apply


def retry(value: Mapping[str, Any]) -> RouteChange:
    """Repeat requests whose response has one of the codes, or that no backend took."""
    attempts = min(int(value.get("attempts", 1)), _MAX_RETRIES)
    backoff = nanoseconds(value["backoff"], "backoff") if "backoff" in value else None

    def apply(route: Any) -> None:
        if route.HasField("route"):
            policy = route.route.retry_policy
            policy.retry_on = _RETRY_ON
            policy.num_retries.value = attempts
            policy.retriable_status_codes.extend(value.get("codes") or ())
            if backoff:
                # Envoy counts in milliseconds.
                interval = max(backoff, NANOS // 1000)
                policy.retry_back_off.base_interval.FromNanoseconds(interval)
                policy.retry_back_off.max_interval.FromNanoseconds(interval)

    return apply


def request_headers(value: Mapping[str, Any]) -> RouteChange:
    """Set, add and remove headers of requests."""
    return lambda route: _check(modify_headers(value, route.request_headers_to_add, route.request_headers_to_remove))


def response_headers(value: Mapping[str, Any]) -> RouteChange:
    """Set, add and remove headers of responses."""
    return lambda route: _check(modify_headers(value, route.response_headers_to_add, route.response_headers_to_remove))


def _check(unsupported: str) -> None:
    if unsupported:
        raise Unenforceable(f"{unsupported} is not supported")


def direct_response(value: Mapping[str, Any]) -> RouteChange:
    """Answer requests without asking a backend, after everything else has let them pass."""
    body = value.get("body", "")
    if "bodyExpression" in value:
        body = constant(value["bodyExpression"], "bodyExpression")
    headers = [
        {"name": header["name"], "value": constant(header["value"], "headers", number, "value")}
        for number, header in enumerate(list_of_maps(value.get("headers")))
    ]

    def apply(route: Any) -> None:
        route.ClearField("action")
        route.direct_response.status = value["status"]
        if body:
            route.direct_response.body.inline_string = body
        _check(modify_headers({"set": headers}, route.response_headers_to_add, route.response_headers_to_remove))

    return apply


def forward_nowhere(route: Any) -> None:
    """Have a route forward its requests to nothing, because a filter answers them all."""
    route.ClearField("action")
    route.route.cluster = NOWHERE


def is_answered(route: Any) -> bool:
    """Whether Envoy answers the requests of a route that has no destinations yet."""
    return not route.HasField("route") or route.route.cluster == NOWHERE


def csrf(value: Mapping[str, Any]) -> RouteChange:
    """Refuse requests that change something and come from a page of another origin."""
    out = csrf_pb2.CsrfPolicy()
    out.filter_enabled.default_value.numerator = 100
    for origin in value.get("additionalOrigins") or ():
        # Envoy compares the host and port of an origin, without its scheme.
        out.additional_origins.add(exact=str(origin).partition("://")[2])
    return turned_on(CSRF, out)


def buffer(value: Mapping[str, Any]) -> RouteChange:
    """Read requests whole before they go on, and refuse those that are too large."""
    size = nested_map(value, "request").get("maxBytes")
    out = buffer_pb2.BufferPerRoute()
    out.buffer.max_request_bytes.value = byte_count(size, "request", "maxBytes") if size is not None else 1 << 20
    return turned_on(BUFFER, out)


def delay(value: Mapping[str, Any]) -> RouteChange:
    """Hold requests for a time."""
    duration = nanoseconds(value.get("duration"), "duration")
    out = fault_pb2.HTTPFault()
    out.delay.fixed_delay.FromNanoseconds(max(duration, NANOS // 1000))
    out.delay.percentage.numerator = 100
    return turned_on(DELAY, out) if duration else lambda route: None


def cors(value: Mapping[str, Any], options: EnvoyOptions) -> RouteChange:
    """Say which pages of other origins may read answers in a browser."""
    scratch = route_components_pb2.Route()
    _check(set_cors(scratch, value, options.max_program_size))
    settings = scratch.typed_per_filter_config[CORS]
    return lambda route: route.typed_per_filter_config[CORS].CopyFrom(settings)


def turned_on(name: str, settings: Any) -> RouteChange:
    """Return the change that turns a filter on, with these settings."""
    message = packed(settings)

    def apply(route: Any) -> None:
        route.typed_per_filter_config[name].CopyFrom(message)

    return apply

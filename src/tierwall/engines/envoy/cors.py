"""The CORS filter of HTTPRoutes (Gateway API, `HTTPCORSFilter`): pages of which origins browsers let read answers.

It stands before policies. A browser's question beforehand (preflight) is answered there and goes no further; it gets
nothing of the backend. Every other request goes on to the policies, whatever its origin: CORS protects browsers, not
backends.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from envoy.extensions.filters.http.cors.v3 import cors_pb2
from envoy.type.matcher.v3 import string_pb2

from tierwall.engines.envoy.matchers import packed
from tierwall.engines.envoy.route_match import quoted, refused

FILTER: Final = "envoy.filters.http.cors"
_MAX_AGE_S = 5


def http_filter() -> Any:
    """The filter; what it does is said by routes."""
    return packed(cors_pb2.Cors())


def apply(route: Any, value: object, largest_pattern: int) -> str:
    """Say to the filter what a rule says; what cannot be said, or nothing."""
    value = value if isinstance(value, dict) else {}
    with_credentials = value.get("allowCredentials") is True
    out = cors_pb2.CorsPolicy()
    for origin in _texts(value, "allowOrigins"):
        matcher = out.allow_origin_string_match.add()
        if "*" not in origin:
            matcher.exact = origin
            continue
        pattern = _origins(origin)
        if refused(pattern, largest_pattern):
            return f"origin `{origin}`, which is too long for Envoy,"
        matcher.CopyFrom(string_pb2.StringMatcher())
        matcher.safe_regex.regex = pattern
    if with_credentials and "*" in _texts(value, "exposeHeaders"):
        # To browsers that send credentials `*` is a header of that name.
        return "`exposeHeaders` for every header together with credentials"
    # Envoy says what a browser asks for where these are `*`.
    out.allow_methods = ", ".join(_texts(value, "allowMethods"))
    out.allow_headers = ", ".join(_texts(value, "allowHeaders"))
    out.expose_headers = ", ".join(_texts(value, "exposeHeaders"))
    age = value.get("maxAge")
    out.max_age = str(age if type(age) is int else _MAX_AGE_S)
    out.allow_credentials.value = with_credentials
    out.forward_not_matching_preflights.value = False
    route.typed_per_filter_config[FILTER].CopyFrom(packed(out))
    return ""


def _origins(text: str) -> str:
    """A pattern for `*`, `https://*` or `https://*.example.com`, where `*` is one or more labels."""
    if text == "*":
        return ".*"
    before, _, after = text.partition("*")
    return f"{quoted(before)}[^/]+{quoted(after)}"


def _texts(value: Mapping[str, Any], field: str) -> list[str]:
    found = value.get(field)
    return [str(one) for one in found] if isinstance(found, list) else []

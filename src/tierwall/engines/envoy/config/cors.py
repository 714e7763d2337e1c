"""Origins and headers of CORS that Envoy cannot express (Gateway API, `HTTPCORSFilter`; agentgateway, `traffic.cors`).

Envoy's own packages are not needed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tierwall.engines.envoy.config.patterns import escaped, pattern_problem


def cors_problem(value: Mapping[str, Any], max_program_size: int) -> str:
    """Return the first part of a setting that cannot be applied, or an empty string."""
    for origin in map(str, value.get("allowOrigins") or ()):
        if "*" in origin and pattern_problem(origin_pattern(origin), max_program_size):
            return f"origin `{origin}`, which is too long for Envoy,"
    if value.get("allowCredentials") is True and "*" in (value.get("exposeHeaders") or ()):
        # With credentials, browsers read `*` as a header with that name.
        return "`exposeHeaders` for every header together with credentials"
    return ""


def origin_pattern(origin: str) -> str:
    """Return a pattern for `*`, `https://*` or `https://*.example.com`; `*` stands for one or more labels."""
    if origin == "*":
        return ".*"
    before, _, after = origin.partition("*")
    return f"{escaped(before)}[^/]+{escaped(after)}"

"""The `webhook` part of an AuthorizationConfiguration, with the API server's defaults.

Conditions are supported only where an endpoint for them is configured: `conditionsEndpointKubeConfigContext` in the
KEP's words, `conditionsReview` in the words of the API server's commit series.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec

from tierwall.api.expression import parse
from tierwall.api.wire.review import Shape
from tierwall.cel.errors import ParseError
from tierwall.core.source import Path
from tierwall.core.verdict import Verdict

_UNITS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_PART = re.compile(r"([0-9]+(?:\.[0-9]*)?|\.[0-9]+)(ns|us|µs|ms|s|m|h)")
MAX_MATCH_CONDITIONS = 64


class WebhookSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How a webhook is asked, and how long its answers hold."""

    version: str = "v1"
    failure_policy: Verdict = Verdict.DENY
    timeout: float = 30.0
    authorized_ttl: float = 300.0
    unauthorized_ttl: float = 30.0
    match_conditions: tuple[str, ...] = ()
    supports_conditions: bool = False
    shape: Shape = Shape.CONDITIONS_CHAIN

    def lifetime(self, is_allowed: bool) -> float:
        """How long an answer may be served from the cache; a conditional one counts as not allowed."""
        return self.authorized_ttl if is_allowed else self.unauthorized_ttl


def read_settings(value: Mapping[str, Any]) -> tuple[WebhookSettings, list[tuple[Path, str]]]:
    """The settings, and everything that is wrong with them: where, and what."""
    problems: list[tuple[Path, str]] = []

    def problem(words: str, *path: str | int) -> None:
        problems.append((path, words))

    def seconds(key: str, default: float) -> float:
        if key not in value:
            return default
        found = duration(value[key])
        if found is None:
            problem(f"`{key}` must be a duration such as `30s`, found `{value[key]}`", key)
        return default if found is None else found

    version = value.get("subjectAccessReviewVersion", "v1")
    if version not in ("v1", "v1beta1"):
        problem(f"`subjectAccessReviewVersion` must be v1 or v1beta1, found `{version}`", "subjectAccessReviewVersion")
    policy = value.get("failurePolicy", "Deny")
    if policy not in ("Deny", "NoOpinion"):
        problem(f"`failurePolicy` must be Deny or NoOpinion, found `{policy}`", "failurePolicy")
    timeout = seconds("timeout", 30.0)
    if not 0 < timeout <= 30:
        problem("`timeout` must be more than 0 and at most 30s", "timeout")
    conditions = value.get("matchConditions") or []
    if not isinstance(conditions, list):
        problem("`matchConditions` must be a list", "matchConditions")
        conditions = []
    texts = [one.get("expression") if isinstance(one, Mapping) else None for one in conditions]
    if len(texts) > MAX_MATCH_CONDITIONS:
        problem(f"at most {MAX_MATCH_CONDITIONS} match conditions are allowed, found {len(texts)}", "matchConditions")
    for number, text in enumerate(texts[:MAX_MATCH_CONDITIONS]):
        if not isinstance(text, str) or not text:
            problem("every match condition needs an `expression`", "matchConditions", number)
            continue
        try:
            parse(text)
        except ParseError as why:
            words = f"match condition `{text}` is not a CEL expression: {why}"
            problem(words, "matchConditions", number, "expression")
    series = isinstance(value.get("conditionsReview"), Mapping)
    settings = WebhookSettings(
        version=version if isinstance(version, str) else "v1",
        failure_policy=Verdict.NO_OPINION if policy == "NoOpinion" else Verdict.DENY,
        timeout=timeout,
        authorized_ttl=seconds("authorizedTTL", 300.0) if value.get("cacheAuthorizedRequests", True) else 0.0,
        unauthorized_ttl=seconds("unauthorizedTTL", 30.0) if value.get("cacheUnauthorizedRequests", True) else 0.0,
        match_conditions=tuple(one for one in texts if isinstance(one, str)),
        supports_conditions=series or bool(value.get("conditionsEndpointKubeConfigContext")),
        shape=Shape.SERIES if series else Shape.CONDITIONS_CHAIN,
    )
    return settings, problems


def duration(text: Any) -> float | None:
    """Seconds of a Go duration (`1m30s`), or None if it is none."""
    if text == "0":
        return 0.0
    if not isinstance(text, str) or not re.fullmatch(rf"(?:{_PART.pattern})+", text):
        return None
    return sum(float(number) * _UNITS[unit] for number, unit in _PART.findall(text))

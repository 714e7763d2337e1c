"""Parts of rules that Envoy cannot do, whatever the backends: filters, patterns, `retry` and `sessionPersistence`.

The rule answers 500, so that nothing is served as if the part were absent. `run` asks this before it compiles, `check`
and `effective` ask without compiling: Envoy's own packages are not needed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tierwall.engines.envoy.config.chain_rule import replaces_prefix
from tierwall.engines.envoy.config.cors import cors_problem
from tierwall.engines.envoy.config.header_changes import header_problems, headers_of_filter
from tierwall.engines.envoy.config.paths import UNSENDABLE_PATH, is_sendable, prefix_problem, with_slash
from tierwall.engines.envoy.config.route_matches import SEVERAL_PATTERNS, Match, path_problem, unusable_pattern
from tierwall.engines.envoy.config.settings.measures import nanoseconds
from tierwall.engines.envoy.config.settings.unenforceable import Unenforceable
from tierwall.resources.resource import list_of_maps, nested_map

SESSION_PERSISTENCE = "sessionPersistence"
_PATH_CHANGES = {"URLRewrite": "urlRewrite", "RequestRedirect": "requestRedirect"}
_APPLIED = ("RequestHeaderModifier", "ResponseHeaderModifier", "RequestMirror")
# What to write instead, by how a problem begins.
_HINTS: Mapping[str, str] = {
    SESSION_PERSISTENCE: "remove it: Envoy reaches a Service at its one address, where the cluster picks the pod; let "
    "servers share sessions, or serve MCP 2026-07-28, which has none",
    "filter ": "write it as a filter of the Gateway API, or in an AgentgatewayPolicy about the route",
    "a change of header `host`": "write URLRewrite with `hostname`",
    "a change of header ": "leave it out: Envoy sets it, or policies have judged the request by it",
    "a control character ": "leave the character out",
    UNSENDABLE_PATH: "write the character as `%` with two digits",
    "pattern ": "write a shorter pattern, or several matches; its syntax is that of RE2",
    "origin ": "write shorter origins",
    "`exposeHeaders` ": "name the headers",
    "replacing prefix ": "match a shorter prefix",
}


def rule_problem(matches: Sequence[Match], rule: Mapping[str, Any], max_program_size: int, *, forwards: bool) -> str:
    """Return the first part of a rule that cannot be applied to requests of a chain of matches, or an empty string.

    `forwards` if it has a backend that is served.
    """
    problem = path_problem(matches, max_program_size, replaces_prefix(rule)) if len(matches) > 1 else ""
    problem = problem or filter_problem(matches[-1], rule.get("filters"), max_program_size)
    return problem or (settings_problem(rule) if forwards and not redirects(rule) else "")


def filter_problem(match: Match, filters: object, max_program_size: int) -> str:
    """Return the first filter of a rule that cannot be applied, or a pattern of the match; or an empty string."""
    problems = (_problem_of(match, entry, max_program_size) for entry in list_of_maps(filters))
    return unusable_pattern(match, max_program_size) or next(filter(None, problems), "")


def settings_problem(rule: Mapping[str, Any]) -> str:
    """Return the first setting of a rule beside its filters that cannot be applied, or an empty string."""
    if rule.get(SESSION_PERSISTENCE) is not None:
        return SESSION_PERSISTENCE
    try:
        nanoseconds(nested_map(rule, "retry").get("backoff", "0s"), "backoff")
    except Unenforceable as error:
        return f"retry: {error}"
    return ""


def redirects(rule: Mapping[str, Any]) -> bool:
    """Whether a rule answers its requests with a redirect."""
    return any(each.get("type") == "RequestRedirect" for each in list_of_maps(rule.get("filters")))


def hint_about(problem: str) -> str:
    """Return what to write instead of what cannot be applied, or an empty string."""
    return next((words for begin, words in _HINTS.items() if problem.lower().startswith(begin.lower())), "")


def rule_effect(problem: str) -> str:
    """Return what becomes of the rule, if it does not answer 500."""
    if problem.startswith("pattern "):
        return "gets no requests by this match"
    return "gets no requests" if problem == SEVERAL_PATTERNS else ""


def _problem_of(match: Match, entry: Mapping[str, Any], max_program_size: int) -> str:
    kind = str(entry.get("type"))
    if kind in _PATH_CHANGES:
        path = nested_map(nested_map(entry, _PATH_CHANGES[kind]), "path")
        if not all(is_sendable(path.get(field) or "") for field in ("replaceFullPath", "replacePrefixMatch")):
            return UNSENDABLE_PATH
        if not path or path.get("type") == "ReplaceFullPath":
            return ""
        return prefix_problem(match, with_slash(path.get("replacePrefixMatch")), max_program_size)
    if kind == "CORS":
        return cors_problem(nested_map(entry, "cors"), max_program_size)
    if kind not in _APPLIED:
        return f"filter {kind}"
    return next((problem.message for problem in header_problems(headers_of_filter(entry))), "")

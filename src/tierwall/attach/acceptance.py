"""Find what a controller refuses although the API server accepts it: CEL, regular expressions, limits of a target.

An AccessPolicy with an unusable expression or pattern is as invalid as one that admission refuses: it closes its
targets (docs/semantics.md#an-invalid-policy-closes-its-targets). The variables of its expressions
(docs/tool.md#expressions) are typed, so an expression that cannot return a bool is found before any request;
`request.mcp.arguments` is Tierwall's own. An AgentgatewayPolicy is accepted in part (docs/gateway.md#status): a setting
whose expression does not parse is in force, except for a few that are left out. The schema says which strings are CEL.

A target takes five AccessPolicies, one of them with action ExternalAuth (docs/semantics.md#five-policies-per-target).
The most senior policies stay: the older ones, then those with the smaller `namespace/name`. Every policy that names the
target counts, even a refused one, and all listener sections of a target count together. A policy that exceeds a limit
on one target is rejected on all of its targets.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from itertools import islice
from typing import Any, NamedTuple

from tierwall.attach.place import Place
from tierwall.attach.target import ACCESS_POLICIES, attachments, whole_objects
from tierwall.cel.check.checker import compile_source
from tierwall.cel.environment import Environment
from tierwall.cel.errors import EvaluationError, ParseError, SourceError
from tierwall.cel.library.regex import compile_pattern
from tierwall.cel.types import BOOL, DYN, STRING, TIMESTAMP, ObjectType, map_of
from tierwall.core.diagnostics import Diagnostic
from tierwall.core.source import Path
from tierwall.resources.kinds.registry import find_kind, schema_of
from tierwall.resources.once import per_resource, per_snapshot
from tierwall.resources.resource import Resource, list_of_maps, nested_map
from tierwall.resources.schema import Schema
from tierwall.resources.snapshot import Snapshot
from tierwall.resources.validity import has_other_defaults, objections
from tierwall.values.time import parse_duration

BAD_EXPRESSION, BAD_PATTERN = "TW401", "TW402"

_MCP = ObjectType("request.mcp", fields={"tool_name": STRING, "arguments": map_of(STRING, DYN)})
_REQUEST = ObjectType(
    "request",
    fields={
        "method": STRING,
        "path": STRING,
        "url_path": STRING,
        "host": STRING,
        "headers": map_of(STRING, STRING),
        "time": TIMESTAMP,
        "mcp": _MCP,
    },
)
ENVIRONMENT = Environment(variables={"request": _REQUEST})


@per_resource
def refusals(policy: Resource) -> tuple[Diagnostic, ...]:
    """Report every expression and pattern of an AccessPolicy that cannot be used."""
    return tuple(_refusals(policy))


def _refusals(policy: Resource) -> Iterator[Diagnostic]:
    for index, rule in enumerate(list_of_maps(policy.spec.get("rules"))):
        authorization = nested_map(rule, "authorization")
        place: Path = ("spec", "rules", index, "authorization")
        text = nested_map(authorization, "cel").get("expression")
        for message, hint in expression_problems(text) if isinstance(text, str) else ():
            path = (*place, "cel", "expression")
            expected = "a CEL expression of type bool"
            yield policy.diagnostic(BAD_EXPRESSION, message, path, expected=expected, hint=hint)
        for field in ("paths", "headers"):
            for number, matcher in enumerate(list_of_maps(authorization.get(field))):
                pattern = matcher.get("value") if matcher.get("type") == "RegularExpression" else None
                if isinstance(pattern, str) and (problem := pattern_problem(pattern)):
                    path = (*place, field, number, "value")
                    yield policy.diagnostic(BAD_PATTERN, problem, path, expected="an RE2 pattern")


@lru_cache(maxsize=1024)
def expression_problems(text: str) -> tuple[tuple[str, str], ...]:
    """Return why an expression cannot be used, each reason with a hint; nothing if it can return a bool."""
    try:
        result_type = compile_source(text, ENVIRONMENT).type
    except SourceError as error:
        return tuple(
            (f"expression cannot be used: {problem.line}:{problem.column}: {problem.message}", problem.hint or "")
            for problem in error.problems
        )
    if result_type not in (BOOL, DYN):
        return ((f"expected an expression of type bool, found {result_type}", "compare it with something"),)
    return ()


def pattern_problem(pattern: str) -> str:
    """Return why a regular expression cannot be used; empty if it can."""
    try:
        compile_pattern(pattern)
    except EvaluationError as error:
        return str(error)
    return ""


_ENVIRONMENT = Environment(extensions=True)
# The names that schemas give to expressions; the second kind may also be a Go duration.
_CEL, _DURATION_OR_CEL = "CELExpression", "DurationOrCEL"
_POLICY = "agentgateway.dev/v1alpha1", "AgentgatewayPolicy"


class BrokenExpression(NamedTuple):
    """An expression that is not CEL: its path, its text, and what is wrong with it."""

    path: tuple[str | int, ...]
    text: str
    message: str
    # What it should be.
    expected: str

    @property
    def setting(self) -> tuple[str | int, ...]:
        """The section and property of the setting that has the expression."""
        return self.path[1:3]


# The settings that the controller leaves out if their expression is broken. It hands all others to the data plane as
# they are written, where a broken expression fails for every request.
_LEFT_OUT = frozenset((("traffic", "delay"),))


@per_resource
def left_out_settings(policy: Resource) -> frozenset[tuple[str | int, ...]]:
    """Return the settings of an AgentgatewayPolicy that are not in force because of a broken expression."""
    return frozenset(broken.setting for broken in broken_expressions(policy)) & _LEFT_OUT


@per_resource
def broken_expressions(policy: Resource) -> tuple[BrokenExpression, ...]:
    """Return every expression of the policy that does not parse, in the order of the document."""
    return tuple(
        BrokenExpression(path, text, message, expected)
        for path, text, expected in _expressions(policy.value, schema_of(*_POLICY), ())
        if (message := _message(text))
    )


def _expressions(
    value: Any, schema: Schema, path: tuple[str | int, ...]
) -> Iterator[tuple[tuple[str | int, ...], str, str]]:
    """Yield every expression with its path and a name for what it should be; durations are left out."""
    if schema.title == _CEL and isinstance(value, str):
        yield path, value, "CEL expression"
    elif schema.title == _DURATION_OR_CEL and isinstance(value, str):
        if parse_duration(value) is None:
            yield path, value, "duration or CEL expression"
    elif isinstance(value, list) and schema.items is not None:
        for index, item in enumerate(value):
            yield from _expressions(item, schema.items, (*path, index))
    elif isinstance(value, dict):
        for key, item in value.items():
            inner = schema.at(key) or schema.additional
            if inner is not None:
                yield from _expressions(item, inner, (*path, key))


@lru_cache(maxsize=4096)
def _message(text: str) -> str:
    try:
        _ENVIRONMENT.parse(text)
    except ParseError as error:
        return f"{error.line}:{error.column}: {error.message}"
    return ""


def closing_reasons(snapshot: Snapshot, policy: Resource) -> list[str]:
    """Return every reason for which an AccessPolicy is invalid and closes its targets."""
    reasons = objections(snapshot, policy)
    reasons += [refusal.message for refusal in refusals(policy)]
    if find_kind(policy.api_version, policy.kind) is None:
        reasons.append(f"there is no {policy.kind} in version `{policy.api_version}`")
    if not reasons and has_other_defaults(snapshot, policy):
        reasons.append(f"the installed definition of {policy.kind} has other defaults than Tierwall knows")
    return reasons


MAX_POLICIES = 5
MAX_EXTERNAL_AUTH = 1


class ExceededLimit(NamedTuple):
    """A limit of a target that a policy exceeds, and the more senior policies that are within the limit."""

    place: Place
    limit: int
    holders: tuple[Resource, ...]
    external_auth: bool

    def __str__(self) -> str:
        what = "policies with action ExternalAuth" if self.external_auth else "policies"
        held = ", ".join(str(holder.reference) for holder in self.holders)
        return f"{self.place} takes at most {self.limit} {what}, and these are more senior: {held}"


@per_snapshot
def exceeded_limits(snapshot: Snapshot, policy: Resource) -> tuple[ExceededLimit, ...]:
    """Return each limit that a policy exceeds, by target."""
    return tuple(_exceeded_limits(snapshot, policy))


def is_rejected(snapshot: Snapshot, policy: Resource) -> bool:
    """Whether a policy exceeds a limit of any target, and so counts nowhere."""
    return bool(exceeded_limits(snapshot, policy))


def _exceeded_limits(snapshot: Snapshot, policy: Resource) -> Iterator[ExceededLimit]:
    index = attachments(snapshot, ACCESS_POLICIES, admitted=False)
    for place in whole_objects(index.of(policy)):
        policies = index.on(place)  # the most senior first
        if all(senior is not policy for senior in policies[:MAX_POLICIES]):
            yield ExceededLimit(place, MAX_POLICIES, policies[:MAX_POLICIES], False)
        if _has_external_auth(policy):
            senior_policies = tuple(islice(filter(_has_external_auth, policies), MAX_EXTERNAL_AUTH))
            if all(senior is not policy for senior in senior_policies):
                yield ExceededLimit(place, MAX_EXTERNAL_AUTH, senior_policies, True)


def _has_external_auth(policy: Resource) -> bool:
    return policy.spec.get("action") == "ExternalAuth"

"""What a controller refuses of an AccessPolicy though the API server takes it: its CEL and its regular expressions.

Such a policy is as invalid as one that admission refuses: its targets are closed
(docs/semantics.md#an-invalid-policy-closes-its-targets). The variables of expressions (docs/tool.md#expressions) have
types, so that an expression that cannot give a bool is found before it is asked; `request.mcp.arguments` is Tierwall's
own.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

from tierwall.attach.section import maps
from tierwall.cel.check.checker import compile_source
from tierwall.cel.environment import Environment
from tierwall.cel.errors import EvaluationError, SourceError
from tierwall.cel.library.regex import compiled
from tierwall.cel.types import BOOL, DYN, STRING, TIMESTAMP, Object, map_of
from tierwall.core.diagnostics import Diagnostic
from tierwall.core.source import Path
from tierwall.resources.once import per_resource
from tierwall.resources.resource import Resource

BAD_EXPRESSION, BAD_PATTERN = "TW401", "TW402"

_MCP = Object("request.mcp", fields=(("tool_name", STRING), ("arguments", map_of(STRING, DYN))))
_REQUEST = Object(
    "request",
    fields=(
        ("method", STRING),
        ("path", STRING),
        ("url_path", STRING),
        ("host", STRING),
        ("headers", map_of(STRING, STRING)),
        ("time", TIMESTAMP),
        ("mcp", _MCP),
    ),
)
ENVIRONMENT = Environment(variables={"request": _REQUEST})


@per_resource
def refusals(policy: Resource) -> tuple[Diagnostic, ...]:
    """Every expression and pattern of an AccessPolicy that cannot be used."""
    return tuple(_refusals(policy))


def _refusals(policy: Resource) -> Iterator[Diagnostic]:
    listed = policy.spec.get("rules")
    for index, rule in enumerate(listed if isinstance(listed, list) else ()):
        authorization = rule.get("authorization") if isinstance(rule, dict) else None
        if not isinstance(authorization, dict):
            continue
        place: Path = ("spec", "rules", index, "authorization")
        cel = authorization.get("cel")
        text = cel.get("expression") if isinstance(cel, dict) else None
        if isinstance(text, str):
            for message, hint in expression_problems(text):
                position = policy.position((*place, "cel", "expression"))
                yield Diagnostic(
                    BAD_EXPRESSION,
                    message,
                    position,
                    "a CEL expression of type bool",
                    hint=hint,
                    reference=policy.reference,
                )
        for field in ("paths", "headers"):
            for number, matcher in enumerate(maps(authorization.get(field))):
                pattern = matcher.get("value")
                if matcher.get("type") == "RegularExpression" and isinstance(pattern, str):
                    problem = pattern_problem(pattern)
                    if problem:
                        position = policy.position((*place, field, number, "value"))
                        yield Diagnostic(BAD_PATTERN, problem, position, "an RE2 pattern", reference=policy.reference)


@lru_cache(maxsize=1024)
def expression_problems(text: str) -> tuple[tuple[str, str], ...]:
    """What keeps an expression from being used, each with a hint; nothing if it gives a bool, or may."""
    try:
        found = compile_source(text, ENVIRONMENT).type
    except SourceError as error:
        return tuple(
            (f"expression cannot be used: {one.line}:{one.column}: {one.message}", one.hint or "")
            for one in error.problems
        )
    if found not in (BOOL, DYN):
        return ((f"expected an expression of type bool, found {found}", "compare it with something"),)
    return ()


def pattern_problem(pattern: str) -> str:
    """What keeps a regular expression from being used, or nothing."""
    try:
        compiled(pattern)
    except EvaluationError as error:
        return str(error)
    return ""

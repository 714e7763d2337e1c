"""The CEL expressions of an AgentgatewayPolicy that do not parse.

The API server does not look at them, and the gateway takes such a policy in part (docs/gateway.md#status): the
setting with the expression is left out. Which texts are CEL is derived from the schema.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Any, NamedTuple

from tierwall.cel import Environment, ParseError
from tierwall.resources.kinds.registry import schema_of
from tierwall.resources.once import per_resource
from tierwall.resources.resource import Resource
from tierwall.resources.schema import Schema

_ENVIRONMENT = Environment(extensions=True)
_FRAGMENT = "CELExpression"


class Broken(NamedTuple):
    """An expression that is no CEL, where it is written, and what is wrong with it."""

    path: tuple[str | int, ...]
    text: str
    message: str

    @property
    def setting(self) -> tuple[str | int, ...]:
        """The section and property that it belongs to."""
        return self.path[1:3]


@per_resource
def broken_expressions(policy: Resource) -> tuple[Broken, ...]:
    """Every expression of the policy that does not parse, in the order they are written."""
    return tuple(
        Broken(path, text, message)
        for path, text in _expressions(policy.value, schema_of("agentgateway.dev/v1alpha1", "AgentgatewayPolicy"), ())
        if (message := _message(text))
    )


def _expressions(value: Any, schema: Schema, path: tuple[str | int, ...]) -> Iterator[tuple[Any, str]]:
    if schema.title == _FRAGMENT:
        if isinstance(value, str):
            yield path, value
    elif isinstance(value, list) and schema.items is not None:
        for index, item in enumerate(value):
            yield from _expressions(item, schema.items, (*path, index))
    elif isinstance(value, dict):
        for key, item in value.items():
            found = schema.property(key)
            inner = found.schema if found is not None else schema.additional
            if inner is not None:
                yield from _expressions(item, inner, (*path, key))


@lru_cache(maxsize=4096)
def _message(text: str) -> str:
    try:
        _ENVIRONMENT.parse(text)
    except ParseError as error:
        return f"{error.line}:{error.column}: {error.message}"
    return ""

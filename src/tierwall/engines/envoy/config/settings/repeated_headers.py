"""Headers that rules look at: a request that repeats one is refused (docs/gateway.md#headers-of-one-name).

Envoy's expressions see the values of such headers joined by commas, agentgateway's see the first, and a backend may go
by any. So what is judged must be what is forwarded. Values that only change or describe requests judge nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

from tierwall.cel.syntax import ast
from tierwall.engines.envoy.config.cel_expression import header_key
from tierwall.engines.envoy.config.settings.expressions import is_valid, parsed
from tierwall.engines.envoy.config.settings.places import EffectiveField
from tierwall.resources.resource import list_of_maps, nested_map
from tierwall.tool.request import SESSION_HEADER

_RULES = ("traffic.authorization", "backend.mcp.authorization")


def judging_headers(field: EffectiveField) -> frozenset[str]:
    """Return the headers that the rules, conditions and limits of a field look at."""
    names = (_headers_of(text) for text in _expressions(field) if is_valid(text))
    return frozenset[str]().union(*names)


def _expressions(field: EffectiveField) -> Iterator[str]:
    values = field.value if isinstance(field.value, list) else [field.value]
    for candidate in field.candidates if field.is_chosen else ():
        for entry in candidate.written.entries or ():
            if "condition" in entry:
                yield entry["condition"]
            values = [*values, candidate.written.entry_value(entry["policy"])]
    for value in values:
        if field.path in _RULES:
            yield from nested_map(value, "policy").get("matchExpressions") or ()
        elif field.path == "traffic.rateLimit.global":
            for descriptor in list_of_maps(nested_map({"value": value}, "value").get("descriptors")):
                yield from (entry["expression"] for entry in list_of_maps(descriptor.get("entries")))


@lru_cache(maxsize=4096)
def _headers_of(text: str) -> frozenset[str]:
    return frozenset(_read(parsed(text)))


def _read(tree: ast.Expr) -> Iterator[str]:
    match ast.path_of(tree):
        case ("request", "headers", name, *_) if header_key(name) == name:
            yield name
        case ("mcp", "sessionId", *_):
            yield SESSION_HEADER
    for inside in ast.children(tree):
        yield from _read(inside)

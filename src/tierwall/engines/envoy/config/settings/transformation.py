"""Transformations of requests and responses: headers whose values are expressions (agentgateway, "Transformations").

A value that is a constant text is written as it is, and any other is evaluated by Envoy's own formatter for CEL. What
an expression of a response may use is the request and `response.code` and `response.headers`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from envoy.config.common.mutation_rules.v3 import mutation_rules_pb2
from envoy.config.core.v3 import base_pb2
from envoy.extensions.filters.http.header_mutation.v3 import header_mutation_pb2

from tierwall.cel.syntax import ast
from tierwall.cel.syntax.printer import to_text
from tierwall.engines.envoy.config.route_rules import modify_headers
from tierwall.engines.envoy.config.settings.expressions import parsed, translated_setting
from tierwall.engines.envoy.config.settings.filters import transformation_filter
from tierwall.engines.envoy.config.settings.traffic import RouteChange, turned_on
from tierwall.engines.envoy.config.settings.unenforceable import Unenforceable
from tierwall.engines.envoy.config.settings.upstream import ClusterChange, add_filter
from tierwall.gateway.model.fields import Phase
from tierwall.resources.resource import list_of_maps, nested_map

_ACTION = base_pb2.HeaderValueOption
# These end or begin a command of Envoy's formatter.
_COMMAND = re.compile(r"%|\)\s*:")
# Headers that hold values begin with it.
_HELD = "~"


def transformation(value: Mapping[str, Any], phase: Phase) -> RouteChange:
    """Set, add and remove headers of requests and responses."""
    out = header_mutation_pb2.HeaderMutationPerRoute()
    _set_steps(out.mutations.request_mutations, nested_map(value, "request"), "request", "REQ")
    _set_steps(out.mutations.response_mutations, nested_map(value, "response"), "response", "RESP")
    return turned_on(transformation_filter(phase), out)


def backend_transformation(value: Mapping[str, Any]) -> ClusterChange:
    """Set, add and remove headers of requests to a backend, and of its responses."""
    out = header_mutation_pb2.HeaderMutation()
    _set_steps(out.mutations.request_mutations, nested_map(value, "request"), "request", "REQ")
    _set_steps(out.mutations.response_mutations, nested_map(value, "response"), "response", "RESP")
    return lambda cluster: add_filter(cluster, "tierwall.transformation", out)


def _set_steps(steps: Any, change: Mapping[str, Any], side: str, command: str) -> None:
    """Evaluate every expression before anything changes, and hold its value in a header of its own.

    A header that an expression sets is removed first: if the expression fails, what the client sent must not count.
    """
    headers = [
        (field, number, header)
        for field in ("add", "set")
        for number, header in enumerate(list_of_maps(change.get(field)))
    ]
    if not headers and not change.get("remove"):
        return
    steps.add().remove_on_match.key_matcher.prefix = _HELD
    for field, number, header in headers:
        path = side, field, number
        _check_name(header["name"], *path, "name")
        value = _formatted(header["value"], side == "response", *path, "value")
        steps.append(_written(f"{_HELD}{field}{number}", value, _ACTION.OVERWRITE_IF_EXISTS_OR_ADD))
    for field, number, header in headers:
        if field == "set":
            steps.add().remove = header["name"]
        held = f"%{command}({_HELD}{field}{number})%"
        steps.append(_written(header["name"], held, _ACTION.APPEND_IF_EXISTS_OR_ADD))
    for number, name in enumerate(change.get("remove") or ()):
        _check_name(name, side, "remove", number)
        steps.add().remove = name
    steps.add().remove_on_match.key_matcher.prefix = _HELD


def _written(name: str, value: str, action: Any) -> Any:
    out = mutation_rules_pb2.HeaderMutation()
    out.append.append_action = action
    out.append.header.key, out.append.header.value = name, value
    return out


def _check_name(name: str, *path: str | int) -> None:
    """Raise Unenforceable for headers that frame a message, name its host or choose its route."""
    problem = modify_headers({"remove": [name]}, None, []) if not name.startswith(":") else "a pseudo-header"
    if problem:
        raise Unenforceable(f"Envoy does not change header `{name}` here", *path)


def _formatted(expression: object, of_response: bool, *path: str | int) -> str:
    """Return a value in the words of Envoy's formatter, which joins texts by itself."""
    parts = list(_joined(parsed(expression, *path)))
    # CEL joins texts only with texts, and has no other `+` with one.
    if len(parts) > 1 and not any(isinstance(part, ast.Literal) and isinstance(part.value, str) for part in parts):
        raise Unenforceable("Envoy joins only texts, and one of them must be constant", *path)
    return "".join(_part(part, of_response, *path) for part in parts)


def _joined(tree: ast.Expr) -> Iterator[ast.Expr]:
    match tree:
        case ast.Call(function="_+_", args=args):
            for operand in args:
                yield from _joined(operand)
        case _:
            yield tree


def _part(tree: ast.Expr, of_response: bool, *path: str | int) -> str:
    match tree:
        case ast.Literal(value=str() as text):
            return text.replace("%", "%%")
        case ast.Call(function="string", target=None, args=(operand,)):
            # The formatter makes a text of it anyway.
            tree = operand
    if of_response and ast.dotted_name(tree) == "response.code":
        # In the filters of a backend, expressions do not know it yet.
        return "%RESP(:status)%"
    text = to_text(translated_setting(to_text(tree), *path, of_response=of_response))
    if _COMMAND.search(text):
        raise Unenforceable("Envoy does not read an expression with this `%` or `:`", *path)
    return f"%CEL({text})%"

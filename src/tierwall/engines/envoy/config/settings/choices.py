"""Conditional lists: a filter of its own chooses the entry whose condition is true when a request comes to it.

The entries of a list are tried in order, and if none of them is selected, those of the list that comes next in the
merge (docs/gateway.md#how-settings-are-merged). An entry is a whole filter, which runs in the place of the filter that
chooses; without a selected entry nothing runs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from envoy.config.core.v3 import extension_pb2
from envoy.extensions.common.matching.v3 import extension_matcher_pb2
from envoy.extensions.filters.http.composite.v3 import composite_pb2
from envoy.extensions.filters.http.lua.v3 import lua_pb2
from xds.type.matcher.v3 import matcher_pb2

from tierwall.cel.syntax import ast
from tierwall.engines.envoy.config.matchers import OnMatch, extension_config, first_of, matcher, packed
from tierwall.engines.envoy.config.settings.conditions import entry_condition
from tierwall.engines.envoy.config.settings.expressions import constant, is_valid
from tierwall.engines.envoy.config.settings.filters import skipped
from tierwall.engines.envoy.config.settings.predicates import condition_predicate
from tierwall.engines.envoy.config.settings.traffic import RouteChange, turned_on
from tierwall.gateway.decide import Candidate
from tierwall.resources.resource import list_of_maps

_NEVER = ast.Literal(False)
# Makes the filter that an entry is.
MakeFilter = Callable[[Candidate, Mapping[str, Any]], Any]


def choice(candidates: Sequence[Candidate], make: MakeFilter, name: str) -> RouteChange:
    """Return the change of a route; each of the candidates replaces those before it where it selects an entry."""
    decision = skipped()
    for candidate in candidates:
        decision = _entries(candidate, make, decision)
    out = extension_matcher_pb2.ExtensionWithMatcherPerRoute()
    out.xds_matcher.CopyFrom(matcher(decision))
    return turned_on(name, out)


def _entries(candidate: Candidate, make: MakeFilter, otherwise: OnMatch) -> OnMatch:
    entries = candidate.written.entries
    if entries is None:
        return _run(make(candidate, candidate.value))
    choices = []
    for entry in entries:
        condition, run = entry.get("condition"), _run(make(candidate, entry["policy"]))
        if condition is None:
            otherwise = run
            break
        tree = entry_condition(condition) if is_valid(condition) else _NEVER
        if not isinstance(tree, ast.Literal):
            choices.append((condition_predicate(tree), run))
        elif tree.value is True:
            otherwise = run
            break
    return first_of(choices, otherwise) or otherwise


def _run(message: Any) -> OnMatch:
    action = composite_pb2.ExecuteFilterAction()
    action.typed_config.CopyFrom(extension_pb2.TypedExtensionConfig(name="chosen", typed_config=packed(message)))
    return matcher_pb2.Matcher.OnMatch(action=extension_config("run", action))


def answer(value: Mapping[str, Any]) -> Any:
    """Return the filter that answers requests by itself."""
    body = constant(value["bodyExpression"]) if "bodyExpression" in value else str(value.get("body", ""))
    headers = [(":status", str(value["status"]))]
    headers += [(header["name"], constant(header["value"])) for header in list_of_maps(value.get("headers"))]
    table = ", ".join(f"[{_quoted(name)}] = {_quoted(text)}" for name, text in headers)
    script = f"function envoy_on_request(handle)\n  handle:respond({{ {table} }}, {_quoted(body)})\nend\n"
    return lua_pb2.Lua(default_source_code={"inline_string": script})


def _quoted(text: str) -> str:
    """Return a text as Lua reads it: every byte as a number."""
    return '"' + "".join(f"\\{byte:03d}" for byte in text.encode()) + '"'

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
from tierwall.engines.envoy.config.names import ANSWERER
from tierwall.engines.envoy.config.settings.conditions import Condition, entry_condition
from tierwall.engines.envoy.config.settings.expressions import constant, is_valid
from tierwall.engines.envoy.config.settings.filters import skipped
from tierwall.engines.envoy.config.settings.predicates import condition_predicate
from tierwall.engines.envoy.config.settings.traffic import RouteChange, turned_on
from tierwall.gateway.decide import Candidate
from tierwall.gateway.model.fields import Profile
from tierwall.resources.resource import list_of_maps

_ALWAYS, _NEVER = ast.Literal(True), ast.Literal(False)
# Makes the filter that an entry is, of a candidate, the value of the entry and its number, if it is in a list.
MakeFilter = Callable[[Candidate, Any, int | None], Any]


def choice(candidates: Sequence[Candidate], profile: Profile, make: MakeFilter, name: str) -> RouteChange:
    """Return the change of a route; each of the candidates replaces those before it where it selects an entry."""
    decision = skipped()
    for candidate in candidates:
        decision = _entries(candidate, profile, make, decision)
    return turned_on(name, _decided(decision))


def always(message: Any, name: str) -> RouteChange:
    """Return the change of a route where a filter runs for every request, as if a list had chosen it."""
    return turned_on(name, always_run(message))


def always_run(message: Any) -> Any:
    """Return the settings of a filter that chooses, which have another filter run for every request."""
    return _decided(_run(message))


def _decided(decision: OnMatch) -> Any:
    out = extension_matcher_pb2.ExtensionWithMatcherPerRoute()
    out.xds_matcher.CopyFrom(matcher(decision))
    return out


def _entries(candidate: Candidate, profile: Profile, make: MakeFilter, below: OnMatch) -> OnMatch:
    written = candidate.written
    if written.entries is None:
        return _run(make(candidate, candidate.value, None))
    choices, otherwise = [], below
    for number, entry in enumerate(written.entries):
        if written.has_part(entry):
            run = _run(make(candidate, written.entry_value(entry["policy"]), number))
        elif profile == "docs":
            # The entry is selected for the whole property, and sets nothing here.
            run = below
        else:
            continue
        condition = entry.get("condition")
        tree = _condition(condition) if condition is not None else _ALWAYS
        if not isinstance(tree, ast.Literal):
            choices.append((condition_predicate(tree), run))
        elif tree.value is True:
            otherwise = run
            break
    return first_of(choices, otherwise) or otherwise


def _condition(text: str) -> Condition:
    return entry_condition(text) if is_valid(text) else _NEVER


def _run(message: Any) -> OnMatch:
    action = composite_pb2.ExecuteFilterAction()
    action.typed_config.CopyFrom(extension_pb2.TypedExtensionConfig(name="chosen", typed_config=packed(message)))
    return matcher_pb2.Matcher.OnMatch(action=extension_config("run", action))


def answer(value: Mapping[str, Any], source: str) -> Any:
    """Return the filter that answers requests by itself, because an object says so."""
    body = constant(value["bodyExpression"]) if "bodyExpression" in value else str(value.get("body", ""))
    headers = [(":status", str(value["status"]))]
    headers += [(header["name"], constant(header["value"])) for header in list_of_maps(value.get("headers"))]
    table = ", ".join(f"[{quoted(name)}] = {quoted(text)}" for name, text in headers)
    respond = f"handle:respond({{ {table} }}, {quoted(body)})"
    return script(f"function envoy_on_request(handle)\n  {told(source)}\n  {respond}\nend\n")


def told(source: str) -> str:
    """Return the statement that tells the decision log for which object a filter answers."""
    return f'handle:streamInfo():dynamicMetadata():set("{ANSWERER}", "by", {quoted(source)})'


def script(text: str) -> Any:
    """Return the filter that runs a script."""
    return lua_pb2.Lua(default_source_code={"inline_string": text})


def quoted(text: str) -> str:
    """Return a text as Lua reads it: every byte as a number."""
    return '"' + "".join(f"\\{byte:03d}" for byte in text.encode()) + '"'

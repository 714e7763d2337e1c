"""Transformations of requests and responses: headers whose values are expressions (agentgateway, "Transformations").

A value that is a constant text is written as it is, and any other is evaluated by Envoy's own formatter for CEL. What
an expression of a response may use is the request and `response.code` and `response.headers`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from envoy.config.common.mutation_rules.v3 import mutation_rules_pb2
from envoy.config.core.v3 import base_pb2
from envoy.extensions.filters.http.header_mutation.v3 import header_mutation_pb2

from tierwall.engines.envoy.config.settings.filters import transformation_filter
from tierwall.engines.envoy.config.settings.header_values import check_name, formatted
from tierwall.engines.envoy.config.settings.traffic import RouteChange, turned_on
from tierwall.engines.envoy.config.settings.upstream import ClusterChange, add_filter
from tierwall.gateway.model.fields import Phase
from tierwall.resources.resource import list_of_maps, nested_map

_ACTION = base_pb2.HeaderValueOption
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
    out = whole_filter(value)
    return lambda cluster: add_filter(cluster, "tierwall.transformation", out)


def whole_filter(value: Mapping[str, Any]) -> Any:
    """Return a filter that sets, adds and removes headers by itself."""
    out = header_mutation_pb2.HeaderMutation()
    _set_steps(out.mutations.request_mutations, nested_map(value, "request"), "request", "REQ")
    _set_steps(out.mutations.response_mutations, nested_map(value, "response"), "response", "RESP")
    return out


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
        check_name(header["name"], *path, "name")
        value = formatted(header["value"], side == "response", *path, "value")
        steps.append(_written(f"{_HELD}{field}{number}", value, _ACTION.OVERWRITE_IF_EXISTS_OR_ADD))
    for field, number, header in headers:
        if field == "set":
            steps.add().remove = header["name"]
        held = f"%{command}({_HELD}{field}{number})%"
        steps.append(_written(header["name"], held, _ACTION.APPEND_IF_EXISTS_OR_ADD))
    for number, name in enumerate(change.get("remove") or ()):
        check_name(name, side, "remove", number, removes=True)
        steps.add().remove = name
    steps.add().remove_on_match.key_matcher.prefix = _HELD


def _written(name: str, value: str, action: Any) -> Any:
    out = mutation_rules_pb2.HeaderMutation()
    out.append.append_action = action
    out.append.header.key, out.append.header.value = name, value
    return out

"""MCP servers that an AgentgatewayBackend joins behind one path (docs/enforce-tools.md#joined-servers).

A script chooses the server of a call by its prefix and takes the prefix away before anything else reads the message
(`choose_target.lua`). Then Envoy looks its route up again, and each server has one, with the settings in force there.
What concerns all servers keeps the first route, which leads to no server: behind all policies, and behind what cuts
lists, another script asks each of them and joins their answers (`join.lua`).

INVARIANT: the routes of a backend in a rule turn on the same filters. Envoy creates those of the first route only. If
the changed message matches another rule, it goes nowhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from envoy.extensions.filters.http.lua.v3 import lua_pb2
from envoy.extensions.filters.network.http_connection_manager.v3 import http_connection_manager_pb2 as hcm_pb2

from tierwall.engines.envoy.config.matchers import packed
from tierwall.engines.envoy.config.mcp import UTF8, script_filter, set_of
from tierwall.engines.envoy.config.names import CHOOSE_TARGET, JOIN, OVERRIDE_HEADERS, TARGET
from tierwall.engines.envoy.config.settings.mcp_rules import MessageFilters
from tierwall.resources.resource import Resource, nested_map
from tierwall.tool.request import SESSION_HEADER

_SLICES = "slices.lua"
# What the scripts know of a server.
_PARTS = ("cluster", "host", "path")


def choosing_filter() -> Any:
    """Return the filter that chooses the server of a message; it comes before those that read messages."""
    return hcm_pb2.HttpFilter(
        name=CHOOSE_TARGET, typed_config=script_filter("choose_target.lua", None, UTF8, _SLICES), disabled=True
    )


@cache
def joining_filter() -> Any:
    """Return the filter that asks several servers; it comes behind all others."""
    script = script_filter("join.lua", {"OVERRIDES": set_of(OVERRIDE_HEADERS)}, _SLICES)
    return hcm_pb2.HttpFilter(name=JOIN, typed_config=script, disabled=True)


def joining(backend: Resource, targets: Mapping[str, tuple[str, str, str]], place: str) -> MessageFilters:
    """Return the filters for all servers of a backend: by name, the cluster, host and path of each.

    `place` stands for the rule, whose routes a request does not leave.
    """
    settings = lua_pb2.LuaPerRoute()
    settings.filter_context.update(
        {
            "name": str(backend.reference),
            "place": place,
            "mode": str(nested_map(backend.spec, "mcp").get("failureMode") or "FailClosed"),
            "names": list(targets),
            "targets": {name: dict(zip(_PARTS, parts, strict=True)) for name, parts in targets.items()},
        }
    )
    both = {JOIN: packed(settings)}
    return MessageFilters({CHOOSE_TARGET: packed(settings), **both}, both, joined=tuple(targets))


def entering(filters: MessageFilters) -> MessageFilters:
    """Return the filter for messages to one server: it gives them the session there."""
    return MessageFilters({JOIN: filters.of_messages[JOIN]}, filters.of_plain)


def lead_to(message: Any, target: str) -> None:
    """Have a route serve the messages for one server only; its session is not that of the client."""
    message.name = f"{message.name}#{target}"
    message.match.headers.add(name=TARGET, string_match={"exact": target})
    message.response_headers_to_remove.append(SESSION_HEADER)

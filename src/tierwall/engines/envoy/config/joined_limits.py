"""Settings that cannot be in front of joined MCP servers (docs/enforce-tools.md#joined-servers), nor before copies.

A script asks the servers for lists, so what Envoy does to the requests of a route would be lacking there: changes of
headers and of the host, and copies. And a request for all of them is judged once, so settings must judge those for
each of them alike. A copy of a request passes no filter at all, so nothing may judge requests to where it goes.
Envoy's own packages are not needed.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from tierwall.engines.envoy.config.header_changes import changes_headers, headers_of_filter, host_of_filter
from tierwall.engines.envoy.config.model_backends import field_changes, provider_of
from tierwall.engines.envoy.config.settings.places import EffectiveField, PlaceSettings
from tierwall.engines.envoy.config.settings.repeated_headers import judging_headers
from tierwall.resources.resource import Resource, list_of_maps

SEVERAL = "a rule with several backends, one of which joins MCP servers,"
COPIES = "a copy of requests to joined MCP servers"
FILTERS = "a backendRef with filters that leads to joined MCP servers"
DIFFERENT = "joined MCP servers with different settings for requests"
HINTS: Mapping[str, str] = {
    SEVERAL: "give the joined servers a rule of their own",
    COPIES: "mirror the routes of the single servers",
    FILTERS: "leave the filters out",
    DIFFERENT: "write them for the whole backend, or give the server a backend and a path of its own",
}
JUDGED_COPY = "a copy to a backend whose settings judge requests"
DIFFERENT_PATHS = "a rule whose backends have different paths"
_HEADERS = "a change of headers in front of joined MCP servers"
_HOST = "a change of the host in front of joined MCP servers"
# Settings of a backend whose filters judge each request; the last knows its server by name.
_ASKING = ("backend.extAuth", "backend.mcp.authentication")
_RULES = "backend.mcp.authorization"


def differ(servers: Sequence[PlaceSettings]) -> bool:
    """Whether the settings in force at joined servers judge requests to one of them otherwise than to another."""
    return len({tuple(_judging(each)) for each in servers}) > 1


def judges_requests(settings: PlaceSettings, backend: Resource) -> bool:
    """Whether settings of a backend judge or change requests to it by filters, which copies do not pass."""
    provider = provider_of(backend)
    changes = field_changes(provider, settings.of_models) if provider is not None else {}
    return bool(changes) or any(path in settings.fields for path in (*_ASKING, _RULES))


def _judging(settings: PlaceSettings) -> Iterator[object]:
    for path in _ASKING:
        if (field := settings.fields.get(path)) is not None:
            # References in a value start from the namespace of its object.
            yield path, json.dumps(field.value, sort_keys=True), field.source.resource.namespace
    if (rules := settings.fields.get(_RULES)) is not None:
        yield _RULES, judging_headers(rules)


def obstacle(rule: Mapping[str, Any], fields: Iterable[EffectiveField], is_copied: bool) -> str:
    """Return what of a rule would not hold where a script asks the servers, or an empty string.

    `fields` are the settings that count there beside the rule.
    """
    fields, filters = list(fields), list(list_of_maps(rule.get("filters")))
    if any(map(host_of_filter, filters)) or any(field.keeps_host for field in fields):
        return _HOST
    modifiers = (field.value for field in fields if field.path.startswith("traffic.headerModifiers."))
    if any(map(changes_headers, (*map(headers_of_filter, filters), *modifiers))):
        return _HEADERS
    return COPIES if is_copied else ""

"""Filters of single backendRefs (Gateway API, `HTTPBackendRef.filters`): they count only for requests to that backend.

Envoy changes headers and the host for a share of a route's requests. It has no other filter for a share: everything
else belongs to the rule.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from envoy.config.route.v3 import route_components_pb2

from tierwall.engines.envoy.config.header_changes import changes_requests
from tierwall.engines.envoy.config.route_rules import modify_headers
from tierwall.resources.resource import list_of_maps, nested_map

_ADDED = (
    ("request_headers_to_add", "request_headers_to_remove"),
    ("response_headers_to_add", "response_headers_to_remove"),
)


def backend_changes(filters: object) -> Any | None:
    """Return the changes for requests to a backend; None without changes."""
    if not changes_requests(filters):
        return None
    out = route_components_pb2.WeightedCluster.ClusterWeight()
    for entry in list_of_maps(filters):
        kind = entry.get("type")
        if kind == "RequestHeaderModifier":
            change = nested_map(entry, "requestHeaderModifier")
            modify_headers(change, out.request_headers_to_add, out.request_headers_to_remove)
        elif kind == "ResponseHeaderModifier":
            change = nested_map(entry, "responseHeaderModifier")
            modify_headers(change, out.response_headers_to_add, out.response_headers_to_remove)
        else:
            out.host_rewrite_literal = str(nested_map(entry, "urlRewrite").get("hostname") or "")
    return out


def add_changes(into: Any, changes: Any | None) -> None:
    """Add the changes for a backend to the header changes of a route or of a share: the rule's come first."""
    if changes is None:
        return
    for add, remove in _ADDED:
        # Of one list, Envoy removes first and adds then. What the rule adds and the backendRef removes must not stay.
        removed = {name.lower() for name in getattr(changes, remove)}
        kept = [option for option in getattr(into, add) if option.header.key.lower() not in removed]
        _replace(getattr(into, add), (*kept, *getattr(changes, add)))
        getattr(into, remove).extend(getattr(changes, remove))


def move_headers(route: Any, shares: Iterable[Any]) -> None:
    """Move the header changes of a route to its shares, where those of backendRefs follow them.

    Envoy makes the changes of a share before those of its route, so those of the rule would win.
    """
    for share in shares:
        for field in (name for pair in _ADDED for name in pair):
            getattr(share, field).extend(getattr(route, field))
    for field in (name for pair in _ADDED for name in pair):
        route.ClearField(field)


def _replace(field: Any, values: Iterable[Any]) -> None:
    values = list(values)
    del field[:]
    field.extend(values)

"""The addresses of the explorer: every page by its path, as HTML or as JSON (docs/explorer.md#addresses)."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tierwall.explore.ask import ask
from tierwall.explore.change import change
from tierwall.explore.findings import findings
from tierwall.explore.home import home
from tierwall.explore.markup import joined
from tierwall.explore.network import network
from tierwall.explore.page import (
    ExploredWorld,
    Page,
    Query,
    first,
    link,
    opening,
)
from tierwall.explore.permissions import permissions
from tierwall.explore.policy import policy
from tierwall.explore.settings import settings
from tierwall.explore.tools import tools

PAGES: Mapping[str, Callable[[ExploredWorld, Query], Page]] = {
    "/": home,
    "/ask": ask,
    "/network": network,
    "/tools": tools,
    "/settings": settings,
    "/permissions": permissions,
    "/findings": findings,
    "/change": change,
}
_POLICY = "/policy/"


def page_at(explored: ExploredWorld, path: str, query: Query) -> tuple[Page, bool]:
    """Return the page at a path, and whether it is wanted as JSON."""
    as_json = first(query, "format") == "json"
    if path.startswith(_POLICY):
        # Here the last part is a name, which may well end in `.json`.
        return policy(explored, query, path.removeprefix(_POLICY)), as_json
    if path.endswith(".json"):
        path, as_json = path.removesuffix(".json"), True
    path = "/" if path == "/index" else path.rstrip("/") or "/"
    make = PAGES.get(path)
    return (make(explored, query) if make is not None else missing(path)), as_json


def missing(path: str) -> Page:
    """Return the page of an address that there is not."""
    body = joined(opening("There is no such page", link("Go to the start", "/")))
    return Page("No such page", {"diagnostics": [{"message": f"there is no page {path}"}]}, body, status=404)

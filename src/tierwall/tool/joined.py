"""Several MCP servers behind one path: names there begin with a target (docs/tool.md#how-a-request-is-decided).

An AgentgatewayBackend with several MCP targets joins them, and with `prefixMode: Always` a single one. The tool `pay`
of the target `bank` is `bank_pay` there, a prompt likewise, and a resource `file:///a` is `bank+file:///a`. Rules are
about the names that servers give.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from tierwall.attach.place import BACKEND
from tierwall.resources.resource import Resource, list_of_maps, nested_map
from tierwall.tool.protocol import CALL, COMPLETE, GET_PROMPT, READ

# What stands between a target and a name, or a URI.
BEFORE_NAME, BEFORE_URI = "_", "+"
# The methods that use an item of one server.
USES = frozenset((CALL, GET_PROMPT, READ, COMPLETE))


class JoinedName(NamedTuple):
    """A tool, prompt or resource of a joined server: the target, and the name that the server gives it."""

    target: str
    tool: str | None = None
    uri: str | None = None


def target_names(backend: Resource) -> tuple[str, ...]:
    """Return the names of the servers that a backend joins; none if names there have no prefix."""
    mcp = nested_map(backend.spec, "mcp") if (backend.group, backend.kind) == BACKEND else {}
    names = tuple(str(target.get("name")) for target in list_of_maps(mcp.get("targets")))
    mode = mcp.get("prefixMode")
    return names if (len(names) > 1 and mode != "Never") or (names and mode == "Always") else ()


def joined_item(targets: Collection[str], tool: str | None, uri: str | None) -> JoinedName | None:
    """Return the item that a joined name or URI means; None if it means none."""
    meant = [
        (target, rest)
        for text, end in ((tool, BEFORE_NAME), (uri, BEFORE_URI))
        if text is not None
        for target, separator, rest in (text.partition(end),)
        if separator and rest and target in targets
    ]
    if len(meant) != (tool is not None) + (uri is not None) or len({target for target, _ in meant}) != 1:
        return None
    rests = iter(rest for _, rest in meant)
    return JoinedName(meant[0][0], next(rests) if tool is not None else None, next(rests) if uri is not None else None)


def joined_name(targets: Collection[str], text: str, is_uri: bool) -> tuple[str, str] | None:
    """Return the target and the server's own name of an entry of a joined list."""
    item = joined_item(targets, None if is_uri else text, text if is_uri else None)
    return None if item is None else (item.target, (item.uri if is_uri else item.tool) or "")

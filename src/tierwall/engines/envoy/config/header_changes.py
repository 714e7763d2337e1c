"""Changes of headers that Envoy may make for a route or a setting.

Headers that frame a message or say which host it is for stay as they are: changing one would change the meaning of the
message. Policies judge requests by Tierwall's own headers, so no route sets those. Headers of MCP say again what a
message says: policies compared both, and a server that goes by the header must find what they judged. Nor may a route
say who the caller is, or that the method or path is another: such headers may only be removed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from tierwall.engines.envoy.config.names import HEADER_PREFIX, OVERRIDE_HEADERS
from tierwall.resources.resource import list_of_maps

TOKEN = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+", re.ASCII)
_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
_PROTECTED = frozenset(("host", "content-length", "transfer-encoding", "connection", "upgrade", "te", "trailer"))
_PREFIXES = (HEADER_PREFIX, "mcp-")
_CALLER = "x-forwarded-client-"


class HeaderProblem(NamedTuple):
    """A change that cannot be made, and where in the value it stands."""

    message: str
    path: tuple[str | int, ...]


def is_protected(name: str, removes: bool = False) -> bool:
    """Whether a header must stay as it is, or cannot be one."""
    folded = name.lower()
    if not removes and (folded in OVERRIDE_HEADERS or folded.startswith(_CALLER)):
        return True
    return not TOKEN.fullmatch(name) or folded in _PROTECTED or folded.startswith(_PREFIXES)


def header_problems(value: Mapping[str, Any]) -> Iterator[HeaderProblem]:
    """Yield the changes of a `set`, `add` and `remove` that cannot be made."""
    for field in ("set", "add"):
        for number, header in enumerate(list_of_maps(value.get(field))):
            name, content = str(header.get("name")), str(header.get("value"))
            if is_protected(name):
                yield HeaderProblem(f"a change of header `{name}`", (field, number, "name"))
            elif _CONTROL.search(content):
                yield HeaderProblem(f"a control character in header `{name}`", (field, number, "value"))
    removed = value.get("remove")
    for number, name in enumerate(removed if isinstance(removed, list) else ()):
        if is_protected(str(name), removes=True):
            yield HeaderProblem(f"a change of header `{name}`", ("remove", number))

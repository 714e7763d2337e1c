"""The Model Context Protocol as policies need it: its versions, its methods, and the headers that repeat the body.

The MCP specifications 2025-03-26, 2025-06-18, 2025-11-25 and 2026-07-28 (docs/tool.md#protocol-versions). One set of
methods holds for all versions: a method that a version lacks is for the server to refuse.

From 2026-07-28 on, headers repeat the method (`Mcp-Method`), the name (`Mcp-Name`) and the version of a message. A name
that is not visible ASCII, or that looks like an encoded name, is sent as `=?base64?…?=`. Before, these headers mean
nothing, but a server may go by them, so they must agree in every version
(docs/semantics.md#headers-agree-with-the-body).
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Mapping

NEWEST = "2026-07-28"
# Versions whose clients begin with `initialize`, and whose messages do not name their version.
WITH_SESSIONS = ("2025-03-26", "2025-06-18", "2025-11-25")
VERSION_HEADER, METHOD_HEADER, NAME_HEADER = "mcp-protocol-version", "mcp-method", "mcp-name"

CALL, GET_PROMPT, READ = "tools/call", "prompts/get", "resources/read"
SUBSCRIBE, LISTEN, COMPLETE = "resources/subscribe", "subscriptions/listen", "completion/complete"
# The prefix of methods that complete arguments of prompts and templates.
COMPLETION = "completion/"
# Methods that name a resource by `params.uri`; all others use `params.name`.
BY_URI = frozenset((READ, SUBSCRIBE, "resources/unsubscribe"))
# Methods that name a task by `params.taskId`, which only an allowed call gave out.
TASK_METHODS = frozenset(("tasks/get", "tasks/result", "tasks/update", "tasks/cancel"))
# From 2026-07-28 on, their name must be in a header.
MUST_HAVE_NAME = frozenset((CALL, GET_PROMPT, READ))
# Envoy's word for a message without a method: an answer of the client to a request of the server.
ANSWER = "__jsonrpc_response"
KNOWN_METHODS = (
    BY_URI
    | TASK_METHODS
    | frozenset(
        (
            "initialize", "server/discover", "ping", "tools/list", CALL, "prompts/list", GET_PROMPT, "resources/list",
            "resources/templates/list", LISTEN, COMPLETE, "logging/setLevel", "tasks/list", "sampling/createMessage",
            "roots/list", "elicitation/create",
        )
    )
)  # fmt: skip

_PLAIN = re.compile(r"[!-~]([ -~]*[!-~])?", re.ASCII)
_ENCODED = re.compile(r"=\?base64\?(.*)\?=", re.ASCII | re.DOTALL)


def encoded_name(name: str) -> str:
    """Return a name as `Mcp-Name` carries it."""
    if _PLAIN.fullmatch(name) and not _ENCODED.fullmatch(name):
        return name
    return f"=?base64?{base64.b64encode(name.encode()).decode()}?="


def decoded_name(header: str) -> str | None:
    """Return the name in `Mcp-Name`; None if it cannot be decoded."""
    encoded = _ENCODED.fullmatch(header)
    if encoded is None:
        return header if _PLAIN.fullmatch(header) else None
    try:
        name = base64.b64decode(encoded[1], validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        return None
    return name if base64.b64encode(name.encode()).decode() == encoded[1] else None


def name_of(method: str, tool: str | None, uri: str | None) -> str | None:
    """Return what `Mcp-Name` repeats: the name of a tool or prompt, or the URI of a resource."""
    if method in (CALL, GET_PROMPT):
        return tool
    return uri if method in BY_URI else None


def disagreement(method: str, name: str | None, headers: Mapping[str, str]) -> str:
    """Say where headers (names in lower case) and message differ, or return an empty string.

    The id of a task is not among what is known of a message here, so its header is not compared.
    """
    version = headers.get(VERSION_HEADER)
    if version is not None and ("," in version or " " in version):
        return f"there is more than one {VERSION_HEADER}: `{version}`"
    said = headers.get(METHOD_HEADER)
    if said is not None and said != method:
        return f"{METHOD_HEADER} is `{said}`, but the message has `{method}`"
    if version == NEWEST and method in MUST_HAVE_NAME and not name:
        return f"{method} of version {NEWEST} needs a name"
    named = headers.get(NAME_HEADER)
    if not named or method in TASK_METHODS:
        return ""
    if name is None:
        return f"{NAME_HEADER} is `{named}`, but {method} has no name"
    return "" if decoded_name(named) == name else f"{NAME_HEADER} is `{named}`, but the message has `{name}`"

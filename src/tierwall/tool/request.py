"""One request as policies see it: who asks, what in MCP, what in HTTP, and which backend it is for; and as engines do.

docs/policy-tests.md#tool.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from tierwall.core.reference import Reference

CALL = "tools/call"
SESSION_HEADER = "mcp-session-id"
# Methods that name a resource by `params.uri`; all others name theirs by `params.name`.
BY_URI = frozenset(("resources/read", "resources/subscribe", "resources/unsubscribe"))


class Backend(Struct, frozen=True):
    """Where a request is to go: an XBackend, or a Service straight from a route."""

    namespace: str
    name: str
    kind: str = "XBackend"
    # Where its MCP endpoint is: `spec.mcp.path`.
    path: str = "/mcp"

    @property
    def reference(self) -> Reference:
        """Its reference; the two groups of XBackend are spelled alike."""
        return Reference(self.kind, self.namespace, self.name)

    def __str__(self) -> str:
        return f"{self.kind}/{self.namespace}/{self.name}"


class ToolRequest(Struct, frozen=True):
    """What is asked. Make it with `request`, which derives what matchers look at.

    INVARIANT: header names are lower-case; `url_path` has no query string; `hostname` has no port and no capitals.
    """

    backend: Backend
    caller: str | None = None
    # The JSON-RPC method; None for plain HTTP.
    method: str | None = None
    tool: str | None = None
    uri: str | None = None
    arguments: Mapping[str, Any] | None = None
    http_method: str = "POST"
    path: str = "/mcp"
    url_path: str = "/mcp"
    host: str | None = None
    hostname: str | None = None
    headers: Mapping[str, str] = {}
    # The port of the listener that the request came in at; 0 if there is none.
    port: int = 0
    time: object = None
    # Why a gateway does not read the message as JSON-RPC (docs/semantics.md#messages-that-cannot-be-read-are-denied).
    unread: str = ""

    @property
    def named(self) -> str | None:
        """What the method is used on: the resource's URI, or the name of the tool or prompt."""
        return self.uri if self.method in BY_URI else self.tool

    def variables(self) -> dict[str, Any]:
        """The variables of CEL expressions; what the request does not have is missing, so that using it is an error."""
        mcp: dict[str, Any] = {}
        if self.tool is not None:
            mcp["tool_name"] = self.tool
        if self.arguments is not None:
            mcp["arguments"] = self.arguments
        out: dict[str, Any] = {
            "method": self.http_method,
            "path": self.path,
            "url_path": self.url_path,
            "headers": self.headers,
            "mcp": mcp,
        }
        if self.host is not None:
            out["host"] = self.host
        if self.time is not None:
            out["time"] = self.time
        return {"request": out}


def tool_request(
    backend: Backend,
    caller: str | None = None,
    method: str | None = None,
    tool: str | None = None,
    uri: str | None = None,
    arguments: Mapping[str, Any] | None = None,
    http_method: str = "POST",
    path: str | None = None,
    host: str | None = None,
    headers: Mapping[str, str] | None = None,
    port: int = 0,
    time: object = None,
) -> ToolRequest:
    """A request; without a path it goes to the backend's own."""
    path = backend.path if path is None else path
    given = {name.lower(): value for name, value in headers.items()} if headers else {}
    return ToolRequest(
        backend,
        caller,
        method,
        tool,
        uri,
        arguments,
        http_method,
        path,
        path.partition("?")[0].partition("#")[0],
        host,
        hostname(host),
        given,
        port,
        time,
        _unread(method, given) if given else "",
    )


def hostname(host: str | None) -> str | None:
    """A Host header without its port, in small letters, as HTTP compares hosts."""
    if host is None:
        return None
    name, colon, port = host.rpartition(":")
    if colon and port.isdigit() and (":" not in name or name.endswith("]")):
        host = name
    return host.lower()


def _unread(method: str | None, headers: Mapping[str, str]) -> str:
    content_type = headers.get("content-type")
    if method is None or content_type is None:
        return ""
    media_type = content_type.partition(";")[0].strip().lower()
    return "" if media_type == "application/json" else f"content type `{content_type}` is not read as MCP"


class ObservedRequest(Struct, frozen=True, kw_only=True):
    """A request as an engine saw it; what it does not know is None. `Event.detail` on the tool plane."""

    # What the request claims is what it is about: `method`, `tool`, `uri` and `http`. All else the engine knows itself.
    caller: str | None = None
    gateway: str | None = None
    listener: str | None = None
    backend: str | None = None
    method: str | None = None
    tool: str | None = None
    uri: str | None = None
    http: str
    status: int
    # The level of the policy that decided.
    level: str | None = None
    # What the engine has to say about the reply, in its own words.
    said: str
    # Refused before every policy was asked: what cannot be read, or leads nowhere, is never let through.
    refused: bool = False
    seconds: float

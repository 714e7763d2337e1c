"""A request as policies see it: the caller, MCP, HTTP and the backend; and as engines observe it.

docs/policy-tests.md#tool.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from msgspec import Struct, structs

from tierwall.core.reference import Reference
from tierwall.tool.protocol import ANSWER, BY_URI, COMPLETE, GET_PROMPT, LISTEN, SUBSCRIBE, disagreement, name_of

SESSION_HEADER = "mcp-session-id"


class Backend(Struct, frozen=True):
    """The backend of a request: an XBackend, or a Service or AgentgatewayBackend that a route names directly."""

    namespace: str
    name: str
    kind: str = "XBackend"
    # The path of its MCP endpoint: `spec.mcp.path`.
    path: str = "/mcp"
    # The servers that it joins: names of tools begin with one of them there (`joined`).
    targets: tuple[str, ...] = ()

    @property
    def reference(self) -> Reference:
        """The reference, which does not tell the two groups of XBackend apart."""
        return Reference(self.kind, self.namespace, self.name)

    def __str__(self) -> str:
        return f"{self.kind}/{self.namespace}/{self.name}"


class ToolRequest(Struct, frozen=True):
    """A request. Build it with `tool_request`, which derives the fields that matchers read.

    INVARIANT: header names are lower-case; `url_path` has no query string; `hostname` is lower-case, without a port.
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
    # The port of the listener that received the request; 0 without a listener.
    port: int = 0
    time: object = None
    # Why a gateway does not read the message as JSON-RPC (docs/semantics.md#messages-that-cannot-be-read-are-denied).
    unreadable: str = ""
    # The method that rules judge: a subscription to resources is judged as `resources/subscribe`.
    judged: str | None = None
    # What must be granted too: of each entry, one request (docs/semantics.md#completions-need-what-they-complete).
    implied: tuple[tuple[ToolRequest, ...], ...] = ()
    # The server that the item belongs to, of those that the backend joins.
    target: str = ""

    @property
    def named(self) -> str | None:
        """The object of the method: the URI of a resource, or the name of a tool or prompt."""
        if self.method == COMPLETE:
            return self.tool if self.uri is None else self.uri
        return self.uri if self.judged in BY_URI else self.tool

    def variables(self) -> dict[str, Any]:
        """Return the variables of CEL expressions; an absent part is a missing key, so using it is an error."""
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
    """Build a request; without a path it has the backend's own."""
    path = backend.path if path is None else path
    lower_case_headers = {name.lower(): value for name, value in headers.items()} if headers else {}
    request = ToolRequest(
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
        lower_case_headers,
        port,
        time,
        _unreadable(method, tool, uri, lower_case_headers) if lower_case_headers or method == ANSWER else "",
        SUBSCRIBE if method == LISTEN and uri is not None else method,
    )
    return request if method != COMPLETE else structs.replace(request, implied=tuple(_completed(request)))


def _completed(request: ToolRequest) -> Iterator[tuple[ToolRequest, ...]]:
    """Yield what a completion is about: the prompt, and the template of resources in any use of its URI."""
    if request.tool is not None:
        yield (structs.replace(request, method=GET_PROMPT, judged=GET_PROMPT, uri=None),)
    if request.uri is not None:
        uses = sorted(BY_URI)
        yield tuple(structs.replace(request, method=use, judged=use, tool=None) for use in uses)


def hostname(host: str | None) -> str | None:
    """Return a Host header without its port and in lower case, as HTTP compares hosts."""
    if host is None:
        return None
    name, colon, port = host.rpartition(":")
    if colon and port.isdigit() and (":" not in name or name.endswith("]")):
        host = name
    return host.lower()


def _unreadable(method: str | None, tool: str | None, uri: str | None, headers: Mapping[str, str]) -> str:
    if method is None:
        return ""
    if method == ANSWER:
        return f"`{ANSWER}` stands for answers, not for a method"
    content_type = headers.get("content-type", "application/json")
    if content_type.partition(";")[0].strip().lower() != "application/json":
        return f"content type `{content_type}` is not read as MCP"
    return disagreement(method, name_of(method, tool, uri), headers)


class ObservedRequest(Struct, frozen=True, kw_only=True):
    """A request as an engine observed it; None where it does not know. `Event.detail` on the tool plane."""

    # The client claims `method`, `tool`, `uri` and `http`; the engine knows everything else itself.
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
    # The engine's own words about the reply.
    reply_details: str
    # Refused by the engine itself, not by a policy: the request cannot be read, or has no route.
    refused: bool = False
    seconds: float

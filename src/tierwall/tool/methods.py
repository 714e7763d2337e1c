"""What of MCP a rule lets through: methods, categories, the base protocol (docs/semantics.md#the-base-set).

A rule has several clauses of which one must match. Each clause is a plain value that an engine can translate.
"""

from __future__ import annotations

from typing import TypeAlias, assert_never

from msgspec import Struct

from tierwall.tool.condition import Condition
from tierwall.tool.request import CALL, SESSION_HEADER, Request
from tierwall.tool.scope import Names

# What every client needs before it can use anything.
BASE_METHODS = frozenset(("initialize", "tools/list", "ping"))
BASE_PREFIXES = ("completion/", "logging/", "notifications/")
CATEGORIES = frozenset(("tools", "prompts", "resources"))


class Anything(Struct, frozen=True):
    """Every request, plain HTTP included."""

    def matches(self, request: Request) -> bool:
        """Always."""
        return True

    def __str__(self) -> str:
        return "everything"


class BaseProtocol(Struct, frozen=True):
    """The base set: its methods, and the stream and end of a session."""

    def matches(self, request: Request) -> bool:
        """A base method, or GET or session DELETE on the backend's path."""
        method = request.method
        if method is None:
            return is_session_http(request)
        return method in BASE_METHODS or method.startswith(BASE_PREFIXES)

    def __str__(self) -> str:
        return "base protocol methods"


class SessionHttp(Struct, frozen=True):
    """The part of the base set that is plain HTTP."""

    def matches(self, request: Request) -> bool:
        """GET or session DELETE on the backend's path."""
        return request.method is None and is_session_http(request)

    def __str__(self) -> str:
        return "GET and session DELETE"


class AllButCalls(Struct, frozen=True):
    """Every JSON-RPC method but `tools/call`: what v0alpha0 grants a caller that it names at all."""

    def matches(self, request: Request) -> bool:
        """Any method but a call."""
        return request.method is not None and request.method != CALL

    def __str__(self) -> str:
        return "every method but tools/call"


class Category(Struct, frozen=True):
    """All methods below a word: `tools` is the prefix `tools/`."""

    name: str

    def matches(self, request: Request) -> bool:
        """A method of the category; the bare word is not one."""
        return request.method is not None and request.method.startswith(f"{self.name}/")

    def __str__(self) -> str:
        return f"{self.name}/*"


class Method(Struct, frozen=True):
    """One method, on any of some names (all if None), under a condition (none if None)."""

    name: str
    names: Names | None = None
    condition: Condition | None = None

    def matches(self, request: Request) -> bool:
        """This method on one of these names, the condition holding."""
        if request.method != self.name:
            return False
        if self.names is not None and not self.names.matches(request):
            return False
        return self.condition is None or self.condition.holds(request)

    def __str__(self) -> str:
        names = "" if self.names is None else f" of {self.names}"
        return f"{self.name}{names}" + (f" if {self.condition}" if self.condition is not None else "")


Clause: TypeAlias = Anything | BaseProtocol | SessionHttp | AllButCalls | Category | Method

# The clauses that neither names nor conditions narrow.
NOT_NARROWED = (Anything, BaseProtocol, SessionHttp, AllButCalls, Category)


def as_method(clause: Clause) -> Method | None:
    """The clause if it can be narrowed to names and to a condition; no other can."""
    if isinstance(clause, Method):
        return clause
    if isinstance(clause, NOT_NARROWED):
        return None
    assert_never(clause)


ANYTHING = Anything()
BASE_PROTOCOL = BaseProtocol()
SESSION_HTTP = SessionHttp()
ALL_BUT_CALLS = AllButCalls()


def is_session_http(request: Request) -> bool:
    """Whether plain HTTP opens the stream (GET) or ends the session (DELETE that names it) at the backend's path."""
    if request.url_path != request.backend.path:
        return False
    return request.http_method == "GET" or (request.http_method == "DELETE" and SESSION_HEADER in request.headers)

"""The clauses of a rule: which MCP methods, categories and base protocol it allows (docs/semantics.md#the-base-set).

One clause of a rule must match. Each clause is a plain value that an engine can translate. A method may be narrowed to
names, and to the requests for which a CEL expression is true. Expressions apply to calls alone
(docs/semantics.md#expressions-match-calls-only); one that fails (because a header is missing, say), exceeds its cost or
does not give a bool does not match.

The AccessPolicy proposal ("API Changes") leaves open what a bare name means on a Gateway whose backends offer tools of
one name. Tierwall's answer (docs/tool.md#one-backends-tool-on-a-gateway): a bare name means the tool at every backend;
with the name of an XBackend and a slash in front it means the tool there only. `namespace/backend/tool` reaches
backends elsewhere. A name with a slash that does not start with an XBackend is the tool's own name, as on backends.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import NamedTuple, TypeAlias, assert_never

from msgspec import Struct

from tierwall.attach.acceptance import ENVIRONMENT
from tierwall.attach.target import ACCESS_GROUPS
from tierwall.cel.errors import Failure
from tierwall.cel.evaluate.program import Program, compile
from tierwall.resources.snapshot import Snapshot
from tierwall.tool.protocol import ANSWER, CALL, LISTEN, TASK_METHODS
from tierwall.tool.request import SESSION_HEADER, Backend, ToolRequest


class ScopedTool(NamedTuple):
    """A tool of one backend."""

    namespace: str
    backend: str
    tool: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.backend}/{self.tool}"


class NameSet(Struct, frozen=True):
    """A set of names: bare names count at every backend, scoped names at their own."""

    bare: frozenset[str]
    scoped: frozenset[ScopedTool] = frozenset()

    def matches(self, request: ToolRequest) -> bool:
        """Whether the request names one of these; a request without a name does not match."""
        named = request.named
        if named is None:
            return False
        if named in self.bare:
            return True
        backend = request.backend
        return (
            bool(self.scoped) and backend.kind == "XBackend" and (backend.namespace, backend.name, named) in self.scoped
        )

    def at(self, backend: Backend) -> frozenset[str]:
        """Return the names that count at a backend."""
        if not self.scoped or backend.kind != "XBackend":
            return self.bare
        here = backend.namespace, backend.name
        return self.bare | {scoped.tool for scoped in self.scoped if (scoped.namespace, scoped.backend) == here}

    def __str__(self) -> str:
        return ", ".join([*sorted(self.bare), *map(str, sorted(self.scoped))]) or "no name"


def scoped_tool(snapshot: Snapshot, namespace: str, name: str) -> ScopedTool | None:
    """Read a name on a Gateway in `namespace` as a backend and its tool; None if it is a bare name."""
    first, slash, rest = name.partition("/")
    if not slash or not rest:
        return None
    if is_backend(snapshot, namespace, first):
        return ScopedTool(namespace, first, rest)
    second, slash, tool = rest.partition("/")
    return ScopedTool(first, second, tool) if slash and tool and is_backend(snapshot, first, second) else None


def is_backend(snapshot: Snapshot, namespace: str, name: str) -> bool:
    """Whether an XBackend of either group has this name."""
    return any(snapshot.get(group, "XBackend", namespace, name) is not None for group in ACCESS_GROUPS)


def read_names(snapshot: Snapshot, namespace: str, names: Iterable[str], *, on_gateway: bool) -> NameSet:
    """Read the names that a rule lists; only policies on Gateways have scoped names."""
    bare: set[str] = set()
    with_backend: set[ScopedTool] = set()
    for name in names:
        tool = scoped_tool(snapshot, namespace, name) if on_gateway else None
        if tool is None:
            bare.add(name)
        else:
            with_backend.add(tool)
    return NameSet(frozenset(bare), frozenset(with_backend))


class CelCondition:
    """A CEL expression that parses; equal texts share one condition."""

    __slots__ = ("program", "text")

    def __init__(self, text: str) -> None:
        self.text = text
        self.program: Program = compile(text, ENVIRONMENT)

    def is_true_of(self, request: ToolRequest) -> bool:
        """Whether the expression is true for a request."""
        try:
            return self.program.evaluate(request.variables()) is True
        except Failure:
            return False

    def why_not(self, request: ToolRequest) -> str:
        """Say why the expression is not true: it is false, it fails, or it does not give a bool."""
        outcome = self.program.value_or_failure(request.variables())
        if isinstance(outcome, Failure):
            return f"the expression fails: {outcome}"
        return "the expression is false" if outcome is False else "the expression does not give a bool"

    def __str__(self) -> str:
        return f"`{self.text}`"


@lru_cache(maxsize=4096)
def cel_condition(text: str) -> CelCondition:
    """Return the condition of an expression; ParseError if the text is not CEL."""
    return CelCondition(text)


# A client needs these to connect and to stay connected, and none gives a tool, resource or prompt by itself. A
# subscription that names resources is judged as `resources/subscribe`, so that this one is about changed lists.
BASE_METHODS = frozenset(("initialize", "server/discover", "ping", "tools/list", LISTEN, ANSWER))
BASE_PREFIXES = ("completion/", "logging/", "notifications/")
CATEGORIES = frozenset(("tools", "prompts", "resources"))


class AnythingClause(Struct, frozen=True):
    """Every request, plain HTTP included."""

    def matches(self, request: ToolRequest) -> bool:
        """Always."""
        return True

    def __str__(self) -> str:
        return "everything"


class BaseProtocol(Struct, frozen=True):
    """The base set: its methods, and plain HTTP that opens the stream or ends the session."""

    def matches(self, request: ToolRequest) -> bool:
        """Whether it is a base method, an answer, or GET or session DELETE on the backend's path."""
        method = request.judged
        if method is None:
            return is_session_http(request)
        return method in BASE_METHODS or method.startswith(BASE_PREFIXES)

    def __str__(self) -> str:
        return "base protocol methods"


class SessionRequest(Struct, frozen=True):
    """The part of the base set that is plain HTTP."""

    def matches(self, request: ToolRequest) -> bool:
        """Whether it is GET or session DELETE on the backend's path."""
        return request.method is None and is_session_http(request)

    def __str__(self) -> str:
        return "GET and session DELETE"


class AllButCalls(Struct, frozen=True):
    """Every JSON-RPC method except `tools/call`; v0alpha0 grants them to every caller that a rule names."""

    def matches(self, request: ToolRequest) -> bool:
        """Whether it is a method other than a call."""
        return request.method is not None and request.method != CALL

    def __str__(self) -> str:
        return "every method but tools/call"


class MethodCategory(Struct, frozen=True):
    """All methods of a category: `tools` is the prefix `tools/`, and what calls leave behind as tasks."""

    name: str

    def matches(self, request: ToolRequest) -> bool:
        """Whether it is a method of the category; the bare word is not a method."""
        method = request.judged
        return method is not None and (
            method.startswith(f"{self.name}/") or (self.name == "tools" and method in TASK_METHODS)
        )

    def __str__(self) -> str:
        return f"{self.name}/*"


class MethodClause(Struct, frozen=True):
    """One method, for some names (any if None), under a condition (none if None)."""

    name: str
    names: NameSet | None = None
    condition: CelCondition | None = None

    def matches(self, request: ToolRequest) -> bool:
        """Whether it is this method for one of these names, and the condition is true.

        A clause that lets some tool of the backend be called grants the tasks of calls, too
        (docs/semantics.md#tasks-follow-calls).
        """
        if request.judged != self.name:
            return request.judged in TASK_METHODS and self.grants_tasks(request.backend)
        if self.names is not None and not self.names.matches(request):
            return False
        return self.condition is None or self.condition.is_true_of(request)

    def grants_tasks(self, backend: Backend) -> bool:
        """Whether it lets some tool of this backend be called, perhaps under a condition."""
        return self.name == CALL and (self.names is None or bool(self.names.at(backend)))

    def __str__(self) -> str:
        names = "" if self.names is None else f" of {self.names}"
        return f"{self.name}{names}" + (f" if {self.condition}" if self.condition is not None else "")


Clause: TypeAlias = AnythingClause | BaseProtocol | SessionRequest | AllButCalls | MethodCategory | MethodClause

# The clauses that names and conditions cannot narrow.
NOT_NARROWED = (AnythingClause, BaseProtocol, SessionRequest, AllButCalls, MethodCategory)


def as_method_clause(clause: Clause) -> MethodClause | None:
    """Return the clause if names and a condition can narrow it, else None."""
    if isinstance(clause, MethodClause):
        return clause
    if isinstance(clause, NOT_NARROWED):
        return None
    assert_never(clause)


ANYTHING = AnythingClause()
BASE_PROTOCOL = BaseProtocol()
SESSION_HTTP = SessionRequest()
ALL_BUT_CALLS = AllButCalls()


def is_session_http(request: ToolRequest) -> bool:
    """Whether plain HTTP opens the stream (GET) or ends the session (DELETE that names it) at the backend's path."""
    if request.url_path != request.backend.path:
        return False
    return request.http_method == "GET" or (request.http_method == "DELETE" and SESSION_HEADER in request.headers)

"""The requests that a clause of a rule covers, in the form in which matcher trees look them up."""

from __future__ import annotations

from typing import NamedTuple, assert_never

from tierwall.tool.methods import (
    BASE_METHODS,
    BASE_PREFIXES,
    AllButCalls,
    AnythingClause,
    BaseProtocol,
    Clause,
    MethodCategory,
    MethodClause,
    SessionRequest,
)
from tierwall.tool.protocol import CALL, TASK_METHODS


class ClauseScope(NamedTuple):
    """The requests that a clause covers: JSON-RPC methods by name or prefix, or all except those; and plain HTTP."""

    methods: frozenset[str] = frozenset()
    prefixes: tuple[str, ...] = ()
    all_except: bool = False
    plain_http: bool = False
    # Of plain HTTP, only the stream and the end of a session.
    only_sessions: bool = False

    def has(self, method: str) -> bool:
        """Whether the clause covers a method: a method name, a prefix, or the empty string for any other method."""
        return (method in self.methods or method.startswith(self.prefixes)) is not self.all_except


def clause_scope(clause: Clause) -> ClauseScope:
    """Return the requests that a clause covers."""
    match clause:
        case AnythingClause():
            return ClauseScope(all_except=True, plain_http=True)
        case SessionRequest():
            return ClauseScope(plain_http=True, only_sessions=True)
        case BaseProtocol():
            return ClauseScope(BASE_METHODS, BASE_PREFIXES, plain_http=True, only_sessions=True)
        case AllButCalls():
            return ClauseScope(frozenset((CALL,)), all_except=True)
        case MethodCategory(name=name):
            return ClauseScope(TASK_METHODS if name == "tools" else frozenset(), prefixes=(f"{name}/",))
        case MethodClause(name=name):
            return ClauseScope(frozenset((name,)) | (TASK_METHODS if name == CALL else frozenset()))
        case _:
            assert_never(clause)

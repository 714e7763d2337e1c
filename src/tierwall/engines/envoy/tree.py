"""The rules of a policy as a tree of lookups: caller, then method, then name.

A leaf is the first rule that matches, in the order of the rules, so that Envoy reports the rule that the model reports.
What is compared exactly (callers, methods, names) is looked up by hash; only what remains, HTTP matchers and
expressions, is tried one rule after the other, and only the rules that are about the caller, method and name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple, assert_never

from tierwall.engines.envoy.matchers import OnMatch, Predicate, first_of, header, lookup
from tierwall.engines.envoy.names import CALLER, METHOD, NAME, URI
from tierwall.tool.methods import (
    BASE_METHODS,
    BASE_PREFIXES,
    AllButCalls,
    Anything,
    BaseProtocol,
    Category,
    Clause,
    Method,
    SessionHttp,
    as_method,
)
from tierwall.tool.request import BY_URI, CALL, Backend
from tierwall.tool.rules import Rule, Rules


class Entry(NamedTuple):
    """One way to match: a rule, the names it is about (None: every one), and what else must hold (None: nothing)."""

    rule: Rule
    names: frozenset[str] | None
    also: Predicate | None


Leaf = Callable[[Rule], OnMatch]
Also = Callable[[Rule, Clause, bool], Predicate | bool | None]


class Tree:
    """How to make the tree of one policy for one backend.

    A tree is for MCP messages or for plain HTTP: routes tell the two apart. `leaf` is what a rule leads to and
    `otherwise` what no rule leads to (None: no match at all). `also` is what must hold besides caller, method and name:
    a predicate, None for nothing, False for a rule that cannot match.
    """

    def __init__(self, backend: Backend, leaf: Leaf, otherwise: OnMatch | None, also: Also, plain: bool) -> None:
        self._plain = plain
        self._backend = backend
        self._leaf = leaf
        self._otherwise = otherwise
        self._also = also

    def of(self, rules: Rules) -> OnMatch | None:
        """The tree of some rules; None where nothing matches and there is no `otherwise`."""
        found = {caller: self._methods(rules.of(caller)) for caller in rules.callers()}
        return self._lookup(header(CALLER), found, self._methods(rules.of(None)))

    def _methods(self, rules: tuple[Rule, ...]) -> OnMatch | None:
        if self._plain:
            return self._names("", self._entries(rules, _is_plain))
        named: set[str] = set()
        prefixes: set[str] = set()
        for clause in (clause for rule in rules for clause in rule.clauses):
            match clause:
                case Method(name=name):
                    named.add(name)
                case Category(name=name):
                    prefixes.add(f"{name}/")
                case BaseProtocol():
                    named |= BASE_METHODS
                    prefixes.update(BASE_PREFIXES)
                case AllButCalls():
                    named.add(CALL)
                case Anything() | SessionHttp():
                    pass
                case _:
                    assert_never(clause)
        unlisted = self._names("", self._about(rules, ""))
        by_prefix = {lead: self._names("", self._about(rules, lead)) for lead in prefixes}
        unlisted = self._lookup(header(METHOD), by_prefix, unlisted, by_prefix=True)
        exactly = {name: self._names(name, self._about(rules, name)) for name in named}
        return self._lookup(header(METHOD), exactly, unlisted)

    def _about(self, rules: Iterable[Rule], method: str) -> Iterator[Entry]:
        return self._entries(rules, lambda clause: _has_method(clause, method))

    def _entries(self, rules: Iterable[Rule], fits: Callable[[Clause], bool]) -> Iterator[Entry]:
        for rule in rules:
            for clause in rule.clauses:
                if fits(clause):
                    also = self._also(rule, clause, self._plain)
                    if not isinstance(also, bool):
                        yield Entry(rule, self._scope(clause), also)

    def _scope(self, clause: Clause) -> frozenset[str] | None:
        """The names that a clause is about at this backend."""
        method = as_method(clause)
        if method is None or method.names is None:
            return None
        names, here = method.names, (self._backend.namespace, self._backend.name)
        if self._backend.kind != "XBackend":
            return names.bare
        return names.bare | {scoped.tool for scoped in names.scoped if (scoped.namespace, scoped.backend) == here}

    def _names(self, method: str, entries: Iterable[Entry]) -> OnMatch | None:
        entries = tuple(entries)
        names = {name for one in entries if one.names is not None for name in one.names}
        found = {name: self._choice(one for one in entries if one.names is None or name in one.names) for name in names}
        others = self._choice(one for one in entries if one.names is None)
        return self._lookup(header(URI if method in BY_URI else NAME), found, others)

    def _choice(self, entries: Iterable[Entry]) -> OnMatch | None:
        """The first entry whose predicate holds; entries after one without a predicate are never reached."""
        choices: list[tuple[Predicate, OnMatch | None]] = []
        for one in entries:
            if one.also is None:
                return self._first(choices, self._leaf(one.rule))
            choices.append((one.also, self._leaf(one.rule)))
        return self._first(choices, self._otherwise)

    def _lookup(
        self, text: object, found: dict[str, OnMatch | None], otherwise: OnMatch | None, by_prefix: bool = False
    ) -> OnMatch | None:
        # What leads where everything else leads needs no entry; for prefixes it does, a longer one may differ.
        kept = {key: then for key, then in found.items() if then is not None and (by_prefix or then != otherwise)}
        if not kept and (otherwise is None or all(then == otherwise for then in found.values())):
            return otherwise
        return lookup(text, kept, otherwise, by_prefix)

    @staticmethod
    def _first(choices: list[tuple[Predicate, OnMatch | None]], otherwise: OnMatch | None) -> OnMatch | None:
        kept = [(one, then) for one, then in choices if then is not None]
        return first_of(kept, otherwise) if kept else otherwise


def _is_plain(clause: Clause) -> bool:
    """Whether a clause is about plain HTTP."""
    match clause:
        case Anything() | BaseProtocol() | SessionHttp():
            return True
        case AllButCalls() | Category() | Method():
            return False
        case _:
            assert_never(clause)


def _has_method(clause: Clause, method: str) -> bool:
    """Whether a clause is about a JSON-RPC method; a method is known by its name, its prefix, or not at all (``)."""
    match clause:
        case Anything():
            return True
        case SessionHttp():
            return False
        case AllButCalls():
            return method != CALL
        case BaseProtocol():
            return method in BASE_METHODS or method.startswith(BASE_PREFIXES)
        case Category(name=name):
            return method.startswith(f"{name}/")
        case Method(name=name):
            return method == name
        case _:
            assert_never(clause)

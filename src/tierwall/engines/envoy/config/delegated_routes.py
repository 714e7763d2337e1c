"""The rules that a request reaches through routes that delegate: as one list, in the order of precedence.

A rule that delegates has its place among the rules of its listener, and decides for every request that gets there. The
child with the best match has the request, or nobody: it answers 404, and no other rule of the parent is asked
(docs/gateway.md#delegation). A cycle, a chain that is too long and a rule that delegates only a share of its requests
answer 500.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple

from tierwall.attach.backend import BackendRef, backend_refs
from tierwall.attach.delegation import children
from tierwall.attach.listener import narrower_hostname
from tierwall.attach.reach import MAX_CHAIN, RouteRule
from tierwall.attach.section import rules
from tierwall.engines.envoy.config.grpc_routes import http_match, is_grpc
from tierwall.engines.envoy.config.route_matches import Match, can_match, is_plain, precedence
from tierwall.resources.resource import Identity, Resource, list_of_maps
from tierwall.resources.snapshot import Snapshot

# The most matches of children to look at below one rule: chains may branch again and again.
MAX_MATCHES = 2000
# The most host names of children below one rule: each takes copies of all routes of wider names.
MAX_HOSTNAMES = 64
CYCLE = "a route that delegates to itself, also through others,"
TOO_LONG = f"a chain of more than {MAX_CHAIN} routes"
TOO_MANY = f"a rule that leads to more than {MAX_MATCHES:,} matches of other routes"
TOO_MANY_HOSTS = f"a rule that leads to more than {MAX_HOSTNAMES} host names of other routes"
SHARED = "a rule that delegates and has other backends"
CHANGED = "a change of requests by a reference to other routes"
REFUSED = "a route that is refused"
HINTS: Mapping[str, str] = {
    CYCLE: "name the children, or give a route parentRefs, so that `*` and labels do not select it",
    **dict.fromkeys((TOO_MANY, TOO_MANY_HOSTS), "delegate smaller parts by rules of their own"),
    SHARED: "give the other backends a rule of their own",
    CHANGED: "put filters into the rule, and settings into a policy on it",
}


class ChainEnd(NamedTuple):
    """The end of a chain of rules for the requests that match all of it. A rule that does not delegate is one, too."""

    # The rules, outermost first, and the match of each with its number.
    chain: tuple[RouteRule, ...]
    matches: tuple[Mapping[str, Any], ...]
    numbers: tuple[int, ...]
    # The only host name, or pattern of host names, that the children serve; empty for all.
    hostname: str = ""
    # No child has a match for these requests.
    is_unmatched: bool = False
    # Why these requests are answered with 500, or an empty string.
    problem: str = ""

    @property
    def last(self) -> RouteRule:
        """The rule at the end."""
        return self.chain[-1]


class ChainFollower:
    """Follows the chains below one rule. `closed` are the routes that answer 500."""

    def __init__(self, snapshot: Snapshot, closed: Collection[Identity]) -> None:
        self._snapshot = snapshot
        self._closed = closed
        self._refs: dict[RouteRule, list[BackendRef]] = {}
        self._looked_at = 0

    def ends(self, start: ChainEnd) -> list[ChainEnd]:
        """Return the ends of the chains that begin with a match of a rule, in the order of precedence."""
        ends = list(self._below(start))
        if self._looked_at > MAX_MATCHES:
            return [start._replace(problem=TOO_MANY)]
        if len({end.hostname for end in ends}) > MAX_HOSTNAMES:
            return [start._replace(problem=TOO_MANY_HOSTS)]
        return ends

    def _below(self, end: ChainEnd) -> Iterator[ChainEnd]:
        refs = self._backends(end.last)
        if not any(ref.delegates for ref in refs):
            yield end
        elif len(refs) > 1:
            yield end._replace(problem=SHARED)
        elif refs[0].value.get("filters") or refs[0].value.get("policies"):
            yield end._replace(problem=CHANGED)
        elif len(end.chain) == MAX_CHAIN:
            yield end._replace(problem=TOO_LONG)
        else:
            above = {rule.route for rule in end.chain}
            for child in self._children(end, refs[0]):
                if child.problem:
                    yield child
                elif child.last.route in above:
                    yield child._replace(problem=CYCLE)
                else:
                    yield from self._below(child)
            yield end._replace(is_unmatched=True)

    def _backends(self, rule: RouteRule) -> list[BackendRef]:
        if rule not in self._refs:
            self._refs |= {RouteRule(rule.route, number): [] for number in range(len(rules(rule.route)))}
            for ref in backend_refs(rule.route):
                if ref.weight:
                    self._refs[RouteRule(rule.route, ref.rule)].append(ref)
        return self._refs[rule]

    def _children(self, end: ChainEnd, ref: BackendRef) -> list[ChainEnd]:
        """Return the end at each match of a child that some request can have: the most specific host name first."""
        candidates: list[tuple[tuple[Any, ...], ChainEnd]] = []
        for child in children(self._snapshot, ref):
            problem = REFUSED if child.identity in self._closed else ""
            for hostname in _hostnames(child):
                shared = narrower_hostname(end.hostname, hostname) if end.hostname and hostname else None
                if end.hostname and hostname and shared is None:
                    continue
                for rule, number, match in _numbered_matches(child):
                    self._looked_at += 1
                    if self._looked_at > MAX_MATCHES:
                        return []
                    if (problem and not is_plain(match)) or not can_match((*end.matches, match)):
                        continue
                    below = ChainEnd(
                        (*end.chain, RouteRule(child, rule)),
                        (*end.matches, match),
                        (*end.numbers, number),
                        shared or end.hostname or hostname,
                        problem=problem,
                    )
                    key = (*_breadth(hostname), precedence(child, rule, number, match))
                    candidates.append((key, below))
        return [below for _, below in sorted(candidates, key=lambda entry: entry[0])]


def _hostnames(route: Resource) -> tuple[str, ...]:
    names = route.spec.get("hostnames")
    return tuple(str(name).lower() for name in names) if isinstance(names, list) and names else ("",)


def _numbered_matches(route: Resource) -> Iterator[tuple[int, int, Match]]:
    for rule in range(len(rules(route))):
        for number, match in enumerate(matches_of(RouteRule(route, rule))):
            yield rule, number, match


def matches_of(rule: RouteRule) -> list[Match]:
    """Return the matches of a rule, in the words of an HTTPRoute; a rule without any has one that is empty."""
    written = list(list_of_maps(rules(rule.route)[rule.rule].get("matches"))) or [{}]
    return [http_match(match) for match in written] if is_grpc(rule.route) else written


def rule_matches(chain: Sequence[RouteRule]) -> Iterator[tuple[Match, ...]]:
    """Yield the matches of a chain that some request can meet together, one of each rule; not more than are served."""
    return islice(_combined(chain), MAX_MATCHES)


def _combined(chain: Sequence[RouteRule]) -> Iterator[tuple[Match, ...]]:
    for before in _combined(chain[:-1]) if len(chain) > 1 else [()]:
        for match in matches_of(chain[-1]):
            if not before or can_match((*before, match)):
                yield (*before, match)


def _breadth(hostname: str) -> tuple[bool, int]:
    """Return the sort key of a host name among those that match one host: the name, longer patterns, all hosts."""
    return hostname.startswith("*") or not hostname, -len(hostname)

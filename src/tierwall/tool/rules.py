"""The one form of all AccessPolicies: what a policy allows, and what it asks an authorizer about.

Every generation is read into this form (`generations`); decisions, checks and engines know only this form. A policy
allows a request if
* it is not closed,
* no rule of `asks` matches, or its authorizer says Allow, and
* some rule of `allows` matches.
A rule matches if its source, its HTTP matchers and one of its clauses match.

Sources are ServiceAccounts and SPIFFE ids, compared exactly (docs/semantics.md#names-compare-exactly). `source: {}` is
the same as no source. Every member that is given must match the caller, and the member that `type` names must be given:
a source that contradicts itself matches no caller, where implementations let it match every caller.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias, assert_never

from msgspec import Struct

from tierwall.core.reference import Reference
from tierwall.core.source import Path
from tierwall.core.unprintable import escape_unprintable
from tierwall.resources.resource import Resource
from tierwall.tool.http_match import EVERY_REQUEST, HttpMatch
from tierwall.tool.methods import ANYTHING, Clause, MethodClause, as_method_clause
from tierwall.tool.request import ToolRequest

TRUST_DOMAIN = "cluster.local"
MAX_ID_BYTES = 2048  # bytes (SPIFFE-ID, 2.3)

# SPIFFE-ID, 2.1 and 2.2: small letters in the trust domain, no empty segments, no dots alone.
_SPIFFE_ID = re.compile(r"spiffe://[a-z0-9._-]{1,255}(?:/(?!\.{1,2}(?:/|\Z))[A-Za-z0-9._-]+)*", re.ASCII)
_SOURCE_FIELDS = {"SPIFFE": "spiffe", "ServiceAccount": "serviceAccount"}


class AnyCaller(Struct, frozen=True):
    """Every caller, with or without an identity."""

    def matches(self, caller: str | None) -> bool:
        """Always."""
        return True

    def __str__(self) -> str:
        return "everybody"


class CallerIdentity(Struct, frozen=True):
    """The one caller with this SPIFFE id."""

    spiffe: str

    def matches(self, caller: str | None) -> bool:
        """Whether this is the caller; None is a caller without an identity."""
        return self.spiffe == caller

    def __str__(self) -> str:
        return self.spiffe


class NoCaller(Struct, frozen=True):
    """No caller, and the reason."""

    reason: str

    def matches(self, caller: str | None) -> bool:
        """Never."""
        return False

    def __str__(self) -> str:
        return "nobody"


RuleSource: TypeAlias = AnyCaller | CallerIdentity | NoCaller
ANY_CALLER = AnyCaller()


def named_caller(source: RuleSource) -> str | None:
    """Return the SPIFFE id of the caller that a source names, or None if it does not name one."""
    match source:
        case CallerIdentity(spiffe=spiffe):
            return spiffe
        case AnyCaller() | NoCaller():
            return None
        case _:
            assert_never(source)


def service_account_id(namespace: str, name: str, trust_domain: str = TRUST_DOMAIN) -> str:
    """Return the SPIFFE id of a ServiceAccount."""
    return f"spiffe://{trust_domain}/ns/{namespace}/sa/{name}"


def is_spiffe_id(string: str) -> bool:
    """Whether a string is a well-formed SPIFFE id."""
    return len(string) <= MAX_ID_BYTES and _SPIFFE_ID.fullmatch(string) is not None


def source_of(value: Mapping[str, Any] | None, namespace: str) -> RuleSource:
    """Read the source of a rule in a policy of this namespace; it has no nulls."""
    if not value:
        return ANY_CALLER
    identities: list[str] = []
    if isinstance(value.get("spiffe"), str):
        identities.append(value["spiffe"])
    account = value.get("serviceAccount")
    if isinstance(account, Mapping):
        identities.append(service_account_id(account.get("namespace") or namespace, str(account.get("name", ""))))
    kind = value.get("type")
    if kind in _SOURCE_FIELDS and value.get(_SOURCE_FIELDS[kind]) is None:
        return NoCaller(f"its type is {kind}, but it has no `{_SOURCE_FIELDS[kind]}`")
    if not identities:
        return NoCaller("it does not name a caller")
    if len(set(identities)) > 1:
        return NoCaller(f"it names two callers, {identities[0]} and {identities[1]}")
    return CallerIdentity(identities[0])


class AccessRule(Struct, frozen=True, eq=False):
    """A rule; `label` and `path` say where it is written (`spec` if the policy has no rules)."""

    label: str
    path: Path
    # Its own name; optional in the oldest generation.
    name: str | None = None
    source: RuleSource = ANY_CALLER
    http: HttpMatch = EVERY_REQUEST
    clauses: tuple[Clause, ...] = (ANYTHING,)

    @property
    def methods(self) -> tuple[MethodClause, ...]:
        """The clauses that names and conditions may narrow."""
        return tuple(filter(None, map(as_method_clause, self.clauses)))

    def __str__(self) -> str:
        return f"{self.label} ({escape_unprintable(self.name)})" if self.name else self.label

    def fits(self, request: ToolRequest) -> bool:
        """Whether the rule matches a request of a caller that its source matches."""
        http = self.http
        if http is not EVERY_REQUEST and not http.matches(request):
            return False
        for clause in self.clauses:  # noqa: SIM110 - twice as fast as `any`, and every decision comes through here
            if clause.matches(request):
                return True
        return False


EVERY_RULE = AccessRule("spec", ("spec",))


class AccessRules:
    """Rules in their order, looked up by caller."""

    __slots__ = ("_named", "_unnamed", "all")

    def __init__(self, rules: Iterable[AccessRule] = ()) -> None:
        self.all = tuple(rules)
        self._unnamed = tuple(rule for rule in self.all if rule.source.matches(None))
        # None is never a key: a caller without an identity has the unnamed rules.
        self._named: dict[str | None, tuple[AccessRule, ...]] = {
            caller: tuple(rule for rule in self.all if rule.source.matches(caller)) for caller in self.callers()
        }

    def callers(self) -> set[str]:
        """Return every caller that a rule names."""
        return {caller for rule in self.all if (caller := named_caller(rule.source)) is not None}

    def of(self, caller: str | None) -> tuple[AccessRule, ...]:
        """Return the rules that match a caller, in order."""
        return self._named.get(caller, self._unnamed)

    def match(self, request: ToolRequest) -> AccessRule | None:
        """Return the first rule that matches a request; None if no rule matches something that it implies."""
        rules = self._named.get(request.caller, self._unnamed)
        for implied in request.implied:
            if not any(rule.fits(use) for rule in rules for use in implied):
                return None
        for rule in rules:
            if rule.fits(request):
                return rule
        return None

    def match_any(self, request: ToolRequest) -> AccessRule | None:
        """Return the first rule that matches a request, or something that it implies."""
        if not request.implied:
            return self.match(request)
        uses = (request, *(use for implied in request.implied for use in implied))
        rules = self._named.get(request.caller, self._unnamed)
        return next((rule for rule in rules if any(rule.fits(use) for use in uses)), None)


NO_RULES = AccessRules()


class AccessPolicy(Struct, frozen=True, eq=False):
    """An AccessPolicy in the one form. `closed` holds the reasons why it is invalid and denies everything."""

    resource: Resource
    allows: AccessRules
    asks: AccessRules
    closed: tuple[str, ...]
    reference: Reference
    # The authorizer of `asks`: the Gateway API's `HTTPExternalAuthFilter`, with defaults.
    authorizer: Mapping[str, Any] | None = None
    # Whether it only asks: a request that no rule of `asks` matches passes.
    only_asks: bool = False

"""The one form of all AccessPolicies: what a policy asks an authorizer about, and what it allows.

Every generation is read into this form (`v0alpha0`, `v1alpha1`), and everything after that, decisions, checks and
engines, knows only this form. A policy allows a request if
* it is not closed,
* no rule of `asks` matches, or its authorizer says Allow, and
* some rule of `allows` matches.
A rule matches if its source, its HTTP matchers and one of its clauses match.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from msgspec import Struct

from tierwall.core.answer import on_one_line
from tierwall.core.reference import Reference
from tierwall.core.source import Path
from tierwall.resources.resource import Resource
from tierwall.tool.http_match import EVERY_REQUEST, HttpMatch
from tierwall.tool.methods import ANYTHING, Clause
from tierwall.tool.request import Request
from tierwall.tool.sources import EVERYBODY, Source, named_caller


class Rule(Struct, frozen=True, eq=False):
    """A rule; `label` and `path` say where it is written (`spec` where a policy has no rules)."""

    label: str
    path: Path
    # Its own name; the oldest generation lets rules go without one.
    name: str | None = None
    source: Source = EVERYBODY
    http: HttpMatch = EVERY_REQUEST
    clauses: tuple[Clause, ...] = (ANYTHING,)

    def matches(self, request: Request) -> bool:
        """Whether the rule is about this request, its caller included."""
        return self.source.matches(request.caller) and self.fits(request)

    def __str__(self) -> str:
        return f"{self.label} ({on_one_line(self.name)})" if self.name else self.label

    def fits(self, request: Request) -> bool:
        """Whether the rule is about this request, if it is about its caller."""
        http = self.http
        if http is not EVERY_REQUEST and not http.matches(request):
            return False
        for clause in self.clauses:  # noqa: SIM110 - twice as fast as `any`, and every decision comes through here
            if clause.matches(request):
                return True
        return False


EVERY_RULE = Rule("spec", ("spec",))


class Rules:
    """Rules in their order, looked up by caller."""

    __slots__ = ("_named", "_unnamed", "all")

    def __init__(self, rules: Iterable[Rule] = ()) -> None:
        self.all = tuple(rules)
        self._unnamed = tuple(rule for rule in self.all if rule.source.matches(None))
        # None is never among the keys: the rules about a caller without an identity are the unnamed ones.
        self._named: dict[str | None, tuple[Rule, ...]] = {
            caller: tuple(rule for rule in self.all if rule.source.matches(caller)) for caller in self.callers()
        }

    def callers(self) -> set[str]:
        """Every caller that a rule names."""
        return {caller for rule in self.all if (caller := named_caller(rule.source)) is not None}

    def of(self, caller: str | None) -> tuple[Rule, ...]:
        """The rules that are about a caller, in their order."""
        return self._named.get(caller, self._unnamed)

    def match(self, request: Request) -> Rule | None:
        """The first rule that matches a request."""
        for rule in self._named.get(request.caller, self._unnamed):
            if rule.fits(request):
                return rule
        return None


NO_RULES = Rules()


class Policy(Struct, frozen=True, eq=False):
    """An AccessPolicy in the one form. `closed` says why nothing passes it: it is invalid."""

    resource: Resource
    allows: Rules
    asks: Rules
    closed: tuple[str, ...]
    reference: Reference
    # Whom `asks` are sent to: the Gateway API's `HTTPExternalAuthFilter`, defaults filled in.
    authorizer: Mapping[str, Any] | None = None
    # Whether it only asks: what no rule of `asks` selects passes.
    only_asks: bool = False

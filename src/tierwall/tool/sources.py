"""Whom a rule is about: ServiceAccounts and SPIFFE ids, compared exactly (docs/semantics.md#names-compare-exactly).

`source: {}` is no source. All members that are given must fit the caller, and the member that `type` names must be
there: a source that contradicts itself is about nobody, where implementations take it for everybody.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, TypeAlias, assert_never

from msgspec import Struct

TRUST_DOMAIN = "cluster.local"
LONGEST_ID = 2048  # bytes (SPIFFE-ID, 2.3)

# SPIFFE-ID, 2.1 and 2.2: small letters in the trust domain, no empty segments, no dots alone.
_SPIFFE_ID = re.compile(r"spiffe://[a-z0-9._-]{1,255}(?:/(?!\.{1,2}(?:/|\Z))[A-Za-z0-9._-]+)*", re.ASCII)
_MEMBERS = {"SPIFFE": "spiffe", "ServiceAccount": "serviceAccount"}


class Everybody(Struct, frozen=True):
    """Every caller, also one without an identity."""

    def matches(self, caller: str | None) -> bool:
        """Always."""
        return True

    def __str__(self) -> str:
        return "everybody"


class Identity(Struct, frozen=True):
    """The one caller with this SPIFFE id."""

    spiffe: str

    def matches(self, caller: str | None) -> bool:
        """Whether a caller is meant; None is a caller without an identity."""
        return self.spiffe == caller

    def __str__(self) -> str:
        return self.spiffe


class Nobody(Struct, frozen=True):
    """No caller, and why."""

    why: str

    def matches(self, caller: str | None) -> bool:
        """Never."""
        return False

    def __str__(self) -> str:
        return "nobody"


Source: TypeAlias = Everybody | Identity | Nobody
EVERYBODY = Everybody()


def named_caller(source: Source) -> str | None:
    """The SPIFFE id of the one caller that a source names, if it names one."""
    match source:
        case Identity(spiffe=spiffe):
            return spiffe
        case Everybody() | Nobody():
            return None
        case _:
            assert_never(source)


def service_account_id(namespace: str, name: str, trust_domain: str = TRUST_DOMAIN) -> str:
    """The SPIFFE id of a ServiceAccount."""
    return f"spiffe://{trust_domain}/ns/{namespace}/sa/{name}"


def is_spiffe_id(text: str) -> bool:
    """Whether a text is a well-formed SPIFFE id."""
    return len(text) <= LONGEST_ID and _SPIFFE_ID.fullmatch(text) is not None


def source_of(value: Mapping[str, Any] | None, namespace: str) -> Source:
    """The source of a rule in a policy of this namespace, nulls pruned."""
    if not value:
        return EVERYBODY
    given: list[str] = []
    if isinstance(value.get("spiffe"), str):
        given.append(value["spiffe"])
    account = value.get("serviceAccount")
    if isinstance(account, Mapping):
        given.append(service_account_id(account.get("namespace") or namespace, str(account.get("name", ""))))
    kind = value.get("type")
    if kind in _MEMBERS and value.get(_MEMBERS[kind]) is None:
        return Nobody(f"its type is {kind}, but it has no `{_MEMBERS[kind]}`")
    if not given:
        return Nobody("it names no caller")
    if len(set(given)) > 1:
        return Nobody(f"no caller is both {given[0]} and {given[1]}")
    return Identity(given[0])

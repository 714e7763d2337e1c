"""Whom a rule is about: ServiceAccounts and SPIFFE ids, compared exactly (docs/semantics.md#names-compare-exactly).

`source: {}` is no source. All members that are given must fit the caller, and the member that `type` names must be
there: a source that contradicts itself is about nobody, where implementations take it for everybody.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from msgspec import Struct

TRUST_DOMAIN = "cluster.local"
LONGEST_ID = 2048  # bytes (SPIFFE-ID, 2.3)

# SPIFFE-ID, 2.1 and 2.2: small letters in the trust domain, no empty segments, no dots alone.
_SPIFFE_ID = re.compile(r"spiffe://[a-z0-9._-]{1,255}(?:/(?!\.{1,2}(?:/|\Z))[A-Za-z0-9._-]+)*", re.ASCII)
_MEMBERS = {"SPIFFE": "spiffe", "ServiceAccount": "serviceAccount"}


class Source(Struct, frozen=True):
    """Everybody (no `spiffe`, no `nobody`), the one caller with this SPIFFE id, or nobody and why."""

    spiffe: str | None = None
    nobody: str = ""

    def matches(self, caller: str | None) -> bool:
        """Whether a caller is meant; None is a caller without an identity."""
        return not self.nobody and (self.spiffe is None or self.spiffe == caller)

    def __str__(self) -> str:
        return "nobody" if self.nobody else self.spiffe or "everybody"


EVERYBODY = Source()


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
        return Source(nobody=f"its type is {kind}, but it has no `{_MEMBERS[kind]}`")
    if not given:
        return Source(nobody="it names no caller")
    if len(set(given)) > 1:
        return Source(nobody=f"no caller is both {given[0]} and {given[1]}")
    return Source(given[0])

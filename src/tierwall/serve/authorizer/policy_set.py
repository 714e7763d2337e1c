"""One set of policies in force: its chain, and what it says about where admission runs.

A set is used whole or not at all: expressions that do not parse and a chain that cannot be used each make it unusable,
with every reason at once. It never changes after it was made, so that a request is judged from exactly one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator

import msgspec

from tierwall.api.algebra.chain import Chain
from tierwall.api.authorizers.cel_policies import CelPolicies, policies_of
from tierwall.api.authorizers.webhook import Webhook
from tierwall.api.model import build, members_of
from tierwall.core.diagnostics import Diagnostic, InputError
from tierwall.resources.snapshot import Snapshot
from tierwall.serve.authorizer.review_client import webhook


class PolicySet(msgspec.Struct, frozen=True, eq=False):
    """The policies of one load. `revision` is a digest of their content: equal policies have equal ones everywhere."""

    chain: Chain
    revision: str
    objects: int = 0
    policies: int = 0
    # API groups that another server serves (APIService with a service): this API server runs no admission on them.
    aggregated: frozenset[str] = frozenset()

    @property
    def asks_others(self) -> bool:
        """Whether an answer may have to wait for another server."""
        return any(isinstance(one, Webhook) for one in self.chain.members())

    def warm(self) -> Iterator[None]:
        """Make the policies ready in small steps; what is left undone is done by the first request that needs it."""
        for one in self.chain.members():
            if isinstance(one, CelPolicies):
                yield from one.warm()


def policy_set_of(snapshot: Snapshot) -> PolicySet:
    """The policies of a snapshot whose objects admission takes; InputError with everything that is wrong."""
    errors = list(_unreadable(snapshot))
    try:
        chain = build(snapshot, members_of(snapshot), webhook)
    except InputError as error:
        raise InputError((*errors, *error.diagnostics)) from None
    if errors:
        raise InputError(errors)
    return PolicySet(chain, _revision(snapshot), len(snapshot), len(policies_of(snapshot)), _aggregated(snapshot))


def _unreadable(snapshot: Snapshot) -> Iterable[Diagnostic]:
    for policy in policies_of(snapshot):
        if policy.error:
            place = policy.resource.position(("spec", "expression"))
            yield Diagnostic("TW509", policy.error, place, reference=policy.reference)


def _revision(snapshot: Snapshot) -> str:
    encode = msgspec.json.Encoder(order="deterministic").encode
    digest = hashlib.sha256()
    for one in sorted(snapshot, key=lambda one: (one.group, one.kind, one.namespace, one.name)):
        digest.update(encode([one.group, one.version, one.kind, one.namespace, one.name, one.value]))
    return digest.hexdigest()[:12]


def _aggregated(snapshot: Snapshot) -> frozenset[str]:
    return frozenset(
        group
        for one in snapshot.of_kind("apiregistration.k8s.io", "APIService")
        if one.spec.get("service") and isinstance(group := one.spec.get("group"), str) and group
    )

"""The policies in force and the sets they superseded.

A policy that cannot be used fails closed alone, and the others come into force
(docs/semantics.md#a-policy-that-cannot-be-used-fails-alone). A chain that cannot be used leaves the last good chain in
force, over the new policies; a start without one fails. A set never changes, so each request is judged from exactly one
set. Superseded sets are kept for a grace period (`superseded`).
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType

import msgspec

from tierwall.api.algebra.chain import Chain
from tierwall.api.authorizers.cel_policies import CelAuthorizer, policies_of
from tierwall.api.authorizers.webhook import WebhookAuthorizer
from tierwall.api.model import AuthorizerConfig, build_chain, configured_authorizers
from tierwall.api.reads.selectable import SelectableFields, selectable_fields
from tierwall.core.diagnostics import Diagnostic, Diagnostics, InputError
from tierwall.resources.resource import Resource
from tierwall.resources.snapshot import Snapshot
from tierwall.serve.authorizer.admitted_resources import OF_KUBERNETES, AdmittedResources, admitted_resources
from tierwall.serve.authorizer.namespace_index import NO_NAMESPACES, NamespaceIndex
from tierwall.serve.authorizer.review_client import webhook
from tierwall.serve.authorizer.superseded import SupersededSets, change_scope
from tierwall.serve.follower import Follower, Load, PreparedState


class PolicySet(msgspec.Struct, frozen=True, eq=False):
    """The policies of one load. `revision` is a digest of their content, the same for equal policies anywhere."""

    chain: Chain
    revision: str
    members: tuple[AuthorizerConfig, ...] = ()
    objects: int = 0
    policies: int = 0
    # What the admission of the API server sees.
    admitted: AdmittedResources = OF_KUBERNETES
    # Why the newest chain is not in force.
    chain_problems: tuple[Diagnostic, ...] = ()

    # What `namespaceObject` is in conditions.
    namespaces: NamespaceIndex = NO_NAMESPACES
    # The authorizers that ask other servers.
    webhooks: tuple[WebhookAuthorizer, ...] = ()
    # The fields that resources select by.
    selectable: SelectableFields = SelectableFields()

    @property
    def asks_others(self) -> bool:
        """Whether an answer may have to wait for another server."""
        return bool(self.webhooks)

    @property
    def consultations(self) -> int:
        """The number of times that answers of other servers were needed."""
        return sum(webhook.consultations for webhook in self.webhooks)

    def warm(self) -> Iterator[None]:
        """Prepare the policies in small steps. A request that needs an unprepared policy prepares it itself."""
        for member in self.chain.members():
            if isinstance(member, CelAuthorizer):
                yield from member.warm()


def policy_set_of(
    snapshot: Snapshot,
    last_good: PolicySet | None = None,
    live_namespaces: Mapping[str, Resource] = MappingProxyType({}),
) -> PolicySet:
    """Return the policies of a snapshot. The chain is its own or else the last good one; InputError without either.

    `live_namespaces` are those of the API server, as it has them at any time.
    """
    problems: tuple[Diagnostic, ...] = ()
    try:
        members = configured_authorizers(snapshot)
    except InputError as error:
        if last_good is None:
            raise
        members, problems = last_good.members, error.diagnostics
    chain = build_chain(snapshot, members, webhook)
    return PolicySet(
        chain,
        # With the last good chain the objects alone do not tell what is in force.
        _revision(snapshot, members if problems else ()),
        members,
        len(snapshot),
        len(policies_of(snapshot)),
        admitted_resources(snapshot),
        problems,
        NamespaceIndex(snapshot, live_namespaces),
        tuple(member for member in chain.members() if isinstance(member, WebhookAuthorizer)),
        selectable_fields(snapshot),
    )


def unusable_policies(snapshot: Snapshot) -> Iterator[Diagnostic]:
    """Yield a diagnostic for each policy whose expression cannot be used; admission reports the other reasons."""
    for policy in policies_of(snapshot):
        if policy.error:
            yield policy.resource.diagnostic("TW509", policy.error, ("spec", "expression"))


def _revision(snapshot: Snapshot, kept_members: tuple[AuthorizerConfig, ...]) -> str:
    encode = msgspec.json.Encoder(order="deterministic").encode
    digest = hashlib.sha256(encode(kept_members) if kept_members else b"")
    for resource in sorted(snapshot, key=lambda resource: resource.identity):
        group, kind, namespace, name = resource.identity
        digest.update(encode([group, resource.version, kind, namespace, name, resource.value]))
    return digest.hexdigest()[:12]


# Longer than the API server's default `authorizedTTL` of five minutes.
GRACE_SECONDS = 330.0
# The number of superseded sets kept at once.
MAX_RETAINED = 64


class PolicyFollower(Follower[PolicySet]):
    """Follows the policies. `clock` counts seconds; without `grace` no superseded set is kept.

    INVARIANT: `current` is replaced, never changed, and only in the event loop (`enforce`). Other threads may read it.
    """

    # Absent until the first load is in force (`begin`).
    current: PolicySet

    def __init__(self, grace: float = GRACE_SECONDS, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self.grace = grace
        self._clock = clock
        self.superseded: SupersededSets[PolicySet] = SupersededSets(clock, MAX_RETAINED)
        self.since = clock()
        # The Namespaces of the API server, where they are not among the followed objects.
        self.live_namespaces: dict[str, Resource] = {}

    @property
    def stale(self) -> tuple[Diagnostic, ...]:
        """The reasons why something of the newest objects is not in force: the whole load, or its chain."""
        return self.refusal or self.current.chain_problems

    @property
    def newest_errors(self) -> tuple[Diagnostic, ...]:
        """The errors of the newest objects, whether they are in force or not."""
        return Diagnostics(self.newest.diagnostics).errors if self.newest is not None else ()

    def prepare(self, snapshot: Snapshot) -> PreparedState[PolicySet]:
        """Build the chain of a snapshot."""
        last_good = self.current if self.in_force is not None else None
        policies = policy_set_of(snapshot, last_good, self.live_namespaces)
        return PreparedState(policies, (*policies.chain_problems, *unusable_policies(snapshot)))

    def enforce(self, load: Load[PolicySet]) -> bool:
        """Put a set in force; False if it already is."""
        policies = load.state
        assert policies is not None
        if self.in_force is not None:
            before = self.current
            if policies.revision == before.revision:
                return False
            if self.grace:
                scope = change_scope(self.in_force.snapshot, load.snapshot)
                if not scope.owners:
                    # No conditional answer can differ: Namespaces or roles changed, and these have no conditions.
                    self.current = policies
                    return True
                self.superseded.put(before, before.revision, scope, self.grace)
        self.current, self.since = policies, self._clock()
        return True

    @property
    def retained(self) -> tuple[PolicySet, ...]:
        """The superseded sets whose answers an API server may still hold, newest first."""
        return self.superseded.retained()

    @property
    def age(self) -> float:
        """Seconds since the current set came into force."""
        return self._clock() - self.since

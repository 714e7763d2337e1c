"""The policies in force and the ones they superseded.

A set of policies is used whole or not at all: expressions that do not parse and a chain that cannot be used each make
it unusable, with every reason at once. It never changes after it was made, so that a request is judged from exactly
one. A superseded set is kept for a grace period, because an API server may still hold an allowed answer of it: what
that answer was granted on has to be enforced by admission (`bridge`).
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterable, Iterator

import msgspec

from tierwall.api.algebra.chain import Chain
from tierwall.api.authorizers.cel_policies import CelAuthorizer, policies_of
from tierwall.api.authorizers.webhook import WebhookAuthorizer
from tierwall.api.model import build_chain, configured_authorizers
from tierwall.core.diagnostics import Diagnostic, InputError
from tierwall.resources.snapshot import Snapshot
from tierwall.serve.authorizer.review_client import webhook
from tierwall.serve.follower import Follower, Load, Prepared


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
        return any(isinstance(member, WebhookAuthorizer) for member in self.chain.members())

    def warm(self) -> Iterator[None]:
        """Make the policies ready in small steps; what is left undone is done by the first request that needs it."""
        for member in self.chain.members():
            if isinstance(member, CelAuthorizer):
                yield from member.warm()


def policy_set_of(snapshot: Snapshot) -> PolicySet:
    """The policies of a snapshot whose objects admission takes; InputError with everything that is wrong."""
    errors = list(_unreadable(snapshot))
    try:
        chain = _chain(snapshot)
    except InputError as error:
        raise InputError((*errors, *error.diagnostics)) from None
    if errors:
        raise InputError(errors)
    return PolicySet(chain, _revision(snapshot), len(snapshot), len(policies_of(snapshot)), _aggregated(snapshot))


def _chain(snapshot: Snapshot) -> Chain:
    return build_chain(snapshot, configured_authorizers(snapshot), webhook)


def _unreadable(snapshot: Snapshot) -> Iterable[Diagnostic]:
    for policy in policies_of(snapshot):
        if policy.error:
            place = policy.resource.position(("spec", "expression"))
            yield Diagnostic("TW509", policy.error, place, reference=policy.reference)


def _revision(snapshot: Snapshot) -> str:
    encode = msgspec.json.Encoder(order="deterministic").encode
    digest = hashlib.sha256()
    for resource in sorted(snapshot, key=lambda resource: resource.identity):
        group, kind, namespace, name = resource.identity
        digest.update(encode([group, resource.version, kind, namespace, name, resource.value]))
    return digest.hexdigest()[:12]


def _aggregated(snapshot: Snapshot) -> frozenset[str]:
    return frozenset(
        group
        for service in snapshot.of_kind("apiregistration.k8s.io", "APIService")
        if service.spec.get("service") and isinstance(group := service.spec.get("group"), str) and group
    )


# Longer than the API server's default `authorizedTTL` of five minutes.
GRACE_SECONDS = 330.0
# Superseded sets kept at once. A set may not be dropped early, so changes beyond this wait for the oldest to expire.
MOST_RETAINED = 64


class PolicyFollower(Follower[PolicySet]):
    """Follows the policies. `clock` counts seconds; without `grace` no superseded set is kept.

    INVARIANT: `current` and the retained sets are replaced, never changed, and only in the event loop (`enforce`,
    `wait`, `expire`). Other threads may look at them.
    """

    # Absent until the first load is in force (`begin`).
    current: PolicySet

    def __init__(self, grace: float = GRACE_SECONDS, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self.grace = grace
        self._clock = clock
        # With the end of its time, the oldest first.
        self._superseded: tuple[tuple[float, PolicySet], ...] = ()
        self.since = clock()

    def other_problems(self, snapshot: Snapshot) -> tuple[Diagnostic, ...]:
        """Why the chain cannot be used, beside whatever else is wrong."""
        try:
            _chain(snapshot)
        except InputError as error:
            return error.diagnostics
        return ()

    def prepare(self, snapshot: Snapshot) -> Prepared[PolicySet]:
        """Put the chain of a snapshot together."""
        return Prepared(policy_set_of(snapshot))

    def enforce(self, load: Load[PolicySet]) -> bool:
        """Put a set in force; false if it is the one in force already."""
        policies = load.state
        assert policies is not None
        now = self._clock()
        if self.good is not None:
            before = self.current
            if policies.revision == before.revision:
                return False
            if self.grace:
                # Policies that were in force twice are kept once, for the longer time.
                kept = ((end, older) for end, older in self._superseded if older.revision != before.revision)
                self._superseded = (*kept, (now + self.grace, before))
        self.current, self.since = policies, now
        return True

    @property
    def retained(self) -> tuple[PolicySet, ...]:
        """The superseded sets that an answer may still be out of, newest first."""
        superseded = self._superseded
        if not superseded:
            return ()
        now = self._clock()
        return tuple(policies for end, policies in reversed(superseded) if end > now)

    def expire(self) -> None:
        """Drop the sets whose time is over."""
        now = self._clock()
        self._superseded = tuple((end, policies) for end, policies in self._superseded if end > now)

    @property
    def wait(self) -> float:
        """Seconds until another set may be taken."""
        self.expire()
        if len(self._superseded) < MOST_RETAINED:
            return 0.0
        return max(0.0, self._superseded[0][0] - self._clock())

    @property
    def age(self) -> float:
        """Seconds since the current set came into force."""
        return self._clock() - self.since

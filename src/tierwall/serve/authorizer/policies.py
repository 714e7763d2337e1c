"""The policies in force and the sets they superseded.

A set of policies is used as a whole or not at all. An expression that does not parse, or a chain that cannot be used,
makes it unusable, and all reasons are reported at once. A set never changes, so each request is judged from exactly one
set. A superseded set is kept for a grace period, because an API server may still hold an allowed answer from it:
admission must enforce the conditions of that answer (`bridge`).
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
from tierwall.serve.follower import Follower, Load, PreparedState


class PolicySet(msgspec.Struct, frozen=True, eq=False):
    """The policies of one load. `revision` is a digest of their content, the same for equal policies anywhere."""

    chain: Chain
    revision: str
    objects: int = 0
    policies: int = 0
    # API groups served by another server (APIService with a service). This API server runs no admission for them.
    aggregated: frozenset[str] = frozenset()

    @property
    def asks_others(self) -> bool:
        """Whether an answer may have to wait for another server."""
        return any(isinstance(member, WebhookAuthorizer) for member in self.chain.members())

    def warm(self) -> Iterator[None]:
        """Prepare the policies in small steps. A request that needs an unprepared policy prepares it itself."""
        for member in self.chain.members():
            if isinstance(member, CelAuthorizer):
                yield from member.warm()


def policy_set_of(snapshot: Snapshot) -> PolicySet:
    """Return the policies of a snapshot whose objects passed admission; InputError with everything that is wrong."""
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
# The number of superseded sets kept at once. None may be dropped early, so further changes wait for the oldest to
# expire.
MAX_RETAINED = 64


class PolicyFollower(Follower[PolicySet]):
    """Follows the policies. `clock` counts seconds; without `grace` no superseded set is kept.

    INVARIANT: `current` and the retained sets are replaced, never changed, and only in the event loop (`enforce`,
    `wait`, `expire`). Other threads may read them.
    """

    # Absent until the first load is in force (`begin`).
    current: PolicySet

    def __init__(self, grace: float = GRACE_SECONDS, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self.grace = grace
        self._clock = clock
        # Each with the end of its grace period, the oldest first.
        self._superseded: tuple[tuple[float, PolicySet], ...] = ()
        self.since = clock()

    def prepare(self, snapshot: Snapshot) -> PreparedState[PolicySet]:
        """Build the chain of a snapshot."""
        return PreparedState(policy_set_of(snapshot))

    def enforce(self, load: Load[PolicySet]) -> bool:
        """Put a set in force; False if it already is."""
        policies = load.state
        assert policies is not None
        now = self._clock()
        if self.in_force is not None:
            before = self.current
            if policies.revision == before.revision:
                return False
            if self.grace:
                # Policies that were in force twice are kept once, for the longer time.
                kept = ((expiry, older) for expiry, older in self._superseded if older.revision != before.revision)
                self._superseded = (*kept, (now + self.grace, before))
        self.current, self.since = policies, now
        return True

    @property
    def retained(self) -> tuple[PolicySet, ...]:
        """The superseded sets whose answers an API server may still hold, newest first."""
        superseded = self._superseded
        if not superseded:
            return ()
        now = self._clock()
        return tuple(policies for expiry, policies in reversed(superseded) if expiry > now)

    def expire(self) -> None:
        """Drop the sets whose grace period is over."""
        now = self._clock()
        self._superseded = tuple((expiry, policies) for expiry, policies in self._superseded if expiry > now)

    @property
    def wait(self) -> float:
        """Seconds until another set may be taken."""
        self.expire()
        if len(self._superseded) < MAX_RETAINED:
            return 0.0
        return max(0.0, self._superseded[0][0] - self._clock())

    @property
    def age(self) -> float:
        """Seconds since the current set came into force."""
        return self._clock() - self.since

"""Policies, routes and ListenerSets that attach nowhere, or only partly, and why (for both planes that target).

An AccessPolicy whose backend no Gateway leads to is reported too: what it guards cannot be called, or is called on a
way that the manifests do not show.
"""

from __future__ import annotations

from collections.abc import Iterator

from tierwall.attach.attachment import Attached, attachment
from tierwall.attach.listener import parent_gateway
from tierwall.attach.place import LISTENER_SET, ROUTES, X_LISTENER_SET
from tierwall.attach.route import attach_route
from tierwall.attach.target import ACCESS_POLICIES, GATEWAY_POLICIES, attachments
from tierwall.core.diagnostics import Diagnostic
from tierwall.resources.resource import Resource, maps
from tierwall.resources.snapshot import Snapshot

NOWHERE, PARTLY, NO_PARENT = "TW301", "TW302", "TW308"


def policies(snapshot: Snapshot) -> Iterator[Diagnostic]:
    """Policies that attach to none, or only to some, of their targets."""
    for kinds in (GATEWAY_POLICIES, ACCESS_POLICIES):
        for policy in attachments(snapshot, kinds, admitted=True).policies:
            found = attachment(snapshot, policy)
            failed = [one for one in found if one.problem is not None]
            if not failed:
                continue
            if len(failed) == len(found):
                yield _nowhere(policy, failed)
            else:
                yield from (_partly(policy, one) for one in failed)


def _nowhere(policy: Resource, failed: list[Attached]) -> Diagnostic:
    first, *rest = failed
    return Diagnostic(
        NOWHERE,
        f"{policy.reference} attaches nowhere: {first.message}",
        policy.position(first.path),
        found=str(first.problem),
        hint=first.hint,
        reference=policy.reference,
        related=tuple((one.message, policy.position(one.path)) for one in rest),
    )


def _partly(policy: Resource, one: Attached) -> Diagnostic:
    words = f"{policy.reference} does not attach to one of its targets: {one.message}"
    return Diagnostic(
        PARTLY,
        words,
        policy.position(one.path),
        found=str(one.problem),
        hint=one.hint,
        reference=policy.reference,
    )


def parents(snapshot: Snapshot) -> Iterator[Diagnostic]:
    """Routes and ListenerSets with a parentRef that leads nowhere; a route may also be a child of another route."""
    for key in ROUTES:
        for route in snapshot.of_kind(*key):
            listed = list(maps(route.spec.get("parentRefs")))
            for refused in attach_route(snapshot, route)[1]:
                if listed[refused.parent].get("kind", "Gateway") in ("Gateway", "ListenerSet", "XListenerSet"):
                    yield Diagnostic(
                        NO_PARENT,
                        f"{route.reference} does not attach through parentRefs[{refused.parent}]: {refused.message}",
                        route.position(("spec", "parentRefs", refused.parent)),
                        found=refused.reason,
                        reference=route.reference,
                    )
    for key in (LISTENER_SET, X_LISTENER_SET):
        for added in snapshot.of_kind(*key):
            gateway, why = parent_gateway(snapshot, added)
            if gateway is None:
                yield Diagnostic(
                    NO_PARENT,
                    f"{added.reference} adds its listeners to no Gateway: {why}",
                    added.position(("spec", "parentRef")),
                    reference=added.reference,
                )

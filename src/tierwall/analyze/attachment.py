"""Checks that policies, routes and ListenerSets attach, for the gateway and the tool plane.

An AccessPolicy on a backend that no Gateway routes to is reported too: its backend cannot be called, or is called in a
way that the manifests do not show.
"""

from __future__ import annotations

from collections.abc import Iterator

from tierwall.attach.attachment import TargetAttachment, attachment
from tierwall.attach.backend import BackendRef, backend_refs
from tierwall.attach.delegation import EVERY_ROUTE, children, selected_routes
from tierwall.attach.listener import parent_gateway
from tierwall.attach.model import parent_problem, route_parents
from tierwall.attach.place import HTTP_ROUTE, LISTENER_SET, MODEL, ROUTES, X_LISTENER_SET
from tierwall.attach.route import attach_route
from tierwall.attach.target import ACCESS_POLICIES, GATEWAY_POLICIES, attachments
from tierwall.core.diagnostics import Diagnostic
from tierwall.core.words import join_names
from tierwall.resources.resource import Resource, list_of_maps
from tierwall.resources.snapshot import Snapshot

NOWHERE, PARTLY, NO_PARENT = "TW301", "TW302", "TW308"


def unattached_policies(snapshot: Snapshot) -> Iterator[Diagnostic]:
    """Find policies that attach to none, or only to some, of their targets."""
    for kinds in (GATEWAY_POLICIES, ACCESS_POLICIES):
        for policy in attachments(snapshot, kinds, admitted=True).policies:
            targets = attachment(snapshot, policy)
            failed = [target for target in targets if target.problem is not None]
            if not failed:
                continue
            if len(failed) == len(targets):
                yield _nowhere(policy, failed)
            else:
                for target in failed:
                    message = f"{policy.reference} does not attach to one of its targets: {target.message}"
                    yield policy.diagnostic(PARTLY, message, target.path, actual=str(target.problem), hint=target.hint)


def _nowhere(policy: Resource, failed: list[TargetAttachment]) -> Diagnostic:
    first, *rest = failed
    return policy.diagnostic(
        NOWHERE,
        f"{policy.reference} attaches nowhere: {first.message}",
        first.path,
        actual=str(first.problem),
        hint=first.hint,
        related=tuple((target.message, policy.position(target.path)) for target in rest),
    )


def unattached_routes(snapshot: Snapshot) -> Iterator[Diagnostic]:
    """Find routes, models and ListenerSets with a parentRef that does not attach. Other routes as parents are fine."""
    for key in (*ROUTES, MODEL):
        for route in snapshot.of_kind(*key):
            listed = list(list_of_maps(route.spec.get("parentRefs")))
            for refused in attach_route(snapshot, route)[1]:
                if listed[refused.parent].get("kind", "Gateway") in ("Gateway", "ListenerSet", "XListenerSet"):
                    path = ("spec", "parentRefs", refused.parent)
                    message = (
                        f"{route.reference} does not attach through parentRefs[{refused.parent}]: {refused.message}"
                    )
                    yield route.diagnostic(NO_PARENT, message, path, actual=refused.reason)
    for model in snapshot.of_kind(*MODEL):
        for index, parent in enumerate(list_of_maps(model.spec.get("parentRefs"))):
            problem = parent_problem(snapshot, model, parent) if parent in route_parents(model) else ""
            if problem:
                message = f"{model.reference} does not attach through parentRefs[{index}]: {problem}"
                yield model.diagnostic(NO_PARENT, message, ("spec", "parentRefs", index))
    for key in (LISTENER_SET, X_LISTENER_SET):
        for added in snapshot.of_kind(*key):
            gateway, why = parent_gateway(snapshot, added)
            if gateway is None:
                message = f"{added.reference} adds its listeners to no Gateway: {why}"
                yield added.diagnostic(NO_PARENT, message, ("spec", "parentRef"))


def childless_routes(snapshot: Snapshot, namespace: str | None = None) -> Iterator[Diagnostic]:
    """Find backendRefs that hand requests on to no other route; `namespace` is the only one that is known."""
    for route in snapshot.of_kind(*HTTP_ROUTE):
        for ref in backend_refs(route):
            known = namespace is None or ref.place.namespace == namespace
            if known and ref.delegates and not children(snapshot, ref):
                message = f"{route.reference} hands requests on to no route: {_why_no_child(snapshot, ref)}"
                yield route.diagnostic(NO_PARENT, message, (*ref.path, "name"))


def _why_no_child(snapshot: Snapshot, ref: BackendRef) -> str:
    """Return why a backendRef that delegates has no child."""
    namespace, name = ref.place.namespace, ref.place.name
    # A route is never its own child.
    selected = [route for route in selected_routes(snapshot, ref) if route is not ref.route]
    strangers = [str(route.reference) for route in selected if list_of_maps(route.spec.get("parentRefs"))]
    if strangers:
        return f"{join_names(strangers)} {'lists' if len(strangers) == 1 else 'list'} other parents"
    if selected:
        return f"no ReferenceGrant in namespace {namespace} permits {join_names([str(r.reference) for r in selected])}"
    key, equals, value = name.partition("=")
    if equals:
        return f"no HTTPRoute in namespace {namespace} has the label `{key}={value}`"
    if name == EVERY_ROUTE:
        return f"there is no other HTTPRoute in namespace {namespace}"
    return f"HTTPRoute {namespace}/{name} not found"

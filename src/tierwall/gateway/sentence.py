"""The words of a gateway answer: what is in force, why something else is not, and notes about the place.

Notes tell readers of effective settings about doubtful places, refused policies and native settings. They do not affect
the merge. In the gateway, native filters, timeouts and retries of a route rule beat policies on the same rule, but they
do not belong to a policy and do not set any of our fields (docs/gateway.md#settled-here).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from tierwall.attach.acceptance import broken_expressions, left_out_settings
from tierwall.attach.backend import backend_refs
from tierwall.attach.delegation import accepts_parent, selected_routes
from tierwall.attach.listener import parent_gateway
from tierwall.attach.meant_targets import may_mean
from tierwall.attach.model import served_models
from tierwall.attach.place import MODEL, SERVICE, Place
from tierwall.attach.reach import RequestPath, gateway_graph
from tierwall.attach.route import attach_route
from tierwall.attach.section import rules
from tierwall.attach.target import GATEWAY_POLICIES, attachments
from tierwall.core.answer import Reason
from tierwall.core.reference import Reference
from tierwall.core.words import join_names
from tierwall.gateway.decide import Candidate, LosingCandidate
from tierwall.gateway.detail import GatewayDetail
from tierwall.gateway.model.conditional import RequestFacts, entry_without_part, missing_facts
from tierwall.gateway.model.fields import Profile, WrittenField, unread_fields
from tierwall.gateway.model.places import RequestPlace
from tierwall.resources.once import per_snapshot
from tierwall.resources.resource import Resource, list_of_maps, nested_map
from tierwall.resources.snapshot import Snapshot
from tierwall.resources.validity import is_understood, is_valid

# For a list that sets nothing, so that the next level counts; and for a list that has already won the field.
SELECTS_NOTHING = "no entry of its conditional list is selected"
WINS_AND_SELECTS_NOTHING = "its conditional list wins and selects no entry: the field is not set"
# For a list with conditions on facts that the question does not give.
DEPENDS = "depends on the request"
UNLESS = "counts unless a condition before it holds"

# For `traffic` on an InferencePool.
UNREAD = "no request looks for traffic settings at an InferencePool"
# For what only the published precedence knows.
UNREAD_BY_DATA_PLANE = "agentgateway does not look for it there"

# What the winner has over the loser, by the loser's reason.
_LESS_SPECIFIC, _LOCKED_BY_OVERRIDE, _LOSES_TIE = Reason.LESS_SPECIFIC, Reason.LOCKED_BY_OVERRIDE, Reason.LOSES_TIE
BEATS = {
    _LESS_SPECIFIC: "is more specific",
    _LOCKED_BY_OVERRIDE: "has Override",
    _LOSES_TIE: "comes first at the same level",
    Reason.LEAST_SPECIFIC_KEPT: "is less specific, which counts for this field",
}

# Native settings of a route rule, and the policy field that sets the same.
NATIVE = {"timeouts": "traffic.timeouts", "retry": "traffic.retry"}
NATIVE_FILTERS = {
    "RequestHeaderModifier": "traffic.headerModifiers.request",
    "ResponseHeaderModifier": "traffic.headerModifiers.response",
    "CORS": "traffic.cors",
    "ExternalAuth": "traffic.extAuth",
}


def sentence(detail: GatewayDetail) -> str:
    """Say which settings are in force at the place, and which objects set them."""
    fields: dict[Reference, list[str]] = {}
    for path, setting in detail.effective.items():
        for source in setting.sources:
            fields.setdefault(source, []).append(path)
    words = f"At {detail.place}, {_in_force(detail)}"
    if fields:
        words += ": " + "; ".join(f"{source} sets {join_names(paths, None)}" for source, paths in fields.items())
    if detail.conflicts:
        words += f"; two policies of equal precedence set {join_names(detail.conflicts, None)}"
    return words


def summary(detail: GatewayDetail) -> str:
    """Say how many settings are in force at the place: a headline above the settings themselves."""
    return f"At {detail.place}: {_in_force(detail)}."


def _in_force(detail: GatewayDetail) -> str:
    count = len(detail.effective)
    settings = "1 setting is" if count == 1 else f"{count or 'no'} settings are"
    return f"{settings} in force (profile {detail.profile}, {detail.phase})"


def winning_note(candidate: Candidate, facts: RequestFacts, profile: Profile, *, locks: bool) -> str | None:
    """Describe how an object in force was selected and whether it locks the field; None if there is nothing to say."""
    missing = missing_facts(candidate.written, facts, profile, candidate.entry)
    if not candidate.has_value:
        wins = "its conditional list wins, and may select no entry"
        return _depending(wins, missing) if missing else WINS_AND_SELECTS_NOTHING
    words = []
    if candidate.entry is not None:
        entry = f"entry {candidate.entry} of its conditional list"
        words.append(_depending(f"{entry} {UNLESS}", missing) if missing else f"{entry} is selected")
    if locks:
        words.append("has Override, so nothing more specific counts")
    return "; ".join(words) or None


def unselected_note(written: WrittenField, facts: RequestFacts, profile: Profile) -> str:
    """Say why a conditional list sets nothing: no entry is selected as far as is known, or the entry lacks the part."""
    part = written.field.part
    if part and profile == "agentgateway":
        return f"no entry of its conditional list has `{part}`"
    number = entry_without_part(written, facts)
    missing = missing_facts(written, facts, profile, number)
    if number is not None:
        entry = f"entry {number} of its conditional list"
        lacks = f"has no `{part}`"
        selected = f"{entry}, which is selected, {lacks}"
        return _depending(f"{entry} {lacks}, and {UNLESS}", missing) if missing else selected
    return _depending("no entry is certain", missing) if missing else SELECTS_NOTHING


def _depending(words: str, missing: tuple[str, ...]) -> str:
    """Say that a list depends on the request, and which facts the question does not give."""
    return f"{DEPENDS}: {words}; the question does not give {join_names([f'`{fact}`' for fact in missing])}"


def losing_note(loser: LosingCandidate, profile: Profile) -> str:
    """Say why another object counts instead."""
    if loser.reason is _LESS_SPECIFIC:
        return f"{loser.winner_level} is more specific"
    if loser.reason is _LOCKED_BY_OVERRIDE:
        return f"{loser.winner.source} ({loser.winner_level}) has Override"
    if loser.reason is _LOSES_TIE:
        return f"{loser.winner.source} {seniority_phrase(loser.winner.resource, loser.candidate.resource)}"
    return f"{profile} keeps the least specific value of this field"


def seniority_phrase(winner: Resource, loser: Resource) -> str:
    """Say why one object comes before another."""
    older = winner.seniority[:2] != loser.seniority[:2]
    return "is older" if older else "is as old and comes first by name"


def notes(snapshot: Snapshot, place: RequestPlace) -> Iterator[str]:
    """Yield the notes about a place."""
    if place.backend is not None and Place.of(place.backend).key == MODEL:
        inline = [name for name in ("authorization", "headers") if name in nested_map(place.backend.spec, "policies")]
        if inline:
            yield f"{place.backend.reference} has its own {join_names(inline, None)}, which no policy can set"
    if place.backend is not None:
        for policy in attachments(snapshot, GATEWAY_POLICIES, admitted=True).at(Place.of(place.backend)):
            if unread := unread_fields(policy):
                names = join_names([written.field.path for written in unread], None)
                yield f"{names} of {policy.reference} has no effect: {UNREAD}"
    yield from _doubtful(snapshot, place)
    yield from _refused(snapshot, place)
    yield from _broken(snapshot, place)
    yield from _native(place)


def _doubtful(snapshot: Snapshot, place: RequestPlace) -> Iterator[str]:
    if place.listener_set is not None and place.gateway is not None:
        gateway, why = parent_gateway(snapshot, place.listener_set)
        if gateway is not place.gateway:
            words = f"it is attached to {gateway.reference}" if gateway is not None else why
            yield f"{place.listener_set.reference} adds no listener to {place.gateway.reference}: {words}"
    yield from _undelegated(snapshot, place)
    outermost = place.parents[0].route if place.parents else place.route
    if outermost is not None and place.gateway is not None:
        owner = place.listener_set or place.gateway
        attachments_here = [
            attached for attached in attach_route(snapshot, outermost)[0] if attached.gateway is place.gateway
        ]
        if not attachments_here:
            yield _not_attached(snapshot, outermost, place.gateway)
        elif place.listener is not None and not any(
            attached.listener.owner is owner and attached.listener.name == place.listener.name
            for attached in attachments_here
        ):
            yield f"{outermost.reference} is not attached to {place.listener}"
    if place.backend is None or place.route is None or place.rule is None:
        return
    target = Place.of(place.backend)
    refs = [ref for ref in backend_refs(place.route) if ref.rule == place.rule and ref.place == target]
    where = f"rule {place.rule_label} of {place.route.reference}"
    is_served = target.key == MODEL and place.backend in served_models(snapshot, place.route, place.rule)
    if not refs and not is_served:
        yield f"{where} " + ("does not serve" if target.key == MODEL else "has no backendRef to") + f" {target}"
    for ref in refs:
        if target.key == SERVICE and "policies" in ref.value and str(ref.port) != place.section:
            yield f"{where} has inline policies for port {ref.port} of {target}, which the question does not ask about"


def _undelegated(snapshot: Snapshot, place: RequestPlace) -> Iterator[str]:
    """Say which of the named parents does not delegate to the route after it."""
    routes = [*(parent.route for parent in place.parents), *([place.route] if place.route is not None else [])]
    for parent, child in zip(place.parents, routes[1:], strict=False):
        refs = [ref for ref in backend_refs(parent.route) if ref.rule == parent.rule and ref.delegates]
        where = f"rule {parent.label} of {parent.route.reference}"
        if not any(child in selected_routes(snapshot, ref) for ref in refs):
            yield f"{where} does not delegate to {child.reference}"
        elif not accepts_parent(snapshot, child, parent.route):
            has_parents = bool(list_of_maps(child.spec.get("parentRefs")))
            why = "is not among its parentRefs" if has_parents else "has no ReferenceGrant there"
            yield f"{child.reference} does not accept {where} as its parent: {parent.route.reference} {why}"


def _not_attached(snapshot: Snapshot, route: Resource, gateway: Resource) -> str:
    delegating = sorted({str(path.parents[-1].route.reference) for path in _paths_to(snapshot, route, gateway)})
    if delegating:
        return (
            f"{route.reference} is reached through {join_names(delegating, 3)}, whose policies count too:"
            " name the chain in `parents` (`--parent`)"
        )
    return f"the parentRefs of {route.reference} do not attach it to {gateway.reference}"


def _paths_to(snapshot: Snapshot, route: Resource, gateway: Resource) -> Iterator[RequestPath]:
    """Yield the paths of delegation from a Gateway to a route."""
    if gateway_graph(snapshot).gateways(Place.of(route)):
        paths = gateway_graph(snapshot).request_paths()
        yield from (path for path in paths if path.route is route and path.gateway is gateway and path.parents)


def _refused(snapshot: Snapshot, place: RequestPlace) -> Iterator[str]:
    places = [Place.of(resource) for resource in place.objects]
    for policy in _refused_policies(snapshot):
        if may_mean(snapshot, policy, places, whole=True):
            why = (
                "uses fields or values that Tierwall does not know"
                if is_valid(snapshot, policy)
                else "is refused by admission"
            )
            closed = "where Tierwall serves the Gateway, requests to its targets are answered with 500"
            yield f"{policy.reference} {why} and takes no part; {closed}"
    for resource in (place.route, place.backend):
        if resource is not None and not is_valid(snapshot, resource):
            yield f"{resource.reference} is refused by admission; its inline policies are shown anyway"


@per_snapshot
def _refused_policies(snapshot: Snapshot) -> tuple[Resource, ...]:
    """Return the policies that take no part in merges."""
    policies = attachments(snapshot, GATEWAY_POLICIES, admitted=False).policies
    return tuple(policy for policy in policies if not is_understood(snapshot, policy))


def _broken(snapshot: Snapshot, place: RequestPlace) -> Iterator[str]:
    """Say what becomes of settings with a broken expression, in the words of the policy's status."""
    targets = {Place.of(resource) for resource in place.objects}
    for policy, places in _broken_policies(snapshot):
        if targets.isdisjoint(places):
            continue
        for broken in broken_expressions(policy):
            where = ".".join(map(str, broken.path[1:]))
            is_left_out = broken.setting in left_out_settings(policy)
            effect = "the setting is left out" if is_left_out else "the setting counts, and the expression always fails"
            yield f"`{where}` of {policy.reference} is not a valid {broken.expected}: {effect}"


@per_snapshot
def _broken_policies(snapshot: Snapshot) -> tuple[tuple[Resource, frozenset[Place]], ...]:
    """Return the policies with broken expressions, each with the objects it targets."""
    index = attachments(snapshot, GATEWAY_POLICIES, admitted=True)
    return tuple(
        (policy, frozenset(target.place.whole for target in index.of(policy)))
        for policy in index.policies
        if broken_expressions(policy)
    )


def native_settings(rule: Mapping[str, Any]) -> dict[str, str]:
    """Return the fields that a route rule sets by itself, each with what sets it."""
    native = {field: f"`{key}`" for key, field in NATIVE.items() if rule.get(key) is not None}
    for rule_filter in list_of_maps(rule.get("filters")):
        kind = rule_filter.get("type")
        if isinstance(kind, str) and kind in NATIVE_FILTERS:
            native[NATIVE_FILTERS[kind]] = f"`{kind}` filter"
    return native


def _native(place: RequestPlace) -> Iterator[str]:
    for route_rule in (*place.parents, *([place.route_rule] if place.route_rule is not None else [])):
        where = f"rule {route_rule.label} of {route_rule.route.reference}"
        for field, setting in native_settings(rules(route_rule.route)[route_rule.rule]).items():
            yield (
                f"{where} has its own {setting}, which beats {field} of policies on the route and on less specific"
                " levels, unless they have Override"
            )

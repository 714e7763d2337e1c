"""The words of a gateway answer: what is in force, why something else is not, and notes about the place.

Notes say what a reader of effective settings should know beside them: doubtful places, refused policies, native
settings. They change no merge. Native filters, timeouts and retries of a route rule beat policies on the same rule in
the gateway, but they belong to no policy and set none of our fields (docs/gateway.md#settled-here).
"""

from __future__ import annotations

from collections.abc import Iterator

from tierwall.attach.backend import backend_refs
from tierwall.attach.listener import parent_gateway
from tierwall.attach.place import SERVICE, Place
from tierwall.attach.route import attach_route
from tierwall.attach.section import rules
from tierwall.attach.target import GATEWAY_POLICIES, attachments
from tierwall.core.answer import Reason
from tierwall.core.reference import Reference
from tierwall.core.words import join_names
from tierwall.gateway.decide import Candidate, LosingCandidate
from tierwall.gateway.detail import GatewayDetail
from tierwall.gateway.model.fields import Profile
from tierwall.gateway.model.places import RequestPlace
from tierwall.resources.once import per_snapshot
from tierwall.resources.resource import Resource, list_of_maps
from tierwall.resources.snapshot import Snapshot
from tierwall.resources.validity import is_understood, is_valid

# A list that sets nothing, so that the next level counts; and one that has won the field already.
SELECTS_NOTHING = "no entry of its conditional list is selected"
WINS_AND_SELECTS_NOTHING = "its conditional list wins and selects no entry: the field is not set"

# What the object that beats another one does, by the reason why the other does not count.
_LESS_SPECIFIC, _LOCKED_BY_OVERRIDE, _LOSES_TIE = Reason.LESS_SPECIFIC, Reason.LOCKED_BY_OVERRIDE, Reason.LOSES_TIE
BEATS = {
    _LESS_SPECIFIC: "is more specific",
    _LOCKED_BY_OVERRIDE: "has Override",
    _LOSES_TIE: "comes first at the same level",
}

# What a rule of a route may say itself, and the field of a policy that says the same.
NATIVE = {"timeouts": "traffic.timeouts", "retry": "traffic.retry"}
NATIVE_FILTERS = {
    "RequestHeaderModifier": "traffic.headerModifiers.request",
    "ResponseHeaderModifier": "traffic.headerModifiers.response",
    "CORS": "traffic.cors",
    "ExternalAuth": "traffic.extAuth",
}


def sentence(detail: GatewayDetail) -> str:
    """Which settings are in force at the place, and who set them."""
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
    """How many settings are in force at the place; a headline for those who show the settings below it."""
    return f"At {detail.place}: {_in_force(detail)}."


def _in_force(detail: GatewayDetail) -> str:
    count = len(detail.effective)
    settings = "1 setting is" if count == 1 else f"{count or 'no'} settings are"
    return f"{settings} in force (profile {detail.profile}, {detail.phase})"


def winning_note(candidate: Candidate, *, locks: bool) -> str | None:
    """What is worth saying about an object that is in force."""
    if not candidate.sets:
        return WINS_AND_SELECTS_NOTHING
    words = []
    if candidate.entry is not None:
        words.append(f"entry {candidate.entry} of its conditional list is selected")
    if locks:
        words.append("has Override, so nothing more specific counts")
    return "; ".join(words) or None


def losing_note(lost: LosingCandidate, profile: Profile) -> str:
    """Why another object counts instead."""
    if lost.reason is _LESS_SPECIFIC:
        return f"{lost.winner_level} is more specific"
    if lost.reason is _LOCKED_BY_OVERRIDE:
        return f"{lost.winner.source} ({lost.winner_level}) has Override"
    if lost.reason is _LOSES_TIE:
        return f"{lost.winner.source} {seniority_phrase(lost.winner.resource, lost.candidate.resource)}"
    return f"{profile} keeps the least specific value of this field"


def seniority_phrase(winner: Resource, loser: Resource) -> str:
    """What puts one object before another."""
    older = winner.seniority[:2] != loser.seniority[:2]
    return "is older" if older else "is as old and comes first by name"


def notes(snapshot: Snapshot, asked: RequestPlace) -> Iterator[str]:
    """Sentences about the place."""
    yield from _doubtful(snapshot, asked)
    yield from _refused(snapshot, asked)
    yield from _native(asked)


def _doubtful(snapshot: Snapshot, asked: RequestPlace) -> Iterator[str]:
    if asked.listener_set is not None and asked.gateway is not None:
        gateway, why = parent_gateway(snapshot, asked.listener_set)
        if gateway is not asked.gateway:
            words = f"it is attached to {gateway.reference}" if gateway is not None else why
            yield f"{asked.listener_set.reference} adds no listener to {asked.gateway.reference}: {words}"
    if asked.route is not None and asked.gateway is not None:
        on = attach_route(snapshot, asked.route)[0]
        owner = asked.listener_set or asked.gateway
        here = [attached for attached in on if attached.gateway is asked.gateway]
        if not here:
            yield f"{asked.route.reference} is not attached to {asked.gateway.reference} by its own parentRefs"
        elif asked.listener is not None and not any(
            attached.listener.owner is owner and attached.listener.name == asked.listener.name for attached in here
        ):
            yield f"{asked.route.reference} is not attached to {asked.listener}"
    if asked.backend is None or asked.route is None or asked.rule is None:
        return
    place = Place.of(asked.backend)
    refs = [ref for ref in backend_refs(asked.route) if ref.rule == asked.rule and ref.place == place]
    where = f"rule {asked.rule_label} of {asked.route.reference}"
    if not refs:
        yield f"{where} has no backendRef to {place}"
    for ref in refs:
        if place.key == SERVICE and "policies" in ref.value and str(ref.port) != asked.section:
            yield f"{where} has inline policies for port {ref.port} of {place}, which the question does not ask about"


def _refused(snapshot: Snapshot, asked: RequestPlace) -> Iterator[str]:
    objects = (asked.gateway, asked.listener_set, asked.route, asked.backend)
    here = {Place.of(resource) for resource in objects if resource is not None}
    for policy, places in _refused_policies(snapshot):
        if not here.isdisjoint(places):
            why = "says what Tierwall does not know" if is_valid(snapshot, policy) else "is refused by admission"
            yield f"{policy.reference} {why} and takes no part"
    for resource in (asked.route, asked.backend):
        if resource is not None and not is_valid(snapshot, resource):
            yield f"{resource.reference} is refused by admission; its inline policies are shown all the same"


@per_snapshot
def _refused_policies(snapshot: Snapshot) -> tuple[tuple[Resource, frozenset[Place]], ...]:
    """The policies that take no part in merges, each with the objects that it targets."""
    index = attachments(snapshot, GATEWAY_POLICIES, admitted=False)
    return tuple(
        (policy, frozenset(target.place.whole for target in index.of(policy)))
        for policy in index.policies
        if not is_understood(snapshot, policy)
    )


def _native(asked: RequestPlace) -> Iterator[str]:
    if asked.route is None or asked.rule is None:
        return
    rule = rules(asked.route)[asked.rule]
    native = [(f"`{key}`", field) for key, field in NATIVE.items() if rule.get(key) is not None]
    for item in list_of_maps(rule.get("filters")):
        kind = item.get("type")
        if isinstance(kind, str) and kind in NATIVE_FILTERS:
            native.append((f"`{kind}` filter", NATIVE_FILTERS[kind]))
    for word, field in dict.fromkeys(native):
        yield (
            f"rule {asked.rule_label} of {asked.route.reference} has its own {word}, which beats {field} of policies"
            " on the route and all that is less specific"
        )

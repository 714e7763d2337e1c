"""Find whether a policy attaches to each of its targets, or why not (docs/gateway.md#where-a-policy-attaches)."""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from typing import NamedTuple

from tierwall.attach.closing import GUARDED
from tierwall.attach.place import SERVICE, Place
from tierwall.attach.reach import gateway_graph
from tierwall.attach.section import WORDS, has_section, sections
from tierwall.attach.target import ACCESS_POLICIES, TargetEntry, entries, resolve
from tierwall.core.diagnostics import near_miss
from tierwall.resources.once import per_snapshot
from tierwall.resources.resource import Resource
from tierwall.resources.snapshot import Snapshot


class AttachmentProblem(StrEnum):
    """The reasons why a policy does not attach to a target."""

    WRONG_KIND = "wrong kind"
    NO_OBJECT = "missing object"
    NO_SECTION = "missing section"
    NOTHING_SELECTED = "nothing selected"
    NOT_REACHED = "not reachable from any Gateway"

    @property
    def is_missing(self) -> bool:
        """Whether the target itself does not exist."""
        return self not in (AttachmentProblem.NOT_REACHED, AttachmentProblem.WRONG_KIND)


class TargetAttachment(NamedTuple):
    """One target: the Gateways that lead to it, or the problem with a message and a hint.

    `place` is None only if a selector selects nothing.
    """

    place: Place | None
    path: tuple[str | int, ...]
    gateways: tuple[Place, ...] = ()
    problem: AttachmentProblem | None = None
    message: str = ""
    hint: str = ""


@per_snapshot
def attachment(snapshot: Snapshot, policy: Resource) -> tuple[TargetAttachment, ...]:
    """Return the attachment of a policy to each of its targets, each place once."""
    by_place: dict[Place | tuple[str | int, ...], TargetAttachment] = {}
    for entry in entries(policy):
        for attached in _entry(snapshot, policy, entry):
            by_place.setdefault(attached.place or attached.path, attached)
    return tuple(by_place.values())


def _entry(snapshot: Snapshot, policy: Resource, entry: TargetEntry) -> Iterator[TargetAttachment]:
    targets = resolve(snapshot, policy, entry)
    if not targets:
        message = f"no {entry.kind} matching selector found in namespace {policy.namespace}"
        yield TargetAttachment(None, entry.path, problem=AttachmentProblem.NOTHING_SELECTED, message=message)
    for target in targets:
        place, resource = target.place, target.resource
        name = f"{place.kind} {place.namespace}/{place.name}"
        if (policy.group, policy.kind) in ACCESS_POLICIES and place.key not in GUARDED:
            message = f"expected a Gateway or an XBackend as target, found {name} of group `{place.group}`"
            yield TargetAttachment(place, target.path, (), AttachmentProblem.WRONG_KIND, message)
        elif resource is None:
            hint = _other_object(snapshot, place)
            yield TargetAttachment(place, target.path, (), AttachmentProblem.NO_OBJECT, f"{name} not found", hint)
        elif not has_section(snapshot, resource, place):
            yield TargetAttachment(
                place, target.path, (), AttachmentProblem.NO_SECTION, *_no_section(resource, place, name)
            )
        elif not (gateways := gateway_graph(snapshot).gateways(place)):
            message = f"{name} is not attached to any Gateway"
            if place.key == SERVICE and gateway_graph(snapshot).gateways(place.whole):
                message = f"no route or policy refers to port {place.section} of {name}"
            yield TargetAttachment(place, target.path, (), AttachmentProblem.NOT_REACHED, message)
        else:
            yield TargetAttachment(place, target.path, gateways)


def _no_section(resource: Resource, place: Place, name: str) -> tuple[str, str]:
    if place.port or place.key == SERVICE:
        known = ", ".join(sections(resource)) if place.key == SERVICE else ""
        return f"port {place.port or place.section} not found in {name}", f"it has {known}" if known else ""
    known_names = sections(resource)
    hint = near_miss(place.section, known_names)
    if not hint:
        word = WORDS.get(place.key, "section")
        hint = f"use one of its {word}s: {', '.join(known_names)}" if known_names else f"it has no {word} with a name"
    return f'sectionName "{place.section}" not found in {name}', hint


def _other_object(snapshot: Snapshot, place: Place) -> str:
    here = [resource.name for resource in snapshot.in_namespace(*place.key, place.namespace)]
    hint = near_miss(place.name, here)
    if hint:
        return hint
    elsewhere = sorted(resource.namespace for resource in snapshot.of_kind(*place.key) if resource.name == place.name)
    return f"put the policy into namespace {elsewhere[0]}, where its target is" if elsewhere else ""

"""The statuses of policies as text and as JSON: what `status` prints.

docs/gateway.md#status, docs/network.md#status.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

from tierwall.attach.status import MAX_ANCESTORS, AncestorRef, PolicyStatus, StatusCondition, entries_of_others
from tierwall.render.formats import View
from tierwall.render.json import items_document
from tierwall.resources.resource import Resource, list_of_maps, nested_map

if TYPE_CHECKING:
    from tierwall.analyze.statuses import AnyStatus

# The time of a condition whose status is new: a pure function cannot know it.
NO_TIME = "1970-01-01T00:00:00Z"
# The conditions of an object before, by type.
_OldConditions: TypeAlias = Mapping[str, Mapping[str, Any]]


def text(statuses: Iterable[AnyStatus], view: View) -> Iterator[str]:
    """Write the status of each policy, with an empty line between policies."""
    for number, status in enumerate(statuses):
        if number:
            yield ""
        yield from status_lines(status)


def status_lines(status: AnyStatus) -> Iterator[str]:
    """Write the policy, each ancestor if it has any, and one line for each condition."""
    yield str(status.policy.reference)
    if not isinstance(status, PolicyStatus):
        yield from _condition_lines(status.conditions, "  ", 23)
        return
    for ancestor in status.ancestors:
        ref = ancestor.ref
        yield f"  {ref.kind}/{ref.namespace}/{ref.name}" if ref.namespace else f"  {ref.name}"
        yield from _condition_lines(ancestor.conditions, "    ", 13)
    if not status.ancestors:
        is_full = len(entries_of_others(status.policy)) >= MAX_ANCESTORS
        yield "  other controllers leave no room" if is_full else "  no target that could be read"


def _condition_lines(conditions: Iterable[StatusCondition], indent: str, width: int) -> Iterator[str]:
    for condition in conditions:
        first, *rest = condition.message.split("\n")
        lead = f"{indent}{condition.type:<{width}} {condition.status!s:<6} {condition.reason:<23} "
        yield lead + first
        yield from (f"{'':<{len(lead)}}{continued}" for continued in rest)


def document(statuses: Iterable[AnyStatus], view: View) -> dict[str, Any]:
    """Return the document of `status -o json`."""
    return items_document(map(status_document, statuses), view)


def status_document(status: AnyStatus) -> dict[str, Any]:
    """Return the policy with nothing but its status, as a controller would apply it.

    A condition that did not change keeps its time from the status of the object, and what other controllers wrote
    stays.
    """
    policy = status.policy
    stored = nested_map(policy.value, "status")
    namespace = {"namespace": policy.namespace} if policy.namespace else {}
    whole = {
        "apiVersion": policy.api_version,
        "kind": policy.kind,
        "metadata": {**namespace, "name": policy.name},
    }
    if not isinstance(status, PolicyStatus):
        before = _by_type(stored)
        ours = {condition.type for condition in status.conditions}
        conditions = [dict(condition) for kind, condition in before.items() if kind not in ours]
        conditions += [_condition_document(policy, condition, before) for condition in status.conditions]
        return whole | {"status": {"conditions": conditions}}
    before_of = {
        tuple(sorted(ancestor["ancestorRef"].items())): _by_type(ancestor)
        for ancestor in list_of_maps(stored.get("ancestors"))
        if _is_reference(ancestor.get("ancestorRef")) and ancestor.get("controllerName") == status.controller
    }
    ancestors = [dict(entry) for entry in entries_of_others(policy)]
    for ancestor in status.ancestors:
        ref = _ref(ancestor.ref)
        before = before_of.get(tuple(sorted(ref.items())), {})
        conditions = [_condition_document(policy, condition, before) for condition in ancestor.conditions]
        ancestors.append({"ancestorRef": ref, "controllerName": status.controller, "conditions": conditions})
    return whole | {"status": {"ancestors": ancestors}}


def _by_type(holder: Mapping[str, Any]) -> _OldConditions:
    conditions = list_of_maps(holder.get("conditions"))
    return {condition["type"]: condition for condition in conditions if isinstance(condition.get("type"), str)}


def _condition_document(policy: Resource, condition: StatusCondition, before: _OldConditions) -> dict[str, Any]:
    word = "True" if condition.status else "False"
    old = before.get(condition.type, {})
    document: dict[str, Any] = {
        "type": condition.type,
        "status": word,
        "reason": condition.reason,
        "message": condition.message,
    }
    generation = policy.metadata.get("generation")
    if type(generation) is int:
        document["observedGeneration"] = generation
    time = old.get("lastTransitionTime", NO_TIME) if old.get("status") == word else NO_TIME
    return document | {"lastTransitionTime": time}


def _ref(ref: AncestorRef) -> dict[str, str]:
    namespace = {"namespace": ref.namespace} if ref.namespace else {}
    return {"group": ref.group, "kind": ref.kind, **namespace, "name": ref.name}


def _is_reference(value: object) -> bool:
    return isinstance(value, dict) and all(isinstance(text, str) for text in value.values())

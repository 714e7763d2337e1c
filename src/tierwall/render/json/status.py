"""The status of a policy in Gateway API form (docs/gateway.md#status)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from tierwall.attach.status import AncestorRef, Condition, PolicyStatus

# A condition whose status was not there before has no time that a pure function could know.
NO_TIME = "1970-01-01T00:00:00Z"


def status_document(status: PolicyStatus) -> dict[str, Any]:
    """The policy with the status alone, as a controller would apply it.

    A condition keeps its time from the status that the object has, as controllers do, if that says the same.
    """
    policy = status.policy
    before = {
        (tuple(sorted(ancestor["ancestorRef"].items())), condition["type"]): condition
        for ancestor in _maps(policy.value.get("status"), "ancestors")
        if _is_reference(ancestor.get("ancestorRef"))
        for condition in _maps(ancestor, "conditions")
        if isinstance(condition.get("type"), str)
    }
    generation = policy.metadata.get("generation")

    def condition_document(ref: Mapping[str, str], condition: Condition) -> dict[str, Any]:
        word = "True" if condition.status else "False"
        old = before.get((tuple(sorted(ref.items())), condition.type), {})
        document: dict[str, Any] = {
            "type": condition.type,
            "status": word,
            "reason": condition.reason,
            "message": condition.message,
        }
        if type(generation) is int:
            document["observedGeneration"] = generation
        time = old.get("lastTransitionTime", NO_TIME) if old.get("status") == word else NO_TIME
        return document | {"lastTransitionTime": time}

    ancestors = []
    for ancestor in status.ancestors:
        ref = _ref(ancestor.ref)
        conditions = [condition_document(ref, condition) for condition in ancestor.conditions]
        ancestors.append({"ancestorRef": ref, "controllerName": status.controller, "conditions": conditions})
    return {
        "apiVersion": policy.api_version,
        "kind": policy.kind,
        "metadata": {"namespace": policy.namespace, "name": policy.name},
        "status": {"ancestors": ancestors},
    }


def _ref(ref: AncestorRef) -> dict[str, str]:
    namespace = {"namespace": ref.namespace} if ref.namespace else {}
    return {"group": ref.group, "kind": ref.kind, **namespace, "name": ref.name}


def _is_reference(value: object) -> bool:
    return isinstance(value, dict) and all(isinstance(text, str) for text in value.values())


def _maps(value: object, key: str) -> Iterator[Mapping[str, Any]]:
    listed = value.get(key) if isinstance(value, dict) else None
    yield from (item for item in (listed if isinstance(listed, list) else ()) if isinstance(item, dict))

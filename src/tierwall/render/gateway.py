"""What only a gateway answer has, as JSON (docs/reference/decision-document.md#keys-of-one-plane)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec

from tierwall.attach.status import AncestorRef, Condition, PolicyStatus
from tierwall.core.answer import Reason, Step
from tierwall.gateway.detail import FieldDetail, GatewayDetail, ProfileDifference, Setter, Setting
from tierwall.render.formats import View
from tierwall.render.json import items_document, source_document

# A condition whose status was not there before has no time that a pure function could know.
NO_TIME = "1970-01-01T00:00:00Z"


def detail_document(detail: GatewayDetail) -> dict[str, Any]:
    """The settings in force, who set them and whom they beat."""
    return {
        "place": detail.place,
        "profile": detail.profile,
        "phase": detail.phase,
        "effective": {path: setting_document(setting) for path, setting in detail.effective.items()},
        "conflicts": list(detail.conflicts),
        "fields": [_field(field) for field in detail.fields],
        "profilesDiffer": [_difference(difference) for difference in detail.profiles_differ],
        "notes": list(detail.notes),
    }


def setting_document(setting: Setting) -> dict[str, Any]:
    """`{value, from}`; the value is a copy, since the setting's own belongs to the object that set it."""
    return {"value": msgspec.to_builtins(setting.value), "from": setting.written_from}


def _field(field: FieldDetail) -> dict[str, Any]:
    setting = setting_document(field.setting) if field.setting is not None else {"value": None, "from": None}
    document: dict[str, Any] = {
        "field": field.field,
        **setting,
        "set": [_setter(setter) for setter in field.set_by],
        "over": [_where(step) | {"why": step.note} | _source(step) for step in field.over],
    }
    return document | ({"conflict": True} if field.conflict else {})


def _setter(setter: Setter) -> dict[str, Any]:
    document = _where(setter.step)
    if setter.override:
        document["inheritance"] = "Override"
    if setter.conditional:
        document["entry"] = setter.entry
    if setter.step.reason is Reason.NO_ENTRY_SELECTED:
        document["note"] = setter.step.note
    return document | _source(setter.step)


def _difference(difference: ProfileDifference) -> dict[str, Any]:
    docs, agentgateway = difference.docs, difference.agentgateway
    document: dict[str, Any] = {
        "field": difference.field,
        "docs": setting_document(docs) if docs is not None else None,
        "agentgateway": setting_document(agentgateway) if agentgateway is not None else None,
    }
    if difference.disputed:
        document["conflict"] = {"docs": difference.docs_conflict, "agentgateway": difference.agentgateway_conflict}
    return document


def _where(step: Step) -> dict[str, Any]:
    return {"policy": str(step.policy), "level": str(step.tier)}


def _source(step: Step) -> dict[str, Any]:
    source = source_document(step.at)
    return {"source": source} if source is not None else {}


def statuses_document(statuses: Iterable[PolicyStatus], view: View) -> dict[str, Any]:
    """What `tierwall status -o json` prints."""
    return items_document(map(status_document, statuses), view)


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

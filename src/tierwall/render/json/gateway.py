"""What only a gateway answer has, as JSON (docs/reference/decision-document.md#keys-of-one-plane)."""

from __future__ import annotations

from typing import Any

import msgspec

from tierwall.core.answer import Reason, Step
from tierwall.gateway.detail import FieldDetail, GatewayDetail, ProfileDifference, Setter, Setting
from tierwall.render.json import source_document


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

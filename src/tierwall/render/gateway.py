"""The gateway plane as text and as JSON: what `explain gateway` and `effective` print.

The keys of its documents: docs/reference/decision-document.md#keys-of-one-plane.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from tierwall.core.answer import Answer, Reason, Step
from tierwall.gateway.detail import FieldDetail, FieldSetter, GatewayDetail, ProfileDifference, Setting
from tierwall.gateway.model.fields import PROFILES, Profile
from tierwall.gateway.sentence import DEPENDS, summary
from tierwall.render.formats import LineLookup
from tierwall.render.json import json_line, non_empty, source_document
from tierwall.render.quotation import shortened


def explanation(answer: Answer, source: LineLookup) -> Iterator[str]:
    """Explain an answer: a summary line, then each field, then where the other profile differs."""
    detail: GatewayDetail = answer.detail
    yield summary(detail)
    for field in detail.fields:
        yield ""
        yield from _field(field)
    if detail.profiles_differ:
        yield ""
    (other,) = (profile for profile in PROFILES if profile != detail.profile)
    for difference in detail.profiles_differ:
        yield _difference(difference, other)
    if detail.notes:
        yield ""
    for note in detail.notes:
        yield f"note: {note}"


def _field(field: FieldDetail) -> Iterator[str]:
    yield field.field + ("  CONFLICT at equal precedence" if field.conflict else "")
    for number, setter in enumerate(field.set_by):
        unset = field.setting is None and _depends(setter.step)
        yield f"  = {DEPENDS if unset else _value(field.setting, number)}"
        yield from _setter(setter)
    if not field.set_by:
        yield f"  = {DEPENDS}" if any(_depends(step) for step in field.over) else "  = not set"
    for step in field.over:
        yield f"  over {step.policy} ({step.tier}): {step.note}{_at(step)}"


def _value(setting: Setting | None, number: int) -> str:
    if setting is None:
        return "not set"
    return _short(setting.value[number] if setting.union else setting.value)


def _setter(setter: FieldSetter) -> Iterator[str]:
    words = f"    {setter.step.policy} ({setter.step.tier})"
    words += ", Override" if setter.override else ""
    words += f", entry {setter.entry}" if setter.entry is not None else ""
    yield words + _at(setter.step)
    if setter.step.reason is Reason.NO_ENTRY_SELECTED or _depends(setter.step):
        yield f"    {setter.step.note}"


def _depends(step: Step) -> bool:
    """Whether a setting depends on facts about the request that the question does not give."""
    return step.note is not None and step.note.startswith(DEPENDS)


def _difference(difference: ProfileDifference, other: Profile) -> str:
    setting = {"docs": difference.docs, "agentgateway": difference.agentgateway}[other]
    words = f"profile {other} differs: {difference.field} "
    if setting is None:
        words += "is not set"
    else:
        words += f"= {_short(setting.value)} from {', '.join(map(str, setting.sources))}"
    return words + (" (a conflict in one of the two)" if difference.disputed else "")


def _short(value: Any) -> str:
    return shortened(json_line(value), 160)


def _at(step: Step) -> str:
    return f"  {at.beside_object}" if (at := step.at) is not None else ""


def detail_document(detail: GatewayDetail) -> dict[str, Any]:
    """Return the settings in force, the policies that set them and those they beat."""
    return {
        "place": detail.place,
        "profile": detail.profile,
        "phase": detail.phase,
        "effective": {path: _setting_document(setting) for path, setting in detail.effective.items()},
        "conflicts": list(detail.conflicts),
        "fields": [_field_document(field) for field in detail.fields],
        "profilesDiffer": [_difference_document(difference) for difference in detail.profiles_differ],
        "notes": list(detail.notes),
    }


def _setting_document(setting: Setting) -> dict[str, Any]:
    """Return `{value, from}`. The value is a copy: the original belongs to the object that set it."""
    return {"value": msgspec.to_builtins(setting.value), "from": setting.written_from}


def _field_document(field: FieldDetail) -> dict[str, Any]:
    setting = _setting_document(field.setting) if field.setting is not None else {"value": None, "from": None}
    document: dict[str, Any] = {
        "field": field.field,
        **setting,
        "set": [_setter_document(setter) for setter in field.set_by],
        "over": [_where(step) | {"why": step.note} | non_empty(source=source_document(step.at)) for step in field.over],
    }
    return document | ({"conflict": True} if field.conflict else {})


def _setter_document(setter: FieldSetter) -> dict[str, Any]:
    document = _where(setter.step)
    if setter.override:
        document["inheritance"] = "Override"
    if setter.conditional:
        document["entry"] = setter.entry
    if setter.step.reason is Reason.NO_ENTRY_SELECTED or _depends(setter.step):
        document["note"] = setter.step.note
    return document | non_empty(source=source_document(setter.step.at))


def _difference_document(difference: ProfileDifference) -> dict[str, Any]:
    docs, agentgateway = difference.docs, difference.agentgateway
    document: dict[str, Any] = {
        "field": difference.field,
        "docs": _setting_document(docs) if docs is not None else None,
        "agentgateway": _setting_document(agentgateway) if agentgateway is not None else None,
    }
    if difference.disputed:
        document["conflict"] = {"docs": difference.docs_conflict, "agentgateway": difference.agentgateway_conflict}
    return document


def _where(step: Step) -> dict[str, Any]:
    return {"policy": str(step.policy), "level": str(step.tier)}

"""The settings in force at a place, as plain text: each field with who set it, whom it beat and why."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from tierwall.core.answer import Answer, Reason, Step
from tierwall.gateway.detail import FieldDetail, GatewayDetail, ProfileDifference, Setter, Setting
from tierwall.gateway.model.profile import PROFILES, Profile
from tierwall.gateway.sentence import summary
from tierwall.render.text import Lines, shortened


def lines(answer: Answer, source: Lines) -> Iterator[str]:
    """One line what is in force, then field by field, then where the other profile differs."""
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
        yield f"  = {_value(field.setting, number)}"
        yield from _setter(setter)
    if not field.set_by:
        yield "  = not set"
    for step in field.over:
        yield f"  over {step.policy} ({step.tier}): {step.note}{_at(step)}"


def _value(setting: Setting | None, number: int) -> str:
    if setting is None:
        return "not set"
    return _short(setting.value[number] if setting.union else setting.value)


def _setter(setter: Setter) -> Iterator[str]:
    words = f"    {setter.step.policy} ({setter.step.tier})"
    words += ", Override" if setter.override else ""
    words += f", entry {setter.entry}" if setter.entry is not None else ""
    yield words + _at(setter.step)
    if setter.step.reason is Reason.NO_ENTRY_SELECTED:
        yield f"    {setter.step.note}"


def _difference(difference: ProfileDifference, other: Profile) -> str:
    setting = {"docs": difference.docs, "agentgateway": difference.agentgateway}[other]
    words = f"profile {other} differs: {difference.field} "
    if setting is None:
        words += "is not set"
    else:
        words += f"= {_short(setting.value)} from {', '.join(map(str, setting.sources))}"
    return words + (" (a conflict in one of the two)" if difference.disputed else "")


def _short(value: Any) -> str:
    return shortened(msgspec.json.encode(value).decode(), 160)


def _at(step: Step) -> str:
    return f"  {at.file}:{at.line}" if (at := step.at) is not None else ""

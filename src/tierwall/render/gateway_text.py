"""The settings in force at a place as text, each with who set it, whom it beat and why; and the status of policies."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from tierwall.attach.status import PolicyStatus
from tierwall.core.answer import Answer, Reason, Step
from tierwall.gateway.detail import FieldDetail, GatewayDetail, ProfileDifference, Setter, Setting
from tierwall.gateway.model.fields import PROFILES, Profile
from tierwall.gateway.sentence import summary
from tierwall.render.formats import Lines, View
from tierwall.render.text import shortened


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


def statuses(statuses: Iterable[PolicyStatus], view: View) -> Iterator[str]:
    """What `tierwall status` prints: an empty line between policies."""
    for number, status in enumerate(statuses):
        if number:
            yield ""
        yield from status_lines(status)


def status_lines(status: PolicyStatus) -> Iterator[str]:
    """The policy, each ancestor, and a line a condition that is said with respect to it."""
    yield str(status.policy.reference)
    for ancestor in status.ancestors:
        ref = ancestor.ref
        yield f"  {ref.kind}/{ref.namespace}/{ref.name}" if ref.namespace else f"  {ref.name}"
        for condition in ancestor.conditions:
            first, *rest = condition.message.split("\n")
            yield f"    {condition.type:<13} {condition.status!s:<6} {condition.reason:<23} {first}"
            yield from (f"{'':<49}{line}" for line in rest)
    if not status.ancestors:
        yield "  no target that could be read"

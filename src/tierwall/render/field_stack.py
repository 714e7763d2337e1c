"""The stack of one field: every level of a place, what is set there, and why it loses (docs/gateway.md#one-field).

What `effective --why FIELD` prints. Losers are struck out: in a terminal and in Markdown as such, in other text by `-`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from msgspec import Struct

from tierwall.core.answer import Answer, Omission, Step
from tierwall.core.unprintable import PrintableLine, escape_unprintable
from tierwall.core.verdict import StepVerdict
from tierwall.gateway.detail import FieldDetail, GatewayDetail
from tierwall.gateway.model.fields import FIELDS
from tierwall.gateway.provenance import SettingsOrigin
from tierwall.gateway.sentence import DEPENDS
from tierwall.render.connections import in_cell
from tierwall.render.formats import View
from tierwall.render.json import items_document, json_line, non_empty, source_document
from tierwall.render.quotation import shortened


class FieldStacks(Struct, frozen=True):
    """One field at some places."""

    field: str
    answers: Sequence[Answer]

    @property
    def not_considered(self) -> tuple[Omission, ...]:
        """Omissions of the answers, each once."""
        return tuple(dict.fromkeys(omission for answer in self.answers for omission in answer.not_considered))


class _Entry(Struct, frozen=True):
    """A level, and one object that sets the field there; None if no object does."""

    level: str
    step: Step | None = None

    @property
    def counts(self) -> bool:
        return self.step is not None and self.step.verdict is StepVerdict.ALLOW


def _entries(detail: GatewayDetail, field: str) -> Iterator[_Entry]:
    """Yield the levels from the least specific to the most specific."""
    written: FieldDetail | None = next((other for other in detail.fields if other.field == field), None)
    steps = [*(setter.step for setter in written.set_by), *written.over] if written is not None else []
    for level in detail.levels.get(FIELDS[field].section, ()):
        at_level = [step for step in steps if step.tier == level]
        yield from (_Entry(level, step) for step in at_level)
        if not at_level:
            yield _Entry(level)


def _value(step: Step) -> Any:
    """Return what the object of a step says, as it is written there."""
    value: Any = step.origin.resource.value if isinstance(step.origin, SettingsOrigin) else None
    for key in step.path:
        try:
            value = value[key]
        except (KeyError, IndexError, TypeError):
            if key != "ai":  # the inline policies of a model are not below `ai`
                return None
    return value


def _words(step: Step) -> str:
    return f"{step.policy}  {shortened(json_line(_value(step)), 160)}"


def text(stacks: FieldStacks, view: View) -> Iterator[str]:
    """Write each stack as lines, least specific level first."""
    for number, answer in enumerate(stacks.answers):
        if number:
            yield ""
        yield _heading(stacks.field, answer.detail)
        entries = list(_entries(answer.detail, stacks.field))
        width = max((len(entry.level) for entry in entries), default=0)
        for entry in entries:
            yield _line(entry, width, view.colour)
        if not entries:
            yield "  the place has no level that can set it"


def _line(entry: _Entry, width: int, colour: bool) -> str:
    step = entry.step
    if step is None:
        return f"  {entry.level:{width}}    nothing"
    at = f"  {step.at.beside_object}" if step.at is not None else ""
    why = f"  {step.note}" if step.note else ""
    words = escape_unprintable(_words(step))
    if colour and not entry.counts:
        words = f"\x1b[9m{words}\x1b[0m"
    return PrintableLine(
        f"  {entry.level:{width}}  {'=' if entry.counts else '-'} {words}{escape_unprintable(why + at)}"
    )


def _heading(field: str, detail: GatewayDetail) -> str:
    setting = detail.effective.get(field)
    result = f"= {shortened(json_line(setting.value), 160)}" if setting is not None else "is not set"
    notes = [entry.step.note or "" for entry in _entries(detail, field) if entry.step is not None]
    if setting is None and any(note.startswith(DEPENDS) for note in notes):
        result = DEPENDS
    return f"{field} {result} at {detail.place} (profile {detail.profile}, {detail.phase})"


def markdown(stacks: FieldStacks, view: View) -> Iterator[str]:
    """Write each stack as a Markdown table, with losers struck out."""
    for number, answer in enumerate(stacks.answers):
        if number:
            yield ""
        yield f"**{in_cell(_heading(stacks.field, answer.detail))}**"
        yield ""
        yield "| level | set by | why it does not count | where |"
        yield "|---|---|---|---|"
        for entry in _entries(answer.detail, stacks.field):
            if entry.step is None:
                yield f"| {in_cell(entry.level)} | | | |"
                continue
            words = in_cell(_words(entry.step))
            shown = f"**{words}**" if entry.counts else f"~~{words}~~"
            why = "" if entry.counts else in_cell(entry.step.note or "")
            at = in_cell(str(entry.step.at.beside_object)) if entry.step.at is not None else ""
            yield f"| {in_cell(entry.level)} | {shown} | {why} | {at} |"


def document(stacks: FieldStacks, view: View) -> dict[str, Any]:
    """Return a document with the levels of each place, least specific first."""
    return items_document((_stack_document(stacks.field, answer.detail) for answer in stacks.answers), view)


def _stack_document(field: str, detail: GatewayDetail) -> dict[str, Any]:
    setting = detail.effective.get(field)
    return {
        "field": field,
        "place": detail.place,
        "profile": detail.profile,
        "phase": detail.phase,
        "value": setting.value if setting is not None else None,
        "from": setting.written_from if setting is not None else None,
        "levels": [_entry_document(entry) for entry in _entries(detail, field)],
    }


def _entry_document(entry: _Entry) -> dict[str, Any]:
    step = entry.step
    if step is None:
        return {"level": entry.level}
    return {
        "level": entry.level,
        "policy": str(step.policy),
        "value": _value(step),
        "counts": entry.counts,
        "reason": str(step.reason),
    } | non_empty(note=step.note, source=source_document(step.at))

"""Effective settings for a review: what `effective -o md` and `-o html` write (docs/gateway.md#for-a-review)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from html import escape

from tierwall.core.answer import Answer, Step
from tierwall.core.unprintable import escape_unprintable
from tierwall.gateway.detail import FieldDetail, GatewayDetail
from tierwall.render.connections import in_cell
from tierwall.render.formats import View
from tierwall.render.json import json_line
from tierwall.render.quotation import shortened

_COLUMNS = ("field", "value", "set by", "over")
_STYLE = """body{font:15px/1.5 system-ui,sans-serif;max-width:75rem;margin:2rem auto;padding:0 1rem}
body{color:#1c1c1c;background:#fff}
table{border-collapse:collapse;width:100%;margin:.5rem 0 1rem}
th,td{border:1px solid #bbb;padding:.3rem .5rem;text-align:left;vertical-align:top;overflow-wrap:anywhere}
code{font-size:.9em}h2{font-size:1.05rem;margin-top:2rem}"""


def _values(field: FieldDetail) -> list[str]:
    if field.setting is None:
        return ["not set"]
    values = field.setting.value if field.setting.union else [field.setting.value]
    return [shortened(json_line(value), 400) for value in values]


def _where(step: Step) -> str:
    at = f", {step.at.beside_object}" if step.at is not None else ""
    return f"{step.policy} ({step.tier}{at})"


def _setters(field: FieldDetail) -> list[str]:
    conflict = ["CONFLICT at equal precedence"] if field.conflict else []
    return [*(_where(setter.step) + (", Override" if setter.override else "") for setter in field.set_by), *conflict]


def _losers(field: FieldDetail) -> list[str]:
    return [f"{_where(step)}: {step.note}" for step in field.over]


def _heading(detail: GatewayDetail) -> str:
    return f"{detail.place} (profile {detail.profile}, {detail.phase})"


def markdown(answers: Iterable[Answer], view: View) -> Iterator[str]:
    """Write a heading and a Markdown table for each place; losers are struck out."""
    for number, answer in enumerate(answers):
        detail: GatewayDetail = answer.detail
        if number:
            yield ""
        yield f"### {in_cell(_heading(detail))}"
        yield ""
        if detail.fields:
            yield f"| {' | '.join(_COLUMNS)} |"
            yield f"|{'---|' * len(_COLUMNS)}"
        else:
            yield "No settings."
        for field in detail.fields:
            values = "<br>".join(map(in_cell, _values(field)))
            setters = "<br>".join(map(in_cell, _setters(field)))
            losers = "<br>".join(f"~~{in_cell(loser)}~~" for loser in _losers(field))
            yield f"| {in_cell(field.field)} | {values} | {setters} | {losers} |"
        if detail.notes:
            yield ""
        yield from (f"* {in_cell(note)}" for note in detail.notes)


def page(answers: Iterable[Answer], view: View) -> Iterator[str]:
    """Write one HTML page without scripts, with a table for each place."""
    yield '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Effective settings</title>'
    yield '<meta name="viewport" content="width=device-width">'
    yield "<style>"
    yield from _STYLE.split("\n")
    yield "</style></head><body><h1>Effective settings</h1>"
    for answer in answers:
        detail: GatewayDetail = answer.detail
        yield f"<h2>{_text(_heading(detail))}</h2>"
        if detail.fields:
            heads = "".join(f'<th scope="col">{column}</th>' for column in _COLUMNS)
            yield f"<table><thead><tr>{heads}</tr></thead><tbody>"
            yield from map(_row, detail.fields)
            yield "</tbody></table>"
        else:
            yield "<p>No settings.</p>"
        yield from (f"<p>Note: {_text(note)}</p>" for note in detail.notes)
    for omission in view.not_considered:
        yield f"<p>Not considered: {_text(str(omission))}</p>"
    yield "</body></html>"


def _row(field: FieldDetail) -> str:
    values = "<br>".join(f"<code>{_text(value)}</code>" for value in _values(field))
    losers = "<br>".join(f"<s>{_text(loser)}</s>" for loser in _losers(field))
    setters = "<br>".join(map(_text, _setters(field)))
    name = f'<th scope="row"><code>{_text(field.field)}</code></th>'
    return f"<tr>{name}<td>{values}</td><td>{setters}</td><td>{losers}</td></tr>"


def _text(text: str) -> str:
    return escape(escape_unprintable(text))

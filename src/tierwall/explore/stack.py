"""Settings as a stack: for each field the levels from Gateway to backend, who set it, and the losers struck out."""

from __future__ import annotations

from collections.abc import Iterator

from tierwall.core.answer import Answer, Step
from tierwall.explore.markup import Child, Markup, joined, spoken, tag
from tierwall.explore.page import object_link, verdict_mark
from tierwall.gateway.detail import FieldDetail, GatewayDetail
from tierwall.render.json import json_line
from tierwall.render.quotation import shortened

# The most characters of a value.
MAX_VALUE = 200


def settings_stack(answer: Answer, title: Child = "Settings in force") -> Markup:
    """Show the fields that are set at a place; what lost is struck out and says why."""
    detail: GatewayDetail = answer.detail
    fields = [_field(field, answer) for field in detail.fields]
    notes = [tag("li", spoken(note)) for note in detail.notes]
    notes += [
        tag("li", f"agentgateway's code differs from its documentation at {difference.field}")
        for difference in detail.profiles_differ
    ]
    empty = tag("p", "Nothing is set here.", class_="empty")
    return tag(
        "section",
        tag("h2", title),
        tag("div", fields, class_="stack") if fields else empty,
        tag("ul", notes) if notes else None,
    )


def _field(field: FieldDetail, answer: Answer) -> Markup:
    value = shortened(json_line(field.setting.value), MAX_VALUE) if field.setting is not None else "not set"
    winners = {id(setter.step) for setter in field.set_by}
    levels = [step for step in answer.steps if step.rule == field.field]
    return tag(
        "article",
        tag("h3", tag("code", field.field), verdict_mark("Conditional", "conflict") if field.conflict else None),
        tag("p", tag("code", value), class_="value"),
        tag("ol", [_level(step, id(step) in winners) for step in levels], class_="levels"),
        class_="field",
    )


def _level(step: Step, wins: bool) -> Markup:
    name = object_link(step.policy) if step.policy is not None else Markup("")
    shown = name if wins else tag("s", name)
    mark = verdict_mark("Allow", "in force") if wins else verdict_mark("Pass", "overruled")
    return tag(
        "li", tag("span", step.tier, class_="tier"), shown, mark, _note(step), class_="wins" if wins else "loses"
    )


def _note(step: Step) -> Markup | None:
    return tag("p", spoken(step.note), class_="note") if step.note else None


def place_title(answer: Answer) -> Markup:
    """Show a place as the way of a request through it."""
    return tag("span", _arrows(answer.detail.place.split(", ")), class_="way")


def _arrows(parts: list[str]) -> Iterator[Markup]:
    for number, part in enumerate(parts):
        yield joined(tag("span", " → ", class_="arrow") if number else None, tag("span", part))

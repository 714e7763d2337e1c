"""Answers of the api plane as text: what `explain api` and `can-i` print."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import assert_never

from tierwall.api.algebra.condition import EXPRESSION, Condition, Effect
from tierwall.api.detail import ApiDetail
from tierwall.api.permissions import Permission
from tierwall.api.sentence import readable
from tierwall.core.answer import Answer, Step
from tierwall.core.verdict import Verdict
from tierwall.render.formats import Lines, View
from tierwall.render.text import phrase


def lines(answer: Answer, source: Lines) -> Iterator[str]:
    """The sentence, who said what, the verdicts, and every step."""
    detail: ApiDetail = answer.detail
    yield answer.sentence
    if detail.condition_sets:
        yield ""
        yield from opinions(detail)
    yield ""
    yield f"verdict: {answer.verdict}"
    if detail.final is not None:
        yield f"final:   {detail.final}"
    yield f"asked:   {', '.join(detail.called)}"
    if answer.steps:
        yield ""
    yield from map(_step, answer.steps)


def yes_or_no(answer: Answer, view: View) -> Iterator[str]:
    """`yes`, `no` with the reason, or `yes, if` with the conditions."""
    detail: ApiDetail = answer.detail
    if detail.final is None and detail.can_become_allowed:
        yield "yes, if the conditions hold"
        yield from opinions(detail)
    elif detail.final is Verdict.ALLOW:
        yield "yes"
    else:
        reason = detail.evaluation_error or detail.reason
        yield f"no - {reason}" if reason else "no"


def opinions(detail: ApiDetail) -> Iterator[str]:
    """Who said what, in the order of the chain."""
    for opinion in detail.condition_sets:
        if opinion.verdict is not Verdict.CONDITIONAL:
            word = "allows" if opinion.verdict is Verdict.ALLOW else "denies"
            yield f"{opinion.authorizer}: {word} if it comes to that"
            continue
        mode = f", a failing Deny: {opinion.failure_mode}" if Effect.DENY in opinion.effects else ""
        yield f"{opinion.authorizer}: conditional{mode}"
        for condition in opinion.conditions:
            yield f"  {_effect(condition.effect)} {readable(condition)}"
            description = f"{condition.description}; " if condition.description else ""
            yield f"      {description}{_origin(condition)}"


def _effect(effect: Effect) -> str:
    match effect:
        case Effect.ALLOW:
            return "allows if"
        case Effect.DENY:
            return "denies if"
        case Effect.NO_OPINION:
            return "has no opinion if"
        case _:
            assert_never(effect)


def _origin(condition: Condition) -> str:
    if condition.source is None:
        return f"condition {condition.id}"
    origin = condition.source.origin
    at = origin.position(EXPRESSION) if origin is not None else None
    return f"{condition.source.policy}" + (f" at {at}" if at is not None else "")


def _step(step: Step) -> str:
    """`policies.yaml:3:1: rbac: ClusterRole/reader rules[0] allowed (bound by ClusterRoleBinding/readers)`."""
    at = f"{step.at}: " if step.at is not None else ""
    subject = f"{step} " if step.policy is not None else f"condition {step.name} " if step.name is not None else ""
    note = f" ({step.note})" if step.note else ""
    return f"{at}{step.tier}: {subject}{phrase(step.verdict, step.reason)}{note}"


def permission_table(permissions: Iterable[Permission], view: View) -> Iterator[str]:
    """A line a permission, in columns."""
    table = [("RESOURCES", "URLS", "NAMES", "VERBS", "EFFECT", "FROM", "CONDITION"), *map(_row, permissions)]
    widths = [max(len(row[column]) for row in table) for column in range(6)]
    for row in table:
        cells = (cell.ljust(width) for cell, width in zip(row[:6], widths, strict=True))
        yield "  ".join((*cells, row[6])).rstrip()


def _row(permission: Permission) -> tuple[str, ...]:
    groups = [group for group in permission.groups if group] or [""]
    resources = [f"{name}.{group}" if group else name for name in permission.resources for group in groups]
    return (
        _listed(resources),
        _listed(permission.urls),
        _listed(permission.names),
        _listed(permission.verbs),
        str(permission.effect),
        str(permission.policy or permission.authorizer),
        f"fails: {permission.error}" if permission.error else permission.condition or "-",
    )


def _listed(words: Iterable[str]) -> str:
    return ",".join(words) or "-"

"""The api plane as text and as JSON: what `explain api`, `can-i` and `can-i --list` print.

The keys of its documents: docs/reference/decision-document.md#keys-of-one-plane.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from tierwall.api.algebra.condition import EXPRESSION, Condition, Effect
from tierwall.api.detail import ApiDetail, AuthorizerOpinion
from tierwall.api.sentence import readable_condition
from tierwall.core.answer import Answer, Step
from tierwall.core.source import Position
from tierwall.core.verdict import Verdict
from tierwall.render.formats import LineLookup, View
from tierwall.render.json import dump, non_empty, omission_documents, source_document
from tierwall.render.text import phrase, quoted_rule

if TYPE_CHECKING:
    from tierwall.api.permissions import Permission
    from tierwall.api.reads.selector_text import ReadSelector

_EFFECTS = {Effect.ALLOW: "allows if", Effect.DENY: "denies if", Effect.NO_OPINION: "has no opinion if"}
_HEADING = ("RESOURCES", "URLS", "NAMES", "VERBS", "EFFECT", "FROM", "CONDITION")


def explanation(answer: Answer, source: LineLookup) -> Iterator[str]:
    """Explain an answer: the sentence, the opinion of each authorizer, the verdicts, and every step."""
    detail: ApiDetail = answer.detail
    yield answer.sentence
    if detail.condition_sets:
        yield ""
        yield from opinions(detail.condition_sets)
    if detail.impersonation is not None:
        yield ""
        yield f"with the impersonated request, before its object is known: {detail.impersonation}"
        yield from opinions(detail.impersonation_sets)
    yield ""
    yield f"verdict: {answer.verdict}"
    if detail.final is not None:
        yield f"final:   {detail.final}"
    yield f"asked:   {', '.join(detail.called)}"
    if answer.steps:
        yield ""
    for step in answer.steps:
        yield from _step(step, source)


def yes_or_no(answer: Answer, view: View) -> Iterator[str]:
    """Answer `yes`, `no` with the reason, or `yes, if` with the conditions."""
    detail: ApiDetail = answer.detail
    if detail.final is None and detail.can_become_allowed:
        yield "yes, if the conditions hold"
        yield from opinions(detail.condition_sets)
    elif detail.final is Verdict.ALLOW:
        yield "yes"
    else:
        reason = detail.evaluation_error or detail.reason
        yield f"no - {reason}" if reason else "no"


def opinions(condition_sets: Iterable[AuthorizerOpinion]) -> Iterator[str]:
    """Tell the opinion of each authorizer, in the order of the chain."""
    for opinion in condition_sets:
        if opinion.verdict is not Verdict.CONDITIONAL:
            word = "allows" if opinion.verdict is Verdict.ALLOW else "denies"
            yield f"{opinion.authorizer}: {word}, if no authorizer before it decides"
            continue
        mode = f", if a Deny fails: {opinion.failure_mode}" if Effect.DENY in opinion.effects else ""
        yield f"{opinion.authorizer}: conditional{mode}"
        for condition in opinion.conditions:
            yield f"  {_EFFECTS[condition.effect]} {readable_condition(condition)}"
            description = f"{condition.description}; " if condition.description else ""
            yield f"      {description}{_origin(condition)}"


def _origin(condition: Condition) -> str:
    if condition.source is None:
        return f"condition {condition.id}"
    at = _position(condition)
    if at is None:
        return str(condition.source.policy)
    return f"{condition.source.policy} at {at.beside_object if at.is_in_cluster else at}"


def _position(condition: Condition) -> Position | None:
    """Find where the expression of a condition is written."""
    origin = condition.source.origin if condition.source is not None else None
    return origin.position(EXPRESSION) if origin is not None else None


def _step(step: Step, source: LineLookup) -> Iterator[str]:
    """`policies.yaml:3:1: rbac: ClusterRole/reader rules[0] allowed (bound by ClusterRoleBinding/readers)`."""
    at = step.at
    place = f"{at.file if at.is_in_cluster else at}: " if at is not None else ""
    subject = f"{step} " if step.policy is not None else f"condition {step.name} " if step.name is not None else ""
    note = f" ({step.note})" if step.note else ""
    yield f"{place}{step.tier}: {subject}{phrase(step.verdict, step.reason)}{note}"
    if at is not None and at.is_in_cluster:
        yield from (f"    {line}" for line in quoted_rule(step, source))


def detail_document(detail: ApiDetail) -> dict[str, Any]:
    """Return the keys of the api plane; `conditionSets` may be empty."""
    return {
        **non_empty(final=str(detail.final) if detail.final is not None else None),
        "called": list(detail.called),
        "conditionSets": [_set_document(opinion) for opinion in detail.condition_sets],
        **non_empty(
            error=detail.error or None,
            evaluationError=detail.evaluation_error,
            reason=detail.reason,
            conditions=_condition_documents(detail.condition_sets),
            impersonation=_impersonation_document(detail),
            suggestion=detail.suggestion.to_dict() if detail.suggestion is not None else None,
            witness=detail.witness,
        ),
    }


def _impersonation_document(detail: ApiDetail) -> dict[str, Any] | None:
    """Return the stage in which the impersonated request is known, and its object is not."""
    if detail.impersonation is None:
        return None
    return {
        "verdict": str(detail.impersonation),
        "conditionSets": [_set_document(opinion) for opinion in detail.impersonation_sets],
        **non_empty(conditions=_condition_documents(detail.impersonation_sets)),
    }


def _condition_documents(condition_sets: Iterable[AuthorizerOpinion]) -> list[dict[str, Any]] | None:
    documents = [
        _condition_document(opinion.authorizer, condition)
        for opinion in condition_sets
        for condition in opinion.conditions
    ]
    return documents or None


def _set_document(opinion: AuthorizerOpinion) -> dict[str, Any]:
    """Return one entry of `conditionSets`."""
    if opinion.verdict is Verdict.CONDITIONAL:
        effects = {str(effect): count for effect, count in opinion.effects.items()}
        return {"authorizer": opinion.authorizer, "effects": effects}
    return {"authorizer": opinion.authorizer, "allowed" if opinion.verdict is Verdict.ALLOW else "denied": True}


def _condition_document(authorizer: str, condition: Condition) -> dict[str, Any]:
    """Return one entry of `conditions`."""
    return {
        "authorizer": authorizer,
        "id": condition.id,
        "effect": str(condition.effect),
        "condition": condition.text,
        "type": condition.type,
        **non_empty(
            description=condition.description,
            policy=str(condition.source.policy) if condition.source is not None else None,
            source=source_document(_position(condition)),
        ),
    }


def selector_lines(selectors: Iterable[ReadSelector], view: View) -> Iterator[str]:
    """Write one selector per line, as options of kubectl."""
    for selector in selectors:
        yield selector.options or "no selector is needed"


def selector_list(selectors: Iterable[ReadSelector], view: View) -> str:
    """Return the list of `can-i --widest -o json`."""
    return dump([selector.to_dict() for selector in selectors])


def permission_table(permissions: Iterable[Permission], view: View) -> Iterator[str]:
    """Write one line for each permission, in columns."""
    table = [_HEADING, *map(_row, permissions)]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for row in table:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()


def _row(permission: Permission) -> tuple[str, ...]:
    groups = [group for group in permission.groups if group] or [""]
    resources = [f"{name}.{group}" if group else name for name in permission.resources for group in groups]
    return (
        *(",".join(words) or "-" for words in (resources, permission.urls, permission.names, permission.verbs)),
        str(permission.effect),
        str(permission.policy or permission.authorizer),
        f"fails: {permission.error}" if permission.error else permission.condition or "-",
    )


def permissions_document(permissions: Iterable[Permission], view: View) -> dict[str, Any]:
    """Return the document of `can-i --list -o json`."""
    documents = [_permission_document(permission) for permission in permissions]
    return {"permissions": documents, "notConsidered": omission_documents(view.not_considered)}


def _permission_document(permission: Permission) -> dict[str, Any]:
    return non_empty(
        authorizer=permission.authorizer,
        effect=str(permission.effect),
        verbs=list(permission.verbs),
        resources=list(permission.resources) or None,
        groups=list(permission.groups) or None,
        names=list(permission.names) or None,
        urls=list(permission.urls) or None,
        condition=permission.condition,
        policy=str(permission.policy) if permission.policy is not None else None,
        error=permission.error,
    )

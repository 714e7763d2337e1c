"""What only api answers have, and what `can-i --list` lists, as maps (docs/reference/decision-document.md)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from tierwall.api.algebra.condition import EXPRESSION, Condition
from tierwall.api.detail import ApiDetail, AuthorizerOpinion
from tierwall.api.permissions import Permission
from tierwall.core.verdict import Verdict
from tierwall.render.formats import View
from tierwall.render.json import given, omission_documents, source_document


def detail_document(detail: ApiDetail) -> dict[str, Any]:
    """The keys of the api plane; `conditionSets` is there also if it is empty."""
    return {
        **given(final=str(detail.final) if detail.final is not None else None),
        "called": list(detail.called),
        "conditionSets": [set_document(opinion) for opinion in detail.condition_sets],
        **given(
            error=detail.error or None,
            evaluationError=detail.evaluation_error,
            reason=detail.reason,
            conditions=list(_conditions(detail)) or None,
        ),
    }


def set_document(opinion: AuthorizerOpinion) -> dict[str, Any]:
    """One entry of `conditionSets`."""
    if opinion.verdict is Verdict.CONDITIONAL:
        effects = {str(effect): count for effect, count in opinion.effects.items()}
        return {"authorizer": opinion.authorizer, "effects": effects}
    return {"authorizer": opinion.authorizer, "allowed" if opinion.verdict is Verdict.ALLOW else "denied": True}


def _conditions(detail: ApiDetail) -> Iterator[dict[str, Any]]:
    for opinion in detail.condition_sets:
        for condition in opinion.conditions:
            yield condition_document(opinion.authorizer, condition)


def condition_document(authorizer: str, condition: Condition) -> dict[str, Any]:
    """One entry of `conditions`."""
    source = condition.source
    at = source.origin.position(EXPRESSION) if source is not None and source.origin is not None else None
    return {
        "authorizer": authorizer,
        "id": condition.id,
        "effect": str(condition.effect),
        "condition": condition.text,
        "type": condition.type,
        **given(
            description=condition.description,
            policy=str(source.policy) if source is not None else None,
            source=source_document(at),
        ),
    }


def permissions_document(permissions: Iterable[Permission], view: View) -> dict[str, Any]:
    """What `tierwall can-i --list -o json` prints."""
    documents = [permission_document(permission) for permission in permissions]
    return {"permissions": documents, "notConsidered": omission_documents(view.not_considered)}


def permission_document(permission: Permission) -> dict[str, Any]:
    """One entry of `permissions`."""
    return given(
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

"""JSON documents: keys in a fixed order, the same in pipes and files.

Answers are typed everywhere else and become maps only in `render`. The module of a plane has the keys of that plane.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from typing import Any

import msgspec

from tierwall.core.answer import Answer, Decider, Omission, Step
from tierwall.core.diagnostics import Diagnostic, ShownResult
from tierwall.core.source import ClusterPosition, Position
from tierwall.core.unprintable import printable_json
from tierwall.render.formats import View

# The most places and related objects of a finding that are written.
MAX_RELATED = 20


def dump(document: Any) -> str:
    """Encode a document as indented JSON."""
    return printable_json(msgspec.json.format(msgspec.json.encode(document), indent=2).decode())


def json_line(document: Any) -> str:
    """Encode a document as one line of JSON."""
    return printable_json(msgspec.json.encode(document).decode())


def diagnostic_document(diagnostic: Diagnostic) -> dict[str, Any]:
    """Return one diagnostic or finding."""
    related = [{"message": word, **_place_document(at)} for word, at in diagnostic.related]
    objects = diagnostic.related_objects
    return {
        "code": diagnostic.code,
        "level": str(diagnostic.severity),
        "message": diagnostic.message,
        **_place_document(diagnostic.at),
        **non_empty(
            expected=diagnostic.expected,
            found=diagnostic.actual,
            hint=diagnostic.hint,
            object=str(diagnostic.reference) if diagnostic.reference is not None else None,
            places=list(diagnostic.places[:MAX_RELATED]) or None,
            related=related or None,
            relatedObjects=list(objects[:MAX_RELATED]) or None,
            # Only where the lists above do not have all of them.
            placeCount=len(diagnostic.places) if len(diagnostic.places) > MAX_RELATED else None,
            relatedCount=len(objects) if len(objects) > MAX_RELATED else None,
        ),
    }


def answer_document(answer: Answer, view: View | None = None) -> dict[str, Any]:
    """Return the decision document (docs/reference/decision-document.md)."""
    document: dict[str, Any] = {"plane": answer.plane}
    if answer.verdict is not None:
        document["verdict"] = str(answer.verdict)
    document["sentence"] = answer.sentence
    document["decidedBy"] = decider_documents(answer.decided_by)
    if answer.detail is not None:
        document |= importlib.import_module(f"tierwall.render.{answer.plane}").detail_document(answer.detail)
    document["trace"] = [step_document(step) for step in answer.steps]
    document["notConsidered"] = omission_documents(answer.not_considered)
    return document


def answers_document(answers: Iterable[Answer], view: View) -> dict[str, Any]:
    """Return several answers, with what none of them considered."""
    return items_document(map(answer_document, answers), view)


def items_document(items: Iterable[dict[str, Any]], view: View) -> dict[str, Any]:
    """Return several documents of one kind, with what none of them considered."""
    return {"items": list(items), "notConsidered": omission_documents(view.not_considered)}


def decider_documents(deciders: Iterable[Decider]) -> list[dict[str, str]]:
    """Return the entries of `decidedBy`. A list of connections calls this twice for each flow."""
    documents = []
    for decider in deciders:
        document = {"policy": str(decider.policy)}
        if decider.rule:
            document["rule"] = decider.rule
        if decider.name:
            document["name"] = decider.name
        documents.append(document)
    return documents


def step_document(step: Step) -> dict[str, Any]:
    """Return one entry of `trace`; most of the time of a document is spent here."""
    document: dict[str, Any] = {"tier": step.tier, "verdict": str(step.verdict), "reason": str(step.reason)}
    if step.direction:
        document = {"direction": step.direction, **document}
    if step.policy is not None:
        document["policy"] = str(step.policy)
    if step.rule:
        document["rule"] = step.rule
    if step.name:
        document["name"] = step.name
    if step.note:
        document["note"] = step.note
    if step.origin is not None and (at := step.at) is not None:
        document["source"] = source_document(at)
    return document


def omission_documents(omissions: Iterable[Omission]) -> list[dict[str, Any]]:
    """Return the entries of `notConsidered`."""
    return [
        non_empty(
            reason=omission.reason,
            kind=omission.kind,
            group=omission.group,
            owner=omission.owner,
            count=omission.count,
            examples=[str(reference) for reference in omission.examples] or None,
            form=omission.form,
            namespaces=list(omission.namespaces) or None,
            source=source_document(omission.at),
            effect=omission.effect,
        )
        for omission in omissions
    ]


def more_documents(chosen: ShownResult, diagnostics: Iterable[Diagnostic]) -> list[dict[str, Any]]:
    """Return how many of these diagnostics are not shown, for each file or cluster."""
    clusters = {diagnostic.at.file for diagnostic in diagnostics if diagnostic.at and diagnostic.at.is_in_cluster}
    return [{"cluster" if file in clusters else "file": file, "count": number} for file, number in chosen.more]


def _place_document(at: Position | None) -> dict[str, Any]:
    """Return a position that stands alone: in a cluster it needs the object."""
    document = source_document(at) or {}
    return document | {"object": str(at.reference)} if isinstance(at, ClusterPosition) else document


def source_document(at: Position | None) -> dict[str, Any] | None:
    """Return a position in a file, or in an object of a cluster."""
    if at is None:
        return None
    if at.is_in_cluster:
        return {"cluster": at.file, "path": at.path}
    return {"file": at.file, "line": at.line, "column": at.column}


def non_empty(**entries: Any) -> dict[str, Any]:
    """Return the entries that have a value."""
    return {key: value for key, value in entries.items() if value is not None and value != ""}

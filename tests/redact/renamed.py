"""Questions about redacted objects, and answers in the words of redacted objects."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from tierwall.core.diagnostics import InputError
from tierwall.planes import ask
from tierwall.redact.redaction import RedactedObjects
from tierwall.resources.load import load_objects
from tierwall.resources.snapshot import Snapshot

# The fields of questions that hold names, references, hosts or addresses.
NAMED = frozenset(
    (
        *("from", "to", "node", "ip", "gateway", "listenerSet", "listener", "route", "rule", "backend"),
        "parents",
        *("backendSection", "caller", "serviceAccount", "host", "user", "groups", "namespace", "name", "uid", "extra"),
    )
)
_PARTS = (
    *("verdict", "decidedBy", "level", "evaluated", "place", "profile", "phase", "conflicts", "final", "called"),
    *("conditionSets", "error", "domains"),
)


def rename(redacted: RedactedObjects, text: str) -> str:
    """Return a name, or a reference, in the words of redacted objects."""
    if text == "backend":  # the section of a backend with one provider
        return text
    kind, slash, rest = text.partition("/")
    if slash and kind[:1].isupper() and kind.isalpha():
        body, mark, section = rest.partition("#")
        return f"{kind}/{redacted.rename(body)}{mark}{section if section.isdecimal() else redacted.rename(section)}"
    return redacted.rename(text)


def rename_question(redacted: RedactedObjects, question: Any, field: str = "", named: bool = False) -> Any:
    """Return a question about redacted objects."""
    if field in ("object", "oldObject") and isinstance(question, dict):
        metadata = question.get("metadata", {})
        return rename_value(redacted, question) | {"metadata": rename_question(redacted, metadata, "metadata", True)}
    if isinstance(question, dict):
        # Labels, and the policies whose authorizers answer.
        has_names = field in ("labels", "externalAuth")
        # Values of headers, apart from types of messages.
        named = named or field in ("headers", "request.headers")
        return {
            rename(redacted, key) if has_names else key: rename_question(
                redacted, item, key, (named or key in NAMED) and key.lower() not in ("content-type", "accept")
            )
            for key, item in question.items()
        }
    if isinstance(question, list):
        return [rename_question(redacted, item, field, named) for item in question]
    return rename(redacted, question) if named and isinstance(question, str) else question


def rename_value(redacted: RedactedObjects, value: Any) -> Any:
    """Return a part of an object of which nothing is known: what equals a name changes with it."""
    if isinstance(value, dict):
        return {key: rename_value(redacted, item) for key, item in value.items()}
    if isinstance(value, list):
        return [rename_value(redacted, item) for item in value]
    # Of the other texts of a question, only one that equals a name changes.
    is_name = isinstance(value, str) and value in redacted.translator.names
    return redacted.rename(value) if is_name else value


def snapshot_of(objects: list[dict[str, Any]]) -> Snapshot:
    """Return a snapshot of plain objects."""
    return Snapshot.of(load_objects(msgspec.to_builtins(objects)))


def outcome(plane: str, snapshot: Snapshot, question: dict[str, Any]) -> dict[str, Any]:
    """Return what decided a question, without sentences; or the codes of what is wrong with the question."""
    try:
        answer = ask(plane, snapshot, question, {}).to_dict()
    except InputError as error:
        return {"problems": sorted(problem.code for problem in error.diagnostics)}
    return {
        **{part: answer[part] for part in _PARTS if part in answer},
        "trace": [
            {key: step[key] for key in ("tier", "verdict", "reason", "policy", "rule", "name") if key in step}
            for step in answer.get("trace", ())
        ],
        "effective": {field: setting["from"] for field, setting in answer.get("effective", {}).items()},
        "notConsidered": [
            {key: entry.get(key) for key in ("reason", "kind", "group", "count", "examples")}
            for entry in answer["notConsidered"]
        ],
    }


# Fields of answers that do not hold names.
_WORDS = frozenset(
    (
        *("verdict", "reason", "tier", "rule", "level", "profile", "phase", "kind", "group", "problems", "conflicts"),
        *("final", "called", "authorizer", "effects"),
    )
)


def rename_outcome(redacted: RedactedObjects, value: Any, field: str = "") -> Any:
    """Return an outcome in the words of redacted objects."""
    if isinstance(value, dict):
        return {key: rename_outcome(redacted, item, key) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [rename_outcome(redacted, item, field) for item in value]
    if field == "tier" and (tier := re.fullmatch(r"(Parent route(?: rule)?) (\S+)", value)):
        return f"{tier[1]} {rename(redacted, f'HTTPRoute/{tier[2]}').removeprefix('HTTPRoute/')}"
    if not isinstance(value, str) or field in _WORDS:
        return value
    return ", ".join(
        " rule ".join(place if place.isdecimal() else rename(redacted, place) for place in part.split(" rule "))
        for part in value.split(", ")
    )


def strings(value: Any) -> set[str]:
    """Return all strings in a plain value, keys included."""
    if isinstance(value, dict):
        return set().union(*(strings(part) for item in value.items() for part in item))
    if isinstance(value, list):
        return set().union(*map(strings, value))
    return {value} if isinstance(value, str) else set()

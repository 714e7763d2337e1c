"""Objects that admission judges alike before and after redaction (docs/clusters.md#redact).

Planes fail closed where an API server would refuse an object. A stand-in that is refused where the text is accepted, or
the other way round, would change verdicts: the text is kept, wherever it stands.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from tierwall.core.source import Path, format_path
from tierwall.resources.admission import AdmissionProblem
from tierwall.resources.kinds.registry import find_kind
from tierwall.resources.resource import Resource
from tierwall.resources.snapshot import Snapshot
from tierwall.resources.validity import DEFINITION, admit_with_definitions


class AdmissionDifference(NamedTuple):
    """A string that admission takes otherwise than its stand-in; empty if no single string can be named."""

    resource: Resource
    path: Path
    text: str

    def __str__(self) -> str:
        if not self.text:
            return (
                f"{self.resource.reference}: an API server judges it otherwise than its stand-in; "
                "answers about it may change"
            )
        place = format_path(self.path)
        return f"{self.resource.reference}: `{place}` is kept, because admission looks inside it: `{self.text}`"


def admission_differences(
    definitions: Snapshot, resource: Resource, value: dict[str, Any]
) -> Iterator[AdmissionDifference]:
    """Yield the strings because of which a redacted object is refused although the object is not, or not refused."""
    kind = find_kind(resource.api_version, resource.kind)
    if kind is not None and not kind.strict:
        return
    refusals, new = _refusals(definitions, resource.value), _refusals(definitions, value)
    if bool(refusals) == bool(new):
        return
    named = False
    # A definition is not put together of stand-ins.
    paths = () if (resource.group, resource.kind) == DEFINITION else (problem.path for problem in (*new, *refusals))
    for path in dict.fromkeys(paths):
        text, stand_in = _at(resource.value, path), _at(value, path)
        if isinstance(text, str) and text and text != stand_in:
            named = True
            yield AdmissionDifference(resource, path, text)
    if not named:
        yield AdmissionDifference(resource, (), "")


def _refusals(definitions: Snapshot, value: dict[str, Any]) -> list[AdmissionProblem]:
    return [problem for problem in admit_with_definitions(definitions, value) if problem.refuses]


def _at(value: Any, path: Path) -> Any:
    """Return what is at a path; None if there is nothing."""
    for step in path:
        try:
            value = value[step]
        except (KeyError, IndexError, TypeError):
            return None
    return value

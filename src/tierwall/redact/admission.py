"""Objects that admission judges alike before and after redaction (docs/clusters.md#redact).

Planes fail closed where an API server would refuse an object. A stand-in that is refused where the text is accepted, or
the other way round, would change verdicts: the text is kept.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tierwall.core.source import Path, format_path
from tierwall.resources.admission import AdmissionProblem
from tierwall.resources.kinds.registry import find_kind
from tierwall.resources.resource import Resource
from tierwall.resources.snapshot import Snapshot
from tierwall.resources.validity import DEFINITION, admit_with_definitions


def restore_admission(definitions: Snapshot, resource: Resource, value: dict[str, Any]) -> Iterator[str]:
    """Put texts back into a redacted object until it is refused exactly if the object is; yield what was put back."""
    kind = find_kind(resource.api_version, resource.kind)
    if (resource.group, resource.kind) == DEFINITION or (kind is not None and not kind.strict):
        return
    refusals = _refusals(definitions, resource.value)
    new = _refusals(definitions, value)
    if bool(refusals) == bool(new):
        return
    for path in dict.fromkeys(problem.path for problem in (*new, *refusals)):
        if _put_back(resource.value, value, path):
            yield f"{resource.reference}: `{format_path(path)}` is kept, because admission looks inside it"
    if bool(refusals) != bool(_refusals(definitions, value)):
        yield f"{resource.reference}: an API server judges it otherwise than its stand-in; answers about it may change"


def _refusals(definitions: Snapshot, value: dict[str, Any]) -> list[AdmissionProblem]:
    return [problem for problem in admit_with_definitions(definitions, value) if problem.refuses]


def _put_back(original: Any, copied: Any, path: Path) -> bool:
    """Put the string at a path back; return whether there is one that differs."""
    for step in path[:-1]:
        try:
            original, copied = original[step], copied[step]
        except (KeyError, IndexError, TypeError):
            return False
    try:
        text, stand_in = original[path[-1]], copied[path[-1]]
    except (KeyError, IndexError, TypeError):
        return False
    if not isinstance(text, str) or text == stand_in:
        return False
    copied[path[-1]] = text
    return True

"""What an API server has against the schemas of a definition, as it says it."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

from tierwall.resources.admission import wording
from tierwall.resources.admission.problem import (
    INVALID,
    REQUIRED,
    UNKNOWN_FIELD,
    UNSUPPORTED,
    WARNING,
    WRONG_TYPE,
    Problem,
    Step,
)
from tierwall.resources.admission.validate import MOST_PROBLEMS

Path = tuple[Step, ...]
Words = Mapping[str, Any]

# What Go decodes by hand; strict decoding does not look into it.
_BY_HAND = ("items", "additionalProperties")


def field(path: Path) -> str:
    """A path as apimachinery prints it: names of properties are keys of a map, `properties[spec].type`."""
    out = ""
    for before, step in zip((None, *path), path, strict=False):
        if isinstance(step, int) or before == "properties":
            out += f"[{step}]"
        else:
            out += f".{step}" if out else step
    return out


class Report:
    """Collects problems, at the places of a schema."""

    def __init__(self) -> None:
        self.problems: list[Problem] = []
        self.warnings: list[Problem] = []
        self.nodes = 0  # how many have been looked at

    @property
    def is_full(self) -> bool:
        """Whether there is enough to say already."""
        return len(self.problems) >= MOST_PROBLEMS

    def invalid(self, path: Path, value: Any, detail: str, code: str = INVALID) -> None:
        """A value that cannot be."""
        self.problems.append(Problem(code, path, f"{field(path)}: Invalid value: {wording.shown(value)}: {detail}"))

    def forbidden(self, path: Path, detail: str) -> None:
        """A word that may not be there."""
        self.problems.append(Problem(INVALID, path, f"{field(path)}: Forbidden: {detail}"))

    def required(self, path: Path, detail: str) -> None:
        """A word that must be there."""
        self.problems.append(Problem(REQUIRED, path[:-1], f"{field(path)}: Required value: {detail}"))

    def unsupported(self, path: Path, value: str, supported: tuple[str, ...]) -> None:
        """A text that is none of those that there are."""
        listed = ", ".join(map(wording.quote, supported))
        message = f"{field(path)}: Unsupported value: {wording.quote(value)}: supported values: {listed}"
        self.problems.append(Problem(UNSUPPORTED, path, message))

    def unknown(self, path: Path, hint: str) -> None:
        """A word that no schema has."""
        message = f'unknown field "{field(path)}"'
        if not any(step in _BY_HAND and before != "properties" for before, step in pairwise(path[:-1])):
            self.problems.append(Problem(UNKNOWN_FIELD, path, message, hint=hint))
        else:
            self.warnings.append(Problem(WARNING, path, f"{message}; an API server ignores it", hint=hint))

    def wrong_type(self, path: Path, wanted: str, value: Any) -> None:
        """A value of another type."""
        found = wording.type_name(value)
        words = "array of strings" if wanted == "strings" else wanted
        message = f"{field(path)}: Invalid value: {wording.quote(found)}: must be of type {words}"
        self.problems.append(Problem(WRONG_TYPE, path, message, expected=words, found=found))

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
    AdmissionProblem,
    PathStep,
)
from tierwall.resources.admission.validate import MOST_PROBLEMS

Path = tuple[PathStep, ...]
Keywords = Mapping[str, Any]

# What Go decodes by hand; strict decoding does not look into it.
_BY_HAND = ("items", "additionalProperties")


def schema_field_path(path: Path) -> str:
    """A path as apimachinery prints it: names of properties are keys of a map, `properties[spec].type`."""
    out = ""
    for before, step in zip((None, *path), path, strict=False):
        if isinstance(step, int) or before == "properties":
            out += f"[{step}]"
        else:
            out += f".{step}" if out else step
    return out


class SchemaReport:
    """Collects problems, at the places of a schema."""

    def __init__(self) -> None:
        self.problems: list[AdmissionProblem] = []
        self.warnings: list[AdmissionProblem] = []
        self.nodes = 0  # how many have been looked at

    @property
    def is_full(self) -> bool:
        """Whether there is enough to say already."""
        return len(self.problems) >= MOST_PROBLEMS

    def invalid(self, path: Path, value: Any, detail: str, code: str = INVALID) -> None:
        """A value that cannot be."""
        self.problems.append(
            AdmissionProblem(
                code, path, f"{schema_field_path(path)}: Invalid value: {wording.go_value(value)}: {detail}"
            )
        )

    def forbidden(self, path: Path, detail: str) -> None:
        """A word that may not be there."""
        self.problems.append(AdmissionProblem(INVALID, path, f"{schema_field_path(path)}: Forbidden: {detail}"))

    def required(self, path: Path, detail: str) -> None:
        """A word that must be there."""
        self.problems.append(
            AdmissionProblem(REQUIRED, path[:-1], f"{schema_field_path(path)}: Required value: {detail}")
        )

    def unsupported(self, path: Path, value: str, supported: tuple[str, ...]) -> None:
        """A text that is none of those that there are."""
        listed = ", ".join(map(wording.go_quote, supported))
        message = f"{schema_field_path(path)}: Unsupported value: {wording.go_quote(value)}: supported values: {listed}"
        self.problems.append(AdmissionProblem(UNSUPPORTED, path, message))

    def unknown(self, path: Path, hint: str) -> None:
        """A word that no schema has."""
        message = f'unknown field "{schema_field_path(path)}"'
        if not any(step in _BY_HAND and before != "properties" for before, step in pairwise(path[:-1])):
            self.problems.append(AdmissionProblem(UNKNOWN_FIELD, path, message, hint=hint))
        else:
            self.warnings.append(AdmissionProblem(WARNING, path, f"{message}; an API server ignores it", hint=hint))

    def wrong_type(self, path: Path, wanted: str, value: Any) -> None:
        """A value of another type."""
        actual = wording.type_name(value)
        words = "array of strings" if wanted == "strings" else wanted
        message = f"{schema_field_path(path)}: Invalid value: {wording.go_quote(actual)}: must be of type {words}"
        self.problems.append(AdmissionProblem(WRONG_TYPE, path, message, expected=words, actual=actual))

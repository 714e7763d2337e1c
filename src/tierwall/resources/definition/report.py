"""The problems of the schemas of a definition, in the API server's words."""

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
from tierwall.resources.admission.validate import MAX_PROBLEMS

Path = tuple[PathStep, ...]
Keywords = Mapping[str, Any]

# Go decodes these by hand, so strict decoding does not check them.
_BY_HAND = ("items", "additionalProperties")


def schema_field_path(path: Path) -> str:
    """Return a path as apimachinery prints it: names of properties are map keys, `properties[spec].type`."""
    out = ""
    for before, step in zip((None, *path), path, strict=False):
        if isinstance(step, int):
            out += f"[{step}]"
        elif before == "properties":
            out += f"[{wording.shortened(step)}]"
        else:
            out += f".{wording.shortened(step)}" if out else wording.shortened(step)
    return out


class SchemaReport:
    """Collects the problems of the schemas of one definition."""

    def __init__(self) -> None:
        self.problems: list[AdmissionProblem] = []
        self.warnings: list[AdmissionProblem] = []
        self.nodes = 0  # how many were checked

    @property
    def is_full(self) -> bool:
        """Whether there are as many problems as one report holds."""
        return len(self.problems) >= MAX_PROBLEMS

    def invalid(self, path: Path, value: Any, detail: str, code: str = INVALID) -> None:
        """Report an invalid value."""
        self.problems.append(
            AdmissionProblem(
                code, path, f"{schema_field_path(path)}: Invalid value: {wording.go_value(value)}: {detail}"
            )
        )

    def forbidden(self, path: Path, detail: str) -> None:
        """Report a keyword that is not allowed here."""
        self.problems.append(AdmissionProblem(INVALID, path, f"{schema_field_path(path)}: Forbidden: {detail}"))

    def required(self, path: Path, detail: str) -> None:
        """Report a missing keyword."""
        self.problems.append(
            AdmissionProblem(REQUIRED, path[:-1], f"{schema_field_path(path)}: Required value: {detail}")
        )

    def unsupported(self, path: Path, value: str, supported: tuple[str, ...]) -> None:
        """Report a string that is not one of the supported ones."""
        listed = wording.listing(supported)
        message = f"{schema_field_path(path)}: Unsupported value: {wording.go_quote(value)}: supported values: {listed}"
        self.problems.append(AdmissionProblem(UNSUPPORTED, path, message))

    def unknown(self, path: Path, hint: str) -> None:
        """Report a keyword that does not exist."""
        message = f'unknown field "{schema_field_path(path)}"'
        if not any(step in _BY_HAND and before != "properties" for before, step in pairwise(path[:-1])):
            self.problems.append(AdmissionProblem(UNKNOWN_FIELD, path, message, hint=hint))
        else:
            self.warnings.append(AdmissionProblem(WARNING, path, f"{message}; an API server ignores it", hint=hint))

    def wrong_type(self, path: Path, wanted: str, value: Any) -> None:
        """Report a value of a wrong type."""
        actual = wording.type_name(value)
        expected = "array of strings" if wanted == "strings" else wanted
        message = f"{schema_field_path(path)}: Invalid value: {wording.go_quote(actual)}: must be of type {expected}"
        self.problems.append(AdmissionProblem(WRONG_TYPE, path, message, expected=expected, actual=actual))

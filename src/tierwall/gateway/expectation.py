"""What a policy test may expect of a gateway answer: `effective` and `conflicts` (docs/policy-tests.md#gateway)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from tierwall.core.answer import Answer
from tierwall.core.diagnostics import Diagnostic, near_miss
from tierwall.core.expectation import Expectation, malformed
from tierwall.gateway.detail import Setting, equal_values
from tierwall.gateway.model.fields import FIELDS


def _effective_problems(key: str, value: Any) -> Iterator[Diagnostic]:
    if not isinstance(value, Mapping):
        yield malformed(key, "a map of fields", value)
        return
    for path, wanted in value.items():
        if path not in FIELDS:
            yield _no_field(path)
        elif wanted is not None and not (isinstance(wanted, Mapping) and wanted.keys() <= {"value", "from"}):
            yield Diagnostic("TW701", f"expected `value` and `from`, or null, for `{path}`, found `{wanted}`")


def _effective_differences(key: str, value: Any, answer: Answer) -> Iterator[str]:
    for path, wanted in value.items():
        yield from _differences(path, wanted, answer.detail.effective.get(path))


def _differences(path: str, wanted: Mapping[str, Any] | None, setting: Setting | None) -> Iterator[str]:
    if wanted is None:
        if setting is not None:
            yield f"{path}: expected not set, got {setting.value} from {', '.join(map(str, setting.sources))}"
    elif setting is None:
        yield f"{path}: expected {dict(wanted)}, got not set"
    else:
        if "value" in wanted and not equal_values(wanted["value"], setting.value):
            yield f"{path} value: expected {wanted['value']}, got {setting.value}"
        if "from" in wanted and wanted["from"] != setting.written_from:
            yield f"{path} from: expected {wanted['from']}, got {setting.written_from}"


def _conflicts_problems(key: str, value: Any) -> Iterator[Diagnostic]:
    if not isinstance(value, list) or not all(isinstance(path, str) for path in value):
        yield malformed(key, "a list of field paths", value)
    else:
        yield from (_no_field(path) for path in value if path not in FIELDS)


def _conflicts_differences(key: str, value: Any, answer: Answer) -> Iterator[str]:
    if set(value) != set(answer.detail.conflicts):
        yield f"{key}: expected {_listed(value)}, got {_listed(answer.detail.conflicts)}"


def _no_field(path: object) -> Diagnostic:
    return Diagnostic("TW701", f"there is no field `{path}`", hint=near_miss(str(path), FIELDS))


def _listed(paths: Iterable[str]) -> str:
    return ", ".join(sorted(paths)) or "none"


EXPECTATIONS: Mapping[str, Expectation] = {
    "effective": Expectation(_effective_problems, _effective_differences),
    "conflicts": Expectation(_conflicts_problems, _conflicts_differences),
}

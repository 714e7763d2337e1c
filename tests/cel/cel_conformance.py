"""The public CEL conformance lines: a reader, and a judge of answers by the rules of their README."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tierwall.cel.batch import Batch
from tierwall.cel.evaluate.encode import decode
from tierwall.cel.values import OptionalValue, Uint, equal

Line = dict[str, Any]
_SAME_TYPE = {"google.protobuf.Timestamp": "timestamp", "google.protobuf.Duration": "duration", "null": "null_type"}


def conformance_files(shared: Path) -> list[Path]:
    """The files, in order."""
    return sorted((shared / "conformance" / "cel").glob("*.jsonl"))


def lines(path: Path) -> Iterator[Line]:
    """The lines of one file."""
    with path.open(encoding="utf-8") as stream:
        yield from map(json.loads, stream)


def answer(batch: Batch, line: Line) -> dict[str, object]:
    """Ask the batch the question of a line, as a user would."""
    return batch.answer({key: line[key] for key in ("expr", "vars", "check", "decls") if key in line})


def is_expected(line: Line, given: dict[str, object], expected: dict[str, Any]) -> bool:
    """Whether the answer is the expected one."""
    if "value" in expected:
        return "value" in given and same_value(decode(given["value"]), expected_value(expected))
    if expected.get("error"):
        return "error" in given or "checkError" in given
    if "type" in expected:
        return "type" in given and _type(str(given["type"])) == _type(expected["type"])
    return any(kind in given for kind in ("checkError", "parseError") if expected.get(kind))


def expected_value(expected: dict[str, Any]) -> object:
    """The expected value; the expected type tells whether a number is an int, a uint or a double."""
    value = decode(expected["value"])
    if expected.get("type") == "double" and type(value) is int:
        return float(value)
    return Uint(value) if expected.get("type") == "uint" and type(value) is int else value


def _type(text: str) -> str:
    return re.sub(r"[\w.]+", lambda match: _SAME_TYPE.get(match[0], match[0]), text).replace(" ", "")


def same_value(left: object, right: object) -> bool:
    """Whether both are the same value of the same type: an int is neither a uint nor a double; NaN is NaN."""
    if type(left) is not type(right):
        return False
    if isinstance(left, float) and isinstance(right, float):
        return left == right or (math.isnan(left) and math.isnan(right))
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(same_value, left, right))
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(same_value(value, right[key]) for key, value in left.items())
    if isinstance(left, OptionalValue) and isinstance(right, OptionalValue):
        return left.present == right.present and same_value(left.value, right.value)
    return equal(left, right)

"""JSON values as CEL sees them through a schema (apiserver `pkg/cel/common/values.go`).

JSON has one kind of number and no times. In a rule a `number` is always a double, and a string with the format
`date-time`, `date`, `duration` or `byte` is a timestamp, a duration or bytes.
"""

import base64
import binascii
from collections.abc import Callable
from typing import Any

from tierwall.cel import Failure
from tierwall.cel.library.time import parse_duration, parse_timestamp
from tierwall.resources.schema import Schema

Binding = Callable[[Any], Any]


def _unchanged(value: Any) -> Any:
    return value


def compile_binding(schema: Schema) -> Binding:
    """Return a function that converts a value that fits `schema` to `self` of its rules.

    Parts that need no conversion are shared.
    """
    # Of metadata, rules read only the name and generateName.
    inner = {part.name: compile_binding(part.schema) for part in schema.properties if part.name != "metadata"}
    inner = {name: bind for name, bind in inner.items() if bind is not _unchanged}
    if schema.type == "object" and (inner or schema.additional is not None):
        return _fields(inner, _unchanged if inner or schema.additional is None else compile_binding(schema.additional))
    if (
        schema.type == "array"
        and schema.items is not None
        and (bind := compile_binding(schema.items)) is not _unchanged
    ):
        return lambda value: [bind(item) for item in value] if type(value) is list else value
    if schema.type == "number":
        return lambda value: float(value) if type(value) is int else value
    if schema.type == "integer":
        return lambda value: int(value) if type(value) is float else value
    parse = _STRING_FORMATS.get(schema.format) if schema.type == "string" else None
    return _unchanged if parse is None else _string(parse)


def _fields(inner: dict[str, Binding], other: Binding) -> Binding:
    """Bind an object whose fields have their own types, or a map."""
    if not inner and other is _unchanged:
        return _unchanged
    return lambda value: (
        {name: inner.get(name, other)(item) for name, item in value.items()} if type(value) is dict else value
    )


def _string(parse: Callable[[str], object]) -> Binding:
    def bind(value: Any) -> Any:
        try:
            return parse(value) if type(value) is str else value
        except (Failure, ValueError, binascii.Error):
            return value  # the format check refuses it

    return bind


_STRING_FORMATS: dict[str, Callable[[str], object]] = {
    "date-time": parse_timestamp,
    "date": lambda text: parse_timestamp(f"{text}T00:00:00Z"),
    "duration": parse_duration,
    "byte": lambda text: base64.b64decode(text, validate=True),
}

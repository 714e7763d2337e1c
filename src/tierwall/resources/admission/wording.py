"""The API server's words: messages of apimachinery's `field.Error` and of kube-openapi's schema validation.

`spec.priority: Invalid value: 1001: spec.priority in body should be less than or equal to 1000` is one of them.
Values are printed as Go prints them (`%q` for strings, JSON for objects and lists), cut short so that a hostile object
cannot make its own refusal huge.
"""

from collections.abc import Iterable
from typing import Any

from tierwall.resources.admission.problem import PathStep

_MAX_SHOWN = 512
_MAX_LISTED = 100
_MAX_SHOWN_DEPTH = 6
_ESCAPED = dict(zip('\a\b\f\n\r\t\v\\"', 'abfnrtv\\"', strict=True))
_TYPE_NAMES = {
    type(None): "null",
    bool: "boolean",
    int: "integer",
    float: "number",
    str: "string",
    list: "array",
    dict: "object",
}


def field_path(path: Iterable[PathStep]) -> str:
    """Return a path as apimachinery prints it: `spec.ingress[0].from`; the root prints as `<nil>`."""
    out: list[str] = []
    for step in path:
        if isinstance(step, int):
            out.append(f"[{step}]")
        else:
            out.append(f".{shortened(step)}" if out else shortened(step))
    return "".join(out) or "<nil>"


def shortened(text: str) -> str:
    """Return a text from the object, cut short if it is long."""
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}…"


def go_quote(text: str) -> str:
    """Return a string as Go's `%q` prints it."""
    out: list[str] = []
    for char in text[:_MAX_SHOWN]:
        if char in _ESCAPED:
            out.append(f"\\{_ESCAPED[char]}")
        elif char.isprintable():
            out.append(char)
        elif ord(char) < 0x80:
            out.append(f"\\x{ord(char):02x}")
        elif ord(char) < 0x10000:
            out.append(f"\\u{ord(char):04x}")
        else:
            out.append(f"\\U{ord(char):08x}")
    return '"' + "".join(out) + ("…" if len(text) > _MAX_SHOWN else "") + '"'


def go_value(value: Any) -> str:
    """Return an invalid value as `field.Error` prints it."""
    if isinstance(value, str):
        return go_quote(value)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return go_number(value)
    import json

    text = json.dumps(_shallow(value, _MAX_SHOWN_DEPTH), sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return text if len(text) <= _MAX_SHOWN else text[:_MAX_SHOWN] + "…"


def go_number(value: float) -> str:
    """Return a number as Go's `%v` prints it, for whole numbers and plain fractions."""
    whole = value == value // 1 and abs(value) < 1e21
    return str(int(value)) if whole else str(value)


def _shallow(value: Any, depth: int) -> Any:
    if isinstance(value, dict):
        return {str(key): _shallow(item, depth - 1) for key, item in list(value.items())[:64]} if depth else "…"
    if isinstance(value, list):
        return [_shallow(item, depth - 1) for item in value[:64]] if depth else "…"
    return value


def type_name(value: Any) -> str:
    """Return OpenAPI's name for the type of a JSON value."""
    if type(value) is int and not -(2**63) <= value < 2**63:
        return "number"  # Go reads an integer of more than 64 bits as a float
    return _TYPE_NAMES.get(type(value), "object")


def invalid(path: Iterable[PathStep], value: Any, detail: str) -> str:
    """`field.Invalid`."""
    return f"{field_path(path)}: Invalid value: {go_value(value)}: {detail}"


def invalid_compound(path: Iterable[PathStep], detail: str) -> str:
    """`field.Invalid` of an object or list, without the value."""
    return f"{field_path(path)}: Invalid value: {detail}"


def required(path: Iterable[PathStep], detail: str = "") -> str:
    """`field.Required`."""
    return f"{field_path(path)}: Required value" + (f": {detail}" if detail else "")


def forbidden(path: Iterable[PathStep], detail: str) -> str:
    """`field.Forbidden`."""
    return f"{field_path(path)}: Forbidden: {detail}"


def listing(supported: Iterable[Any]) -> str:
    """Return the supported values of a field in quotes, at most the first hundred of them."""
    choices = list(supported)
    more = f", … and {len(choices) - _MAX_LISTED:,} more" if len(choices) > _MAX_LISTED else ""
    return ", ".join(go_quote(str(choice)) for choice in choices[:_MAX_LISTED]) + more


def unsupported(path: Iterable[PathStep], value: Any, supported: Iterable[Any]) -> str:
    """`field.NotSupported`."""
    listed = listing(supported)
    return f"{field_path(path)}: Unsupported value: {go_value(value)}: supported values: {listed}"


def duplicate(path: Iterable[PathStep], value: Any) -> str:
    """`field.Duplicate`."""
    return f"{field_path(path)}: Duplicate value: {go_value(value)}"


def too_many(path: Iterable[PathStep], count: int, limit: int) -> str:
    """`field.TooMany`."""
    return f"{field_path(path)}: Too many: {count}: must have at most {limit} item{'' if limit == 1 else 's'}"


def too_long(path: Iterable[PathStep], limit: int) -> str:
    """`field.TooLong`."""
    return f"{field_path(path)}: Too long: may not be more than {limit} byte{'' if limit == 1 else 's'}"


def wrong_type(path: tuple[PathStep, ...], wanted: str, value: Any, format: str = "") -> str:
    """Return the message for a value of a wrong type. It names the type, or the Go type if a format is expected."""
    actual = go_quote(type_name(value))
    if format and value is not None and not isinstance(value, str | list):
        wanted = format
        actual = go_quote({bool: "", int: "int64", float: "float64"}.get(type(value), ""))
    return f"{field_path(path)}: Invalid value: {actual}: {in_body(path)} must be of type {wanted}: {actual}"


def in_body(path: Iterable[PathStep]) -> str:
    """Return a field as kube-openapi names it inside a message; the root has no name there."""
    name = field_path(path)
    return f"{'' if name == '<nil>' else name} in body"

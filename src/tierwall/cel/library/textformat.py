"""`"…".format([…])` as Kubernetes has it: cel-go's first formatter, with grouped digits and exponents as `×10⁰³`."""

from __future__ import annotations

import math
import re

from tierwall.cel import cost
from tierwall.cel.failure import EvaluationError
from tierwall.cel.library.conversions import bytes_to_string, double_to_string
from tierwall.cel.library.time import format_duration, format_timestamp
from tierwall.cel.values import Duration, Timestamp, TypeValue, Uint, map_keys, type_name

_CLAUSE = re.compile(r"%(?:%|(?:\.([0-9]*))?(.)?)", re.DOTALL | re.ASCII)
_SUPERSCRIPT = str.maketrans("0123456789-", "⁰¹²³⁴⁵⁶⁷⁸⁹⁻", "+")
_SPECIAL = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_ESCAPES = {7: "\\a", 8: "\\b", 12: "\\f", 10: "\\n", 13: "\\r", 9: "\\t", 11: "\\v", 92: "\\\\", 34: '\\"'}
_TYPE_NAMES = {"timestamp": "google.protobuf.Timestamp", "duration": "google.protobuf.Duration"}
_DEFAULT_PRECISION = 6
_MAX_PRECISION = 1_000


def format_text(template: str, arguments: list[object]) -> str:
    """The template with its clauses replaced by the arguments in order; spare arguments are ignored."""
    parts: list[str] = []
    position, used, size = 0, 0, 0
    for match in _CLAUSE.finditer(template):
        parts.append(template[position : match.start()])
        position = match.end()
        if match[0] == "%%":
            parts.append("%")
            continue
        if used >= len(arguments):
            raise EvaluationError(f"format: index {used} out of range")
        parts.append(_clause(match, arguments[used]))
        used += 1
        size += len(parts[-1])
        cost.bound_text(size)
    parts.append(template[position:])
    return "".join(parts)


def _clause(match: re.Match[str], argument: object) -> str:
    precision = _DEFAULT_PRECISION
    if match[1] is not None:
        if not match[1] or len(match[1]) > 6 or int(match[1]) > _MAX_PRECISION:
            raise EvaluationError(f"format: bad precision `{match[1][:20]}`")
        precision = int(match[1])
    kind = type(argument)
    match match[2]:
        case "s":
            return text_of(argument)
        case "d" if kind is int or kind is Uint:
            return str(argument)
        case "f":
            return _fixed(_double(argument, "fixed-point"), precision)
        case "e":
            return _scientific(_double(argument, "scientific")).rjust(precision)
        case "b" if kind is bool:
            return "1" if argument else "0"
        case "b" | "o" | "x" | "X" as letter if kind is int or kind is Uint:
            return format(argument, letter)
        case "x" | "X" as letter if kind is str or kind is bytes:
            data = argument if isinstance(argument, bytes) else str(argument).encode()
            return data.hex() if letter == "x" else data.hex().upper()
        case "d" | "b" | "o" | "x" | "X" as letter:
            raise EvaluationError(f"format: `%{letter}` cannot be used on {type_name(argument)}")
        case other:
            raise EvaluationError(f'format: unrecognized formatting clause "{other or ""}"')


def _double(value: object, clause: str) -> float:
    if type(value) is float:
        return value
    if type(value) is str and value in _SPECIAL:
        return _SPECIAL[value]
    raise EvaluationError(f"format: {clause} clause can only be used on doubles, was given {type_name(value)}")


def _fixed(value: float, precision: int) -> str:
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else "∞" if value > 0 else "-∞"
    text = f"{value:,.{precision}f}"
    return text[1:] if value == 0 and text[0] == "-" else text


def _scientific(value: float) -> str:
    if not math.isfinite(value):
        return _fixed(value, 0)
    mantissa, exponent = f"{value:.6e}".split("e")
    return f"{mantissa}×10{exponent.translate(_SUPERSCRIPT)}"


def text_of(value: object) -> str:
    """What `%s` makes of a value at the outermost level."""
    kind = type(value)
    if kind is str:
        return value  # type: ignore[return-value]
    if kind is float:
        return double_to_string(value)  # type: ignore[arg-type]
    if kind is Timestamp:
        return format_timestamp(value)  # type: ignore[arg-type]
    if kind is Duration:
        return format_duration(value)  # type: ignore[arg-type]
    return _inner(value, quoted=False)


def _inner(value: object, quoted: bool = True) -> str:
    """What a value looks like inside a list or map: as a CEL literal."""
    match value:
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case int():
            return str(value)
        case float():
            text = double_to_string(value) if not math.isfinite(value) else f"{value:.6f}"
            return text if math.isfinite(value) else f'"{text}"'
        case str():
            return quote_go(value)
        case bytes():
            text = bytes_to_string(value)
            return "b" + quote_go(text) if quoted else text
        case Timestamp():
            return f'timestamp("{format_timestamp(value)}")'
        case Duration():
            return f'duration("{format_duration(value)}")'
        case TypeValue():
            return _TYPE_NAMES.get(value.name, value.name)
        case list():
            return "[" + ", ".join(map(_inner, value)) + "]"
        case dict():
            pairs = sorted(
                ((_inner(key), _inner(item)) for key, item in zip(map_keys(value), value.values(), strict=True)),
                key=lambda pair: pair[0],
            )
            return "{" + ", ".join(f"{key}:{item}" for key, item in pairs) + "}"
    raise EvaluationError(f"format: string clause cannot be used on {type_name(value)}")


def quote_go(text: str) -> str:
    """Go's `%q`: double quotes, everything that does not print escaped."""
    result = []
    for char in text:
        code = ord(char)
        if code in _ESCAPES:
            result.append(_ESCAPES[code])
        elif char.isprintable():
            result.append(char)
        elif code < 0x80:
            result.append(f"\\x{code:02x}")
        else:
            result.append(f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}")
    return '"' + "".join(result) + '"'

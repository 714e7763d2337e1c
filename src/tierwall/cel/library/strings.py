"""Strings (cel-spec; cel-go ext.Strings version 2, the one Kubernetes offers). Positions count code points.

`"…".format([…])` is cel-go's first formatter, with grouped digits and exponents as `×10⁰³`. `jsonpatch.escapeKey`, for
keys of JSON Patch paths (apiserver pkg/cel/library/jsonpatch.go), is offered to mutations only.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

from tierwall.cel.errors import EvaluationError
from tierwall.cel.library import cost
from tierwall.cel.library.conversions import bytes_to_string, double_to_string
from tierwall.cel.library.regex import computed_cost, matches
from tierwall.cel.library.table import EXTENSION, Overload, member_overloads
from tierwall.cel.library.time import format_duration, format_timestamp
from tierwall.cel.types import BOOL, DYN, INT, STRING, list_of
from tierwall.cel.values import LONG_NAMES, Duration, Timestamp, TypeValue, Uint, map_keys, type_name
from tierwall.values.pattern import pattern

_CLAUSE = pattern(r"%(?:%|(?:\.([0-9]*))?(.)?)", re.DOTALL | re.ASCII)
_SUPERSCRIPT = str.maketrans("0123456789-", "⁰¹²³⁴⁵⁶⁷⁸⁹⁻", "+")
_SPECIAL = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_ESCAPES = {7: "\\a", 8: "\\b", 12: "\\f", 10: "\\n", 13: "\\r", 9: "\\t", 11: "\\v", 92: "\\\\", 34: '\\"'}
_DEFAULT_PRECISION = 6
_MAX_PRECISION = 1_000
# What Go's strings.TrimSpace cuts: unicode.IsSpace.
_SPACE = "\t\n\v\f\r \u0085\u00a0\u1680\u2028\u2029\u202f\u205f\u3000" + "".join(map(chr, range(0x2000, 0x200B)))
_LOWER = {code: code + 32 for code in range(ord("A"), ord("Z") + 1)}
_UPPER = {code: code - 32 for code in range(ord("a"), ord("z") + 1)}
_QUOTED = {**_ESCAPES, **dict.fromkeys(range(0xD800, 0xE000), "\ufffd")}
_POINTER_ESCAPES = str.maketrans({"/": "~1", "~": "~0"})


def format_text(template: str, arguments: list[object]) -> str:
    """Return the template with its clauses replaced by the arguments in order; spare arguments are ignored."""
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
        cost.check_string_size(size)
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
            write = _OUTERMOST.get(kind)
            return _inner(argument, quoted=False) if write is None else write(argument)
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


_OUTERMOST: dict[type, Callable[[Any], str]] = {
    str: str,
    float: double_to_string,
    Timestamp: format_timestamp,
    Duration: format_duration,
}


def _inner(value: object, quoted: bool = True) -> str:
    """Format a value inside a list or map, as a CEL literal."""
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
            return LONG_NAMES.get(value.name, value.name)
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
    """Quote as Go's `%q`: in double quotes, with everything that does not print escaped."""
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


def _out_of_range(index: int) -> EvaluationError:
    return EvaluationError(f"index out of range: {index}")


def char_at(text: str, index: int) -> str:
    """Return the character at the index; the empty string at the end."""
    if not 0 <= index <= len(text):
        raise _out_of_range(index)
    return text[index : index + 1]


def index_of(text: str, part: str, start: int = 0) -> int:
    """Return the first place of the part from the start on, or -1."""
    if start < 0:
        raise _out_of_range(start)
    if not part:
        return min(start, len(text))
    return text.find(part, start)


def last_index_of(text: str, part: str, start: int | None = None) -> int:
    """Return the last place of the part that begins at or before the start, or -1."""
    if start is None:
        return text.rfind(part)
    if start < 0:
        raise _out_of_range(start)
    if not part:
        return min(start, len(text))
    if start >= len(text):
        return -1
    return text.rfind(part, 0, start + len(part))


def replace(text: str, old: str, new: str, count: int = -1) -> str:
    """Replace the first `count` occurrences; all if negative."""
    occurrences = text.count(old) if old else len(text) + 1
    if count >= 0:
        occurrences = min(occurrences, count)
    cost.check_string_size(len(text) + occurrences * (len(new) - len(old)))
    return text.replace(old, new, occurrences)


def split(text: str, separator: str, limit: int = -1) -> list[str]:
    """Split into at most `limit` parts, all if negative; by characters if the separator is empty."""
    if limit == 0:
        return []
    if not separator:
        if limit < 0 or limit >= len(text):
            return list(text)
        return [*text[: limit - 1], text[limit - 1 :]]
    return text.split(separator, limit - 1 if limit > 0 else -1)


def substring(text: str, start: int, end: int | None = None) -> str:
    """Return the characters from start up to, not including, end."""
    if end is None:
        end = len(text)
        if not 0 <= start <= end:
            raise _out_of_range(start)
    if start > end:
        raise EvaluationError(f"invalid substring range. start: {start}, end: {end}")
    for index in (start, end):
        if not 0 <= index <= len(text):
            raise _out_of_range(index)
    return text[start:end]


def join(texts: list[object], separator: str = "") -> str:
    """Return the strings with the separator between them."""
    for text in texts:
        if type(text) is not str:
            raise EvaluationError(f"join: invalid input: {type_name(text)}")
    return separator.join(texts)  # type: ignore[arg-type]


def quote(text: str) -> str:
    """Return the string as a literal in double quotes."""
    return '"' + text.translate(_QUOTED) + '"'


def _join_cost(texts: list[object], separator: str = "") -> int:
    size = sum(len(text) for text in texts if type(text) is str) + len(separator) * max(len(texts) - 1, 0)
    cost.check_string_size(size)
    return -(-size // 5)


_SS = (STRING, STRING)
_LIST = list_of(STRING)
_member, _of_list = member_overloads(STRING), member_overloads(_LIST)


def escape_key(key: str) -> str:
    """Return the key with `~` and `/` escaped as RFC 6901 asks."""
    return key.translate(_POINTER_ESCAPES)


OVERLOADS: tuple[Overload, ...] = (
    _member("contains", (STRING,), BOOL, lambda s, part: part in s, cost=cost.search),
    _member("endsWith", (STRING,), BOOL, str.endswith, cost=cost.scan_second),
    _member("startsWith", (STRING,), BOOL, str.startswith, cost=cost.scan_second),
    _member("matches", (STRING,), BOOL, matches, cost=computed_cost),
    Overload("matches", _SS, BOOL, matches, cost=computed_cost),
    _member("charAt", (INT,), STRING, char_at),
    _member("indexOf", (STRING,), INT, index_of, cost=cost.traversal),
    _member("indexOf", (STRING, INT), INT, index_of, cost=cost.traversal),
    _member("lastIndexOf", (STRING,), INT, last_index_of, cost=cost.traversal),
    _member("lastIndexOf", (STRING, INT), INT, last_index_of, cost=cost.traversal),
    _member("lowerAscii", (), STRING, lambda s: s.translate(_LOWER), cost=cost.scan),
    _member("upperAscii", (), STRING, lambda s: s.translate(_UPPER), cost=cost.scan),
    _member("replace", (STRING, STRING), STRING, replace, cost=cost.scan_first_twice),
    _member("replace", (STRING, STRING, INT), STRING, replace, cost=cost.scan_first_twice),
    _member("split", (STRING,), _LIST, split, cost=cost.scan_first_twice),
    _member("split", (STRING, INT), _LIST, split, cost=cost.scan_first_twice),
    _member("substring", (INT,), STRING, substring, cost=cost.scan),
    _member("substring", (INT, INT), STRING, substring, cost=cost.scan),
    _member("trim", (), STRING, lambda s: s.strip(_SPACE), cost=cost.scan),
    _of_list("join", (), STRING, join, cost=_join_cost),
    _of_list("join", (STRING,), STRING, join, cost=_join_cost),
    _member("format", (list_of(DYN),), STRING, format_text, cost=cost.rendering, since=29),
    Overload("strings.quote", (STRING,), STRING, quote, cost=cost.scan, since=29),
    _member("reverse", (), STRING, lambda s: s[::-1], cost=cost.scan_first_twice, since=EXTENSION),
    Overload("jsonpatch.escapeKey", (STRING,), STRING, escape_key, cost=cost.scan, since=EXTENSION),
)

"""Texts (cel-spec; cel-go ext.Strings version 2, the one Kubernetes offers). Positions count code points."""

from __future__ import annotations

from tierwall.cel import cost
from tierwall.cel.failure import EvaluationError
from tierwall.cel.library.regex import computed_cost, matches
from tierwall.cel.library.textformat import format_text
from tierwall.cel.table import EXTENSION, Overload
from tierwall.cel.types import BOOL, DYN, INT, STRING, Type, list_of
from tierwall.cel.values import type_name

# What Go's strings.TrimSpace cuts: unicode.IsSpace.
_SPACE = "\t\n\v\f\r \u0085\u00a0\u1680\u2028\u2029\u202f\u205f\u3000" + "".join(map(chr, range(0x2000, 0x200B)))
_LOWER = {code: code + 32 for code in range(ord("A"), ord("Z") + 1)}
_UPPER = {code: code - 32 for code in range(ord("a"), ord("z") + 1)}
_QUOTED = {
    7: "\\a",
    8: "\\b",
    12: "\\f",
    10: "\\n",
    13: "\\r",
    9: "\\t",
    11: "\\v",
    92: "\\\\",
    34: '\\"',
    **dict.fromkeys(range(0xD800, 0xE000), "\ufffd"),
}


def _out_of_range(index: int) -> EvaluationError:
    return EvaluationError(f"index out of range: {index}")


def char_at(text: str, index: int) -> str:
    """The character at the index; the empty text at the end."""
    if not 0 <= index <= len(text):
        raise _out_of_range(index)
    return text[index : index + 1]


def index_of(text: str, part: str, start: int = 0) -> int:
    """The first place of the part from the start on, or -1."""
    if start < 0:
        raise _out_of_range(start)
    if not part:
        return min(start, len(text))
    return text.find(part, start)


def last_index_of(text: str, part: str, start: int | None = None) -> int:
    """The last place of the part that begins at or before the start, or -1."""
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
    """The first `count` occurrences replaced; all if negative."""
    occurrences = text.count(old) if old else len(text) + 1
    if count >= 0:
        occurrences = min(occurrences, count)
    cost.bound_text(len(text) + occurrences * (len(new) - len(old)))
    return text.replace(old, new, occurrences)


def split(text: str, separator: str, limit: int = -1) -> list[str]:
    """At most `limit` parts; all if negative; by characters if the separator is empty."""
    if limit == 0:
        return []
    if not separator:
        if limit < 0 or limit >= len(text):
            return list(text)
        return [*text[: limit - 1], text[limit - 1 :]]
    return text.split(separator, limit - 1 if limit > 0 else -1)


def substring(text: str, start: int, end: int | None = None) -> str:
    """The characters from start up to, not including, end."""
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
    """The texts with the separator between them."""
    for text in texts:
        if type(text) is not str:
            raise EvaluationError(f"join: invalid input: {type_name(text)}")
    return separator.join(texts)  # type: ignore[arg-type]


def quote(text: str) -> str:
    """The text as a literal in double quotes."""
    return '"' + text.translate(_QUOTED) + '"'


def _join_cost(texts: list[object], separator: str = "") -> int:
    size = sum(len(text) for text in texts if type(text) is str) + len(separator) * max(len(texts) - 1, 0)
    cost.bound_text(size)
    return -(-size // 5)


def _member(name: str, id: str, params: tuple[Type, ...], result: Type, call: object, **more: object) -> Overload:
    return Overload(name, id, params, result, call, member=True, **more)  # type: ignore[arg-type]


_SS = (STRING, STRING)
_LIST = list_of(STRING)

OVERLOADS: tuple[Overload, ...] = (
    _member("contains", "contains_string", _SS, BOOL, lambda s, part: part in s, cost=cost.search),
    _member("endsWith", "ends_with_string", _SS, BOOL, str.endswith, cost=cost.scan_second),
    _member("startsWith", "starts_with_string", _SS, BOOL, str.startswith, cost=cost.scan_second),
    _member("matches", "matches_string", _SS, BOOL, matches, cost=computed_cost),
    Overload("matches", "matches", _SS, BOOL, matches, cost=computed_cost),
    _member("charAt", "string_char_at_int", (STRING, INT), STRING, char_at),
    _member("indexOf", "string_index_of_string", _SS, INT, index_of, cost=cost.traversal),
    _member("indexOf", "string_index_of_string_int", (*_SS, INT), INT, index_of, cost=cost.traversal),
    _member("lastIndexOf", "string_last_index_of_string", _SS, INT, last_index_of, cost=cost.traversal),
    _member("lastIndexOf", "string_last_index_of_string_int", (*_SS, INT), INT, last_index_of, cost=cost.traversal),
    _member("lowerAscii", "string_lower_ascii", (STRING,), STRING, lambda s: s.translate(_LOWER), cost=cost.scan_first),
    _member("upperAscii", "string_upper_ascii", (STRING,), STRING, lambda s: s.translate(_UPPER), cost=cost.scan_first),
    _member("replace", "string_replace_string_string", (*_SS, STRING), STRING, replace, cost=cost.scan_first_twice),
    _member(
        "replace", "string_replace_string_string_int", (*_SS, STRING, INT), STRING, replace, cost=cost.scan_first_twice
    ),
    _member("split", "string_split_string", _SS, _LIST, split, cost=cost.scan_first_twice),
    _member("split", "string_split_string_int", (*_SS, INT), _LIST, split, cost=cost.scan_first_twice),
    _member("substring", "string_substring_int", (STRING, INT), STRING, substring, cost=cost.scan_first),
    _member("substring", "string_substring_int_int", (STRING, INT, INT), STRING, substring, cost=cost.scan_first),
    _member("trim", "string_trim", (STRING,), STRING, lambda s: s.strip(_SPACE), cost=cost.scan_first),
    _member("join", "list_join", (_LIST,), STRING, join, cost=_join_cost),
    _member("join", "list_join_string", (_LIST, STRING), STRING, join, cost=_join_cost),
    _member("format", "string_format", (STRING, list_of(DYN)), STRING, format_text, cost=cost.rendering, since=29),
    Overload("strings.quote", "strings_quote", (STRING,), STRING, quote, cost=cost.scan_first, since=29),
    _member(
        "reverse", "string_reverse", (STRING,), STRING, lambda s: s[::-1], cost=cost.scan_first_twice, since=EXTENSION
    ),
)

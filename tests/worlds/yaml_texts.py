"""Random texts for the readers: JSON values, nearly valid YAML, and ways of printing a value as YAML."""

from __future__ import annotations

import json
from itertools import chain
from typing import Any

import yaml
from hypothesis import strategies as st

INT64 = st.integers(min_value=-(2**63), max_value=2**63 - 1)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
WORDS = st.sampled_from(
    ["yes", "no", "on", "y", "1", "0x1F", "017", "1e3", ".5", "null", "~", "", "<<", "a: b", "- x", "#c"]
)
SCALARS = st.none() | st.booleans() | INT64 | st.floats(allow_nan=False, allow_infinity=False) | TEXT | WORDS
JSON = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT | WORDS, inner, max_size=4),
    max_leaves=20,
)

_INDICATORS = [
    *"ab1:-?[]{},\"'#!|>~%@`\\é😀",
    "<<:",
    "...",
    "---",
    "[]",
    "{}",
    "::1",
    ".inf",
    ".5",
    "1e3",
    "null",
    "yes",
]
_SPACED = [
    ": ",
    "- ",
    ", ",
    "? ",
    " #",
    "&a ",
    "*a",
    "*a ",
    "!!str ",
    "!!int ",
    "!t ",
    "<<: *a",
    "!!binary ",
    "k: ",
    '"x": ',
]
_BREAKS = [
    "\n",
    "\n ",
    "\n  ",
    "\n- ",
    "\r",
    "\r\n",
    "\x85",
    "\u2028",
    "\n---\n",
    "--- x",
    "\t",
    " ",
    "  ",
    "\ufeff",
    "\x00",
]
_SCALARS = [
    "\\n",
    "\\x41",
    "\\/",
    "\\'",
    "'y'",
    '{"a": 1}',
    "aGk=",
    "a: [",
    "b: {",
    "k: |\n  t\n",
    "|-\n",
    "|+\n",
    ">2\n",
]
MESSES = st.lists(st.sampled_from([*_INDICATORS, *_SPACED, *_BREAKS, *_SCALARS]), max_size=14).map("".join)

_WHOLE = [
    "",
    "v",
    "1",
    "yes",
    '"s"',
    "'t'",
    "x # c",
    "# c",
    "[]",
    "{}",
    "[a, b]",
    "{a: 1}",
    "[{a: 1}]",
    "http://h:80/x",
    "-1",
]
_LITERALS = ["|\n    l\n      m\n\n", "|-\n      x", "|+\n   y\n\n  ", "|\n     \n  z", "|\n  \tq"]
_OTHERS = [
    "- x",
    "a: b",
    "a:",
    "&z q",
    "*z",
    "!t v",
    '"a\\n"',
    "'it''s'",
    '"open',
    "v ",
    '"s" x',
    "[a]b",
    "x\ty",
    ".inf",
    "<<",
    "-",
]
_LONG = [
    "x y\n      z",
    '"a\n    b"',
    "'c\n\n   d'  # c",
    "m\n     - q",
    "m\n   1: 2",
    "p # c\n    q",
    '"a\n...\nb"',
    "s\n    t:",
]
_KEYS = st.sampled_from(["a", "b", "app.io/x", "on", "1", "k8s", "a", "-x", '"q"', "x y", ".5", "~", "..."])
_RESTS = st.sampled_from([*_WHOLE, *_WHOLE, *_WHOLE, *_LITERALS, *_LONG, *_OTHERS])
_INDENTS = st.sampled_from(["", "", "", "  ", "  ", "    ", "      ", " "])
_DASHES = st.sampled_from(["", "", "", "- ", "- ", "- - ", "-  ", "-"])
_ENTRY = st.tuples(_INDENTS, _DASHES, _KEYS, st.sampled_from([": ", ":", ":  "]), _RESTS).map("".join)
_ITEM = st.tuples(_INDENTS, _DASHES, _RESTS).map("".join)
_LINES = st.lists(_ENTRY | _ENTRY | _ITEM | st.sampled_from(["", "# c", "  ", "..."]), min_size=1, max_size=6)


def _nested(children: st.SearchStrategy[list[str]]) -> st.SearchStrategy[list[str]]:
    """Generate mostly valid block collections: each child is indented under a key or a dash."""

    def under_key(key: str, shift: int, lines: list[str]) -> list[str]:
        return [f"{key}:", *(" " * shift + line for line in lines)]

    def under_dash(lines: list[str]) -> list[str]:
        return ["- " + lines[0], *("  " + line for line in lines[1:])]

    maps = st.builds(under_key, _KEYS, st.sampled_from([0, 2, 2, 4]), children)
    return st.lists(maps | children.map(under_dash), min_size=1, max_size=3).map(lambda parts: list(chain(*parts)))


_LEAVES = st.lists(st.tuples(_KEYS, st.just(": "), _RESTS).map("".join), min_size=1, max_size=3)
ENTRIES = (_LINES | st.recursive(_LEAVES, _nested, max_leaves=8)).map(lambda lines: "\n".join(lines) + "\n")

_FLOW_TOKENS = [
    *"[]{},:",
    ", ",
    ": ",
    "a",
    "b-c",
    "1",
    "yes",
    "~",
    "''",
    '"s"',
    "'t'",
    " ",
    " # c",
    "h:80",
    "a: 1",
    "-",
    "?",
    "x y",
    "0o7",
]


def _flow(children: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    """Generate mostly valid flow collections."""
    keys = st.sampled_from(["a", "b", "on", "1", '"q"', "x/y", "~"])
    pairs = st.tuples(keys, st.sampled_from([": ", ": ", ":", ":  "]), children).map("".join)
    ends = st.sampled_from(["", "", " ", ","])
    maps = st.tuples(st.just("{"), ends, st.lists(pairs, max_size=3).map(", ".join), ends, st.just("}"))
    lists = st.tuples(st.just("["), ends, st.lists(children, max_size=3).map(",".join), ends, st.just("]"))
    return (maps | lists).map("".join)


FLOWS = st.lists(st.sampled_from(_FLOW_TOKENS), max_size=10).map(lambda tokens: "[" + "".join(tokens)) | st.recursive(
    st.sampled_from(["a", "1", "yes", '"s"', "'t'", "h:80", "null", "", "-x", "a b", "prom/x:v3", "2020-01-01"]),
    _flow,
    max_leaves=8,
).filter(lambda text: text[:1] in ("[", "{"))


class _Quoting(yaml.SafeDumper):
    """Prints strings in quotes, because PyYAML leaves words plain that Go does not read as strings."""


_Quoting.add_representer(str, lambda dumper, text: dumper.represent_scalar("tag:yaml.org,2002:str", text, style='"'))


def as_yaml(value: Any, flow: bool, indent: int, width: int, ascii_only: bool, starts: bool) -> str:
    """Print a value as YAML, in one of many styles."""
    options: dict[str, Any] = {"default_flow_style": flow, "indent": indent, "width": width, "sort_keys": False}
    text: str = yaml.dump(value, Dumper=_Quoting, allow_unicode=not ascii_only, explicit_start=starts, **options)
    return text


def as_json(value: Any, indent: int, ascii_only: bool) -> str:
    """Print a value as JSON."""
    return json.dumps(value, indent=indent or None, ensure_ascii=ascii_only)


def through_json_text(value: Any) -> Any:
    """Convert the numbers of a value as Go does by writing and reading JSON: whole floats become integers."""
    if isinstance(value, dict):
        return {key: through_json_text(child) for key, child in value.items()}
    if isinstance(value, list):
        return [through_json_text(child) for child in value]
    if isinstance(value, float) and value.is_integer() and -(2**63) <= (whole := _whole(value)) < 2**63:
        return whole
    return value


def _whole(value: float) -> int:
    text = repr(value)
    if "e" not in text:
        return int(text.partition(".")[0])
    mantissa, _, power = text.partition("e")
    whole, _, fraction = mantissa.partition(".")
    return int(whole + fraction.ljust(int(power), "0"))


def same(first: Any, other: Any) -> bool:
    """Whether two values are equal, where `1`, `1.0` and `true` are different."""
    return repr(first) == repr(other)

"""Random CEL and random patterns for Envoy: of every size and depth, near and far beyond its limits."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import strategies as st

_LETTERS = st.characters(codec="utf-8")
_TEXT = st.one_of(
    st.sampled_from(("", "a", "add", "/data/", "x" * 300, "é", "\U0001f600", "%", "a\nb", "\x00", "''", '"', "\\")),
    st.text(_LETTERS, max_size=30),
)
_STRINGS = _TEXT.map(lambda text: json.dumps(text, ensure_ascii=False).replace("\x7f", "\\x7f"))
_NUMBERS = st.one_of(
    st.sampled_from(
        ("0", "-1", "9223372036854775807", "-9223372036854775808", "18446744073709551615u", "0u", "1e308", "-0.0")
    ),
    st.sampled_from(("5e-324", "9007199254740993", "0x7fffffffffffffff", "1.5")),
    st.integers(-(1 << 63), (1 << 63) - 1).map(str),
    st.floats(allow_nan=False, allow_infinity=False).map(repr),
)
_LITERALS = st.one_of(_STRINGS, _NUMBERS, st.sampled_from(("true", "false", "null", "b'a\\xff'", "b''")))
_PATTERNS = st.one_of(
    st.sampled_from(("", "^a$", "(", "a{1000}", "(a{100}){100}", "[z-a]", r"\\pL", ".", "(?i)k", "x*", "\\x00", "é")),
    st.builds(
        lambda part, number: part * number, st.sampled_from(("a", "é", ".", "(a|b)", "[^a]")), st.integers(1, 120)
    ),
    st.lists(st.sampled_from(("add", "sub", "delete_all", "é")), max_size=60).map("|".join),
)
_KEYS = st.sampled_from(("a", "b", "path", "x-y"))


def _path(keys: list[str]) -> str:
    return "request.mcp.arguments" + "".join(f".{key}" if key.isalpha() else f"['{key}']" for key in keys)


_ARGUMENTS = st.one_of(
    st.lists(_KEYS, min_size=1, max_size=4),
    st.builds(lambda key, number: [key] * number, _KEYS, st.integers(30, 60)),
).map(_path)
_VALUES = st.one_of(
    st.sampled_from(
        (
            "request.mcp.tool_name",
            "request.path",
            "request.host",
            "request.method",
            "request.headers.x",
            "request.headers['X-Odd']",
            "request.headers['x-tierwall-caller']",
            "request.nothing",
            "size(request.path)",
        )
    ),
    _ARGUMENTS,
    _LITERALS,
    st.lists(_LITERALS, max_size=5).map(lambda items: f"[{', '.join(items)}]"),
    st.integers(1, 60).map(lambda depth: "[" * depth + "1" + "]" * depth),
)
_COMPARISONS = st.builds(
    lambda left, operator, right: f"{left} {operator} {right}",
    _VALUES,
    st.sampled_from(("==", "!=", "<", "<=", ">", ">=", "in")),
    _VALUES,
)
_STRING_VALUES = st.one_of(st.sampled_from(("request.mcp.tool_name", "request.path", "'abc'")), _ARGUMENTS)
_TESTS = st.one_of(
    _COMPARISONS,
    st.builds(lambda value, pattern: f"{value}.matches({json.dumps(pattern)})", _STRING_VALUES, _PATTERNS),
    st.builds(lambda value, pattern: f"matches({value}, {json.dumps(pattern)})", _STRING_VALUES, _PATTERNS),
    st.builds(
        lambda value, function, text: f"{value}.{function}({text})",
        _STRING_VALUES,
        st.sampled_from(("startsWith", "endsWith", "contains", "matches", "split")),
        _STRINGS,
    ),
    st.builds(
        lambda value, names: f"{value} in [{', '.join(names)}]",
        _STRING_VALUES,
        st.one_of(st.lists(_STRINGS, max_size=8), st.integers(0, 400).map(lambda number: ["'name'"] * number)),
    ),
    _ARGUMENTS.filter(lambda path: not path.endswith("]")).map(lambda path: f"has({path})"),
    st.sampled_from(("has(request.headers.x)", "'x' in request.headers", "'a' in request.mcp.arguments", "true")),
    st.sampled_from(
        (
            "request.time > timestamp('2023-01-01T00:00:00Z')",
            "request.time > timestamp('never')",
            "duration('1h') > duration('odd')",
            "request.time.getHours('Europe/Berlin') > 3",
            "request.time.getFullYear('Nowhere') == 2020",
            "['a'].exists(x, x == request.path)",
            "{'a': 1}.a == 1",
            "-request.mcp.arguments.a < 5",
            "[1][5] == 1",
        )
    ),
)


def _chain(operator: str, terms: list[str], times: int) -> str:
    return f" {operator} ".join(f"({term})" for term in terms * times)


def _grown(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.one_of(
        inner.map(lambda text: f"!({text})"),
        st.builds(lambda depth, text: "!(" * depth + text + ")" * depth, st.integers(2, 60), inner),
        st.builds(_chain, st.sampled_from(("&&", "||")), st.lists(inner, min_size=2, max_size=4), st.integers(1, 40)),
        st.builds(
            lambda condition, then, depth: f"({condition}) ? ({then}) : " * depth + "false",
            inner,
            inner,
            st.integers(1, 60),
        ),
        st.builds(
            lambda text, depth: f"{text} && ({text} || (" * depth + "true" + "))" * depth, _TESTS, st.integers(1, 60)
        ),
    )


EXPRESSIONS = st.recursive(_TESTS, _grown, max_leaves=6).filter(lambda text: len(text) < 30_000)
_MATCHERS = st.fixed_dictionaries(
    {"type": st.sampled_from(("RegularExpression", "RegularExpression", "Exact", "PathPrefix")), "value": _PATTERNS}
)


@st.composite
def rules(draw: st.DrawFn) -> dict[str, Any]:
    """A rule with a random expression, or with random HTTP matchers."""
    if draw(st.integers(0, 4)):
        return {"authorization": {"type": "CEL", "cel": {"expression": draw(EXPRESSIONS)}}}
    paths = [{**match, "value": f"/{match['value']}"} for match in draw(st.lists(_MATCHERS, max_size=3))]
    headers = [
        {"name": "x-a", **match} for match in draw(st.lists(_MATCHERS, max_size=2)) if match["type"] != "PathPrefix"
    ]
    return {"authorization": {"type": "Inline", "paths": paths, "headers": headers}}


@st.composite
def route_matches(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Matches of an HTTPRoute with random patterns."""
    out: list[dict[str, Any]] = []
    for match in draw(st.lists(_MATCHERS, max_size=2)):
        header = {"name": "x-a", "type": "RegularExpression", "value": draw(_PATTERNS)}
        parameter = {
            "name": "q",
            "type": draw(st.sampled_from(("Exact", "RegularExpression"))),
            "value": draw(_PATTERNS),
        }
        out.append({"path": {**match, "value": f"/{match['value']}"}, "headers": [header], "queryParams": [parameter]})
    return out

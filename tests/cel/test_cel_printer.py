from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings

from tests.randomness import examples
from tests.worlds.cel_trees import TREES, same
from tierwall.cel.errors import ParseError
from tierwall.cel.syntax import ast
from tierwall.cel.syntax.parser import parse
from tierwall.cel.syntax.printer import literal_text, to_text
from tierwall.cel.values import Uint


@given(TREES)
@settings(max_examples=examples(1500))
def test_a_printed_tree_parses_back_to_the_same_tree(tree: ast.Expr) -> None:
    text = to_text(tree)
    again = parse(text)
    assert same(tree, again), text
    assert to_text(again) == text


@pytest.mark.parametrize(
    ("written", "printed"),
    [
        ("((a) + (b)) + c", "a + b + c"),
        ("a + (b + c)", "a + (b + c)"),
        ("(a * b) + c", "a * b + c"),
        ("a * (b + c)", "a * (b + c)"),
        ("a - (b - c) - d", "a - (b - c) - d"),
        ("(a == b) == c", "a == b == c"),
        ("a == (b == c)", "a == (b == c)"),
        ("(a && b) || (c && d)", "a && b || c && d"),
        ("(a || b) && c", "(a || b) && c"),
        ("a || (b || c)", "a || (b || c)"),
        ("!(a.b)", "!a.b"),
        ("!(a && b)", "!(a && b)"),
        ("!(!a)", "!(!a)"),
        ("-(-a)", "-(-a)"),
        ("-(1)", "-(1)"),
        ("-(1.f())", "-(1.f())"),
        ("a - -1", "a - -1"),
        ("(-a).b", "(-a).b"),
        ("(a + b).size()", "(a + b).size()"),
        ("(a ? b : c) ? d : (e ? f : g)", "(a ? b : c) ? d : e ? f : g"),
        ("a ? (b ? c : d) : e", "a ? (b ? c : d) : e"),
        ("(a ? b : c) + 1", "(a ? b : c) + 1"),
        ("f((a ? b : c))", "f(a ? b : c)"),
        ("a[(b)][?c].?d.`e-f`", "a[b][?c].?d.`e-f`"),
        ("{?a: 1, 'b': [?c, 2,],}", '{?a: 1, "b": [?c, 2]}'),
        ("has((a.b).c)", "has(a.b.c)"),
        ("a.b.map(x,x>1,x*2)", "a.b.map(x, x > 1, x * 2)"),
        ("cel.bind(x,1,x+x)", "cel.bind(x, 1, x + x)"),
        ("a.?b.optMap(v,v+1)", "a.?b.optMap(v, v + 1)"),
        ("a.b.T{f:1,?g:x}", "a.b.T{f: 1, ?g: x}"),
        ("x in ['a']", 'x in ["a"]'),
        ("r'a\\d' + '''b\"c'''", '"a\\\\d" + "b\\"c"'),
    ],
)
def test_parentheses_stand_only_where_the_grammar_needs_them(written: str, printed: str) -> None:
    assert to_text(parse(written)) == printed
    assert same(parse(printed), parse(written))


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "null"),
        (True, "true"),
        (-5, "-5"),
        (Uint(7), "7u"),
        (2.0, "2.0"),
        (1e16, "1e16"),
        (1.5e-7, "1.5e-7"),
        (-0.0, "-0.0"),
        (float("inf"), 'double("Infinity")'),
        (float("-inf"), 'double("-Infinity")'),
        (float("nan"), 'double("NaN")'),
        ('a"b\\c\nd\te', '"a\\"b\\\\c\\nd\\te"'),
        ("é\u200b\U0001f600\U000e0001", '"é\\u200b\U0001f600\\U000e0001"'),
        (b"abc", 'b"abc"'),
        ("é".encode(), 'b"é"'),
        (b'\xff"\n\x00', 'b"\\xff\\"\\n\\x00"'),
    ],
)
def test_literals_are_written_as_a_person_would(value: object, text: str) -> None:
    assert literal_text(value) == text


def test_a_field_that_no_text_can_select_becomes_an_index() -> None:
    operand = ast.Ident("a")
    assert to_text(ast.Select(operand, "$x")) == 'a["$x"]'
    assert to_text(ast.Select(operand, "$x", True)) == 'a[?"$x"]'
    assert to_text(ast.Has(operand, "$x")) == '"$x" in a'


def test_every_conformance_expression_survives_printing(shared: Path) -> None:
    printed = 0
    for file in sorted((shared / "conformance" / "cel").glob("*.jsonl")):
        for line in file.read_text().splitlines():
            try:
                tree = parse(json.loads(line)["expr"])
            except ParseError:
                continue
            assert same(parse(to_text(tree)), tree)
            printed += 1
    assert printed > 2000

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.randomness import examples
from tests.worlds.cel_trees import same
from tierwall.cel.errors import ParseError
from tierwall.cel.syntax import ast
from tierwall.cel.syntax.lexer import tokenize
from tierwall.cel.syntax.macros import syntax_of
from tierwall.cel.syntax.parser import MAX_SOURCE, parse
from tierwall.cel.syntax.printer import to_text
from tierwall.cel.values import Uint


def shape(node: ast.Expr) -> str:
    """A tree as nested calls, so that grouping can be read."""
    match node:
        case ast.Literal(value=value):
            return repr(value)
        case ast.Ident(name=name):
            return name
        case ast.Call(function=function, target=target, args=args):
            head = function if target is None else f"{shape(target)}.{function}"
            return f"{head}({', '.join(map(shape, args))})"
        case ast.Select(operand=operand, field=field, optional=optional):
            return f"{shape(operand)}.{'?' if optional else ''}{field}"
        case _:
            return to_text(node)


def literal_of(source: str) -> object:
    tree = parse(source)
    assert isinstance(tree, ast.Literal)
    return tree.value


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("a + b * c - d", "_-_(_+_(a, _*_(b, c)), d)"),
        ("a < b == c", "_==_(_<_(a, b), c)"),
        ("a == b && c || d && e && f", "_||_(_&&_(_==_(a, b), c), _&&_(d, e, f))"),
        ("a || (b || c)", "_||_(a, _||_(b, c))"),
        ("a ? b : c ? d : e", "_?_:_(a, b, _?_:_(c, d, e))"),
        ("a in b + c", "@in(a, _+_(b, c))"),
        ("!a.b", "!_(a.b)"),
        ("!!a", "a"),
        ("!!!a", "!_(a)"),
        ("--a", "a"),
        ("-a.b", "-_(a.b)"),
        ("-1", "-1"),
        ("--1", "1"),
        ("---1", "-_(1)"),
        ("-1.f", "-1.f"),
        ("!-1", "!_(-1)"),
        ("-1u", "-_(1u)"),
        ("1 -1", "_-_(1, 1)"),
        ("a[b][?c].?d", "_[?_](_[_](a, b), c).?d"),
        (".a.b", ".a.b"),
        ("a.`b c`", "a.b c"),
        ("optional.of(a)", "optional.of(a)"),
        ("a.if", "a.if"),
        ("a.namespace()", "a.namespace()"),
        ("if.as{in1: 1}", "if.as{in1: 1}"),
        ("[,]", "[]"),
        ("{,}", "{}"),
    ],
)
def test_the_tree_groups_as_in_cel_go(source: str, expected: str) -> None:
    tree = parse(source)
    grouped = shape(tree).replace("Uint(1)", "1u")
    assert grouped == expected


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ('"a\\n\\x41\\101\\u00e9\\U0001F600"', "a\nAAé\U0001f600"),
        ("'''a'b\"c\n'''", "a'b\"c\n"),
        ('"""a\\"b"""', 'a"b'),
        ('r"\\n"', "\\n"),
        ("R'''\\'''", "\\"),
        ('"""a\r\nb\rc"""', "a\nb\nc"),
        ('b"\\xff\\377é"', b"\xff\xff\xc3\xa9"),
        ("br'\\x'", b"\\x"),
        ("0x1F", 31),
        ("-0x8000000000000000", -(2**63)),
        ("18446744073709551615u", Uint(2**64 - 1)),
        ("0xFfU", Uint(255)),
        (".5e1", 5.0),
        ("1e-400", 0.0),
        ("000000000000000000000000000001", 1),
    ],
)
def test_literals_have_the_values_that_cel_gives_them(source: str, expected: object) -> None:
    literal = literal_of(source)
    assert literal == expected
    assert type(literal) is type(expected)


@pytest.mark.parametrize(
    ("source", "line", "column", "message"),
    [
        ("x ? 1 : ", 1, 9, "expected an expression, found end of input"),
        ("a b", 1, 3, "expected an operator or the end of input, found `b`"),
        ("a &&\n  b +", 2, 6, "expected an expression, found end of input"),
        ("(a", 1, 3, "expected `)`, found end of input"),
        ("f(a,)", 1, 5, "expected an expression, found `)`"),
        ("[1, , 2]", 1, 5, "expected an expression, found `,`"),
        ("{1}", 1, 3, "expected `:` and the key's value, found `}`"),
        ("a.1", 1, 2, "expected an operator or the end of input, found `.1`"),
        ("a.true", 1, 3, "expected the name of a field, found `true`"),
        ("a = b", 1, 3, "unexpected character `=`"),
        ('a + "b', 1, 5, "string is not closed, or holds an escape that CEL does not have"),
        ('"\\q"', 1, 1, "string is not closed, or holds an escape that CEL does not have"),
        ("if", 1, 1, "`if` is a reserved word and cannot name a variable or function"),
        ("9223372036854775808", 1, 1, "int literal out of range"),
        ("18446744073709551616u", 1, 1, "uint literal out of range"),
        ("1e999", 1, 1, "double literal out of range"),
        ('"\\ud800"', 1, 1, "invalid Unicode code point in `\\ud800`"),
        ('b"\\u0041"', 1, 1, "`\\u0041` is not allowed in a bytes literal"),
        ("has(a)", 1, 5, "expected a field selection such as `a.b` as the argument of `has`"),
        (
            'has(a["b"])',
            1,
            6,
            'expected a field selection such as `a.b` as the argument of `has`: write `"b" in a` or `has(a.b)`',
        ),
        (
            'has(a.b["c/d"])',
            1,
            8,
            'expected a field selection such as `a.b` as the argument of `has`: write `"c/d" in a.b`',
        ),
        ("a.all(x.y, true)", 1, 9, "expected the name of a variable as the macro's argument"),
        ("a.map(__result__, 1)", 1, 7, "`__result__` cannot be an iteration variable"),
        ("a.all(x, x, true)", 1, 10, "expected two different iteration variables, found `x` twice"),
        ("TestAllTypes(){}", 1, 15, "expected an operator or the end of input, found `{`"),
        ("a\ud800", 1, 1, "expression is not valid Unicode: it holds a lone surrogate"),
    ],
)
def test_an_error_says_where_and_what(source: str, line: int, column: int, message: str) -> None:
    with pytest.raises(ParseError) as caught:
        parse(source)
    assert (caught.value.line, caught.value.column) == (line, column)
    assert caught.value.message.startswith(message)


def test_every_problem_before_the_first_syntax_error_is_reported() -> None:
    with pytest.raises(ParseError) as caught:
        parse("if + 9223372036854775808 +\n as +")
    assert [(each.line, each.column) for each in caught.value.problems] == [(1, 1), (1, 6), (2, 2), (2, 6)]


def test_an_error_shows_the_line_with_a_caret_and_a_hint() -> None:
    with pytest.raises(ParseError) as caught:
        parse("a.b &&\n\tc = d")
    assert caught.value.render() == "2:4: unexpected character `=`\n |  c = d\n |    ^\n hint: write `==`"


def test_a_long_line_is_cut_around_the_caret() -> None:
    with pytest.raises(ParseError) as caught:
        parse("a + " * 1000 + "$" + " + a" * 1000)
    code, caret = caught.value.problems[0].snippet.splitlines()
    assert len(code) < 120
    assert code[caret.index("^")] == "$"


@pytest.mark.parametrize(
    "source",
    ["a.all(x)", "a.all(x, y, z, w)", "has()", "has(a.b, c)", "a.map(x)", "a.existsOne(x, true)", "a.bind(x, y, z)"],
)
def test_a_call_that_no_macro_matches_is_an_ordinary_call(source: str) -> None:
    assert isinstance(parse(source), ast.Call)


@pytest.mark.parametrize(
    ("source", "tree"),
    [
        ("a.exists_one(x, y)", ast.Comprehension("exists_one", ast.Ident("a", 0), ("x",), (ast.Ident("y", 16),), 2)),
        (
            "a.existsOne(i, v, y)",
            ast.Comprehension("existsOne", ast.Ident("a", 0), ("i", "v"), (ast.Ident("y", 18),), 2),
        ),
        ("cel.bind(x, 1, x)", ast.Bind("bind", "x", ast.Literal(1, 12), ast.Ident("x", 15), 4)),
        ("has(has(a.b))", ast.Has(ast.Ident("a", 8), "b", 4)),
    ],
)
def test_macros_are_kept_as_they_were_written(source: str, tree: ast.Expr) -> None:
    assert repr(parse(source)) == repr(tree)  # with the places of all nodes


def test_older_releases_do_not_know_newer_syntax() -> None:
    with pytest.raises(ParseError, match=r"1\.28"):
        parse("a.?b", syntax_of(27))
    assert isinstance(parse("a.all(i, v, true)", syntax_of(31)), ast.Call)
    assert isinstance(parse("a.all(i, v, true)", syntax_of(32)), ast.Comprehension)
    assert isinstance(parse("a.sortBy(v, v)", syntax_of(33)), ast.Call)
    assert isinstance(parse("cel.bind(x, 1, x)", syntax_of(37)), ast.Call)


@pytest.mark.parametrize(
    ("template", "deepest"),
    [
        ("(|)", 249),
        ("[|]", 249),
        ("{1: |}", 249),
        ("f(|)", 249),
        ("a[|]", 249),
        ("a ? b : |", 249),
        ("1 + (|)", 124),
        ("1 < (|)", 124),
        ("1 + 1 * (|)", 83),
        ("|.b", 250),
        ("|[0]", 250),
        ("|.f()", 250),
        ("| + 1", 250),
    ],
)
def test_nesting_ends_where_cel_go_ends_it(template: str, deepest: int) -> None:
    before, after = template.split("|")
    parse(before * deepest + "a" + after * deepest)
    with pytest.raises(ParseError, match="nested too deeply"):
        parse(before * (deepest + 1) + "a" + after * (deepest + 1))


@pytest.mark.parametrize(
    "source",
    [
        "(" * 10_000 + "a" + ")" * 10_000,
        "[" * 99_000,
        "a" + ".b" * 49_000,
        "1" + "+1" * 49_000,
        "a?b:" * 24_000 + "a",
        "!" * 99_000,
        "-" * 99_000,
        "a{" * 49_000,
        "[" + "if," * 33_000 + "]",
        '"""a\\q' * 14_000,
        "'" * 99_999,
        "a" * (MAX_SOURCE + 1),
        "(" * 1_000_000,
    ],
)
def test_hostile_text_is_refused_quickly(source: str) -> None:
    start = time.process_time()
    with pytest.raises(ParseError):
        parse(source)
    assert time.process_time() - start < 2


def test_long_flat_text_is_accepted() -> None:
    tree = parse(" && ".join(["a"] * 20_000))
    assert isinstance(tree, ast.Call)
    assert len(tree.args) == 20_000


_WORDS = """a b . ? [ ] ( ) { } , : && || ! - + * == in true 1 1u 1.5 "s" ' " \'\'\' b'x' r'\\' `q` ` has( .all(x, if"""
_ODD = [*"\\é\ud800\r\n ", "// c\n", "0x", "9223372036854775808", "1e999", '"\\ud800"', "cel.bind(", "T{"]
_PIECES = st.sampled_from([*_WORDS.split(), *_ODD])


@given(st.one_of(st.text(max_size=40), st.lists(_PIECES, max_size=14).map("".join)))
@settings(max_examples=examples(2500))
@example("\x00")
@example("a.")
def test_any_text_parses_or_is_refused(source: str) -> None:
    try:
        tree = parse(source)
    except ParseError:
        return
    assert same(parse(to_text(tree)), tree)


def test_the_conformance_expressions_parse_as_in_kubernetes(shared: Path) -> None:
    folder = shared / "conformance" / "cel"
    wrong, asked = [], 0
    for file in sorted(folder.glob("*.jsonl")):
        for line in file.read_text().splitlines():
            case = json.loads(line)
            asked += 1
            try:
                parse(case["expr"])
                refused = False
            except ParseError:
                refused = True
            if refused != ("parseError" in case["expect"]) and not case.get("ext"):
                wrong.append(case["name"])
    assert wrong == []
    assert asked > 2000


PIECES = ("'", '"', "b", "R", "ab", "1", "0x1f", "2u", ".5", "1e3", ".", "==", "=", " ", "\n", "// c'", "`a b`", "é")
STRINGS = ("'x'", '"y"', "r'z'", "bR'z'", "''", '""')


@given(st.lists(st.sampled_from((*PIECES, *STRINGS)), max_size=9).map("".join))
@settings(max_examples=examples(300))
def test_a_backslash_elsewhere_does_not_change_tokens(source: str) -> None:
    short, whole = tokenize(source), tokenize(source + "\n// \\")
    assert (short.kinds, short.texts, short.starts[:-1]) == (whole.kinds, whole.texts, whole.starts[:-1])

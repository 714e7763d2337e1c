from __future__ import annotations

import json
import time
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.randomness import examples
from tests.worlds.cel_trees import LITERALS, TREES
from tierwall.cel.check.checker import CheckedExpression, check, compile_source
from tierwall.cel.check.structural import escape, schema_type, unescape
from tierwall.cel.environment import Environment
from tierwall.cel.errors import CheckError, ParseError
from tierwall.cel.library.table import Overload
from tierwall.cel.syntax import ast
from tierwall.cel.syntax.printer import to_text
from tierwall.cel.types import BOOL, DYN, INT, STRING, ObjectType, Type, TypeNameError, list_of, map_of, parse_type

NAMES = {
    "i": "int",
    "s": "string",
    "x": "dyn",
    "li": "list(int)",
    "msi": "map(string, int)",
    "oi": "optional_type(int)",
    "b": "bool",
    "a.b": "map(string, dyn)",
    "a.b.c": "int",
    "a": "map(string, string)",
    "request": "map(string, dyn)",
}
ENVIRONMENT = Environment(variables={name: parse_type(text) for name, text in NAMES.items()})


def answer(source: str, environment: Environment) -> dict[str, object]:
    """The answer of a checked line, in the words of the conformance data."""
    try:
        return {"type": str(compile_source(source, environment).type)}
    except ParseError:
        return {"parseError": True}
    except CheckError:
        return {"checkError": True}


def test_every_checked_conformance_line_is_answered_as_in_kubernetes(shared: Path) -> None:
    wrong = []
    asked = 0
    for file in sorted((shared / "conformance" / "cel").glob("*.jsonl")):
        for line in file.read_text().splitlines():
            case = json.loads(line)
            if not case.get("check"):
                continue
            asked += 1
            variables = {name: parse_type(text) for name, text in case.get("decls", {}).items()}
            expected = case.get("kubernetes", case["expect"])
            if "type" in expected:
                expected = {"type": str(parse_type(expected["type"]))}
            answered = answer(case["expr"], Environment(variables=variables))
            if answered != expected:
                wrong.append((case["name"], expected, answered))
    assert wrong == []
    assert asked > 500


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("x + 1", "int"),
        ("x.y[0].z", "dyn"),
        ("b ? 1 : x", "dyn"),
        ("[[], [1]]", "list(list(int))"),
        ("[].filter(y, y)", "list(bool)"),
        ("[].map(y, y)", "list(dyn)"),
        ("li + []", "list(int)"),
        ("b ? [] : li", "list(int)"),
        ("oi.optMap(v, string(v))", "optional_type(string)"),
        ("x.optMap(v, v)", "optional_type(dyn)"),
        ("oi.optFlatMap(v, x)", "dyn"),
        ("oi.optFlatMap(v, optional.of(s))", "optional_type(string)"),
        ("li.transformMap(k, v, s)", "map(int, string)"),
        ("li.transformMapEntry(k, v, {string(k): v})", "map(string, int)"),
        ("msi.transformList(k, v, k)", "list(string)"),
        ("li.sortBy(v, -v)", "list(int)"),
        ("li.all(i, .i > i)", "bool"),
        ("a.b.c + 1", "int"),
        ("a.b.d", "dyn"),
        ("a.z", "string"),
        ("li.map(a, a + 1)", "list(int)"),
        ("type(li)", "type(list(int))"),
        ("google.protobuf.Duration", "type(duration)"),
        ("'%s %d'.format(['a', 1])", "string"),
        ("null == oi", "bool"),
        ("msi.?k.orValue(0)", "int"),
    ],
)
def test_types_are_deduced_as_in_cel_go(source: str, expected: str) -> None:
    assert str(compile_source(source, ENVIRONMENT).type) == expected


@pytest.mark.parametrize(
    ("source", "place", "message", "hint"),
    [
        ("requst.verb", (1, 1), "undeclared variable `requst`", "did you mean `request`?"),
        ("s.startWith('a')", (1, 3), "undeclared function `startWith`", "did you mean `startsWith`?"),
        ("size", (1, 1), "undeclared variable `size`", "`size` is a function: call it as `size(…)`"),
        (
            "i +\n 1.5",
            (1, 3),
            "expected (int, int) as arguments of `+`, found (int, double)",
            "convert one side, such as `int(…)`",
        ),
        ("i == s", (1, 3), "expected two values of one type in `==`, found (int, string)", None),
        ("b && i", (1, 6), "expected bool, found int", None),
        ("li.all(e, e)", (1, 11), "expected bool, found int", None),
        ("i.all(e, true)", (1, 1), "expected a list or a map to iterate over, found int", None),
        ("i.f", (1, 3), "expected a map or an object to select `f` from, found int", None),
        ("[1, 'a']", (1, 5), "expected int like the elements before, found string", None),
        ("{'a': 1, 'b': s}", (1, 15), "expected a value of type int like those before, found string", None),
        ("startsWith(s, s)", (1, 1), "`startsWith` cannot be called like this: expected `value.startsWith(…)`", None),
        ("math.greatest(1, 2)", (1, 6), "undeclared function `math.greatest`", None),
        ("'%d'.format([s])", (1, 14), "expected int or uint for `%d`, found string", None),
        ("'%s'.format([])", (1, 6), "expected an argument for `%s`, found 0 arguments", None),
        ("'%z'.format([s])", (1, 6), "expected one of `%s %d %f %e %b %x %X %o`, found `%z`", None),
        ("'a'.format([s])", (1, 5), "expected 0 arguments for the format, found 1", None),
        ("[?i]", (1, 3), "expected optional_type(int), found int", None),
        ("Msg{f: 1}", (1, 1), "undeclared message type `Msg`", None),
        ("i.optMap(v, v)", (1, 1), "expected an optional value, found int", None),
        ("li.transformMapEntry(k, v, 1)", (1, 28), "expected a map with one entry, found int", None),
    ],
)
def test_an_error_says_where_what_and_a_way_out(
    source: str, place: tuple[int, int], message: str, hint: str | None
) -> None:
    with pytest.raises(CheckError) as caught:
        compile_source(source, ENVIRONMENT)
    first = caught.value.problems[0]
    assert (first.line, first.column) == place
    assert first.message == message
    if hint is not None:
        assert first.hint == hint


@pytest.mark.parametrize("source", ['duration("1x")', 'timestamp("bad")', 's.matches("(")', 'matches("(", s)'])
def test_literals_that_can_only_fail_are_refused_since_1_29(source: str) -> None:
    with pytest.raises(CheckError, match="invalid argument"):
        compile_source(source, ENVIRONMENT)
    compile_source(source, Environment(28, {"s": STRING}))


def test_all_problems_are_reported_at_once() -> None:
    with pytest.raises(CheckError) as caught:
        compile_source("nope == 1 && i == s && li.all(e, e.f)", ENVIRONMENT)
    assert [each.column for each in caught.value.problems] == [1, 16, 36]


def test_an_older_environment_refuses_newer_functions_and_says_so() -> None:
    with pytest.raises(CheckError) as caught:
        compile_source('ip("10.0.0.1").family() == 4', Environment(29))
    assert caught.value.hint == "`ip` needs Kubernetes 1.30 or later; this environment is 1.29"
    with pytest.raises(CheckError):
        compile_source("1 < 2.0", Environment(27))
    with pytest.raises(CheckError, match="extension"):
        compile_source("math.greatest(1, 2)", Environment())
    compile_source("math.greatest(1, 2)", Environment(extensions=True))
    assert compile_source("cel.bind(v, 1, v + v)", Environment(extensions=True)).type == INT


def test_functions_can_be_added() -> None:
    extra = Overload("shout", (STRING,), STRING, lambda text: text + "!", member=True)
    assert compile_source('"a".shout()', Environment(functions=[extra])).type == STRING


def test_the_answer_has_a_type_for_every_node() -> None:
    checked = compile_source("li.all(e, e + 1 > a.b.c) || x == 1", ENVIRONMENT)
    stack = [checked.expr]
    calls = {}
    while stack:
        node = stack.pop()
        # Parts of a dotted name do not have a type.
        if node not in checked.types:
            assert to_text(node) in ("a", "a.b")
            continue
        if isinstance(node, ast.Call):
            calls[node.function] = str(checked.types[node])
        stack.extend(ast.children(node))
    assert calls == {"_||_": "bool", "_==_": "bool", "_>_": "bool", "_+_": "int"}
    assert checked.types[checked.expr] == BOOL


def check_tree(tree: ast.Expr) -> CheckedExpression | CheckError:
    try:
        return check(tree, ENVIRONMENT, to_text(tree))
    except CheckError as error:
        return error


@pytest.mark.hypothesis
def test_any_tree_checks_or_is_refused() -> None:
    """Most random trees mix types, but enough of them check to expose a checker that refuses everything."""
    outcomes: Counter[bool] = Counter()

    @given(TREES)
    @settings(max_examples=examples(800))
    def checks_or_is_refused(tree: ast.Expr) -> None:
        checked = check_tree(tree)
        outcomes[isinstance(checked, CheckError)] += 1
        if isinstance(checked, CheckError):
            assert checked.problems
            assert all(problem.message for problem in checked.problems)
        else:
            assert checked.types[tree] == checked.type

    checks_or_is_refused()
    assert outcomes[True] > 400
    assert outcomes[False] > 20


@given(LITERALS | st.sampled_from(["b", "request", "a"]).map(ast.Ident))
@settings(max_examples=examples(200))
def test_a_tree_that_is_well_typed_by_construction_checks(leaf: ast.Expr) -> None:
    """Wrapping a checked tree in a list, map, equality, `dyn()` or conditional gives another tree that checks."""
    kind = str(check(leaf, ENVIRONMENT, to_text(leaf)).type)
    equality = ast.Call("_==_", None, (leaf, leaf))
    trees: dict[ast.Expr, str] = {
        ast.ListExpr((leaf, leaf)): f"list({kind})",
        ast.MapExpr((ast.MapEntry(ast.Literal("k"), leaf, False),)): f"map(string, {kind})",
        equality: "bool",
        ast.Call("dyn", None, (leaf,)): "dyn",
        ast.Call(ast.CONDITIONAL, None, (equality, leaf, leaf)): kind,
        ast.Comprehension("exists", ast.ListExpr((leaf,)), ("v",), (ast.Call("_==_", None, (ast.Ident("v"), leaf)),)): (
            "bool"
        ),
    }
    assert {tree: str(check(tree, ENVIRONMENT, to_text(tree)).type) for tree in trees} == trees


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("[" * 249 + "]" * 249, {"type": "list(" * 249 + "dyn" + ")" * 249}),
        ("x" + ".f" * 250, {"type": "dyn"}),
        ("!b" + " && !b" * 5000, {"type": "bool"}),
        ("f(" * 249 + ")" * 249, {"checkError": True}),
        ("dyn(" * 249 + "1" + ")" * 249, {"type": "dyn"}),
    ],
    ids=["lists", "fields", "conditions", "an unknown function", "calls"],
)
def test_the_deepest_and_the_longest_trees_can_be_checked(source: str, expected: dict[str, object]) -> None:
    assert answer(source, ENVIRONMENT) == expected


def doubling(steps: int) -> str:
    return "[1]" + "".join(f".map(a{i}, {{a{i}: a{i}}})" for i in range(steps))


def hidden_doubling(steps: int) -> str:
    """The same through type variables: the type of `a0` is a map of two `a1`, and so on."""
    scopes = "".join(f"[].map(a{i}, " for i in range(steps))
    equalities = ", ".join(f"a{i} == {{a{i + 1}: a{i + 1}}}" for i in range(steps - 1))
    return f"{scopes}[{equalities}]{')' * steps}"


@pytest.mark.parametrize("source", [doubling(100), hidden_doubling(60)])
def test_types_that_double_at_every_step_are_refused(source: str) -> None:
    with pytest.raises(CheckError, match="too large"):
        compile_source(source, ENVIRONMENT)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("[" + "[]," * 30_000 + "]", {"type": "list(list(dyn))"}),
        ("[" + ",".join(f"a{i}" for i in range(10_000)) + "]", {"checkError": True}),
        ("[" + ",".join(f"f{i}(1)" for i in range(10_000)) + "]", {"checkError": True}),
        ("[" + ",".join(["1", "'a'"] * 15_000) + "]", {"checkError": True}),
    ],
    ids=["empty lists", "unknown variables", "unknown functions", "mixed elements"],
)
def test_hostile_expressions_are_checked_quickly(source: str, expected: dict[str, object]) -> None:
    start = time.process_time()
    assert answer(source, ENVIRONMENT) == expected
    assert time.process_time() - start < 5


def test_types_are_read_from_text() -> None:
    assert parse_type(" map( string,list(int) ) ") == map_of(STRING, list_of(INT))
    assert parse_type("google.protobuf.Timestamp") == Type("timestamp")
    assert parse_type("null") == Type("null_type")
    assert parse_type("list") == list_of(DYN)
    assert parse_type("kubernetes.Quantity") == Type("kubernetes.Quantity")
    for text in ("", "list(", "list(int", "list(int,int)", "int(int)", "map(int)", "list()", "a b", "list(int))", "§"):
        with pytest.raises(TypeNameError):
            parse_type(text)
    with pytest.raises(TypeNameError, match="nested too deeply"):
        parse_type("list(" * 5000)


SCHEMA = {
    "type": "object",
    "properties": {
        "metadata": {"type": "object"},
        "spec": {
            "type": "object",
            "properties": {
                "replicas": {"type": "integer"},
                "port": {"x-kubernetes-int-or-string": True},
                "when": {"type": "string", "format": "date-time"},
                "a-b": {"type": "string"},
                "namespace": {"type": "string"},
                "x__y": {"type": "string"},
                "$ref": {"type": "string"},
                "unknown": {"x-kubernetes-preserve-unknown-fields": True},
                "labels": {"type": "object", "additionalProperties": {"type": "string"}},
                "items": {
                    "type": "array",
                    "items": {"type": "object", "properties": {"name": {"type": "string"}}},
                },
                "embedded": {"type": "object", "x-kubernetes-embedded-resource": True},
            },
        },
        "status": {"type": "object"},
    },
}
SELF = Environment(variables={"self": schema_type("Widget", SCHEMA, resource=True)})


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("self", "Widget"),
        ("self.spec.replicas + 1", "int"),
        ("self.spec.port", "dyn"),
        ("self.spec.when", "timestamp"),
        ("self.spec.a__dash__b", "string"),
        ("self.spec.namespace", "string"),
        ("self.spec.__namespace__", "string"),
        ("self.spec.x__underscores__y", "string"),
        ("self.spec.labels.app", "string"),
        ("self.spec.items.map(i, i.name)", "list(string)"),
        ("self.spec.items[0]", "Widget.spec.items.@idx"),
        ("self.spec.embedded.metadata.name", "string"),
        ("self.kind + self.apiVersion + self.metadata.name", "string"),
        ("self.?spec.?replicas", "optional_type(int)"),
        ("self.spec == null", "bool"),
        ("dyn(self).anything", "dyn"),
    ],
)
def test_objects_have_the_fields_of_their_schema(source: str, expected: str) -> None:
    assert str(compile_source(source, SELF).type) == expected


@pytest.mark.parametrize(
    "source",
    [
        "self.nope",
        "has(self.spec.nope)",
        "self.spec.unknown",
        "self.spec.x__y",
        "self.spec.`a-b`",
        "self.spec == self.status",
        "self.spec == {}",
        'self["spec"]',
        "self.all(k, true)",
        "self.metadata.labels",
    ],
)
def test_what_a_schema_does_not_describe_is_refused(source: str) -> None:
    with pytest.raises(CheckError):
        compile_source(source, SELF)


def test_a_misspelled_field_gets_a_hint() -> None:
    with pytest.raises(CheckError) as caught:
        compile_source("self.spec.replica > 1", SELF)
    assert str(caught.value) == "1:11: no field `replica` in Widget.spec (did you mean `replicas`?)"
    with pytest.raises(CheckError, match="write `a__dash__b`"):
        compile_source("self.spec.`a-b`", SELF)


def test_escaped_names_stand_for_properties() -> None:
    for name in ("plain", "a-b", "a.b/c", "x__y", "namespace", "if", "_x", "-lead"):
        escaped = escape(name)
        assert escaped is not None
        assert unescape(escaped) == name
    assert escape("$ref") is None
    assert escape("1st") is None


def test_a_schema_that_says_nothing_is_dyn() -> None:
    assert schema_type("x", {}) == DYN
    assert schema_type("x", {"type": "string", "format": "duration"}) == Type("duration")
    assert isinstance(schema_type("x", {}, resource=True), ObjectType)

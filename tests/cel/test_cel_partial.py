"""Residuals by example (docs/cel-partial.md#what-is-promised, KEP-5681)."""

from __future__ import annotations

import pytest

from tierwall.cel.environment import Environment
from tierwall.cel.errors import EvaluationError
from tierwall.cel.evaluate.evaluator import Evaluator
from tierwall.cel.library.addresses import CIDR, IP
from tierwall.cel.library.quantity import Quantity
from tierwall.cel.library.semver import Semver
from tierwall.cel.partial_evaluation import PartialError, PartialResult, partial, partial_report, specialise
from tierwall.cel.syntax.parser import parse
from tierwall.cel.types import BOOL, DYN, STRING, map_of
from tierwall.cel.values import NONE, Duration, OptionalValue, Timestamp, TypeValue, Uint, make_map

REQUEST: dict[str, object] = {
    "request": {
        "verb": "create",
        "name": "n",
        "resource": "pods",
        "userInfo": {"username": "alice", "groups": ["dev", "sys:a", "sys:b"], "uid": "1"},
        "none": [],
    }
}


def reduced(
    source: str, known: dict[str, object] | None = None, unknown: tuple[str, ...] = ("object",)
) -> PartialResult:
    return partial(parse(source), REQUEST if known is None else known, unknown)


def evaluate(source: str, variables: dict[str, object]) -> object:
    try:
        return Evaluator(parse(source), Environment(extensions=True)).evaluate(variables)
    except EvaluationError as error:
        return f"error: {error}"


@pytest.mark.parametrize(
    ("source", "residual"),
    [
        ('request.verb == "create" && object.x == request.name', 'object.x == "n"'),
        ('request.verb == "create" && object.x == "a" && object.y', 'object.x == "a" && object.y'),
        ('object.x == 1 || request.verb == "delete"', "object.x == 1"),
        ("!(object.x == 1 && request.verb == 'create')", "!(object.x == 1)"),
        # Inside a comprehension over something unknown everything known is folded too.
        ("object.items.all(i, i.owner == request.userInfo.username)", 'object.items.all(i, i.owner == "alice")'),
        ("object.items.map(i, i + request.name)", 'object.items.map(i, i + "n")'),
        # A comprehension over known elements is unrolled where that is shorter.
        (
            'request.userInfo.groups.exists(g, g.startsWith("sys:") && g in object.allowed)',
            '"sys:a" in object.allowed || "sys:b" in object.allowed',
        ),
        ("request.userInfo.groups.all(g, g == object.x)", '["dev", "sys:a", "sys:b"].all(g, g == object.x)'),
        (
            "request.userInfo.groups.exists_one(g, g == 'dev' && object.x)",
            '["dev"].exists_one(g, g == "dev" && object.x)',
        ),
        # Branches that cannot be taken are gone.
        ('request.verb == "create" ? object.a == 1 : object.b == 2', "object.a == 1"),
        ("object.a == 1 ? true : false", "object.a == 1"),
        ("object.a ? false : true", "!object.a"),
        # Ternaries and defaults evaluate one side only.
        ("object.a ? request.nope : 1", 'object.a ? {}["nope"] : 1'),
        ("object.?a.orValue(request.name)", 'object.?a.orValue("n")'),
        # `in` an empty list still fails where its left side does; Kubernetes' optimizer must not see it.
        ("object.x in request.none", "object.x in dyn([])"),
        # An iteration variable hides a known variable of the same name.
        ("object.items.all(request, request.verb == 'x')", 'object.items.all(request, request.verb == "x")'),
        ("object.items.all(request, .request.verb == request)", 'object.items.all(request, "create" == request)'),
        ("[object].all(x, type(x) == map)", "[object].all(x, type(x) == map)"),
        ('request[?"name"].orValue("") == object.x', '"n" == object.x'),
    ],
)
def test_known_parts_are_folded_into_constants(source: str, residual: str) -> None:
    assert reduced(source).text == residual


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("object.x && false", False),
        ("object.x || true", True),
        ('object.x == 1 && request.verb == "delete"', False),
        ("request.none.all(g, g in object.allowed)", True),
        ('request.userInfo.groups.exists(g, g == "dev" || g in object.allowed)', True),
        ("request.userInfo.groups.filter(g, g.startsWith('sys:') || (false && object.x))", ["sys:a", "sys:b"]),
        ("(request.verb == 'create' ? [1] : object.x)[0]", 1),
        ("optional.of(1).orValue(object.x)", 1),
        ("request.verb == 'create' || object.x", True),
    ],
)
def test_what_needs_no_unknown_is_a_value(source: str, expected: object) -> None:
    result = reduced(source)
    assert result.decided
    assert result.value == expected
    assert result.unknowns == frozenset()


@pytest.mark.parametrize(
    "source",
    ["request.nope", "object.x == request.nope", "request.nope && request.oops", "missing == object.x", "object.x in 5",
     "object.x.matches('(')", "request.nope ? object.a : object.b", "object.a ? request.nope : missing"],
)  # fmt: skip
def test_what_fails_whatever_the_unknowns_are_is_an_error(source: str) -> None:
    result = reduced(source)
    assert result.residual is None
    assert result.error
    assert result.can_fail
    assert not result.can_be_true


def test_an_error_beside_an_unknown_stays_and_keeps_its_message() -> None:
    result = reduced("request.nope == 1 || object.x == 1")
    assert result.text == 'object.x == 1 || {}["nope"]'
    assert evaluate(result.text, {"object": {"x": 1}}) is True
    assert evaluate(result.text, {"object": {"x": 2}}) == "error: no such key: nope"


@pytest.mark.parametrize(
    ("source", "outcomes"),
    [
        # docs/semantics.md#allow-conditions-that-cannot-hold-are-dropped
        ("request.nope && object.x == 1", "false|error"),
        ("object.x ? false : false", "false|error"),
        ("!(request.nope || object.x == 1)", "false|error"),
        ("object.items.exists(i, request.nope && i == 1)", "false|error"),
        ("object.x in request.none", "false|error"),
        ("(request.nope && object.x == 1) == true", "false|error"),
        ("object.items.all(i, true)", "true|error"),
        ("object.x ? true : true", "true|error"),
        ("object.x == 1", "true|false|error"),
        ("has(object.x)", "true|false|error"),
        ("has(object.x.y)", "true|false|error"),
        ("object.x", "true|false|error|other"),
        ("size(object.x)", "error|other"),
        ("object.x && true", "true|false|error"),
    ],
)
def test_outcomes_that_are_still_possible(source: str, outcomes: str) -> None:
    assert repr(reduced(source)).rsplit(", ", 1)[1] == f"{outcomes})"


def test_only_a_bool_can_lose_its_and_true() -> None:
    # A value that is not a bool makes `&&` fail, so the residual has to fail as well.
    assert reduced("request.verb == 'create' && object.flag").text == "object.flag && true"
    assert partial(parse("object.flag && true"), {}, ["object"], boolean=True).text == "object.flag"
    assert partial(parse("flag && true"), {}, ["flag"], types={"flag": BOOL}).text == "flag"


def test_the_type_of_an_unknown_tells_that_a_comparison_cannot_fail() -> None:
    assert partial(parse("operation == 'CREATE'"), {}, ["operation"]).can_fail
    assert not partial(parse("operation == 'CREATE'"), {}, ["operation"], types={"operation": STRING}).can_fail
    # `has` fails on a list, but not on a map.
    assert partial(parse("has(object.x)"), {}, ["object"]).can_fail
    assert not partial(parse("has(object.x)"), {}, ["object"], types={"object": map_of(STRING, DYN)}).can_fail


HOLE = ("object", "request.name")


@pytest.mark.parametrize(
    ("source", "residual", "unknowns"),
    [
        ("request.name == object.x", "request.name == object.x", {"object", "request.name"}),
        ('request["name"] == "a"', 'request.name == "a"', {"request.name"}),
        ("has(request.name) && request.verb == 'create'", "has(request.name)", {"request.name"}),
        ("request.?name.hasValue()", "request.?name.hasValue()", {"request.name"}),
        ("request.name.startsWith(request.verb)", 'request.name.startsWith("create")', {"request.name"}),
    ],
)
def test_a_path_inside_a_known_variable_can_be_unknown(source: str, residual: str, unknowns: set[str]) -> None:
    result = reduced(source, unknown=HOLE)
    assert result.text == residual
    assert result.unknowns == unknowns


def test_a_known_map_with_an_unknown_inside_is_written_out_around_it() -> None:
    known: dict[str, object] = {"r": {"a": 1, "b": {"c": "x", "d": 2}}}
    result = reduced("r == object", known, ("object", "r.b.d"))
    assert result.unknowns == {"object", "r.b.d"}
    complete = {"a": 1, "b": {"c": "x", "d": 7}}
    assert evaluate(result.text, {"object": complete, "r": {"b": {"d": 7}}}) is True
    assert evaluate(result.text, {"object": complete, "r": {"b": {"d": 8}}}) is False


def test_dotted_names_are_variables_of_their_own() -> None:
    assert reduced("a.b == c", {"c": 1}, ("a.b",)).text == "a.b == 1"
    assert reduced("a.b == c", {"a.b": 1}, ("c",)).text == "1 == c"
    assert reduced("a.b == c", {"a.b": 1, "c": 1}, ("a",)).value is True
    # `(…).b` selects a field; written as `a.b` it would become another variable.
    assert reduced("(true ? a : 1).b == 2", {}, ("a", "a.b")).text == "dyn(a).b == 2"
    assert reduced("(true ? ip : 1).isCanonical('::')", {}, ("ip",)).text == 'dyn(ip).isCanonical("::")'


@pytest.mark.parametrize(
    ("known", "text"),
    [
        (None, "null"),
        (-(2**63), "-9223372036854775808"),
        (Uint(2**64 - 1), "18446744073709551615u"),
        (-0.0, "-0.0"),
        (float("inf"), 'double("Infinity")'),
        (b"\xff", 'b"\\xff"'),
        ('"\n', '"\\"\\n"'),
        (Timestamp(1, 3600), 'timestamp("1970-01-01T01:00:00.000000001+01:00")'),
        (Duration(-1_500_000_001), 'duration("-1.500000001s")'),
        (Duration(-(2**63)), 'duration("-9223372036.854775808s")'),
        (Quantity(5, -1), 'quantity("5e-1")'),
        (Quantity(2**63 - 1), 'quantity("9223372036854775e3").add(quantity("807e0"))'),
        (IP(4, 1), 'ip("0.0.0.1")'),
        (CIDR(IP(6, 1), 64), 'cidr("::1/64")'),
        (Semver(1, 2, 3, ("rc", 1), ("b",)), 'semver("1.2.3-rc.1+b")'),
        (TypeValue("int"), "type(0)"),
        (NONE, "optional.none()"),
        (OptionalValue([1]), "optional.of([1])"),
        ([1, "a", []], '[dyn(1), dyn("a"), dyn([])]'),
        ({"a": 1, "b": [2]}, '{"a": dyn(1), "b": dyn([2])}'),
        (make_map([(True, 1), (1, 2)]), "{dyn(true): 1, dyn(1): 2}"),
    ],
)
def test_every_constant_reads_back_as_the_same_value(known: object, text: str) -> None:
    result = reduced("[object, k]", {"k": known})
    again = evaluate(result.text.replace("[object, ", "[0, "), {})
    assert isinstance(again, list)
    assert repr(again[1]) == repr(known)
    assert text in result.text


def test_a_condition_tells_everything_in_json() -> None:
    assert partial_report(reduced("object.x == request.name")) == {
        "residual": 'object.x == "n"',
        "unknowns": ["object"],
        "outcomes": ["true", "false", "error"],
    }
    assert partial_report(reduced("request.name")) == {"value": "n", "unknowns": [], "outcomes": ["other"]}
    assert partial_report(reduced("request.no")) == {"error": "no such key: no", "unknowns": [], "outcomes": ["error"]}


def test_only_the_used_part_of_large_data_is_written() -> None:
    known: dict[str, object] = {"data": {"big": list(range(200_000)), "small": 1}}
    assert reduced("data.small == object.x", known).text == "1 == object.x"
    assert reduced("object.x == data.big[7]", known).text == "object.x == 7"
    with pytest.raises(PartialError, match="residual too long"):
        reduced("object.x in data.big", known)
    with pytest.raises(PartialError, match="residual too long"):
        reduced("data == object", known)


def test_values_nested_too_deeply_for_the_parser_are_refused() -> None:
    deep: object = []
    for _ in range(150):
        deep = [deep]
    with pytest.raises(PartialError, match="nested"):
        reduced("object == k", {"k": deep})


def test_unrolling_stops_where_it_leads_too_far() -> None:
    known: dict[str, object] = {"l": list(range(200)), "m": 5}
    result = reduced("l.all(a, l.all(b, a + b == object.x || a + b < m))", known)
    numbers = f"[{', '.join(map(str, range(200)))}]"
    assert result.text == f"{numbers}.all(a, {numbers}.all(b, a + b == object.x || a + b < 5))"
    long = "x" * 1000
    result = reduced("l.all(a, object.x[a] == k)", {"l": list(range(200)), "k": long})
    assert result.text == f'{numbers}.all(a, object.x[a] == "{long}")'


def test_a_ready_expression_is_used_for_many_requests() -> None:
    ready = specialise(parse("request.verb == 'create' && object.owner == request.user"), ["object"])
    texts = [ready({"request": {"verb": "create", "user": user}}).text for user in ("a", "b", "a")]
    assert texts == ['object.owner == "a"', 'object.owner == "b"', 'object.owner == "a"']
    assert ready({"request": {"verb": "get", "user": "a"}}).value is False
    assert ready({"request": {"user": "a"}}).text == 'object.owner == "a" && {}["verb"]'


def test_equal_literals_of_different_types_are_not_mixed_up() -> None:
    # `1`, `1.0`, `1u` and `true` are equal to Python.
    assert [reduced(f"object.x == {literal}").text for literal in ("1", "1.0", "1u", "true")] == [
        "object.x == 1",
        "object.x == 1.0",
        "object.x == 1u",
        "object.x == true",
    ]


def test_a_name_that_is_known_and_unknown_is_unknown() -> None:
    assert reduced("object.x == k", {"object": {"x": 1}, "k": 1}).text == "object.x == 1"

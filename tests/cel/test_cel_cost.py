"""Costs are those of Kubernetes 1.37, and the limit bounds the time and memory of any expression."""

from __future__ import annotations

import time
import tracemalloc

import pytest

from tierwall.cel import CostExceeded, Environment, EvaluationError
from tierwall.cel.evaluate.encode import EncodingError, encode
from tierwall.cel.evaluate.program import compile

ENVIRONMENT = Environment()
VARIABLES: dict[str, object] = {
    "o": {"a": {"b": [1, {"c": "hello"}]}, "s": "abcdefghijkl", "n": None},
    "x": True,
    "n": 2,
    "l": ["a", "bb", "ccc"],
    "s": "abcdefghijklmnopqrstuvwxyz",
    "m": {"k": "v", "j": "w"},
}


@pytest.mark.parametrize(
    ("expression", "cost"),
    [
        ("o.a.b[1].c", 5),
        ("has(o.a.b)", 2),
        ("has(o.zz)", 1),
        ("x && x || x", 2),
        ("!x", 2),
        ("n + 1", 2),
        ("n == 2", 2),
        ("{'a': n}", 31),
        ("[n]", 11),
        ("s == s", 5),
        ("s.startsWith('abcdefghijklmno')", 3),
        ("s.endsWith(s)", 5),
        ("s.contains('xyz')", 4),
        ("s.matches('^[a-z]*$')", 7),
        ("'k' in m", 2),
        ("string(n)", 2),
        ("l.all(e, e.size() < 4)", 20),
        ("l.all(e, e == 'a')", 14),
        ("l.exists(e, e == 'bb')", 17),
        ("l.exists(e, e == 'zz')", 20),
        ("l.exists_one(e, e == 'bb')", 11),
        ("l.filter(e, e != 'bb')", 34),
        ("l.map(e, e + 'x')", 44),
        ("l.map(e, e != 'a', e)", 34),
        ("m.exists(k, v, v == 'w')", 14),
        ("l.transformList(i, e, i)", 41),
        ("m.transformMap(k, v, v + 'x')", 12),
        ("m.transformMapEntry(k, v, {v: k})", 70),
        ("l.map(e, e).sortBy(e, -e.size())", 118),
        ("l.map(e, l.filter(f, f != e))", 149),
        ("o.?zz.orValue(1)", 1),
        ("optional.of(n).optMap(z, z + 1)", 9),
        ("optional.none().hasValue()", 2),
        ("x ? o.s : s", 2),
        ("x ? 1 : 2", 1),
        ("s.split('a').join('-')", 13),
        ("s.replace('a', 'bb')", 7),
        ("s.lowerAscii()", 4),
        ("s.substring(3)", 4),
        ("s.indexOf('z')", 3),
        ("s.find('[a-c]+')", 7),
        ("s.findAll('[a-c]')", 7),
        ("strings.quote(s)", 4),
        ("isQuantity(s)", 4),
        ("quantity('1Gi').isGreaterThan(quantity('1Mi'))", 3),
        ("ip('192.168.0.1').family()", 3),
        ("cidr('10.0.0.0/8').containsIP('10.1.1.1')", 3),
        ("cidr('10.0.0.0/8').containsIP(ip('10.1.1.1'))", 3),
        ("cidr('10.0.0.0/8').containsCIDR('10.1.0.0/16')", 6),
        ("ip.isCanonical('192.168.0.1')", 3),
        ("url('https://example.com/a').getHost()", 4),
        ("semver('1.2.3').isLessThan(semver('2.0.0'))", 3),
        ("format.dns1123Label().validate(s)", 26),
        ("lists.range(5)", 16),
        ("lists.range(5).reverse()", 32),
        ("lists.range(5).slice(1, 3)", 29),
        ("lists.range(5).sum()", 21),
        ("lists.range(5).map(i, i * 2).max()", 92),
        ("[[1, 2], [3]].flatten()", 13),
        ("lists.range(4).sort()", 58),
        ("lists.range(4).distinct()", 58),
        ("sets.contains([1, 2, 3], [1, 2])", 7),
        ("sets.equivalent([1, 2], [2, 1])", 9),
        ("timestamp('2020-01-01T00:00:00Z') < timestamp(n)", 3),
        ("duration('1h').getMinutes()", 1),
        ("timestamp(n).getFullYear('UTC')", 3),
    ],
)
def test_an_expression_costs_what_kubernetes_says(expression: str, cost: int) -> None:
    assert compile(expression, ENVIRONMENT).measure(VARIABLES)[1] == cost


@pytest.mark.parametrize(
    ("expression", "cost"),
    [
        # Kubernetes does not know the type of `s` here, and charges 1 for any `+`.
        ("s + s", 8),
        ("bytes(s)", 4),
        # A step that costs nothing there costs 1 here.
        ("l.filter(e, false)", 5),
    ],
)
def test_where_ours_costs_more_than_kubernetes(expression: str, cost: int) -> None:
    assert compile(expression, ENVIRONMENT).measure(VARIABLES)[1] == cost


def test_the_limit_is_the_last_cost_that_is_allowed() -> None:
    program = compile("l.all(e, e.size() < 4)", ENVIRONMENT)
    value, cost = program.measure(VARIABLES)
    assert program.evaluate(VARIABLES, limit=cost) is value is True
    with pytest.raises(CostExceeded, match="cost limit exceeded"):
        program.evaluate(VARIABLES, limit=cost - 1)


def test_exceeding_the_limit_is_not_absorbed() -> None:
    program = compile("true || l.all(e, true)", ENVIRONMENT)
    assert program.evaluate(VARIABLES, limit=5) is True
    program = compile("l.all(e, true) || true", ENVIRONMENT)
    with pytest.raises(CostExceeded):
        program.evaluate(VARIABLES, limit=5)


def repeated(start: str, step: str, times: int = 40) -> str:
    return start + f".map(a, {step})" * times


NUMBERS = list(range(1000))
SHARED = repeated("[[1]]", "[a, a]")
HOSTILE: list[tuple[str, dict[str, object]]] = [
    ("l.all(a, l.all(b, l.all(c, a + b + c >= 0)))", {"l": NUMBERS}),
    ("l.filter(a, l.filter(b, l.filter(c, false).size() > 0).size() > 0)", {"l": NUMBERS}),
    ("lists.range(1000).map(a, lists.range(1000).map(b, lists.range(1000)))", {}),
    (r"lists.range(100000).all(i, 'x'.matches('(?:\\pL{100}){10}' + string(i)) || true)", {}),
    ("lists.range(100000).all(i, 'x'.matches('(?:a{30}){30}' + string(i)) || true)", {}),
    ("s.findAll('(?:.*b|a)')", {"s": "a" * 1_000_000}),
    ("s.replace('', s)", {"s": "a" * 1_000_000}),
    (repeated("['aaaaaaaaaa']", "a + a"), {}),
    (repeated("[[1, 2]]", "a + a"), {}),
    (f"{SHARED} == {SHARED}", {}),
    (f"{SHARED} in [{SHARED}]", {}),
    (f"{SHARED}.includes([[1]])", {}),
    (f"'%s'.format([{SHARED}])", {}),
    (f"{SHARED}.flatten(100)", {}),
    (f"{SHARED}.distinct()", {}),
    (f"sets.contains({SHARED}, {SHARED})", {}),
    ("lists.range(1000).map(i, l + l)", {"l": list(range(500_000))}),
    ("lists.range(1000000)", {}),
    ("lists.range(9223372036854775807)", {}),
    ("l.sort()", {"l": NUMBERS}),
]


@pytest.mark.parametrize(("expression", "variables"), HOSTILE, ids=[text[:40] for text, _ in HOSTILE])
def test_a_hostile_expression_is_stopped_in_bounded_time_and_memory(
    expression: str, variables: dict[str, object]
) -> None:
    program = compile(expression, ENVIRONMENT)
    tracemalloc.start()
    started = time.process_time()
    try:
        with pytest.raises(CostExceeded, match="operation cancelled"):
            program.measure(variables)
        spent, peak = time.process_time() - started, tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert spent < 20
    assert peak < 300_000_000


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("9223372036854775807 + 1", "integer overflow"),
        ("-9223372036854775808 - 1", "integer overflow"),
        ("4611686018427387904 * 2", "integer overflow"),
        ("-9223372036854775808 / -1", "integer overflow"),
        ("-(-9223372036854775808)", "integer overflow"),
        ("18446744073709551615u + 1u", "unsigned integer overflow"),
        ("0u - 1u", "unsigned integer overflow"),
        ("timestamp('9999-12-31T23:59:59Z') + duration('1h')", "timestamp overflow"),
        ("timestamp('0001-01-01T00:00:00Z') - duration('1ns')", "timestamp overflow"),
        ("timestamp('9999-12-31T23:59:59Z') - timestamp('0001-01-01T00:00:00Z')", "integer overflow"),
        ("duration('2562047h') + duration('2562047h')", "integer overflow"),
        ("duration('9999999999h')", "type conversion error"),
        ("int('9223372036854775808')", "integer overflow"),
        ("int(1e19)", "integer overflow"),
        ("1 / 0", "division by zero"),
        ("1 % 0", "modulus by zero"),
        ("quantity('1e999999999').add(quantity('1'))", "quantity out of range"),
    ],
)
def test_what_leaves_its_range_is_an_error(expression: str, message: str) -> None:
    with pytest.raises(EvaluationError, match=message):
        compile(expression, ENVIRONMENT).evaluate({})


def test_catastrophic_patterns_take_linear_time() -> None:
    text = "a" * 1_000_000
    started = time.process_time()
    for pattern in ("(a+)+$", "(a|aa)+b", "(.*)*(.*)*(.*)*x", "^(a?){50}a{50}$"):
        compile(f"s.matches('{pattern}')", ENVIRONMENT).evaluate({"s": text}, limit=100_000_000)
    assert time.process_time() - started < 5


def test_a_value_that_holds_itself_a_billion_times_is_not_printed() -> None:
    value = compile(SHARED, ENVIRONMENT).evaluate({})
    with pytest.raises(EncodingError, match="cannot be printed"):
        encode(value)


def test_deeply_nested_values_are_refused_and_do_not_crash() -> None:
    deep: object = 1
    for _ in range(5000):
        deep = [deep]
    with pytest.raises(CostExceeded, match="nested too deeply"):
        compile("a == b", ENVIRONMENT).evaluate({"a": deep, "b": deep})


@pytest.mark.parametrize("levels", [100, 240])
def test_an_expression_as_deep_as_the_parser_allows_evaluates(levels: int) -> None:
    for text, value in (
        ("dyn(" * levels + "1" + ")" * levels, 1),
        ("1" + " + 1" * levels, levels + 1),
        ("true && (" * levels + "true" + ")" * levels, True),
        ("[1].all(x, " * levels + "true" + ")" * levels, True),
    ):
        program = compile(text, ENVIRONMENT)
        assert [program.evaluate({}) for _ in range(4)] == [value] * 4

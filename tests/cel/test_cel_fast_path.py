"""The compiled code returns what the exact evaluator returns, or gives up; and never costs less than it counts."""

from __future__ import annotations

import builtins
import dis
import random
from inspect import iscode

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.cel.cel_conformance import conformance_files, lines, same_value
from tests.randomness import examples
from tests.worlds.cel_expressions import VARIABLES, Expressions, Values
from tierwall.cel import CostExceeded, Environment, Failure, ParseError
from tierwall.cel.evaluate.encode import decode
from tierwall.cel.evaluate.generate import CodeGenerator, UnsupportedTree
from tierwall.cel.evaluate.program import Fast, Program, compile, fast_path
from tierwall.cel.library.addresses import IP
from tierwall.cel.values import Uint

ENVIRONMENT = Environment()
PLAIN = {name: kind for name, kind in VARIABLES.items() if "." not in name}
LIMIT = 1_000_000


def agrees(program: Program, fast: Fast, variables: dict[str, object]) -> bool:
    """Whether the fast path gave a value; asserts that it was the right one."""
    try:
        wanted, cost = program.measure(variables)
    except Failure:
        with pytest.raises(Exception):  # noqa: B017, PT011 - the code may give up by any exception
            fast(variables, LIMIT)
        return False
    try:
        value = fast(variables, LIMIT)
    except Exception:
        return False
    assert same_value(value, wanted), (program.tree, variables, value, wanted)
    if cost > 0:
        with pytest.raises(Exception):  # noqa: B017, PT011
            fast(variables, cost - 1)
    return True


def compare(seed: int) -> tuple[int, int]:
    rng = random.Random(seed)
    choose = rng.randrange
    text = Expressions(choose, loose=choose(4) == 0, variables=PLAIN).of("bool" if choose(3) else "any", 1 + choose(4))
    try:
        program = compile(text, ENVIRONMENT)
    except ParseError:
        return 0, 0
    fast = fast_path(program.tree, ENVIRONMENT)
    if fast is None:
        return 0, 0
    results = []
    for _ in range(2):
        variables = {name: Values(choose).of(kind) for name, kind in PLAIN.items()}
        if choose(20) == 0:
            del variables["x"]
        results.append(agrees(program, fast, variables))
    return sum(results), len(results)


@settings(max_examples=examples(1500))
@given(st.integers(0, 2**60))
def test_generated_code_returns_what_the_exact_evaluator_returns_or_gives_up(seed: int) -> None:
    compare(seed)


def test_most_evaluations_take_the_fast_path() -> None:
    taken, asked = map(sum, zip(*(compare(seed) for seed in range(600)), strict=True))
    assert asked > 600
    assert taken > asked / 2


def test_conformance_lines_give_the_same_by_both_paths(shared: object) -> None:
    tried = 0
    for path in conformance_files(shared):  # type: ignore[arg-type]
        for line in lines(path):
            if line.get("check"):
                continue
            try:
                program = compile(line["expr"], ENVIRONMENT)
            except ParseError:
                continue
            fast = fast_path(program.tree, ENVIRONMENT)
            if fast is not None:
                agrees(program, fast, {name: decode(value) for name, value in line.get("vars", {}).items()})
                tried += 1
    assert tried > 1000


@pytest.mark.parametrize(
    ("text", "variables", "value"),
    [
        ("a == 1", {"a": True}, False),
        ("a == true", {"a": 1}, False),
        ("a == 0", {"a": False}, False),
        ("a == b", {"a": [True], "b": [1]}, False),
        ("a == b", {"a": {"k": 1}, "b": {"k": 1.0}}, True),
        ("a != 1", {"a": True}, True),
        ("a in [1, 2]", {"a": True}, False),
        ("a in b", {"a": 1, "b": [True]}, False),
        ("a in b", {"a": 1, "b": [Uint(1)]}, True),
        ("a.size() == 2", {"a": "πφ"}, True),
        ("a || b.c", {"a": True, "b": {}}, True),
        ("b.c || a", {"a": True, "b": {}}, True),
        ("b.c && a", {"a": False, "b": {}}, False),
        ("b.all(x, x.y > 1)", {"b": [{}, {"y": 0}]}, False),
        ("b.exists(x, x.y > 1)", {"b": [{}, {"y": 2}]}, True),
        ("a == null", {"a": None}, True),
        ("a > 1", {"a": 1.5}, True),
    ],
)
def test_python_surprises_do_not_reach_the_result(text: str, variables: dict[str, object], value: object) -> None:
    program = compile(text, ENVIRONMENT)
    assert program.measure(variables)[0] is value
    assert program.warm()
    assert program.evaluate(variables) is value


@pytest.mark.parametrize(
    ("text", "variables"),
    [
        ("'a' in b", {"b": "abc"}),
        ("b[0]", {"b": "abc"}),
        ("b[-1]", {"b": [1, 2]}),
        ("b[0 - 1]", {"b": [1, 2]}),
        ("a < 2", {"a": True}),
        ("a + 1", {"a": True}),
        ("a + 1", {"a": 9223372036854775807}),
        ("a && true", {"a": 1}),
        ("a ? 1 : 2", {"a": 1}),
        ("!a", {"a": 1}),
        ("b.all(x, x)", {"b": [1, True]}),
        ("b.filter(x, x)", {"b": [1]}),
        ("b.map(x, x)", {"b": "abc"}),
        ("b.x", {"b": [1]}),
        ("a == 'x'", {"a": IP(4, 1)}),
        ("a != 'x'", {"a": IP(4, 1)}),
        ("a in ['x', 'y']", {"a": IP(4, 1)}),
        ("a.startsWith('x')", {"a": b"xyz"}),
        ("a.contains('x')", {"a": ["x"]}),
        ("missing == 1", {}),
    ],
)
def test_what_fails_exactly_fails_on_the_fast_path_too(text: str, variables: dict[str, object]) -> None:
    program = compile(text, ENVIRONMENT)
    exact = program.value_or_failure(variables)
    assert isinstance(exact, Failure)
    program.warm()
    fast = program.value_or_failure(variables)
    assert isinstance(fast, Failure)
    assert str(fast) == str(exact)


def test_a_program_compiles_itself_after_a_few_evaluations() -> None:
    program = compile("a + 1 == 3", ENVIRONMENT)
    assert [program.evaluate({"a": 2}) for _ in range(400)] == [True] * 400
    assert program._fast is not None


def test_the_limit_holds_on_the_fast_path() -> None:
    program = compile("a.all(x, a.all(y, x == y))", ENVIRONMENT)
    program.warm()
    assert program.evaluate({"a": [1] * 100}) is True
    with pytest.raises(CostExceeded):
        program.evaluate({"a": [1] * 1000})
    with pytest.raises(CostExceeded):
        program.evaluate({"a": [1] * 100}, limit=100)


def test_generated_code_uses_only_names_that_it_is_given(shared: object) -> None:
    used: set[str] = set()
    for path in conformance_files(shared):  # type: ignore[arg-type]
        for line in lines(path):
            generator = CodeGenerator(ENVIRONMENT)
            try:
                source = generator.source(ENVIRONMENT.parse(line["expr"]))
            except (ParseError, UnsupportedTree):
                continue
            (function,) = (part for part in builtins.compile(source, "<cel>", "exec").co_consts if iscode(part))
            loaded = {step.argval for step in dis.get_instructions(function) if step.opname == "LOAD_GLOBAL"}
            assert loaded <= generator.namespace.keys(), source
            used |= loaded
    assert {"Miss", "exceeded", "FAILURES", "equal"} <= used


def test_no_text_of_the_user_enters_generated_code_but_through_repr() -> None:
    hostile = "x') or __import__('os').system('false') #\n\"\"\""
    quoted = hostile.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    program = compile(f'a["{quoted}"] == "{quoted}" && has(a.`{"b"}`)', ENVIRONMENT)
    program.warm()
    assert program.evaluate({"a": {hostile: hostile, "b": 1}}) is True

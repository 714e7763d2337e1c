"""For every completion of the unknowns the residual gives what the original gives: the same value, or both fail.

The reference is the exact evaluator itself: evaluate the original with everything bound, and the residual, its printed
text read back, with only the unknowns bound. `make fuzz` tries more.
"""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.randomness import examples, seeds
from tests.worlds.cel_expressions import VARIABLES, Choose, Expressions, Values
from tierwall.cel.environment import Environment
from tierwall.cel.errors import CostExceeded, EvaluationError
from tierwall.cel.evaluate.evaluator import Evaluator
from tierwall.cel.partial_evaluation import PartialError, PartialResult, partial
from tierwall.cel.partial_evaluation.outcomes import ERROR, of_value
from tierwall.cel.syntax.ast import Expr
from tierwall.cel.syntax.parser import parse
from tierwall.cel.syntax.printer import to_text
from tierwall.cel.types import DYN
from tierwall.cel.values import map_keys

ENVIRONMENT = Environment(variables={"v.w": DYN}, extensions=True)
COMPLETIONS = 4
SAMPLES = seeds(4000)
CHUNKS = 4


class WideExpressions(Expressions):
    """Expressions that also use the binding macros and functions of Kubernetes' libraries."""

    def make_bool(self, depth: int) -> str:
        of = self.of
        match self.choose(40):
            case 1:
                return f"(ip({of('string', depth)}) == {of('quantity', depth)})"
            case 2:
                return f"cidr('10.0.0.0/8').containsIP({of(self.pick(('string', 'quantity')), depth)})"
            case 3:
                return f"quantity({of('string', depth)}).isGreaterThan({of('quantity', depth)})"
            case 4:
                return f"isSorted({of('list', depth)})"
            case 5:
                function = self.pick(("contains", "intersects", "equivalent"))
                return f"sets.{function}({of('list', depth)}, {of('list', depth)})"
            case 6:
                return f"cel.bind({self.pick(('x', 'n', 'z'))}, {self.any(depth)}, {of('bool', depth)})"
            case 7:
                name = self.pick(("object", "z", "v"))
                return f"cel.bind({name}, {self.any(depth)}, {self.inside(name, 'any', lambda: of('bool', depth))})"
            case 8:
                return f"(semver({of('string', depth)}).major() < {of('int', depth)})"
            case 9:
                return f"({of('list', depth)}.{self.pick(('min', 'max', 'sum'))}() == {of('int', depth)})"
            case 10:
                return f"format.dns1123Label().validate({of('string', depth)}).hasValue()"
            case 11:
                return f"(url({of('string', depth)}).getHost() == {of('string', depth)})"
        return super().make_bool(depth)

    def make_list(self, depth: int) -> str:
        match self.choose(30):
            case 1:
                source = f"({self.of('bool', depth)} ? {self.of('list', depth)} : {self.any(depth)})"
                return f"{source}.sortBy(e, {self.inside('e', 'any', lambda: self.any(depth))})"
            case 2:
                return f"{self.of('string', depth)}.split({self.of('string', depth)})"
            case 3:
                return f"{self.of('string', depth)}.findAll({self.of('string', depth)})"
            case 4:
                source = self.of("list", depth)
                test = self.inside("e", "int", lambda: self.inside("k", "any", lambda: self.of("bool", depth)))
                body = self.inside("e", "int", lambda: self.inside("k", "any", lambda: self.any(depth)))
                return f"{source}.transformList(e, k, {test}, {body})"
            case 5:
                return f"({self.of('list', depth)} + [{self.of('string', depth)}.format({self.of('list', depth)})])"
        return super().make_list(depth)

    def make_map(self, depth: int) -> str:
        if self.choose(10) == 1:
            source = self.of(self.pick(("list", "map")), depth)
            body = self.inside("e", "any", lambda: self.inside("k", "any", lambda: self.of("map", depth)))
            return f"{source}.transformMapEntry(e, k, {body})"
        return super().make_map(depth)


class _Failed:
    def __repr__(self) -> str:
        return "error"


FAILED = _Failed()


def evaluate(expr: Expr, variables: dict[str, object]) -> object:
    try:
        return Evaluator(expr, ENVIRONMENT).evaluate(variables)
    except EvaluationError:
        return FAILED


def identical(left: object, right: object) -> bool:
    """Whether both are the very same value: of one type, in one order; NaN is NaN, and -0.0 is not 0.0."""
    if type(left) is not type(right):
        return False
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(identical, left, right))
    if isinstance(left, dict) and isinstance(right, dict):
        return identical(list(map_keys(left)), list(map_keys(right))) and identical(
            list(left.values()), list(right.values())
        )
    if isinstance(left, float) and isinstance(right, float):
        return (math.isnan(left) and math.isnan(right)) or repr(left) == repr(right)
    if hasattr(left, "present") and hasattr(right, "present"):
        return bool(left.present == right.present) and identical(left.value, right.value)  # type: ignore[attr-defined]
    return repr(left) == repr(right)


def outcome_of(value: object) -> int:
    return ERROR if value is FAILED else of_value(value)


def evaluate_result(result: PartialResult, completion: dict[str, object]) -> object:
    if result.residual is not None:
        return evaluate(result.residual, completion)
    return FAILED if result.error is not None else result.value


def check_residual(choose: Choose) -> int:
    """The number of completions compared; 0 if nothing was left of the expression."""
    values = Values(choose)
    expressions = WideExpressions(choose, loose=choose(3) == 0)
    source = expressions.of("bool", 4) if choose(3) else expressions.any(3)
    unknown, known = [], {}
    for name, kind in VARIABLES.items():
        if choose(2):
            unknown.append(name)
        elif choose(12):
            known[name] = values.of(kind)
    hole = "request" in known and isinstance(known["request"], dict) and choose(3) == 0
    if hole:
        unknown.append("request.name")
    expr = parse(source)
    boolean = choose(5) == 0
    try:
        result = partial(expr, known, unknown, boolean=boolean)
    except (CostExceeded, PartialError):
        return 0
    compared = 0
    again = partial(parse(source), known, unknown, boolean=boolean)
    assert repr(again) == repr(result) or result.residual is None, source
    text = "" if result.residual is None else to_text(result.residual)
    reread = None if result.residual is None else parse(text)
    assert result.unknowns <= set(unknown)
    for _ in range(COMPLETIONS):
        completion = {name: values.of(VARIABLES[name]) for name in unknown if name in VARIABLES}
        everything = {**known, **completion}
        if hole:
            given_name = values.of("string")
            inner = {k: v for k, v in known["request"].items() if k != "name"}  # type: ignore[attr-defined]
            there = choose(4) > 0
            completion["request"] = {"name": given_name} if there else {}
            everything["request"] = {**inner, "name": given_name} if there else inner
        try:
            expected = evaluate(expr, everything)
            got = evaluate_result(result, completion)
        except CostExceeded:
            continue
        if boolean and type(expected) is not bool:
            expected = FAILED
        if boolean and type(got) is not bool:
            got = FAILED
        said = f"{source}\nknown {known}\nleft  {text or result}\nwith  {completion}"
        assert got is FAILED if expected is FAILED else identical(got, expected), f"{said}\n{expected} became {got}"
        assert outcome_of(got) & result.outcomes, f"{said}\n{got} is not among the outcomes {result.outcomes}"
        if reread is not None:
            read = evaluate(reread, completion)
            assert (read is FAILED) == (evaluate_result(result, completion) is FAILED) or boolean, (
                f"{said}\nreads as {read}"
            )
            assert read is FAILED or boolean or identical(read, got), f"{said}\nreads as {read}, not {got}"
            compared += 1
    return compared


@settings(max_examples=examples(200))
@given(st.data())
def test_a_residual_gives_what_the_original_gives(data: st.DataObject) -> None:
    check_residual(lambda n: data.draw(st.integers(0, n - 1)))


@pytest.mark.hypothesis
@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_many_residuals_give_what_their_originals_give(chunk: int) -> None:
    compared = 0
    for seed in SAMPLES[chunk::CHUNKS]:
        numbers = random.Random(seed)
        try:
            compared += check_residual(numbers.randrange)
        except AssertionError as failure:
            raise AssertionError(f"seed {seed}: {failure}") from failure
    assert compared > len(SAMPLES[chunk::CHUNKS])

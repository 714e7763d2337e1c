"""A residual passes the checker wherever its original does: with declared types, and with everything dynamic."""

from __future__ import annotations

import contextlib
import random

import pytest

from tests.randomness import seeds
from tests.worlds.cel_expressions import VARIABLES, Choose, Expressions, Values
from tierwall.cel.check.checker import CheckedExpression, check
from tierwall.cel.environment import Environment
from tierwall.cel.errors import CheckError, CostExceeded
from tierwall.cel.partial_evaluation import PartialError, PartialResult, partial, partial_well_typed
from tierwall.cel.syntax.ast import Expr
from tierwall.cel.types import DYN, Type, parse_type
from tierwall.cel.values import type_name

SAMPLES = seeds(2000)
CHUNKS = 2
TYPES = {
    "list": "list(string)",
    "map": "map(string, dyn)",
    "optional": "optional_type(dyn)",
    "quantity": "kubernetes.Quantity",
    "any": "dyn",
}


def declared_value(values: Values, kind: str, declared: Type) -> object:
    """A value of the declared type."""
    if declared == DYN:
        return values.of(kind)
    if kind == "list":
        return [str(i) for i in range(values.choose(3))]
    for _ in range(50):
        value = values.of(kind)
        if type_name(value) == declared.name and not (
            isinstance(value, dict) and any(type(k) is not str for k in value)
        ):
            return value
    return {} if kind == "map" else values.of(kind)


def checked_or_none(tree: Expr, environment: Environment) -> CheckedExpression | None:
    try:
        return check(tree, environment)
    except CheckError:
        return None


def assert_passes(result: PartialResult, declarations: dict[str, Type], source: str) -> None:
    environment = Environment(variables=declarations)
    try:
        check(environment.parse(result.text), environment, result.text)
    except CheckError as error:
        raise AssertionError(f"{source}\nleft {result.text}\n{error}") from error


def check_residuals(choose: Choose) -> int:
    """Check up to two residuals of a random expression, and return their number."""
    expressions, values = Expressions(choose), Values(choose)
    source = expressions.of("bool", 3) if choose(3) else expressions.any(3)
    declarations = {name: parse_type(TYPES.get(kind, kind)) if choose(2) else DYN for name, kind in VARIABLES.items()}
    unknown = [name for name in VARIABLES if choose(2)]
    known = {
        name: declared_value(values, kind, declarations[name])
        for name, kind in VARIABLES.items()
        if name not in unknown
    }
    passed = 0
    environment = Environment(variables=declarations)
    checked = checked_or_none(environment.parse(source), environment)
    if checked is not None:
        with contextlib.suppress(CostExceeded, PartialError):
            assert_passes(partial(checked, known, unknown), {name: declarations[name] for name in unknown}, source)
            passed += 1
    dynamic = Environment(variables=dict.fromkeys(VARIABLES, DYN))
    tree = dynamic.parse(source)
    if checked_or_none(tree, dynamic) is not None:
        with contextlib.suppress(CostExceeded, PartialError):
            assert_passes(partial_well_typed(tree, known, unknown, dynamic), dict.fromkeys(unknown, DYN), source)
            passed += 1
    return passed


@pytest.mark.hypothesis
@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_a_residual_passes_the_checker_where_its_original_does(chunk: int) -> None:
    passed = 0
    for seed in SAMPLES[chunk::CHUNKS]:
        try:
            passed += check_residuals(random.Random(seed).randrange)
        except AssertionError as failure:
            raise AssertionError(f"seed {seed}: {failure}") from failure
    assert passed > len(SAMPLES[chunk::CHUNKS])

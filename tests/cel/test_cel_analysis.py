from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.randomness import examples
from tierwall.cel.syntax import ast
from tierwall.cel.syntax.ast import path_of
from tierwall.cel.syntax.demands import Demand, demands_of
from tierwall.cel.syntax.parser import parse
from tierwall.cel.values import Uint, equal


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ('request.verb == "create"', {"request.verb": ("create",)}),
        ('"create" == request["verb"]', {"request.verb": ("create",)}),
        ('a.b in ["x", "y", "x"] && c == 1', {"a.b": ("x", "y"), "c": (1,)}),
        ('a == "x" || a == "y"', {"a": ("x", "y")}),
        ('a == "x" && b == 1 || b == 2 && a in ["y"]', {"a": ("x", "y"), "b": (1, 2)}),
        ('a == "x" || b == 1', {}),
        ('a in ["x", "y"] && a in ["y", "z"]', {"a": ("y",)}),
        ("a == 1 && a == 2", {"a": ()}),
        ("a in []", {"a": ()}),
        ("a == 1 ? b == 2 : false", {"a": (1,)}),
        ("a == 1 ? false : b == 2", {}),
        ('!(a == "x")', {}),
        ('a != "x"', {}),
        ('a == b && c.?d == "x" && e[0] == 1 && f(a) == 1', {}),
        ('a in ["x", b] || a in {"k": 1}', {}),
        ('l.all(a, a == "x")', {}),
        ("true", {}),
    ],
)
def test_demands_are_read_off_equalities_and_memberships(source: str, expected: dict[str, tuple[object, ...]]) -> None:
    assert {".".join(each.path): each.values for each in demands_of(parse(source))} == expected


def admits(demand: Demand, value: object) -> bool:
    return any(equal(value, each) for each in demand.values)


def test_a_demand_compares_as_cel_does() -> None:
    (demand,) = demands_of(parse("a in [1, true]"))
    assert admits(demand, 1.0)
    assert admits(demand, Uint(1))
    assert admits(demand, True)
    assert not admits(demand, 2)
    (other,) = demands_of(parse("a == 1"))
    assert not admits(other, True)


def test_a_path_is_names_only() -> None:
    assert path_of(parse('.a.b["c"]')) == ("a", "b", "c")
    assert path_of(parse("a.?b")) is None
    assert path_of(parse("f(a).b")) is None


class ModelError(Exception):
    """A CEL error, in the model below."""


def evaluate_model(node: ast.Expr, variables: dict[str, object]) -> object:
    """CEL's logic over single variables, as the specification words it: a deciding operand absorbs errors."""
    match node:
        case ast.Literal(value=value):
            return value
        case ast.Ident(name=name):
            if name not in variables:
                raise ModelError
            return variables[name]
        case ast.ListExpr(elements=elements):
            return [evaluate_model(each, variables) for each in elements]
        case ast.Call(function="_==_", args=(left, right)):
            return equal(evaluate_model(left, variables), evaluate_model(right, variables))
        case ast.Call(function="@in", args=(left, right)):
            value, items = evaluate_model(left, variables), evaluate_model(right, variables)
            assert isinstance(items, list)
            return any(equal(value, each) for each in items)
        case ast.Call(function="!_", args=(inner,)):
            return not evaluate_model(inner, variables)
        case ast.Call(function="_?_:_", args=(condition, then, other)):
            return evaluate_model(then if evaluate_model(condition, variables) else other, variables)
        case ast.Call(function=function, args=args):
            deciding = function == "_||_"
            failed = False
            for arg in args:
                try:
                    if evaluate_model(arg, variables) is deciding:
                        return deciding
                except ModelError:
                    failed = True
            if failed:
                raise ModelError
            return not deciding
    raise AssertionError(node)


VALUES: list[object] = [1, 2, "x", "y", True, 1.0]
NAMES = st.sampled_from(["a", "b", "c"]).map(ast.Ident)
CONSTANTS = st.sampled_from(VALUES).map(ast.Literal)
ATOMS: st.SearchStrategy[ast.Expr] = st.one_of(
    st.builds(lambda name, value: ast.Call("_==_", None, (name, value)), NAMES, CONSTANTS),
    st.builds(lambda name, value: ast.Call("_==_", None, (value, name)), NAMES, CONSTANTS),
    st.builds(
        lambda name, values: ast.Call("@in", None, (name, ast.ListExpr(tuple(values)))),
        NAMES,
        st.lists(CONSTANTS, max_size=3),
    ),
    st.sampled_from([True, False]).map(ast.Literal),
)
CONDITIONS: st.SearchStrategy[ast.Expr] = st.recursive(
    ATOMS,
    lambda inner: st.one_of(
        st.builds(
            lambda function, args: ast.Call(function, None, tuple(args)),
            st.sampled_from(["_&&_", "_||_"]),
            st.lists(inner, min_size=2, max_size=3),
        ),
        st.builds(lambda args: ast.Call("_?_:_", None, args), st.tuples(inner, inner, inner)),
        st.builds(lambda arg: ast.Call("!_", None, (arg,)), inner),
    ),
    max_leaves=8,
)


@given(CONDITIONS, st.dictionaries(st.sampled_from(["a", "b", "c"]), st.sampled_from(VALUES)))
@settings(max_examples=examples(2000))
def test_where_a_demand_is_not_met_the_expression_is_false(tree: ast.Expr, variables: dict[str, object]) -> None:
    for demand in demands_of(tree):
        (name,) = demand.path
        if name in variables and not admits(demand, variables[name]):
            assert evaluate_model(tree, variables) is False

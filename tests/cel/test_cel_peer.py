"""The exact evaluator and Google's cel-cpp give the same results on random expressions over plain JSON.

Expressions leave out what the two are known to do differently and what the binding lacks: two-variable comprehensions,
optional values, `has()` on anything but a map, maps with computed keys. Only bool results are compared: the binding
loses a reference to None whenever it returns null, which ends the process after a few thousand times.
"""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.randomness import examples
from tests.worlds.cel_expressions import Expressions
from tierwall.cel import Environment, Failure, ParseError
from tierwall.cel.evaluate.program import compile
from tierwall.cel.syntax import ast

peer = pytest.importorskip("cel_expr_python.cel")

VARIABLES = {
    "b": "bool",
    "c": "bool",
    "n": "int",
    "i": "int",
    "f": "double",
    "s": "string",
    "name": "string",
    "l": "list",
    "words": "list",
    "m": "map",
    "object": "map",
    "request": "map",
    "x": "any",
}
SCALARS: tuple[Any, ...] = (True, False, 0, 1, -1, 7, 2**63 - 1, 1.5, -0.5, "", "a", "name", "sys:a", "10", "é", None)
FIELDS = ("a", "b", "name", "items", "x", "labels")
# The peer deviates from the specification in conversions of bools and of doubles out of range.
FUNCTIONS = frozenset(
    [
        "_+_",
        "_-_",
        "_*_",
        "_/_",
        "_%_",
        "_==_",
        "_!=_",
        "_<_",
        "_<=_",
        "_>_",
        "_>=_",
        "@in",
        "_&&_",
        "_||_",
        "_?_:_",
        "!_",
        "-_",
        "_[_]",
        "size",
        "startsWith",
        "endsWith",
        "contains",
        "matches",
    ]
)
ENVIRONMENT = Environment()
PEER = peer.NewEnv(variables=dict.fromkeys(VARIABLES, peer.Type.DYN))


def random_value(choose: Any, kind: str, depth: int = 2) -> Any:
    if kind in ("list", "map") and depth > 0 and choose(12):
        kinds = ("any", "string", "int", "map", "list")
        items = [random_value(choose, kinds[choose(len(kinds))], depth - 1) for _ in range(choose(4))]
        return items if kind == "list" else dict(zip(random.Random(choose(99)).sample(FIELDS, 4), items, strict=False))
    wanted = {"bool": bool, "int": int, "double": float, "string": str}.get(kind)
    fitting = [each for each in SCALARS if type(each) is wanted] if wanted and choose(10) else SCALARS
    return fitting[choose(len(fitting))]


def comparable(node: ast.Expr) -> bool:
    """Whether both engines know everything in the tree and give it the same meaning."""
    match node:
        case ast.Literal():
            # The peer reads the least int64 as an overflowing negation.
            return True
        case ast.Ident():
            return not node.name.startswith(".") and node.name in {*VARIABLES, "e", "v", "object", "n", "x"}
        case ast.Select():
            return not node.optional and comparable(node.operand)
        case ast.Call():
            parts = (*((node.target,) if node.target is not None else ()), *node.args)
            return node.function in FUNCTIONS and all(map(comparable, parts))
        case ast.ListExpr():
            return not node.optional and all(map(comparable, node.elements))
        case ast.MapExpr():
            keys = [entry.key.value for entry in node.entries if isinstance(entry.key, ast.Literal)]
            distinct = len(set(map(repr, keys))) == len(node.entries)
            return distinct and all(not entry.optional and comparable(entry.value) for entry in node.entries)
        case ast.Comprehension():
            return len(node.variables) == 1 and all(map(comparable, (node.target, *node.args)))
    return False


def compare(seed: int) -> bool:
    """Assert that both engines agree; False if there was nothing to compare."""
    choose = random.Random(seed).randrange
    text = Expressions(choose, variables=VARIABLES).of("bool", 1 + choose(4))
    try:
        program = compile(text, ENVIRONMENT)
    except ParseError:
        return False
    if not comparable(program.tree):
        return False
    variables = {name: random_value(choose, kind) for name, kind in VARIABLES.items()}
    ours = program.value_or_failure(variables)
    theirs = PEER.compile(text, disable_check=True).eval(data=variables)
    if theirs.type() == peer.Type.ERROR:
        assert isinstance(ours, Failure), (text, variables, ours, theirs.value())
    elif theirs.type() == peer.Type.BOOL:
        assert ours is theirs.value(), (text, variables, ours)
    else:
        assert not isinstance(ours, Failure | bool), (text, variables, ours)
    return True


@settings(max_examples=examples(1500))
@given(st.integers(0, 2**60))
def test_random_expressions_give_what_cel_cpp_gives(seed: int) -> None:
    compare(seed)


def test_enough_expressions_are_comparable() -> None:
    assert sum(map(compare, range(2000))) > 500

"""From a tree to a function of its variables."""

from __future__ import annotations

from collections.abc import Callable

from tierwall.cel import ast
from tierwall.cel.environment import Environment
from tierwall.cel.evaluate import Evaluator

_EVERYTHING = Environment(extensions=True)


def compile_expression(tree: ast.Expr) -> Callable[[dict[str, object]], object]:
    """A function from the variables' values to the expression's; every function of every release is offered."""
    return Evaluator(tree, _EVERYTHING).evaluate

"""Expressions ready to run: `compile` a text in an environment, then evaluate it as often as needed.

>>> from tierwall.cel.environment import Environment
>>> compile("object.spec.replicas <= 3", Environment()).evaluate({"object": {"spec": {"replicas": 2}}})
True

Plain Python values go in (what `json.loads` gives) and come out; `values` has the classes of the types JSON lacks.
A CEL error is raised as `EvaluationError`, an exceeded limit as `CostExceeded`; both are `Failure`. Turning a tree into
a Python function takes as long as 30 to 80 evaluations. A long process does so with every program that it uses
repeatedly. A short command would end before that pays off, so it does not.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable, Mapping
from itertools import count

from tierwall.cel.environment import Environment
from tierwall.cel.errors import Failure
from tierwall.cel.evaluate.dispatch import Meter
from tierwall.cel.evaluate.evaluator import Evaluator
from tierwall.cel.library.cost import CALL_LIMIT
from tierwall.cel.syntax import ast

# Takes the variables and the cost limit. Raises some exception if it cannot decide.
Fast = Callable[[Mapping[str, object], int], object]
# How often a program, and all programs together, are evaluated before the program is compiled.
_OFTEN, _MUCH = 3, 300
_evaluations = count(1)
_SETTLED = -(1 << 62)


def fast_path(tree: ast.Expr, environment: Environment) -> Fast | None:
    """Return the fast path of a tree, or None where it has none."""
    from tierwall.cel.evaluate.generate import CodeGenerator, UnsupportedTree

    generator = CodeGenerator(environment)
    try:
        source = generator.source(tree)
        code = builtins.compile(source, "<cel>", "exec")
    except (UnsupportedTree, SyntaxError, RecursionError, MemoryError, ValueError):
        # Code beyond Python's own limits (nested blocks, indentation) merely has no fast path.
        return None
    namespace = generator.namespace
    exec(code, namespace)  # noqa: S102 - names made by the generator and constants through repr; no text of the user's
    # Taken out, or the function would have itself among its globals: only the garbage collector frees such a cycle.
    run = namespace.pop("run")
    assert callable(run)
    if not generator.metered:
        return lambda variables, limit: run(variables, limit, None)
    return lambda variables, limit: run(variables, limit, Meter(limit))


class Program:
    """An expression in an environment. Evaluations do not affect one another: threads may share a program."""

    __slots__ = ("_evaluator", "_fast", "_uses", "environment", "tree")

    def __init__(self, tree: ast.Expr, environment: Environment) -> None:
        self.tree = tree
        self.environment = environment
        self._evaluator: Evaluator | None = None
        self._fast: Fast | None = None
        self._uses = 0

    def evaluate(self, variables: Mapping[str, object], limit: int = CALL_LIMIT) -> object:
        """Return the value; raises `EvaluationError` where CEL fails and `CostExceeded` beyond the limit."""
        fast = self._fast
        if fast is not None:
            try:
                return fast(variables, limit)
            except Exception:
                # The exact evaluator finds out what the exception means.
                return self._exact().evaluate(variables, limit)
        self._uses = uses = self._uses + 1
        if next(_evaluations) > _MUCH and uses >= _OFTEN:
            self.warm()
        return self._exact().evaluate(variables, limit)

    def __call__(self, **values: object) -> object:
        """Return the value for these values of its variables, as `evaluate` gives it."""
        return self.evaluate(values)

    def warm(self) -> bool:
        """Compile now instead of after a few evaluations. Return whether there is a fast path."""
        # Set before compiling, so that other threads evaluate meanwhile instead of compiling it again.
        self._uses = _SETTLED
        self._fast = fast_path(self.tree, self.environment)
        return self._fast is not None

    def _exact(self) -> Evaluator:
        if self._evaluator is None:
            self._evaluator = Evaluator(self.tree, self.environment)
        return self._evaluator

    def value_or_failure(self, variables: Mapping[str, object], limit: int = CALL_LIMIT) -> object | Failure:
        """Return the value, or the failure as a value."""
        try:
            return self.evaluate(variables, limit)
        except Failure as failure:
            return failure

    def measure(self, variables: Mapping[str, object], limit: int = CALL_LIMIT) -> tuple[object, int]:
        """Return the value and what it cost, by the exact evaluator."""
        return self._exact().measure(variables, limit)


def compile(text: str, environment: Environment) -> Program:
    """Return the program of a text; raises `ParseError`. Types are not checked: see `checker.check`."""
    return Program(environment.parse(text), environment)

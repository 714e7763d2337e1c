"""What partial evaluation takes from the evaluators and the function table."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Protocol

from tierwall.cel.ast import Expr
from tierwall.cel.environment import Environment
from tierwall.cel.library import OVERLOADS
from tierwall.cel.partial import outcomes
from tierwall.cel.program import program
from tierwall.cel.table import Overload
from tierwall.cel.types import BOOL, DYN, Param, Type


class Engine(Protocol):
    """Compiles the parts that need no unknown."""

    def __call__(self, expr: Expr) -> Callable[[dict[str, object]], object]:
        """A function from the variables' values to the expression's; it raises `EvaluationError`."""


class Signatures:
    """The function table by name, for residual calls."""

    def __init__(self, overloads: Iterable[Overload]) -> None:
        self._by_name: dict[str, list[Overload]] = {}
        for overload in overloads:
            self._by_name.setdefault(overload.function, []).append(overload)
        self._results: dict[tuple[str, int], tuple[int, Type | None]] = {}

    def has(self, name: str) -> bool:
        """Whether there is a function of this (dotted) name."""
        return name in self._by_name

    def params(self, function: str, count: int) -> list[tuple[Type, ...]]:
        """The parameters of the overloads that take so many arguments, a target counted."""
        return [each.params for each in self._by_name.get(function, ()) if len(each.params) == count]

    def result(self, function: str, count: int) -> tuple[int, Type | None]:
        """The outcomes of such a call, and its type if all overloads agree."""
        key = (function, count)
        found = self._results.get(key)
        if found is None:
            found = self._results[key] = self._result(function, count)
        return found

    def _result(self, function: str, count: int) -> tuple[int, Type | None]:
        results = {_erased(each.result) for each in self._by_name.get(function, ()) if len(each.params) == count}
        if not results or DYN in results:
            return outcomes.ANY, None
        only = next(iter(results)) if len(results) == 1 else None
        if BOOL in results:
            return (outcomes.BOOL, BOOL) if only is not None else (outcomes.ANY, None)
        return outcomes.VALUE, only


def _erased(known: Type) -> Type:
    """The type with its parameters taken for dyn."""
    if isinstance(known, Param):
        return DYN
    return Type(known.name, tuple(map(_erased, known.params))) if known.params else known


@lru_cache(maxsize=1)
def signatures() -> Signatures:
    """The whole table: a residual is written for whatever evaluates the original."""
    return Signatures(OVERLOADS)


def engine_of(environment: Environment) -> Engine:
    """The evaluator of an environment."""

    def engine(expr: Expr) -> Callable[[dict[str, object]], object]:
        return program(expr, environment).evaluate

    return engine

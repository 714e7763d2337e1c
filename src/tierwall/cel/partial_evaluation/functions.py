"""What partial evaluation takes from the function table: which functions there are, and what their results can be."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

from tierwall.cel.library import OVERLOADS
from tierwall.cel.partial_evaluation import outcomes
from tierwall.cel.table import Overload
from tierwall.cel.types import BOOL, DYN, Param, Type


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

    def is_fixed(self, function: str, count: int) -> bool:
        """Whether the type of the result does not depend on those of the arguments."""
        results = [each.result for each in self._by_name.get(function, ()) if len(each.params) == count]
        return bool(results) and all(each == results[0] and _erased(each) == each for each in results)

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

"""Conclusions from types: the outcomes of a value or a call, and whether arguments fit an overload's parameters."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from tierwall.cel import library
from tierwall.cel.library.table import Overload
from tierwall.cel.partial_evaluation import outcomes
from tierwall.cel.types import BOOL, DYN, ObjectType, Type, TypeParam


def outcomes_of_type(static: Type | None) -> int:
    """Return the outcomes of a value of a type; None: any."""
    if static is None or static == DYN or isinstance(static, TypeParam):
        return outcomes.ANY
    return outcomes.BOOL if static == BOOL else outcomes.VALUE


def is_dynamic(static: Type) -> bool:
    """Whether a type is dyn, or has it inside."""
    return static == DYN or isinstance(static, TypeParam | ObjectType) or any(map(is_dynamic, static.params))


def certain_type(static: Type | None) -> Type | None:
    """Return the type, or None if it is dyn or a type parameter."""
    return None if static is None or static == DYN or isinstance(static, TypeParam) else static


def fits(params: Sequence[Type], given: Sequence[Type]) -> bool:
    """Whether arguments of these types may be given to parameters of those; dyn fits everything."""
    bound: dict[str, Type] = {}
    return len(params) == len(given) and all(_fits(a, b, bound) for a, b in zip(params, given, strict=True))


def _fits(param: Type, given: Type, bound: dict[str, Type]) -> bool:
    if given == DYN or param == DYN:
        return True
    if isinstance(param, TypeParam):
        before = bound.setdefault(param.name, given)
        return before is given or _fits(before, given, {}) or _fits(given, before, {})
    if isinstance(given, ObjectType):
        return param.name == "map"
    if param.name != given.name or len(param.params) != len(given.params):
        return False
    return all(_fits(a, b, bound) for a, b in zip(param.params, given.params, strict=True))


@lru_cache(maxsize=1024)
def overloads(function: str, count: int) -> tuple[Overload, ...]:
    """Return the overloads that take so many arguments, counting the target, in the whole table.

    A residual is written for whatever evaluates the original, so the release does not matter.
    """
    return tuple(overload for overload in library.overloads(function) if len(overload.params) == count)


@lru_cache(maxsize=1024)
def result_of_call(function: str, count: int) -> tuple[int, Type | None]:
    """Return the outcomes of such a call, and its type if all overloads agree."""
    results = {_erased(overload.result) for overload in overloads(function, count)}
    if not results or DYN in results:
        return outcomes.ANY, None
    only = next(iter(results)) if len(results) == 1 else None
    if BOOL in results:
        return (outcomes.BOOL, BOOL) if only is not None else (outcomes.ANY, None)
    return outcomes.VALUE, only


def has_fixed_result_type(function: str, count: int) -> bool:
    """Whether the type of the result does not depend on those of the arguments."""
    results = [overload.result for overload in overloads(function, count)]
    return bool(results) and all(result == results[0] and _erased(result) == result for result in results)


def _erased(given: Type) -> Type:
    """Return the type with dyn in place of its type parameters."""
    if isinstance(given, TypeParam):
        return DYN
    return Type(given.name, tuple(map(_erased, given.params))) if given.params else given

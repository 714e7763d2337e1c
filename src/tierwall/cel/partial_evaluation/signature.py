"""Conclusions from types: the outcomes of a value or a call, and whether arguments fit an overload's parameters."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from tierwall.cel import library
from tierwall.cel.library.table import Overload
from tierwall.cel.partial_evaluation import outcomes
from tierwall.cel.types import BOOL, DYN, ObjectType, Type, TypeParam


def outcomes_of_type(known: Type | None) -> int:
    """The outcomes of a value of a type; None: any."""
    if known is None or known == DYN or isinstance(known, TypeParam):
        return outcomes.ANY
    return outcomes.BOOL if known == BOOL else outcomes.VALUE


def is_dynamic(known: Type) -> bool:
    """Whether a type is dyn, or has it inside."""
    return known == DYN or isinstance(known, TypeParam | ObjectType) or any(map(is_dynamic, known.params))


def certain_type(known: Type | None) -> Type | None:
    """The type, or None if it is dyn or a type parameter."""
    return None if known is None or known == DYN or isinstance(known, TypeParam) else known


def fits(params: Sequence[Type], known: Sequence[Type]) -> bool:
    """Whether arguments of these types may be given to parameters of those; dyn fits everything."""
    bound: dict[str, Type] = {}
    return len(params) == len(known) and all(_fits(a, b, bound) for a, b in zip(params, known, strict=True))


def _fits(param: Type, known: Type, bound: dict[str, Type]) -> bool:
    if known == DYN or param == DYN:
        return True
    if isinstance(param, TypeParam):
        before = bound.setdefault(param.name, known)
        return before is known or _fits(before, known, {}) or _fits(known, before, {})
    if isinstance(known, ObjectType):
        return param.name == "map"
    if param.name != known.name or len(param.params) != len(known.params):
        return False
    return all(_fits(a, b, bound) for a, b in zip(param.params, known.params, strict=True))


@lru_cache(maxsize=1024)
def overloads(function: str, count: int) -> tuple[Overload, ...]:
    """The overloads that take so many arguments, counting the target, in the whole table.

    A residual is written for whatever evaluates the original, so the release does not matter.
    """
    return tuple(overload for overload in library.overloads(function) if len(overload.params) == count)


@lru_cache(maxsize=1024)
def result_of_call(function: str, count: int) -> tuple[int, Type | None]:
    """The outcomes of such a call, and its type if all overloads agree."""
    results = {_erased(each.result) for each in overloads(function, count)}
    if not results or DYN in results:
        return outcomes.ANY, None
    only = next(iter(results)) if len(results) == 1 else None
    if BOOL in results:
        return (outcomes.BOOL, BOOL) if only is not None else (outcomes.ANY, None)
    return outcomes.VALUE, only


def has_fixed_result_type(function: str, count: int) -> bool:
    """Whether the type of the result does not depend on those of the arguments."""
    results = [each.result for each in overloads(function, count)]
    return bool(results) and all(each == results[0] and _erased(each) == each for each in results)


def _erased(known: Type) -> Type:
    """The type with dyn in place of its type parameters."""
    if isinstance(known, TypeParam):
        return DYN
    return Type(known.name, tuple(map(_erased, known.params))) if known.params else known

"""What types say: the outcomes of a value of a type, and whether arguments fit an overload's parameters."""

from __future__ import annotations

from collections.abc import Sequence

from tierwall.cel.partial_evaluation import outcomes
from tierwall.cel.types import BOOL, DYN, Object, Param, Type


def can_be(known: Type | None) -> int:
    """The outcomes of a value of a type; None: any."""
    if known is None or known == DYN or isinstance(known, Param):
        return outcomes.ANY
    return outcomes.BOOL if known == BOOL else outcomes.VALUE


def is_dynamic(known: Type) -> bool:
    """Whether a type is dyn, or has it inside."""
    return known == DYN or isinstance(known, Param | Object) or any(map(is_dynamic, known.params))


def certain(known: Type | None) -> Type | None:
    """The type, or None where it says nothing."""
    return None if known is None or known == DYN or isinstance(known, Param) else known


def fits(params: Sequence[Type], known: Sequence[Type]) -> bool:
    """Whether arguments of these types may be given to parameters of those; dyn fits everything."""
    bound: dict[str, Type] = {}
    return len(params) == len(known) and all(_fits(a, b, bound) for a, b in zip(params, known, strict=True))


def _fits(param: Type, known: Type, bound: dict[str, Type]) -> bool:
    if known == DYN or param == DYN:
        return True
    if isinstance(param, Param):
        before = bound.setdefault(param.name, known)
        return before is known or _fits(before, known, {}) or _fits(known, before, {})
    if isinstance(known, Object):
        return param.name == "map"
    if param.name != known.name or len(param.params) != len(known.params):
        return False
    return all(_fits(a, b, bound) for a, b in zip(param.params, known.params, strict=True))

"""What the function table says about a residual: its type, its outcomes, and which constants must hide their type.

The residual has to pass the checker wherever the original did. A constant that came out of a dynamic variable may
stand beside a part whose type is certain, and no overload may fit the two; `dyn()` around the constant keeps the
expression as dynamic as it was.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tierwall.cel.ast import Call, Expr, Has, ListExpr, Literal, Select
from tierwall.cel.partial import outcomes
from tierwall.cel.partial.constant import value_type
from tierwall.cel.partial.engine import signatures
from tierwall.cel.partial.residual import Failed, PartialError, Residual, Result
from tierwall.cel.partial.tree import qualified
from tierwall.cel.types import BOOL, DYN, Object, Param, Type
from tierwall.cel.values import TypeValue, no_such_overload

__all__ = ["BOOL", "always_fails", "bound_value", "can_be", "certain", "fits", "hidden", "result", "type_of"]

_SCALARS = frozenset(("null_type", "bool", "int", "uint", "double", "string", "bytes", "timestamp", "duration"))
_REGEX = frozenset(("matches", "find", "findAll"))


def can_be(known: Type | None) -> int:
    """The outcomes of a value of a type; None: any."""
    if known is None or known == DYN or isinstance(known, Param):
        return outcomes.ANY
    return outcomes.BOOL if known == BOOL else outcomes.VALUE


def type_of(value: object) -> Type | None:
    """The type of a value's constant."""
    return value_type(value)


def result(node: Expr, results: Sequence[Result]) -> tuple[int, Type | None]:
    """The outcomes and the type of a node whose operands are not all known."""
    failing = 0
    for each in results:
        if type(each) is Residual:
            failing |= each.can & outcomes.ERROR
    if type(node) is Has:
        return outcomes.TRUE | outcomes.FALSE | failing, BOOL
    if type(node) is ListExpr:
        return outcomes.OTHER | failing, None
    if type(node) is Select:
        own = None if node.optional else _field(results[0], node.field)
        return can_be(own), own
    if type(node) is not Call:
        return outcomes.ANY, None
    function = node.function
    if function == "_==_" or function == "_!=_":
        return _equality(function, results, failing), BOOL
    if function == "dyn" and len(results) == 1 and type(results[0]) is Residual:
        return results[0].can, None
    if function == "type" and len(results) == 1:
        return outcomes.OTHER | failing, None
    if function == "@in" and (results[1] == [] or results[1] == {}):
        return outcomes.FALSE | outcomes.ERROR, BOOL
    return signatures().result(qualified(node) or function.removeprefix("."), len(results))


def _equality(function: str, results: Sequence[Result], failing: int) -> int:
    left = results[0]
    # Only an opaque value, somewhere on the left, makes a comparison fail.
    plain = left.type if type(left) is Residual else value_type(left)
    if plain is None or plain.name not in _SCALARS:
        failing = outcomes.ERROR
    ones, others = (each.can if type(each) is Residual else outcomes.of_value(each) for each in results)
    values = outcomes.TRUE | outcomes.FALSE
    if not (ones | others) & outcomes.OTHER:
        # Both are bools: they can be equal only if there is a bool that both can be.
        equal = bool(ones & others & values)
        differ = bool(
            (ones & outcomes.TRUE and others & outcomes.FALSE) or (ones & outcomes.FALSE and others & outcomes.TRUE)
        )
    else:
        equal = bool(ones & others & (values | outcomes.OTHER))
        differ = True
    if function == "_!=_":
        equal, differ = differ, equal
    return (outcomes.TRUE if equal else 0) | (outcomes.FALSE if differ else 0) | failing


def _field(operand: Result, field: str) -> Type | None:
    known = operand.type if isinstance(operand, Residual) else None
    if isinstance(known, Object):
        return dict(known.fields).get(field)
    if known is not None and known.name == "map" and len(known.params) == 2:
        return certain(known.params[1])
    return None


def certain(known: Type | None) -> Type | None:
    """The type, or None where it says nothing."""
    return None if known is None or known == DYN or isinstance(known, Param) else known


def always_fails(node: Expr, results: Sequence[Result], apply: Callable[[Sequence[object]], Result]) -> Failed | None:
    """The failure of a call that fails whatever its unknown operand is: a regular expression or a range that is none.

    Kubernetes' checker refuses such literals, so they must not be written into a residual.
    """
    if type(node) is Call and node.function == "@in" and not isinstance(results[1], Residual | list | dict):
        return Failed(str(no_such_overload("@in", "", results[1])))
    if type(node) is Call and node.function in _REGEX and len(results) == 2 and type(results[1]) is not Residual:
        tried = apply(("", results[1]))
        if isinstance(tried, Failed):
            return tried
    return None


def hidden(node: Expr, parts: Sequence[Expr], results: Sequence[Result]) -> list[int]:
    """The operands whose constants need `dyn()` around them."""
    if type(node) is not Call:
        return _elements(parts, results) if type(node) is ListExpr else []
    if node.function == "@in" and (results[1] == [] or results[1] == {}):
        # Kubernetes' optimizer takes `x in []` for false, without looking at `x`, where it sees the empty list.
        return [1]
    known = [each.type or DYN if type(each) is Residual else value_type(each) for each in results]
    constants = [i for i, each in enumerate(results) if type(each) is not Residual]
    if not constants:
        return []
    params = signatures().params(qualified(node) or node.function.removeprefix("."), len(results))
    if not params or any(fits(each, known) for each in params):
        return []
    return [i for i in constants if type(results[i]) is not TypeValue]


def _elements(parts: Sequence[Expr], results: Sequence[Result]) -> list[int]:
    """Elements of a list literal that would not be of one type."""
    known = {str(each.type or DYN) if type(each) is Residual else str(value_type(each)) for each in results}
    if len(known - {"dyn"}) <= 1:
        return []
    return [i for i, each in enumerate(results) if type(each) is not Residual and type(parts[i]) is not Literal]


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


def bound_value(value: object, limit: int) -> None:
    """Refuse a known value whose constant would be longer than `limit`, without writing it first."""
    left = limit
    todo: list[object] = [value]
    while todo and left >= 0:
        value = todo.pop()
        if type(value) is str or type(value) is bytes:
            left -= len(value)
        elif type(value) is list:
            left -= 2 * len(value)
            if left >= 0:
                todo += value
        elif type(value) is dict:
            left -= 4 * len(value)
            if left >= 0:
                todo += value.keys()
                todo += value.values()
        left -= 1
    if left < 0:
        raise PartialError(f"residual too long: more than {limit} characters; a large known value is used whole")

"""Turns a value into the expression that gives it back, because a residual names no known variable.

docs/cel-partial.md#what-is-promised.

Scalars are literals; times, quantities, addresses and the rest are calls of the function that reads their text. Lists
and maps of more than one type have their parts in `dyn()`, because Kubernetes' checker wants literals of one type.
Values that have no notation (an authorizer) or are nested more deeply than the parser allows are refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from tierwall.cel.errors import EvaluationError
from tierwall.cel.library.format import FORMATS, NamedFormat
from tierwall.cel.library.quantity import Quantity
from tierwall.cel.library.quantity import parse as parse_quantity
from tierwall.cel.library.time import format_timestamp, parse_timestamp
from tierwall.cel.partial_evaluation.outcomes import PartialError
from tierwall.cel.syntax.ast import Call, Expr, Ident, ListExpr, Literal, MapEntry, MapExpr
from tierwall.cel.types import DYN, ObjectType, Type
from tierwall.cel.values import (
    NONE,
    Duration,
    OpaqueValue,
    OptionalValue,
    Timestamp,
    TypeValue,
    Uint,
    map_keys,
    type_name,
)

# The parser allows 250 levels; the rest is for the expression around the constant.
MAX_DEPTH = 100
# Characters of a residual, about; the parser refuses longer expressions.
MAX_LENGTH = 100_000
TOO_LONG = f"residual too long: more than {MAX_LENGTH} characters (is a large known value used whole?)"
# Digits that Kubernetes reads into a 64-bit integer.
_SMALL_DIGITS = 18
_SCALARS = frozenset((type(None), bool, int, Uint, float, str, bytes))


def constant(value: object, depth: int = 0) -> Expr:
    """Return the expression of a value."""
    kind = type(value)
    if kind in _SCALARS:
        if kind is str and not value.isascii():  # type: ignore[attr-defined]
            _encodable(str(value))
        return Literal(value)
    if depth > MAX_DEPTH:
        raise PartialError(f"a known value is nested more than {MAX_DEPTH} levels deep")
    if kind is list:
        return _list(value, depth)  # type: ignore[arg-type]
    if kind is dict:
        return _map(value, depth)  # type: ignore[arg-type]
    if kind is OptionalValue:
        return _optional(value, depth)  # type: ignore[arg-type]
    write = _WRITERS.get(kind)
    if write is None and isinstance(value, OpaqueValue) and value.reader:
        return _call(value.reader, str(value.notation()))
    if write is None:
        raise PartialError(f"a known value of type `{type_name(value)}` has no notation in CEL")
    return write(value)


def typed_constant(value: object, static: Type) -> Expr:
    """Return the expression of a value with the checked type of the node that it replaces."""
    name, kind = static.name, type(value)
    if name == "list" and kind is list and static.params:
        return ListExpr(_alike(typed_constant(item, static.params[0]) for item in value))  # type: ignore[attr-defined]
    if name == "map" and kind is dict and len(static.params) == 2 and not isinstance(static, ObjectType):
        keys, values = static.params
        names = _alike(typed_constant(key, keys) for key in map_keys(value))  # type: ignore[arg-type]
        parts = _alike(typed_constant(item, values) for item in value.values())  # type: ignore[attr-defined]
        return MapExpr(tuple(map(MapEntry, names, parts)))
    if name == "optional_type" and kind is OptionalValue and value.present and static.params:  # type: ignore[attr-defined]
        return Call("of", Ident("optional"), (typed_constant(value.value, static.params[0]),))  # type: ignore[attr-defined]
    expr = constant(value)
    same = name == type_name(value) and not isinstance(static, ObjectType)
    return expr if same else dyn(expr)


def _alike(parts: Iterable[Expr]) -> tuple[Expr, ...]:
    """Return the parts of a literal, all dynamic if one of them has to be: a value need not have its declared type."""
    exprs = tuple(parts)
    hidden = [type(expr) is Call and expr.function == "dyn" for expr in exprs]
    if not any(hidden) or all(hidden):
        return exprs
    return tuple(expr if is_hidden else dyn(expr) for expr, is_hidden in zip(exprs, hidden, strict=True))


def dyn(expr: Expr) -> Expr:
    """Return the expression with its type hidden from the checker; the value is the same."""
    return Call("dyn", None, (expr,))


def value_type(value: object) -> Type:
    """Return the type the checker would give the value's constant."""
    kind = type(value)
    if kind is list:
        return Type("list", (_common(value),))  # type: ignore[arg-type]
    if kind is dict:
        return Type("map", (_common(map_keys(value)), _common(value.values())))  # type: ignore[arg-type, attr-defined]
    if kind is OptionalValue:
        return Type("optional_type", (value_type(value.value) if value.present else DYN,))  # type: ignore[attr-defined]
    return Type("type", (DYN,)) if kind is TypeValue else Type(type_name(value))


def _common(values: Iterable[object]) -> Type:
    """Return the one type of all values, or dyn."""
    types = _types(values)
    return types[0] if len(types) == 1 else DYN


def _mixed(values: Iterable[object]) -> bool:
    return len(_types(values)) > 1


def _types(values: Iterable[object]) -> list[Type]:
    """Return the first two types among the values: callers only ask whether there is more than one."""
    types: list[Type] = []
    for value in values:
        given = value_type(value)
        if given not in types:
            types.append(given)
            if len(types) > 1:
                break
    return types


def _encodable(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise PartialError("a known string is not valid Unicode and has no notation in CEL") from None


def _list(items: list[object], depth: int) -> Expr:
    parts = [constant(item, depth + 1) for item in items]
    return ListExpr(tuple(map(dyn, parts) if _mixed(items) else parts))


def _map(mapping: dict[object, object], depth: int) -> Expr:
    hide_keys, hide_values = _mixed(map_keys(mapping)), _mixed(mapping.values())
    entries = []
    for key, value in zip(map_keys(mapping), mapping.values(), strict=True):
        name, part = constant(key, depth + 1), constant(value, depth + 1)
        entries.append(MapEntry(dyn(name) if hide_keys else name, dyn(part) if hide_values else part))
    return MapExpr(tuple(entries))


def _optional(value: OptionalValue, depth: int) -> Expr:
    if not value.present:
        return Call("none", Ident("optional"), ())
    return Call("of", Ident("optional"), (constant(value.value, depth + 1),))


def _call(function: str, text: str) -> Expr:
    return Call(function, None, (Literal(text),))


def _timestamp(value: Timestamp) -> Expr:
    text = format_timestamp(value)
    try:
        again = parse_timestamp(text)
        same = (again.ns, again.offset) == (value.ns, value.offset)
    except EvaluationError:  # a local time outside the years 1 to 9999
        same = False
    if not same:
        raise PartialError(f"the known timestamp `{text}` has no notation in CEL")
    return _call("timestamp", text)


def _quantity(value: Quantity) -> Expr:
    text = value.notation()
    if value.small and len(str(abs(value.value))) > _SMALL_DIGITS:
        # Kubernetes reads so many digits as a big number, which is never an integer; a sum of small ones may be.
        high, low = divmod(value.value - 1, 1000)
        more = _call("quantity", f"{low + 1}e{value.scale}")
        return Call("add", _call("quantity", f"{high}e{value.scale + 3}"), (more,))
    if parse_quantity(text) != value:
        raise PartialError("a known quantity, computed from others, has no notation in CEL")
    return _call("quantity", text)


def _format(value: NamedFormat) -> Expr:
    for name, format in FORMATS.items():
        if format.name == value.name:
            return Call(name, Ident("format"), ())
    raise PartialError(f"the known format `{value.name}` has no notation in CEL")


def _type(value: TypeValue) -> Expr:
    # `type(0)` and not `int`: a name could be hidden by an iteration variable or an unknown of the same name.
    sample = _SAMPLES.get(value.name)
    if sample is None:
        raise PartialError(f"the known type `{value.name}` has no notation in CEL")
    return Call("type", None, (sample,))


_WRITERS: dict[type, Callable[[Any], Expr]] = {
    Timestamp: _timestamp,
    Duration: lambda value: _call("duration", value.notation()),
    TypeValue: _type,
    Quantity: _quantity,
    NamedFormat: _format,
}
_ZEROS: tuple[object, ...] = (None, False, 0, Uint(0), 0.0, "", b"", [], {}, Timestamp(0), Duration(0), NONE)
# By the name of a type, an expression of it: `type(0)` stands for `int`.
_SAMPLES: dict[str, Expr] = {
    **{type_name(zero): constant(zero) for zero in _ZEROS},
    "type": Call("type", None, (Literal(0),)),
    "kubernetes.Quantity": _call("quantity", "0"),
    "net.IP": _call("ip", "::"),
    "net.CIDR": _call("cidr", "::/0"),
    "kubernetes.URL": _call("url", "/"),
    "kubernetes.Semver": _call("semver", "0.0.0"),
}


def check_constant_length(value: object) -> None:
    """Refuse a known value whose constant would be too long, without writing it first."""
    remaining = MAX_LENGTH
    stack: list[object] = [value]
    while stack and remaining >= 0:
        value = stack.pop()
        if type(value) is str or type(value) is bytes:
            remaining -= len(value)
        elif type(value) is list:
            remaining -= 2 * len(value)
            if remaining >= 0:
                stack += value
        elif type(value) is dict:
            remaining -= 4 * len(value)
            if remaining >= 0:
                stack += value.keys()
                stack += value.values()
        remaining -= 1
    if remaining < 0:
        raise PartialError(TOO_LONG)

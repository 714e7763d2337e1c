"""CEL's types as the checker and the function table name them (cel-spec, "Types"; Kubernetes' opaque types)."""

from __future__ import annotations

import msgspec


class Type(msgspec.Struct, frozen=True, gc=False):
    """A type: a name and its parameters (`list(int)`, `map(string, dyn)`, `optional_type(T)`).

    A structural type (from a kind's schema) is an `Object`; a type parameter of an overload is a `Param`.
    """

    name: str
    params: tuple[Type, ...] = ()

    def __str__(self) -> str:
        # Types nest as deep as expressions do, which is too deep for `str` to call itself.
        parts: list[str] = []
        rest: list[Type | str] = [self]
        while rest:
            each = rest.pop()
            if isinstance(each, str):
                parts.append(each)
                continue
            parts.append(each.name)
            if each.params:
                rest.append(")")
                for param in reversed(each.params):
                    rest += (param, ", ")
                rest[-1] = "("
        return "".join(parts)


class Object(Type, frozen=True, gc=False, eq=False):
    """An object of known fields, from a schema (see `structural`); an unknown field is a check error.

    As in Kubernetes it is no map: it is assignable to itself and to `dyn`, and compares with null.
    """

    fields: tuple[tuple[str, Type], ...] = ()

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        return isinstance(other, Object) and self.name == other.name and self.fields == other.fields

    def __hash__(self) -> int:
        return hash(self.name)


class Param(Type, frozen=True, gc=False):
    """A type parameter of an overload, such as `A` in `list(A)`."""


DYN = Type("dyn")
NULL = Type("null_type")
BOOL = Type("bool")
INT = Type("int")
UINT = Type("uint")
DOUBLE = Type("double")
STRING = Type("string")
BYTES = Type("bytes")
TIMESTAMP = Type("timestamp")
DURATION = Type("duration")
# The type of what did not check; it fits everywhere, so that one mistake gives one problem.
ERROR = Type("error")

A = Param("A")
B = Param("B")


def list_of(item: Type) -> Type:
    """`list(item)`."""
    return Type("list", (item,))


def map_of(key: Type, value: Type) -> Type:
    """`map(key, value)`."""
    return Type("map", (key, value))


def optional_of(item: Type) -> Type:
    """`optional_type(item)`."""
    return Type("optional_type", (item,))


def type_of(item: Type) -> Type:
    """`type(item)`."""
    return Type("type", (item,))

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
        if not self.params:
            return self.name
        return f"{self.name}({', '.join(map(str, self.params))})"


class Object(Type, frozen=True, gc=False):
    """A map of known fields, from a schema. Assignable to `map(string, dyn)` and `dyn`; an unknown field is a check error."""

    fields: tuple[tuple[str, Type], ...] = ()


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
TYPE = Type("type", (DYN,))

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

"""CEL's types, and how declarations write them (cel-spec, "Types"; Kubernetes' opaque types).

A declared type is a string: `list(int)`, `map(string, dyn)`, `kubernetes.Quantity`.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from tierwall.values.pattern import pattern

_TOKEN = pattern(r"\s*([A-Za-z_][A-Za-z0-9_]*(?:\.[A-Za-z_][A-Za-z0-9_]*)*|[(),]|\Z)")
_PARAMETERS = {"list": 1, "map": 2, "optional_type": 1, "type": 1}
_PLAIN = frozenset(("dyn", "null_type", "bool", "int", "uint", "double", "string", "bytes", "timestamp", "duration"))
# As deep as an expression may nest lists.
MAX_DEPTH = 250


class Type(msgspec.Struct, frozen=True, gc=False):
    """A type: a name and its parameters (`list(int)`, `map(string, dyn)`, `optional_type(T)`).

    A structural type (from a kind's schema) is an `ObjectType`; a type parameter of an overload is a `TypeParam`.
    """

    name: str
    params: tuple[Type, ...] = ()

    def __str__(self) -> str:
        # Types nest as deep as expressions do, which is too deep for `str` to call itself.
        parts: list[str] = []
        stack: list[Type | str] = [self]
        while stack:
            part = stack.pop()
            if isinstance(part, str):
                parts.append(part)
                continue
            parts.append(part.name)
            if part.params:
                stack.append(")")
                for param in reversed(part.params):
                    stack += (param, ", ")
                stack[-1] = "("
        return "".join(parts)


class ObjectType(Type, frozen=True, gc=False, eq=False):
    """An object of known fields, from a schema (see `structural`); an unknown field is a check error.

    As in Kubernetes it is not a map: it is assignable to itself and to `dyn`, and compares with null.
    """

    fields: Mapping[str, Type] = {}

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        return isinstance(other, ObjectType) and self.name == other.name and self.fields == other.fields

    def __hash__(self) -> int:
        return hash(self.name)


class TypeParam(Type, frozen=True, gc=False):
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
# The type of an expression with a type error; it fits everywhere, so that one mistake gives one problem.
ERROR = Type("error")

A = TypeParam("A")
B = TypeParam("B")


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


_ALIASES = {
    "null": NULL.name,
    "google.protobuf.Timestamp": "timestamp",
    "google.protobuf.Duration": "duration",
    "google.protobuf.Value": "dyn",
    "any": "dyn",
}


class TypeNameError(ValueError):
    """The string is not a type."""


def parse_type(text: str) -> Type:
    """Return the type that `text` names; a bare `list`, `map`, `optional_type` or `type` has dyn parameters."""
    position, result = _parse(text, 0, 0)
    token, _ = _next(text, position)
    if token:
        raise TypeNameError(f"expected the end of the type, found `{token}` in `{text[:80]}`")
    return result


def _next(text: str, position: int) -> tuple[str, int]:
    match = _TOKEN.match(text, position)
    if match is None:
        raise TypeNameError(f"expected a type such as `list(int)`, found `{text[:80]}`")
    return match[1], match.end()


def _parse(text: str, position: int, depth: int) -> tuple[int, Type]:
    if depth > MAX_DEPTH:
        raise TypeNameError(f"type nested too deeply: expected at most {MAX_DEPTH} levels")
    name, position = _next(text, position)
    if not name or name in "(),":
        raise TypeNameError(f"expected the name of a type, found `{name or 'end of input'}` in `{text[:80]}`")
    name = _ALIASES.get(name, name)
    params: list[Type] = []
    token, after = _next(text, position)
    while token == "(" or (token == "," and params):
        position, param = _parse(text, after, depth + 1)
        params.append(param)
        token, after = _next(text, position)
        if token == ")":
            position = after
            break
        if token != ",":
            raise TypeNameError(f"expected `,` or `)`, found `{token or 'end of input'}` in `{text[:80]}`")
    return position, _made(name, tuple(params))


def _made(name: str, params: tuple[Type, ...]) -> Type:
    wanted = _PARAMETERS.get(name)
    if wanted is not None and not params:
        params = (DYN,) * wanted
    if (wanted is not None and len(params) != wanted) or (name in _PLAIN and params):
        raise TypeNameError(f"expected {wanted or 'no'} parameters of `{name}`, found {len(params)}")
    return Type(name, params)

"""Types written as text, as in declarations of variables: `list(int)`, `map(string, dyn)`, `kubernetes.Quantity`."""

from __future__ import annotations

import re

from tierwall.cel.types import DYN, NULL, Type

_TOKEN = re.compile(r"\s*([A-Za-z_][A-Za-z0-9_]*(?:\.[A-Za-z_][A-Za-z0-9_]*)*|[(),]|\Z)")
_ALIASES = {
    "null": NULL.name,
    "google.protobuf.Timestamp": "timestamp",
    "google.protobuf.Duration": "duration",
    "google.protobuf.Value": "dyn",
    "any": "dyn",
}
_PARAMETERS = {"list": 1, "map": 2, "optional_type": 1, "type": 1}
_PLAIN = frozenset(("dyn", "null_type", "bool", "int", "uint", "double", "string", "bytes", "timestamp", "duration"))
# As deep as an expression may nest lists.
MAX_DEPTH = 250


class TypeNameError(ValueError):
    """A text that is no type."""


def parse_type(text: str) -> Type:
    """The type that `text` names; a bare `list`, `map`, `optional_type` or `type` has dyn parameters."""
    position, result = _parse(text, 0, 0)
    found, _ = _next(text, position)
    if found:
        raise TypeNameError(f"expected the end of the type, found `{found}` in `{text[:80]}`")
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
        raise TypeNameError(f"expected the name of a type, found `{name or 'end of text'}` in `{text[:80]}`")
    name = _ALIASES.get(name, name)
    params: list[Type] = []
    found, after = _next(text, position)
    while found == "(" or (found == "," and params):
        position, param = _parse(text, after, depth + 1)
        params.append(param)
        found, after = _next(text, position)
        if found == ")":
            position = after
            break
        if found != ",":
            raise TypeNameError(f"expected `,` or `)`, found `{found or 'end of text'}` in `{text[:80]}`")
    return position, _made(name, tuple(params))


def _made(name: str, params: tuple[Type, ...]) -> Type:
    wanted = _PARAMETERS.get(name)
    if wanted is not None and not params:
        params = (DYN,) * wanted
    if (wanted is not None and len(params) != wanted) or (name in _PLAIN and params):
        raise TypeNameError(f"expected {wanted or 'no'} parameters of `{name}`, found {len(params)}")
    return Type(name, params)

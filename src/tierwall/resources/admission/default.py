"""Defaulting, as the API server does it before validation (apiextensions `schema/defaulting`).

A property that is missing, or null though not nullable, takes its schema's default; a null that has neither is as if
it were not there. Defaults only fill objects that exist: a default inside a missing object is never looked at. The
input is not changed: what needs no change is shared with the result.
"""

from collections.abc import Callable
from copy import deepcopy
from typing import Any

from msgspec import UNSET

from tierwall.resources.schema import Schema

Defaulter = Callable[[Any], Any]


def apply_defaults(value: Any, schema: Schema) -> Any:
    """`value` with the defaults of `schema`, as a new value where anything changed."""
    return compile_defaults(schema, {})(value)


def compile_defaults(schema: Schema, seen: dict[int, Defaulter]) -> Defaulter:
    """A function that applies the defaults of `schema`; `seen` shares the work for shared fragments."""
    known = seen.get(id(schema))
    if known is None:
        known = seen[id(schema)] = _compile(schema, seen)
    return known


def _compile(schema: Schema, seen: dict[int, Defaulter]) -> Defaulter:
    if schema.properties or schema.additional is not None:
        return _object(schema, seen)
    if schema.items is not None:
        return _array(schema.items, seen)
    return _same


def _same(value: Any) -> Any:
    return value


def _object(schema: Schema, seen: dict[int, Defaulter]) -> Defaulter:
    properties: dict[str, tuple[Schema, Defaulter]] = {}
    defaults: dict[str, Any] = {}
    for part in schema.properties:
        properties[part.name] = (part.schema, compile_defaults(part.schema, seen))
        if part.schema.default is not UNSET:
            defaults[part.name] = part.schema.default
    extra = None
    if schema.additional is not None:
        extra = (schema.additional, compile_defaults(schema.additional, seen))

    def default_object(value: Any) -> Any:
        if type(value) is not dict:
            return value
        out: dict[str, Any] | None = None
        for name, default in defaults.items():
            if name not in value or (value[name] is None and not properties[name][0].nullable):
                out = dict(value) if out is None else out
                out[name] = deepcopy(default)
        for name, item in value.items():
            entry = properties.get(name, extra)
            if entry is None:
                continue
            inner, defaulter = entry
            if item is None:
                if not inner.nullable and name not in defaults:
                    out = dict(value) if out is None else out
                    del out[name]
                continue
            if defaulter is not _same:
                new = defaulter(item)
                if new is not item:
                    out = dict(value) if out is None else out
                    out[name] = new
        if out is None:
            return value
        for name in defaults:  # a default may be an object that has defaults of its own
            if name not in value or value[name] is None:
                out[name] = properties[name][1](out[name])
        return out

    return default_object


def _array(items: Schema, seen: dict[int, Defaulter]) -> Defaulter:
    inner = compile_defaults(items, seen)
    fill = None if items.nullable or items.default is UNSET else items.default
    if inner is _same and fill is None:
        return _same

    def default_array(value: Any) -> Any:
        if type(value) is not list:
            return value
        out: list[Any] | None = None
        for index, item in enumerate(value):
            new = inner(deepcopy(fill) if item is None and fill is not None else item)
            if new is not item:
                out = list(value) if out is None else out
                out[index] = new
        return value if out is None else out

    return default_array

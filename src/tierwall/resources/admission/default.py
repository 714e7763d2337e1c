"""Defaulting, as the API server does it before validation (apiextensions `schema/defaulting`).

A property that is missing, or null but not nullable, takes the default of its schema. A null that is not nullable and
has no default counts as missing. Defaults only fill objects that exist: a default inside a missing object does not
apply. The input is not changed; the result shares the parts that need no change.
"""

from collections.abc import Callable
from copy import deepcopy
from typing import Any

from msgspec import UNSET

from tierwall.resources.schema import Schema

Defaulter = Callable[[Any], Any]


def compile_defaults(schema: Schema, *, native: bool = False) -> Defaulter:
    """Return a function that sets the defaults of `schema`. Native kinds read a null list item as Go's zero value."""
    return _Defaults(native).compile(schema)


def _unchanged(value: Any) -> Any:
    return value


_ZERO: dict[str, Any] = {"string": "", "integer": 0, "number": 0, "boolean": False, "object": {}, "array": []}


class _Defaults:
    """Compiles the defaults of one schema. Shared fragments are compiled once."""

    def __init__(self, native: bool) -> None:
        self.native = native
        self._seen: dict[Schema, Defaulter] = {}

    def compile(self, schema: Schema) -> Defaulter:
        known = self._seen.get(schema)
        if known is None:
            if schema.properties or schema.additional is not None:
                known = self._object(schema)
            else:
                known = _unchanged if schema.items is None else self._array(schema.items)
            self._seen[schema] = known
        return known

    def _object(self, schema: Schema) -> Defaulter:
        properties = {part.name: part.schema for part in schema.properties}
        defaults = {part.name: part.schema.default for part in schema.properties if part.schema.default is not UNSET}
        extra = schema.additional
        compile_inner = self.compile
        # The function of a field is compiled when an object first has the field, unless any field is allowed.
        fillers: dict[str, Defaulter] = {}
        fill_extra = None
        if extra is not None:
            fill_extra = compile_inner(extra)
            fillers = {name: compile_inner(inner) for name, inner in properties.items()}

        def default_object(value: Any) -> Any:
            if type(value) is not dict:
                return value
            out: dict[str, Any] | None = None
            for name, default in defaults.items():
                if name not in value or (value[name] is None and not properties[name].nullable):
                    out = dict(value) if out is None else out
                    out[name] = deepcopy(default)
            for name, item in value.items():
                fill = fillers.get(name, fill_extra)
                if fill is None:
                    if name not in properties:
                        continue
                    fill = fillers[name] = compile_inner(properties[name])
                if item is None:
                    inner = properties.get(name, extra)
                    if inner is not None and not inner.nullable and name not in defaults:
                        out = dict(value) if out is None else out
                        if inner.default is UNSET:
                            del out[name]
                        else:  # the default of a map's values
                            out[name] = fill(deepcopy(inner.default))
                elif fill is not _unchanged:
                    new = fill(item)
                    if new is not item:
                        out = dict(value) if out is None else out
                        out[name] = new
            if out is None:
                return value
            for name in defaults:  # a default may be an object that has defaults of its own
                if name not in value or value[name] is None:
                    out[name] = compile_inner(properties[name])(out[name])
            return out

        return default_object

    def _array(self, items: Schema) -> Defaulter:
        inner = self.compile(items)
        fill = _ZERO.get(items.type) if self.native else None
        if items.default is not UNSET:
            fill = items.default
        if items.nullable:
            fill = None
        if inner is _unchanged and fill is None:
            return _unchanged

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

"""Types of Kubernetes objects from their OpenAPI schemas (apiserver pkg/cel/common/schemas.go and pkg/cel/escaping.go).

CEL does not see what a schema does not describe: a property without a type is not a field. A property whose name is not
a CEL name has an escaped one (`a-b` is `a__dash__b`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from tierwall.cel.syntax.lexer import RESERVED
from tierwall.cel.types import (
    BOOL,
    BYTES,
    DOUBLE,
    DURATION,
    DYN,
    INT,
    STRING,
    TIMESTAMP,
    ObjectType,
    Type,
    list_of,
    map_of,
)
from tierwall.values.pattern import pattern

_SCALARS = {"boolean": BOOL, "number": DOUBLE, "integer": INT}
_FORMATS = {"byte": BYTES, "duration": DURATION, "date": TIMESTAMP, "date-time": TIMESTAMP}
_ESCAPED = {"__": "__underscores__", ".": "__dot__", "-": "__dash__", "/": "__slash__"}
_PLAIN = {escaped: plain for plain, escaped in _ESCAPED.items()}
_TO_ESCAPE = pattern(r"__|[-./]")
_TO_UNESCAPE = pattern(r"__(?:underscores|dot|dash|slash)__")
_METADATA = {"type": "object", "properties": {"name": {"type": "string"}, "generateName": {"type": "string"}}}
_ROOT = {"apiVersion": {"type": "string"}, "kind": {"type": "string"}, "metadata": _METADATA}
MAX_DEPTH = 100


def escape(name: str) -> str | None:
    """Return the CEL name of a property, or None where CEL cannot name it."""
    if not re.fullmatch(r"[A-Za-z_./-][A-Za-z0-9_./-]*", name):
        return None
    if name in RESERVED:
        return f"__{name}__"
    return _TO_ESCAPE.sub(lambda match: _ESCAPED[match[0]], name)


def unescape(name: str) -> str:
    """Return the property that a CEL name stands for."""
    if name.startswith("__") and name.endswith("__") and name[2:-2] in RESERVED:
        return name[2:-2]
    return _TO_UNESCAPE.sub(lambda match: _PLAIN[match[0]], name)


def schema_type(name: str, schema: Mapping[str, object], *, resource: bool = False) -> Type:
    """Return the type of a value with that schema; dyn where the schema says nothing.

    The type, name and metadata of a resource are fields whatever the schema says.
    """
    return _type(name, schema, resource, 0) or DYN


def _type(name: str, schema: object, root: bool, depth: int) -> Type | None:
    if not isinstance(schema, Mapping) or depth > MAX_DEPTH:
        return None
    if schema.get("x-kubernetes-int-or-string") is True:
        return DYN
    kind = schema.get("type")
    if kind == "object" or (root and kind is None):
        return _object(name, schema, root, depth)
    if kind == "array":
        item = _nested(f"{name}.@idx", schema.get("items"), depth)
        return None if item is None else list_of(item)
    if kind == "string":
        return _FORMATS.get(str(schema.get("format")), STRING)
    return _SCALARS.get(str(kind))


def _nested(name: str, schema: object, depth: int) -> Type | None:
    embedded = isinstance(schema, Mapping) and schema.get("x-kubernetes-embedded-resource") is True
    return _type(name, schema, embedded, depth + 1)


def _object(name: str, schema: Mapping[str, object], root: bool, depth: int) -> Type | None:
    values = schema.get("additionalProperties")
    if isinstance(values, Mapping) and not root:
        value = _nested(f"{name}.@elem", values, depth)
        return None if value is None else map_of(STRING, value)
    given = schema.get("properties")
    properties: dict[str, object] = dict(given) if isinstance(given, Mapping) else {}
    if root:
        properties = {**properties, **_root_fields(properties)}
    fields: dict[str, Type] = {}
    for key in sorted(properties):
        field = escape(key)
        if field is not None:
            field_type = _nested(f"{name}.{key}", properties[key], depth)
            if field_type is not None:
                fields[field] = field_type
    return ObjectType(name, fields=fields)


def _root_fields(properties: Mapping[str, object]) -> Mapping[str, object]:
    """Type, name and metadata; metadata that the schema describes with its name stays as described."""
    metadata = properties.get("metadata")
    described = metadata.get("properties") if isinstance(metadata, Mapping) else None
    if isinstance(described, Mapping) and "name" in described and "generateName" in described:
        return {**_ROOT, "metadata": metadata}
    return _ROOT


def field_type(given: ObjectType, field: str) -> Type | None:
    """Return the type of a field; a reserved word finds the property of that name."""
    return given.fields.get(field) or (given.fields.get(f"__{field}__") if field in RESERVED else None)

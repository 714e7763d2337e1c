"""CustomResourceDefinitions without their texts (docs/clusters.md#redact).

They are kinds, so names, versions and schemas stay. Descriptions, examples, deprecation warnings and columns go, and
the webhook that converts versions. The messages of rules go as well, unless Tierwall knows the kind: then they are
public.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tierwall.resources.kinds.registry import versions_of

_SPEC = ("group", "names", "scope", "preserveUnknownFields")
_VERSION = ("name", "served", "storage", "deprecated", "subresources")
_TEXTS = frozenset(("description", "title", "example", "externalDocs", "$comment"))
_MESSAGES = frozenset(("message", "messageExpression"))
_RULES = "x-kubernetes-validations"
# Keywords that hold schemas: by name, in a list, or one.
_BY_NAME = frozenset(("properties", "patternProperties", "definitions", "dependencies"))
_IN_LIST = frozenset(("allOf", "anyOf", "oneOf"))
_ONE = frozenset(("items", "additionalProperties", "not", "additionalItems"))
_MAX_DEPTH = 200


def definition_spec(spec: Mapping[str, Any]) -> dict[str, Any]:
    """Return `spec` of a CustomResourceDefinition without texts."""
    copied = {name: spec[name] for name in _SPEC if name in spec}
    names, group = spec.get("names"), spec.get("group")
    kind = names.get("kind") if isinstance(names, dict) else None
    is_known = isinstance(group, str) and isinstance(kind, str) and bool(versions_of(group, kind))
    versions = spec.get("versions")
    if isinstance(versions, list):
        copied["versions"] = [_version(version, is_known) for version in versions if isinstance(version, dict)]
    return copied


def _version(version: Mapping[str, Any], is_known: bool) -> dict[str, Any]:
    copied = {name: version[name] for name in _VERSION if name in version}
    holder = version.get("schema")
    if isinstance(holder, dict):
        copied["schema"] = {name: _schema(schema, is_known, 0) for name, schema in holder.items()}
    return copied


def _schema(schema: Any, is_known: bool, depth: int) -> Any:
    if not isinstance(schema, dict) or depth > _MAX_DEPTH:
        return schema
    copied: dict[str, Any] = {}
    for keyword, value in schema.items():
        if keyword in _TEXTS:
            continue
        if keyword in _BY_NAME and isinstance(value, dict):
            copied[keyword] = {name: _schema(inner, is_known, depth + 1) for name, inner in value.items()}
        elif keyword in _IN_LIST and isinstance(value, list):
            copied[keyword] = [_schema(inner, is_known, depth + 1) for inner in value]
        elif keyword in _ONE:
            copied[keyword] = _schema(value, is_known, depth + 1)
        elif keyword == _RULES and isinstance(value, list) and not is_known:
            copied[keyword] = [_rule(rule) for rule in value]
        else:
            copied[keyword] = value
    return copied


def _rule(rule: Any) -> Any:
    return {name: part for name, part in rule.items() if name not in _MESSAGES} if isinstance(rule, dict) else rule

"""From our schemas to CustomResourceDefinitions (`apiextensions.k8s.io/v1`).

The result obeys the rules of structural schemas. What a CRD cannot say is left out: warnings, checks of a map's keys
and of its size, and formats that only Go validation of native kinds knows.
"""

import re
from collections.abc import Iterable
from typing import Any

import yaml
from msgspec import UNSET

from tierwall.resources.kinds.kind import Kind
from tierwall.resources.schema import Rule, Schema

_PLAIN = {
    "pattern": "pattern",
    "min_length": "minLength",
    "max_length": "maxLength",
    "minimum": "minimum",
    "maximum": "maximum",
    "min_items": "minItems",
    "max_items": "maxItems",
    "min_properties": "minProperties",
    "max_properties": "maxProperties",
    "list_type": "x-kubernetes-list-type",
    "map_type": "x-kubernetes-map-type",
}
_FLAGS = {
    "nullable": "nullable",
    "exclusive_minimum": "exclusiveMinimum",
    "exclusive_maximum": "exclusiveMaximum",
    "int_or_string": "x-kubernetes-int-or-string",
    "preserve_unknown": "x-kubernetes-preserve-unknown-fields",
    "embedded_resource": "x-kubernetes-embedded-resource",
}


def definitions(kinds: Iterable[Kind]) -> list[dict[str, Any]]:
    """One CRD for every group and kind that is a CRD, all its versions in it, by name."""
    groups: dict[str, list[Kind]] = {}
    for kind in kinds:
        if kind.is_crd:
            groups.setdefault(f"{kind.plural}.{kind.group}", []).append(kind)
    return [_definition(name, versions) for name, versions in sorted(groups.items())]


def _definition(name: str, versions: list[Kind]) -> dict[str, Any]:
    newest = versions[-1]
    names: dict[str, Any] = {
        "kind": newest.kind,
        "listKind": newest.list_kind,
        "plural": newest.plural,
        "singular": newest.singular,
    }
    if newest.short_names:
        names["shortNames"] = list(newest.short_names)
    if newest.categories:
        names["categories"] = list(newest.categories)
    metadata: dict[str, Any] = {"name": name}
    if newest.group.endswith((".k8s.io", ".kubernetes.io")):
        # Without it an API server refuses a definition in these groups (KEP-1111).
        metadata["annotations"] = {"api-approved.kubernetes.io": "unapproved, described for validation by tierwall"}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": metadata,
        "spec": {
            "group": newest.group,
            "names": names,
            "scope": newest.scope,
            "versions": [_version(kind) for kind in versions],
        },
    }


def _version(kind: Kind) -> dict[str, Any]:
    out: dict[str, Any] = {"name": kind.version, "served": kind.served, "storage": kind.storage}
    if kind.columns:
        out["additionalPrinterColumns"] = [
            {"name": column.name, "type": column.type, "jsonPath": column.json_path} for column in kind.columns
        ]
    if kind.status_subresource:
        out["subresources"] = {"status": {}}
    schema = open_api(kind.schema)
    head = {"apiVersion": {"type": "string"}, "kind": {"type": "string"}, "metadata": {"type": "object"}}
    schema["properties"] = head | schema.get("properties", {})
    if kind.description:
        schema = {"description": kind.description} | schema
    out["schema"] = {"openAPIV3Schema": schema}
    return out


def open_api(schema: Schema) -> dict[str, Any]:
    """A schema as OpenAPI v3, with the `x-kubernetes-*` words."""
    out: dict[str, Any] = {}
    if schema.description:
        out["description"] = schema.description
    if schema.type:
        out["type"] = schema.type
    if schema.int_or_string:
        out["anyOf"] = [{"type": "integer"}, {"type": "string"}]
    for attribute, word in _FLAGS.items():
        # A value of any type is nullable by itself; saying so would need a type.
        if getattr(schema, attribute) and not (word == "nullable" and not schema.type):
            out[word] = True
    for attribute, word in _PLAIN.items():
        value = getattr(schema, attribute)
        if value is not None and value != "":
            out[word] = value
    if schema.format and not schema.format.startswith("k8s-"):
        out["format"] = schema.format
    if schema.enum:
        out["enum"] = list(schema.enum)
    if schema.default is not UNSET:
        out["default"] = schema.default
    if schema.list_map_keys:
        out["x-kubernetes-list-map-keys"] = list(schema.list_map_keys)
    if schema.items is not None:
        out["items"] = open_api(schema.items)
    if schema.additional is not None:
        out["additionalProperties"] = open_api(schema.additional)
    if schema.properties:
        out |= _properties(schema)
    for word, parts in (("anyOf", schema.any_of), ("oneOf", schema.one_of), ("allOf", schema.all_of)):
        if parts:
            out[word] = [_value_validation(part) for part in parts]
    if schema.none_of is not None:
        out["not"] = _value_validation(schema.none_of)
    if rules := [_rule(rule) for rule in schema.rules if not rule.warning]:
        out["x-kubernetes-validations"] = rules
    return out


def _properties(schema: Schema) -> dict[str, Any]:
    properties: dict[str, Any] = {}
    for part in sorted(schema.properties, key=lambda part: part.name):
        described = open_api(part.schema)
        if part.description:
            described = {"description": part.description} | described | {"description": part.description}
        properties[part.name] = described
    out: dict[str, Any] = {"properties": properties}
    if names := sorted(part.name for part in schema.properties if part.required):
        out["required"] = names
    return out


def _value_validation(schema: Schema) -> dict[str, Any]:
    """Inside anyOf and its like a structural schema may not repeat types, descriptions or defaults."""
    dropped = ("type", "description", "default", "nullable")
    out = {word: value for word, value in open_api(schema).items() if word not in dropped}
    if "properties" in out:
        out["properties"] = {part.name: _value_validation(part.schema) for part in schema.properties}
    return out


def _rule(rule: Rule) -> dict[str, Any]:
    out = {"rule": rule.expression}
    if rule.message:
        out["message"] = rule.message
    if rule.message_expression:
        out["messageExpression"] = rule.message_expression
    if rule.field_path:
        out["fieldPath"] = rule.field_path
    if rule.reason != "FieldValueInvalid":
        out["reason"] = rule.reason
    return out


# Texts that every YAML reader takes for texts; all others are quoted (Go reads `1e3` and `y` otherwise than PyYAML).
_is_plain = re.compile(
    r"(?!(?:y|n|yes|no|on|off|true|false|null|nan|inf)$)[a-z][a-z0-9]*(?:[-./][a-z0-9]+)*$", re.I
).match


class _Dumper(yaml.CSafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        """Shared fragments are written out: kubectl reads aliases, people do not."""
        return True


def _text(dumper: _Dumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, None if _is_plain(text) else '"')


_Dumper.add_representer(str, _text)


def to_yaml(documents: Iterable[dict[str, Any]]) -> str:
    """Documents as one YAML stream."""
    return str(yaml.dump_all(documents, Dumper=_Dumper, sort_keys=False, explicit_start=True, width=4096))

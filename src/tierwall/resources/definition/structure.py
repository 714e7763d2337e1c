"""Checks the rules of structural schemas.

Text: apiextensions' `pkg/apiserver/schema/validation.go`, and `ValidateCustomResourceDefinitionOpenAPISchema` in
`pkg/apis/apiextensions/validation`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal

import re2

from tierwall.core.diagnostics import near_miss
from tierwall.resources.admission.problem import COUNT, AdmissionProblem
from tierwall.resources.admission.rules import parse_field_path
from tierwall.resources.definition.report import Keywords, Path, SchemaReport, schema_field_path
from tierwall.resources.schema import INT_OR_STRING, RULE_KEYWORDS

NodePosition = Literal["root", "item", "field"]

_MAX_NODES = 100_000  # in all schemas of a definition; API servers refuse objects of more than 1.5 MB
_TYPES = ("array", "boolean", "integer", "number", "object", "string")
_REASONS = ("FieldValueDuplicate", "FieldValueForbidden", "FieldValueInvalid", "FieldValueRequired")
# The type of value of every schema keyword.
SCHEMA_KEYWORDS: Mapping[str, str] = {
    **dict.fromkeys(("$ref", "$schema", "description", "format", "id", "pattern", "title", "type"), "string"),
    **dict.fromkeys(("maxItems", "maxLength", "maxProperties", "minItems", "minLength", "minProperties"), "integer"),
    **dict.fromkeys(("maximum", "minimum", "multipleOf"), "number"),
    **dict.fromkeys(("exclusiveMaximum", "exclusiveMinimum", "nullable", "uniqueItems"), "boolean"),
    **dict.fromkeys(("x-kubernetes-embedded-resource", "x-kubernetes-int-or-string"), "boolean"),
    "x-kubernetes-preserve-unknown-fields": "boolean",
    **dict.fromkeys(("x-kubernetes-list-type", "x-kubernetes-map-type"), "string"),
    **dict.fromkeys(("required", "x-kubernetes-list-map-keys"), "strings"),
    **dict.fromkeys(("allOf", "anyOf", "enum", "oneOf", "x-kubernetes-validations"), "array"),
    **dict.fromkeys(("definitions", "dependencies", "externalDocs", "not"), "object"),
    **dict.fromkeys(("patternProperties", "properties"), "object"),
    **dict.fromkeys(("additionalItems", "additionalProperties"), "object or boolean"),
    **dict.fromkeys(("default", "example"), "any"),
    "items": "any",  # Go ignores a value that is neither a schema nor a list of schemas
}
_EXTERNAL_DOCS = {"description": "string", "url": "string"}
_RULE_SHAPES = {"optionalOldSelf": "boolean"}
_FITS: dict[str, Callable[[Any], bool]] = {
    "any": lambda value: True,
    "string": lambda value: type(value) is str,
    "integer": lambda value: type(value) is int and -(2**63) <= value < 2**63,
    "number": lambda value: type(value) in (int, float),
    "boolean": lambda value: type(value) is bool,
    "array": lambda value: type(value) is list,
    "strings": lambda value: type(value) is list and all(type(item) is str or item is None for item in value),
    "object": lambda value: type(value) is dict,
    "object or boolean": lambda value: type(value) in (dict, bool),
}
_NOT_SUPPORTED = ("$ref", "$schema", "additionalItems", "definitions", "dependencies", "id", "patternProperties")
# Keywords that are not allowed inside anyOf, oneOf, allOf and not, with upstream's word for their absence.
_NOT_NESTED = {
    "type": "empty",
    "additionalProperties": "undefined",
    "default": "undefined",
    "title": "empty",
    "description": "empty",
    "nullable": "false",
    "x-kubernetes-preserve-unknown-fields": "false",
    "x-kubernetes-embedded-resource": "false",
    "x-kubernetes-int-or-string": "false",
    "x-kubernetes-list-map-keys": "empty",
    "x-kubernetes-list-type": "undefined",
    "x-kubernetes-map-type": "undefined",
    "x-kubernetes-validations": "empty",
}
# `\C`, one byte, is the only syntax that RE2 accepts and Go does not.
_has_byte = re.compile(r"(?:\\Q.*?(?:\\E|$)|\\[^C]|[^\\])*+\\C", re.DOTALL).match
_has_line_break = re.compile(r"[\n\r]").search
_QUIET = re2.Options()
_QUIET.log_errors = False


def check_schema_node(
    report: SchemaReport, given: Any, path: Path, level: NodePosition, *, nested: bool = False
) -> None:
    """Check a node and all nodes below it. `nested` nodes are inside anyOf, oneOf, allOf or not."""
    report.nodes += 1
    if report.nodes == _MAX_NODES + 1:
        report.problems.append(
            AdmissionProblem(COUNT, path, f"{schema_field_path(path)}: Too many: more than {_MAX_NODES} schemas")
        )
    if report.is_full or report.nodes > _MAX_NODES:
        return
    keywords = _shaped(report, given, path, SCHEMA_KEYWORDS)
    if keywords is None:
        return
    _standard(report, keywords, path)
    if nested:
        _nested(report, keywords, path)
    else:
        _structural(report, keywords, path, level)
    _lists(report, keywords, path)
    _rules(report, keywords, path)
    _below(report, keywords, path, nested)


def _shaped(report: SchemaReport, given: Any, path: Path, shapes: Mapping[str, str]) -> Keywords | None:
    """Return the keywords with values of the right type. A null counts as an absent keyword."""
    if type(given) is not dict:
        report.wrong_type(path, "object", given)
        return None
    out: dict[str, Any] = {}
    for keyword, value in given.items():
        shape = shapes.get(keyword)
        if shape is None:
            report.unknown((*path, keyword), near_miss(keyword[:100], shapes))
        elif value is not None and not _FITS[shape](value):
            report.wrong_type((*path, keyword), shape, value)
        elif value is not None:
            out[keyword] = value
    return out


def _standard(report: SchemaReport, keywords: Keywords, path: Path) -> None:
    """Check the keywords of OpenAPI that definitions restrict."""
    if "externalDocs" in keywords:
        _shaped(report, keywords["externalDocs"], (*path, "externalDocs"), _EXTERNAL_DOCS)
    for keyword in _NOT_SUPPORTED:
        if keywords.get(keyword) not in (None, "", {}):
            report.forbidden((*path, keyword), f"{keyword} is not supported")
    kind = keywords.get("type", "")
    if kind and kind not in _TYPES:
        report.unsupported((*path, "type"), kind, _TYPES)
    if isinstance(keywords.get("items"), list):
        report.forbidden((*path, "items"), "items must be a schema object and not an array")
    if keywords.get("uniqueItems"):
        detail = "uniqueItems cannot be set to true since the runtime complexity becomes quadratic"
        report.forbidden((*path, "uniqueItems"), detail)
    if (
        "additionalProperties" in keywords
        and keywords.get("properties")
        and keywords["additionalProperties"] is not True
    ):
        report.forbidden((*path, "additionalProperties"), "additionalProperties and properties are mutual exclusive")
    if keywords.get("x-kubernetes-preserve-unknown-fields") is False:
        report.invalid((*path, "x-kubernetes-preserve-unknown-fields"), False, "must be true or undefined")
    if pattern := keywords.get("pattern"):
        try:
            re2.compile(pattern, _QUIET)
            reason = "invalid escape sequence: `\\C`" if _has_byte(pattern) else ""
        except re2.error as error:
            reason = error.args[0].decode("utf-8", "replace")
        if reason:
            detail = f"must be a valid regular expression, but isn't: {reason}"
            report.invalid((*path, "pattern"), pattern, detail)


def _nested(report: SchemaReport, keywords: Keywords, path: Path) -> None:
    """Check a node inside anyOf, oneOf, allOf or not: it may only limit values that are described outside."""
    for keyword, wanted in _NOT_NESTED.items():
        value = keywords.get(keyword)
        if value is not None and (keyword == "default" or value not in ("", False, [])):
            report.forbidden((*path, keyword), f"must be {wanted} to be structural")
    if "metadata" in keywords.get("properties", ()):
        report.forbidden((*path, "properties", "metadata"), "must not be specified in a nested context")


def _structural(report: SchemaReport, keywords: Keywords, path: Path, level: NodePosition) -> None:
    """Check the invariants of a structural schema."""
    kind = keywords.get("type", "")
    embedded = keywords.get("x-kubernetes-embedded-resource", False)
    preserves = keywords.get("x-kubernetes-preserve-unknown-fields", False)
    either = keywords.get("x-kubernetes-int-or-string", False)
    if kind == "array" and not isinstance(keywords.get("items"), dict | list):
        report.required((*path, "items"), "must be specified")
    if embedded and kind != "object":
        report.invalid((*path, "type"), kind, "must be object if x-kubernetes-embedded-resource is true")
    elif not kind and not either and not preserves:
        where = {"root": "at the root", "item": "for specified array items", "field": "for specified object fields"}
        report.required((*path, "type"), f"must not be empty {where[level]}")
    if level == "root" and kind not in ("", "object"):
        report.invalid((*path, "type"), kind, "must be object at the root")
    for keyword, value in (
        ("x-kubernetes-preserve-unknown-fields", preserves),
        ("x-kubernetes-embedded-resource", embedded),
    ):
        if either and value:
            report.invalid((*path, keyword), value, "must be false if x-kubernetes-int-or-string is true")
    if "additionalProperties" in keywords and (level == "root" or embedded):
        where_not = "at the root" if level == "root" else "if x-kubernetes-embedded-resource is set"
        report.forbidden((*path, "additionalProperties"), f"must not be used {where_not}")
    if embedded and not preserves and not keywords.get("properties"):
        detail = "must not be empty if x-kubernetes-embedded-resource is true"
        report.required((*path, "properties"), f"{detail} without x-kubernetes-preserve-unknown-fields")
    if level == "root" or embedded:
        _head(report, keywords.get("properties", {}), (*path, "properties"), level == "root")


def _head(report: SchemaReport, properties: Keywords, path: Path, is_root: bool) -> None:
    """Check what a schema says about apiVersion, kind and metadata."""
    for name, wanted in (("apiVersion", "string"), ("kind", "string"), ("metadata", "object")):
        described = properties.get(name)
        if isinstance(described, dict) and described.get("type") != wanted:
            report.invalid((*path, name, "type"), described.get("type", ""), f"must be {wanted}")
    metadata = properties.get("metadata")
    if is_root and isinstance(metadata, dict):
        others = {keyword for keyword, value in metadata.items() if value} - {"type", "properties"}
        limits = metadata.get("properties")
        if others or (isinstance(limits, dict) and limits.keys() - {"name", "generateName"}):
            detail = "must not specify anything other than name and generateName"
            report.forbidden((*path, "metadata"), f"{detail}, but metadata is implicitly specified")


def _lists(report: SchemaReport, keywords: Keywords, path: Path) -> None:
    """Check `x-kubernetes-list-type`, `-list-map-keys` and `-map-type`."""
    list_type, map_type = keywords.get("x-kubernetes-list-type"), keywords.get("x-kubernetes-map-type")
    keys, kind = keywords.get("x-kubernetes-list-map-keys", []), keywords.get("type", "")
    for keyword, value, wanted, supported in (
        ("x-kubernetes-map-type", map_type, "object", ("atomic", "granular")),
        ("x-kubernetes-list-type", list_type, "array", ("atomic", "set", "map")),
    ):
        if value is not None and kind != wanted:
            report.invalid((*path, "type"), kind, f"must be {wanted} if {keyword} is specified")
        if value is not None and value not in supported:
            report.unsupported((*path, keyword), value, supported)
    if keys and list_type != "map":
        detail = "must be map if x-kubernetes-list-map-keys is non-empty"
        report.invalid((*path, "x-kubernetes-list-type"), list_type or "", detail)
    items = keywords.get("items")
    if list_type not in ("set", "map") or not isinstance(items, dict):
        return
    at_items = (*path, "items")
    if items.get("nullable"):
        report.forbidden((*at_items, "nullable"), f"cannot be nullable when x-kubernetes-list-type is {list_type}")
    if list_type == "set":
        which = {"array": "list", "object": "map"}.get(str(items.get("type")))
        implied = "atomic" if which == "list" else "granular"
        if which is not None and items.get(f"x-kubernetes-{which}-type", implied) != "atomic":
            detail = "must be atomic as item of a list with x-kubernetes-list-type=set"
            report.invalid((*at_items, f"x-kubernetes-{which}-type"), None, detail)
    else:
        _keys(report, keys, items, path)


def _keys(report: SchemaReport, keys: list[str], items: Keywords, path: Path) -> None:
    """Check the keys of a list of type map."""
    at_keys, at_items = (*path, "x-kubernetes-list-map-keys"), (*path, "items")
    if not keys:
        report.required(at_keys, "must not be empty if x-kubernetes-list-type is map")
    if len(set(keys)) < len(keys):
        report.invalid(at_keys, keys, "must not contain duplicate entries")
    if items.get("type") != "object":
        detail = "must be object if parent array's x-kubernetes-list-type is map"
        report.invalid((*at_items, "type"), items.get("type", ""), detail)
        return
    properties, needed = items.get("properties"), items.get("required")
    for key in dict.fromkeys(keys):
        described = properties.get(key) if isinstance(properties, dict) else None
        at_key = (*at_items, "properties", key)
        if not isinstance(described, dict):
            report.invalid(at_keys, keys, "entries must all be names of item properties")
            continue
        if described.get("type") in ("array", "object"):
            detail = "must be a scalar type if parent array's x-kubernetes-list-type is map"
            report.invalid((*at_key, "type"), described["type"], detail)
        property_of = "this property is in x-kubernetes-list-map-keys, so it"
        if not (isinstance(needed, list) and key in needed) and described.get("default") is None:
            report.required((*at_key, "default"), f"{property_of} must have a default or be a required property")
        if described.get("nullable"):
            report.forbidden((*at_key, "nullable"), f"{property_of} cannot be nullable")


def _rules(report: SchemaReport, keywords: Keywords, path: Path) -> None:
    """Check the form of rules, not yet their CEL."""
    shapes = {
        keyword: _RULE_SHAPES.get(keyword, "string")
        for keyword in RULE_KEYWORDS
        if not keyword.startswith("x-tierwall-")
    }
    for index, given in enumerate(keywords.get("x-kubernetes-validations", ())):
        at_rule = (*path, "x-kubernetes-validations", index)
        rule = _shaped(report, given, at_rule, shapes)
        if rule is None:
            continue
        text, message = rule.get("rule", "").strip(), rule.get("message", "")
        if not text:
            report.required((*at_rule, "rule"), "rule is not specified")
        elif message and not message.strip():
            report.invalid((*at_rule, "message"), message, "must be non-empty if specified")
        elif _has_line_break(message.strip()):
            report.invalid((*at_rule, "message"), message, "must not contain line breaks")
        elif _has_line_break(text) and not message:
            report.required((*at_rule, "message"), "message must be specified if rule contains line breaks")
        if rule.get("messageExpression") and not rule["messageExpression"].strip():
            report.required((*at_rule, "messageExpression"), "messageExpression must be non-empty if specified")
        if rule.get("reason", _REASONS[0]) not in _REASONS:
            report.unsupported((*at_rule, "reason"), rule["reason"], _REASONS)
        if rule.get("fieldPath") and not _leads_somewhere(rule["fieldPath"], keywords):
            report.invalid((*at_rule, "fieldPath"), rule["fieldPath"], "must be a valid path")


def _below(report: SchemaReport, keywords: Keywords, path: Path, nested: bool) -> None:
    """Check the nodes below a node."""
    properties = keywords.get("properties", {})
    for name, inner in properties.items():
        check_schema_node(report, inner, (*path, "properties", name), "field", nested=nested)
    if isinstance(keywords.get("items"), dict):
        check_schema_node(report, keywords["items"], (*path, "items"), "item", nested=nested)
    if isinstance(keywords.get("additionalProperties"), dict):
        check_schema_node(
            report, keywords["additionalProperties"], (*path, "additionalProperties"), "field", nested=nested
        )
    for at, part in alternatives(keywords):
        check_schema_node(report, part, (*path, *at), "field", nested=True)


def alternatives(keywords: Keywords) -> Iterator[tuple[Path, Keywords]]:
    """Yield the schemas inside anyOf, oneOf, allOf and not, except those that only say int-or-string."""
    for keyword in ("allOf", "anyOf", "oneOf"):
        if keyword == "anyOf" and keywords.get(keyword) == INT_OR_STRING:
            continue
        for index, part in enumerate(keywords.get(keyword) or ()):
            if keyword == "allOf" and index == 0 and isinstance(part, dict) and part.get("anyOf") == INT_OR_STRING:
                part = {key: value for key, value in part.items() if key != "anyOf"}
            yield (keyword, index), part
    if keywords.get("not") is not None:
        yield ("not",), keywords["not"]


def _leads_somewhere(field_path: str, keywords: Keywords) -> bool:
    try:
        steps = parse_field_path(field_path.strip())
    except ValueError:
        return False
    node: Any = keywords
    for step in steps:
        properties = node.get("properties") if isinstance(node, dict) else None
        values = node.get("additionalProperties") if isinstance(node, dict) else None
        if isinstance(properties, dict) and step in properties:
            node = properties[step]
        elif isinstance(values, dict):
            node = values
        else:
            return False
    return bool(steps)

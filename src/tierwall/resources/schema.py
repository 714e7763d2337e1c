"""The schema of a kind: the OpenAPI v3 *structural schema* of a CustomResourceDefinition, as typed values.

`SchemaReader` reads the keywords of a definition (types, required, enums, bounds, patterns, defaults,
`x-kubernetes-list-type`, `x-kubernetes-validations`). Validation, defaulting, `tierwall crds` and the reference pages
all derive from the schema; no kind has its own validation code.

The definitions that Tierwall ships (`kinds/data`) say more than OpenAPI can: hints, warnings, checks of map keys. Those
keywords begin with `x-tierwall-`. A fragment that a definition uses in several places has a name: `{"$ref": "Name"}`
stands for that fragment, and may have a description and a hint beside it.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Literal

from msgspec import UNSET, Struct

SchemaType = Literal["object", "array", "string", "integer", "number", "boolean", ""]
ListType = Literal["atomic", "set", "map"]
# CRDs have the first four. The last is for native kinds; its message lists the supported values.
FieldValueErrorReason = Literal[
    "FieldValueInvalid",
    "FieldValueForbidden",
    "FieldValueRequired",
    "FieldValueDuplicate",
    "FieldValueNotSupported",
]


class ValidationRule(Struct, frozen=True):
    """An entry of `x-kubernetes-validations`: a CEL expression over `self` that must be true.

    `field_path` is relative to the schema that has the rule (`.spec.name`, `['a.b']`), as in a CRD. `warning` rules
    never refuse an object; CRDs cannot express them and leave them out. With `each`, for native kinds only, the rule
    runs for every `item` of that list field and reports failures there.
    """

    expression: str
    message: str = ""
    message_expression: str = ""
    field_path: str = ""
    reason: FieldValueErrorReason = "FieldValueInvalid"
    hint: str = ""
    warning: bool = False
    each: str = ""
    optional_old_self: bool = False


class Property(Struct, frozen=True):
    """A named field of an object. `hint` is shown if the field is required but missing, or of a wrong type."""

    name: str
    schema: "Schema"
    required: bool = False
    description: str = ""
    hint: str = ""


class Schema(Struct, frozen=True, eq=False, kw_only=True):
    """A node of a structural schema. `type` is empty for int-or-string and for a value of any type.

    A schema is equal only to itself: a shared fragment is the same object wherever it is used.
    """

    type: SchemaType = ""
    title: str = ""  # the name of a shared fragment
    description: str = ""
    nullable: bool = False
    default: Any = UNSET
    int_or_string: bool = False
    preserve_unknown: bool = False  # x-kubernetes-preserve-unknown-fields
    embedded_resource: bool = False  # x-kubernetes-embedded-resource
    bare: bool = False  # any value, but objects in it may not have fields: `additionalProperties: true`
    properties: tuple[Property, ...] = ()
    undeclared: tuple[str, ...] = ()  # names that are required without being properties
    map_type: Literal["atomic", "granular", ""] = ""  # x-kubernetes-map-type
    additional: "Schema | None" = None  # additionalProperties: the value of a map
    keys: "Schema | None" = None  # the schema of a map's keys; not part of OpenAPI v3, left out of CRDs
    min_properties: int | None = None
    max_properties: int | None = None
    max_bytes: int | None = None  # of a map's keys and strings together; not part of OpenAPI v3 either
    items: "Schema | None" = None
    min_items: int | None = None
    max_items: int | None = None
    list_type: ListType | None = None
    list_map_keys: tuple[str, ...] = ()
    enum: tuple[Any, ...] = ()
    pattern: str = ""
    format: str = ""
    min_length: int | None = None
    max_length: int | None = None
    minimum: float | None = None
    maximum: float | None = None
    exclusive_minimum: bool = False
    exclusive_maximum: bool = False
    multiple_of: float | None = None
    rules: tuple[ValidationRule, ...] = ()
    any_of: tuple["Schema", ...] = ()  # value validations only: required, bounds, enums, patterns
    one_of: tuple["Schema", ...] = ()
    all_of: tuple["Schema", ...] = ()
    none_of: "Schema | None" = None  # `not`

    def at(self, *names: str) -> "Schema | None":
        """Return the schema of the field at this path, or None if there is no such field."""
        schema = self
        for name in names:
            inner = next((part.schema for part in schema.properties if part.name == name), None)
            if inner is None:
                return None
            schema = inner
        return schema


# Keywords whose value is stored unchanged.
PLAIN_KEYWORDS = {
    "description": "description",
    "type": "type",
    "nullable": "nullable",
    "exclusiveMinimum": "exclusive_minimum",
    "exclusiveMaximum": "exclusive_maximum",
    "x-kubernetes-int-or-string": "int_or_string",
    "x-kubernetes-preserve-unknown-fields": "preserve_unknown",
    "x-kubernetes-embedded-resource": "embedded_resource",
    "pattern": "pattern",
    "minLength": "min_length",
    "maxLength": "max_length",
    "minimum": "minimum",
    "maximum": "maximum",
    "multipleOf": "multiple_of",
    "minItems": "min_items",
    "maxItems": "max_items",
    "minProperties": "min_properties",
    "maxProperties": "max_properties",
    "x-kubernetes-list-type": "list_type",
    "x-kubernetes-map-type": "map_type",
    "format": "format",
    "default": "default",
    "x-tierwall-max-bytes": "max_bytes",
}
_LISTS = {"enum": "enum", "x-kubernetes-list-map-keys": "list_map_keys"}
_INNER = {"items": "items", "not": "none_of", "x-tierwall-keys": "keys"}
_GROUPS = {"anyOf": "any_of", "oneOf": "one_of", "allOf": "all_of"}
RULE_KEYWORDS = {
    "rule": "expression",
    "message": "message",
    "messageExpression": "message_expression",
    "fieldPath": "field_path",
    "reason": "reason",
    "optionalOldSelf": "optional_old_self",
    "x-tierwall-hint": "hint",
    "x-tierwall-warning": "warning",
    "x-tierwall-each": "each",
}
# How controller-gen writes that a value is an integer or a string. `x-kubernetes-int-or-string` already says it.
INT_OR_STRING = [{"type": "integer"}, {"type": "string"}]


def read_schema(keywords: Mapping[str, Any]) -> Schema:
    """Return the schema that these keywords describe."""
    return SchemaReader({}).read(keywords)


class SchemaReader:
    """Reads the schemas of one definition. Each fragment becomes one schema, when it is first used."""

    def __init__(self, fragments: Mapping[str, Mapping[str, Any]], *, installed: bool = False) -> None:
        self._fragments = fragments
        self._installed = installed
        self._known: dict[str, Schema] = {}

    def read(self, keywords: Mapping[str, Any]) -> Schema:
        """Return the schema that these keywords describe."""
        name = keywords.get("$ref")
        if name is None:
            return Schema(**dict(self._attributes(keywords)))
        known = self._known.get(name)
        if known is None:
            known = self._known[name] = Schema(title=name, **dict(self._attributes(self._fragments[name])))
        return known

    def _attributes(self, keywords: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
        for keyword, value in keywords.items():
            if value is None:
                continue
            if self._installed and (keyword == "format" or keyword.startswith("x-tierwall-")):
                # Tierwall's own keywords mean nothing in an installed definition. With its dashes, `k8s-short-name` is
                # the check of Go validation; without them it is the OpenAPI format.
                if keyword == "format":
                    yield keyword, value.replace("-", "") if value.startswith("k8s-") else value
            elif (attribute := PLAIN_KEYWORDS.get(keyword)) is not None:
                yield attribute, value
            elif (attribute := _INNER.get(keyword)) is not None:
                if isinstance(value, Mapping):
                    yield attribute, self.read(value)
            elif (attribute := _LISTS.get(keyword)) is not None:
                yield attribute, tuple(value)
            elif keyword == "properties":
                yield keyword, tuple(self._properties(value, frozenset(keywords.get("required") or ())))
            elif keyword == "required":
                yield "undeclared", tuple(name for name in value if name not in (keywords.get("properties") or ()))
            elif keyword == "additionalProperties":
                yield "additional", self.read(value) if isinstance(value, Mapping) else _BARE if value else NO_VALUE
            elif keyword == "x-kubernetes-validations":
                yield "rules", tuple(_rule(rule) for rule in value)
            elif (attribute := _GROUPS.get(keyword)) is not None and not _is_int_or_string(keywords, keyword):
                yield attribute, tuple(self.read(part) for part in value)

    def _properties(self, properties: Mapping[str, Mapping[str, Any]], required: frozenset[str]) -> Iterator[Property]:
        for name, keywords in properties.items():
            description, hint = keywords.get("description") or "", keywords.get("x-tierwall-hint", "")
            if description and "$ref" not in keywords:
                # A description belongs to the field, not to the schema of its values.
                keywords = {keyword: value for keyword, value in keywords.items() if keyword != "description"}
            yield Property(name, self.read(keywords), name in required, description, hint)


def _rule(keywords: Mapping[str, Any]) -> ValidationRule:
    known = {RULE_KEYWORDS[keyword]: value for keyword, value in keywords.items() if keyword in RULE_KEYWORDS}
    return ValidationRule(**known)


def _is_int_or_string(keywords: Mapping[str, Any], keyword: str) -> bool:
    int_or_string = keywords.get("x-kubernetes-int-or-string") is True
    return keyword == "anyOf" and int_or_string and keywords[keyword] == INT_OR_STRING


_BARE = Schema(bare=True, nullable=True)
NO_VALUE = Schema(nullable=True)  # of `additionalProperties: false`

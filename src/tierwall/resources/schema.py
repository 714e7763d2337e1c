"""What a kind looks like: the OpenAPI v3 *structural schema* of a CustomResourceDefinition, as typed values.

`SchemaReader` makes a schema of the words that a definition has (types, required, enums, bounds, patterns, defaults,
`x-kubernetes-list-type`, `x-kubernetes-validations`). Validation, defaulting, `tierwall crds` and the reference pages
all derive from it; no kind has validation code of its own.

The definitions that Tierwall ships (`kinds/data`) say more than OpenAPI can: hints, warnings, what a map's keys must
be. Those words begin with `x-tierwall-`. What a definition uses in several places it names: `{"$ref": "Name"}` stands
for the fragment of that name, beside which a description and a hint may stand.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Literal

from msgspec import UNSET, Struct

SchemaType = Literal["object", "array", "string", "integer", "number", "boolean", ""]
ListType = Literal["atomic", "set", "map"]
# CRDs know the first four; the last is for native kinds, whose message is then the list of supported values.
FieldValueErrorReason = Literal[
    "FieldValueInvalid",
    "FieldValueForbidden",
    "FieldValueRequired",
    "FieldValueDuplicate",
    "FieldValueNotSupported",
]


class ValidationRule(Struct, frozen=True):
    """One entry of `x-kubernetes-validations`: a CEL expression over `self` that must be true.

    `field_path` is relative to the schema the rule stands on (`.spec.name`, `['a.b']`), as in a CRD. `warning` rules
    never refuse an object and are left out of CRDs, which cannot express them. With `each`, for native kinds only, the
    rule is asked for every `item` of that list field and failures are reported there.
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
    """A named field of an object. `hint` is shown when the field is missing although required, or of a wrong type."""

    name: str
    schema: "Schema"
    required: bool = False
    description: str = ""
    hint: str = ""


class Schema(Struct, frozen=True, eq=False, kw_only=True):
    """One node of a structural schema. `type` is empty for int-or-string and for a value of any type.

    A schema is equal only to itself: a shared fragment is one object wherever it stands.
    """

    type: SchemaType = ""
    title: str = ""  # the name of a shared fragment
    description: str = ""
    nullable: bool = False
    default: Any = UNSET
    int_or_string: bool = False
    preserve_unknown: bool = False  # x-kubernetes-preserve-unknown-fields
    embedded_resource: bool = False  # x-kubernetes-embedded-resource
    bare: bool = False  # any value, but fields of objects in it are unknown: `additionalProperties: true`
    properties: tuple[Property, ...] = ()
    undeclared: tuple[str, ...] = ()  # names that are required without being properties
    map_type: Literal["atomic", "granular", ""] = ""  # x-kubernetes-map-type
    additional: "Schema | None" = None  # additionalProperties: the value of a map
    keys: "Schema | None" = None  # what a map's keys must be; not part of OpenAPI v3, left out of CRDs
    min_properties: int | None = None
    max_properties: int | None = None
    max_bytes: int | None = None  # of a map's keys and texts together; not part of OpenAPI v3 either
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
        """The schema of the field that these names lead to; None if there is no such field."""
        schema = self
        for name in names:
            inner = next((part.schema for part in schema.properties if part.name == name), None)
            if inner is None:
                return None
            schema = inner
        return schema


# Words of a definition whose value is taken as it stands.
PLAIN_WORDS = {
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
RULE_WORDS = {
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
# How controller-gen writes that a value is a number or a text; int-or-string says it already.
INT_OR_STRING = [{"type": "integer"}, {"type": "string"}]


def read_schema(words: Mapping[str, Any]) -> Schema:
    """The schema that these words of a definition say."""
    return SchemaReader({}).read(words)


class SchemaReader:
    """Reads the schemas of one definition; each of its fragments becomes one schema, when it is first met."""

    def __init__(self, fragments: Mapping[str, Mapping[str, Any]], *, installed: bool = False) -> None:
        self._fragments = fragments
        self._installed = installed
        self._known: dict[str, Schema] = {}

    def read(self, words: Mapping[str, Any]) -> Schema:
        """The schema that these words say."""
        name = words.get("$ref")
        if name is None:
            return Schema(**dict(self._attributes(words)))
        known = self._known.get(name)
        if known is None:
            known = self._known[name] = Schema(title=name, **dict(self._attributes(self._fragments[name])))
        return known

    def _attributes(self, words: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
        for word, value in words.items():
            if value is None:
                continue
            if self._installed and (word == "format" or word.startswith("x-tierwall-")):
                # Words of our own mean nothing in what somebody else wrote. The dashes of `k8s-short-name` tell what
                # Go validation of native kinds checks from the format of that name.
                if word == "format":
                    yield word, value.replace("-", "") if value.startswith("k8s-") else value
            elif (attribute := PLAIN_WORDS.get(word)) is not None:
                yield attribute, value
            elif (attribute := _INNER.get(word)) is not None:
                if isinstance(value, Mapping):
                    yield attribute, self.read(value)
            elif (attribute := _LISTS.get(word)) is not None:
                yield attribute, tuple(value)
            elif word == "properties":
                yield word, tuple(self._properties(value, frozenset(words.get("required") or ())))
            elif word == "required":
                yield "undeclared", tuple(name for name in value if name not in (words.get("properties") or ()))
            elif word == "additionalProperties":
                yield "additional", self.read(value) if isinstance(value, Mapping) else _BARE if value else NO_VALUE
            elif word == "x-kubernetes-validations":
                yield "rules", tuple(_rule(rule) for rule in value)
            elif (attribute := _GROUPS.get(word)) is not None and not _is_int_or_string(words, word):
                yield attribute, tuple(self.read(part) for part in value)

    def _properties(self, properties: Mapping[str, Mapping[str, Any]], required: frozenset[str]) -> Iterator[Property]:
        for name, words in properties.items():
            description, hint = words.get("description") or "", words.get("x-tierwall-hint", "")
            if description and "$ref" not in words:
                # What is said of a field is not a part of what its values must be.
                words = {word: value for word, value in words.items() if word != "description"}
            yield Property(name, self.read(words), name in required, description, hint)


def _rule(words: Mapping[str, Any]) -> ValidationRule:
    return ValidationRule(**{RULE_WORDS[word]: value for word, value in words.items() if word in RULE_WORDS})


def _is_int_or_string(words: Mapping[str, Any], word: str) -> bool:
    return word == "anyOf" and words.get("x-kubernetes-int-or-string") is True and words[word] == INT_OR_STRING


_BARE = Schema(bare=True, nullable=True)
NO_VALUE = Schema(nullable=True)  # of `additionalProperties: false`

"""The declarative schema language: what a kind looks like, as data.

A schema is an OpenAPI v3 *structural schema* as CustomResourceDefinitions have it (types, required, enums, bounds,
patterns, defaults, `x-kubernetes-list-type`, `x-kubernetes-validations`). Validation, defaulting, `tierwall crds` and
the reference pages all derive from it; no kind has validation code of its own. Build schemas with the constructors:

    obj(
        required("action", enum("Allow", "Deny"), "What happens to matching traffic."),
        optional("ports", array(port, min_items=1, max_items=100)),
        exactly_one_of("from", "to"),
        rule("has(self.ports) || self.action == 'Deny'", "ports are needed with Allow"),
    )
"""

from collections.abc import Iterable
from typing import Any, Literal

from msgspec import UNSET, Struct, UnsetType
from msgspec.structs import replace

Type = Literal["object", "array", "string", "integer", "number", "boolean", ""]
ListType = Literal["atomic", "set", "map"]
# CRDs know the first four; the last is for native kinds, whose message is then the list of supported values.
Reason = Literal[
    "FieldValueInvalid",
    "FieldValueForbidden",
    "FieldValueRequired",
    "FieldValueDuplicate",
    "FieldValueNotSupported",
]


class Rule(Struct, frozen=True):
    """One entry of `x-kubernetes-validations`: a CEL expression over `self` that must be true.

    `field_path` is relative to the schema the rule stands on (`.spec.name`, `['a.b']`), as in a CRD. `warning` rules
    never refuse an object and are left out of CRDs, which cannot express them. With `each`, for native kinds only, the
    rule is asked for every `item` of that list field and failures are reported there.
    """

    expression: str
    message: str = ""
    message_expression: str = ""
    field_path: str = ""
    reason: Reason = "FieldValueInvalid"
    hint: str = ""
    warning: bool = False
    each: str = ""


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

    type: Type = ""
    title: str = ""  # the name of a shared fragment, for the reference pages only
    description: str = ""
    nullable: bool = False
    default: Any = UNSET
    int_or_string: bool = False
    preserve_unknown: bool = False  # x-kubernetes-preserve-unknown-fields
    embedded_resource: bool = False  # x-kubernetes-embedded-resource
    properties: tuple[Property, ...] = ()
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
    enum: tuple[str | int, ...] = ()
    pattern: str = ""
    format: str = ""
    min_length: int | None = None
    max_length: int | None = None
    minimum: float | None = None
    maximum: float | None = None
    exclusive_minimum: bool = False
    exclusive_maximum: bool = False
    rules: tuple[Rule, ...] = ()
    any_of: tuple["Schema", ...] = ()  # value validations only: required, bounds, enums, patterns
    one_of: tuple["Schema", ...] = ()
    all_of: tuple["Schema", ...] = ()
    none_of: "Schema | None" = None  # `not`

    def property(self, name: str) -> Property | None:
        """The property of that name, if the schema declares it."""
        for candidate in self.properties:
            if candidate.name == name:
                return candidate
        return None


def required(name: str, schema: Schema, description: str = "", *, hint: str = "") -> Property:
    """A field that must be there (after defaulting)."""
    return Property(name, schema, True, description, hint)


def optional(name: str, schema: Schema, description: str = "", *, hint: str = "") -> Property:
    """A field that may be left out."""
    return Property(name, schema, False, description, hint)


def rule(
    expression: str,
    message: str = "",
    *,
    message_expression: str = "",
    field_path: str = "",
    reason: Reason = "FieldValueInvalid",
    hint: str = "",
    each: str = "",
) -> Rule:
    """A CEL rule over `self`. Without a message the API server says `failed rule: <expression>`."""
    return Rule(expression, message, message_expression, field_path, reason, hint, False, each)


def warning(expression: str, message: str, *, field_path: str = "", hint: str = "") -> Rule:
    """A CEL rule whose failure is only a warning: the object is admitted."""
    return Rule(expression, message, "", field_path, "FieldValueInvalid", hint, True)


def only_warn(one: Rule) -> Rule:
    """The same rule as a warning."""
    return replace(one, warning=True)


def _count_rule(names: tuple[str, ...], comparison: str, words: str) -> Rule:
    tests = ",".join(f"has(self.{_identifier(name)})" for name in names)
    return Rule(
        f"[{tests}].filter(x,x==true).size() {comparison}", f"{words} of the fields in [{' '.join(names)}] must be set"
    )


def exactly_one_of(*names: str) -> Rule:
    """The union rule and message that controller-gen writes for `+kubebuilder:validation:ExactlyOneOf`."""
    return _count_rule(names, "== 1", "exactly one")


def at_most_one_of(*names: str) -> Rule:
    """As `ExactlyOneOf`, for at most one of the fields."""
    tests = ",".join(f"has(self.{_identifier(name)})" for name in names)
    return Rule(
        f"[{tests}].filter(x,x==true).size() <= 1",
        f"at most one of the fields in [{' '.join(names)}] may be set",
    )


def at_least_one_of(*names: str) -> Rule:
    """As `ExactlyOneOf`, for at least one of the fields."""
    return _count_rule(names, ">= 1", "at least one")


# fmt: off
_CEL_RESERVED = frozenset((
    "true", "false", "null", "in", "as", "break", "const", "continue", "else", "for", "function", "if", "import", "let",
    "loop", "package", "namespace", "return", "var", "void", "while",
))
# fmt: on


def _identifier(name: str) -> str:
    """A property name as the CEL environment of a CRD spells it: reserved words and symbols are escaped."""
    if name in _CEL_RESERVED:
        return f"__{name}__"
    escaped = name.replace("__", "__underscores__")
    for symbol, word in ((".", "__dot__"), ("-", "__dash__"), ("/", "__slash__")):
        escaped = escaped.replace(symbol, word)
    return escaped


def obj(
    *parts: Property | Rule,
    title: str = "",
    description: str = "",
    min_properties: int | None = None,
    max_properties: int | None = None,
    default: Any = UNSET,
    preserve_unknown: bool = False,
    map_type: Literal["atomic", "granular", ""] = "",
    any_of: Iterable[Schema] = (),
    one_of: Iterable[Schema] = (),
) -> Schema:
    """An object with fixed fields. Properties and rules may be given in any order."""
    return Schema(
        type="object",
        title=title,
        description=description,
        properties=tuple(part for part in parts if isinstance(part, Property)),
        rules=tuple(part for part in parts if isinstance(part, Rule)),
        min_properties=min_properties,
        max_properties=max_properties,
        default=default,
        preserve_unknown=preserve_unknown,
        map_type=map_type,
        any_of=tuple(any_of),
        one_of=tuple(one_of),
    )


def array(
    items: Schema,
    *rules: Rule,
    min_items: int | None = None,
    max_items: int | None = None,
    list_type: ListType | None = None,
    keys: Iterable[str] = (),
    default: Any = UNSET,
    description: str = "",
) -> Schema:
    """A list. `list_type="map"` with `keys` refuses two items with equal keys; `"set"` refuses two equal items."""
    return Schema(
        type="array",
        items=items,
        rules=rules,
        min_items=min_items,
        max_items=max_items,
        list_type=list_type,
        list_map_keys=tuple(keys),
        default=default,
        description=description,
    )


def mapping(
    value: Schema,
    *rules: Rule,
    keys: Schema | None = None,
    min_properties: int | None = None,
    max_properties: int | None = None,
    max_bytes: int | None = None,
    default: Any = UNSET,
    description: str = "",
) -> Schema:
    """A map from any text to `value`."""
    return Schema(
        type="object",
        additional=value,
        keys=keys,
        rules=rules,
        min_properties=min_properties,
        max_properties=max_properties,
        max_bytes=max_bytes,
        default=default,
        description=description,
    )


def string(
    *rules: Rule,
    enum: Iterable[str] = (),
    pattern: str = "",
    format: str = "",
    min_length: int | None = None,
    max_length: int | None = None,
    default: str | UnsetType = UNSET,
    nullable: bool = False,
    description: str = "",
) -> Schema:
    """A text. Patterns are RE2 and not anchored, as in OpenAPI; `format` names a check of `admission.formats`."""
    return Schema(
        type="string",
        rules=rules,
        enum=tuple(enum),
        pattern=pattern,
        format=format,
        min_length=min_length,
        max_length=max_length,
        default=default,
        nullable=nullable,
        description=description,
    )


def enum(*values: str, default: str | UnsetType = UNSET, description: str = "") -> Schema:
    """A text out of a closed list."""
    return Schema(type="string", enum=values, default=default, description=description)


def integer(
    *rules: Rule,
    minimum: int | None = None,
    maximum: int | None = None,
    enum: Iterable[int] = (),
    format: Literal["int32", "int64", ""] = "",
    default: int | UnsetType = UNSET,
    description: str = "",
) -> Schema:
    """A whole number."""
    return Schema(
        type="integer",
        rules=rules,
        minimum=minimum,
        maximum=maximum,
        enum=tuple(enum),
        format=format,
        default=default,
        description=description,
    )


def number(
    *rules: Rule,
    minimum: float | None = None,
    maximum: float | None = None,
    default: float | UnsetType = UNSET,
    description: str = "",
) -> Schema:
    """A number with or without a fraction."""
    return Schema(
        type="number", rules=rules, minimum=minimum, maximum=maximum, default=default, description=description
    )


def boolean(*rules: Rule, default: bool | UnsetType = UNSET, description: str = "") -> Schema:
    """True or false."""
    return Schema(type="boolean", rules=rules, default=default, description=description)


def int_or_string(
    *rules: Rule,
    pattern: str = "",
    min_length: int | None = None,
    max_length: int | None = None,
    minimum: int | None = None,
    maximum: int | None = None,
    format: str = "",
    default: int | str | UnsetType = UNSET,
    description: str = "",
) -> Schema:
    """`x-kubernetes-int-or-string`: bounds apply to numbers, lengths and pattern to texts. Quantities are so."""
    return Schema(
        int_or_string=True,
        rules=rules,
        pattern=pattern,
        min_length=min_length,
        max_length=max_length,
        minimum=minimum,
        maximum=maximum,
        format=format,
        default=default,
        description=description,
    )


def any_value(*, description: str = "") -> Schema:
    """Any JSON value at all."""
    return Schema(preserve_unknown=True, nullable=True, description=description)


def any_object(*, description: str = "", embedded_resource: bool = False) -> Schema:
    """Any JSON object; with `embedded_resource` one that must have apiVersion, kind and metadata."""
    return Schema(type="object", preserve_unknown=True, embedded_resource=embedded_resource, description=description)


def refine(schema: Schema, *rules: Rule, **changes: Any) -> Schema:
    """A copy of a shared fragment with more rules or other attributes."""
    return replace(schema, rules=schema.rules + rules, **changes)


def extend(schema: Schema, *parts: Property | Rule) -> Schema:
    """A copy of an object schema with more properties (a property of the same name is replaced) and rules."""
    added = {part.name: part for part in parts if isinstance(part, Property)}
    kept = tuple(part for part in schema.properties if part.name not in added)
    more = tuple(part for part in parts if isinstance(part, Rule))
    return replace(schema, properties=kept + tuple(added.values()), rules=schema.rules + more)


def without(schema: Schema, *names: str) -> Schema:
    """A copy of an object schema that lacks the named properties."""
    return replace(schema, properties=tuple(part for part in schema.properties if part.name not in names))

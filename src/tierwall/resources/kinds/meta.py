"""The fields that every object has: apiVersion, kind and metadata (`data/ObjectMeta.json`).

The checks and their messages are those of apimachinery (`pkg/api/validation/objectmeta.go`).
"""

from collections.abc import Iterator
from functools import cache

from msgspec.structs import replace

from tierwall.resources.kinds.registry import Kind, NameFormat, read_data
from tierwall.resources.schema import Property, Schema, ValidationRule, read_schema

_HEAD = ("apiVersion", "kind", "metadata")
_TEXT = Schema(type="string")
_ANYTHING = Schema(preserve_unknown=True, nullable=True)
# A generated name is the first 58 characters of generateName and five random ones.
_GENERATED = "self.generateName.substring(0, [58, size(self.generateName)].min()) + 'xxxxx'"
_FORGIVEN = "self.generateName.substring(0, size(self.generateName) - 2) + 'a'"
_GENERATED_FORMATS: dict[NameFormat, str] = {
    "k8s-long-name": "dns1123Subdomain",
    "k8s-short-name": "dns1123Label",
    "k8s-service-name": "dns1035Label",
}


@cache
def _every_objects_metadata() -> Schema:
    return read_schema(read_data("ObjectMeta.json"))


def metadata_schema(kind: Kind) -> Schema:
    """Return the schema of metadata for a kind. A missing namespace is fine: clients fill it in."""
    base = _every_objects_metadata()
    formats = {
        "name": kind.name_format,
        "generateName": f"{kind.name_format}-prefix" if kind.name_format else "",
        "namespace": "k8s-short-name" if kind.scope != "Cluster" else "",
    }
    properties = tuple(
        replace(part, schema=replace(part.schema, format=formats[part.name])) if part.name in formats else part
        for part in base.properties
    )
    return replace(base, properties=properties, rules=tuple(_metadata_rules(kind)))


def _metadata_rules(kind: Kind) -> Iterator[ValidationRule]:
    if kind.scope != "None":
        yield ValidationRule(
            "has(self.name) && size(self.name) > 0 || has(self.generateName) && size(self.generateName) > 0",
            "name or generateName is required",
            field_path=".name",
            reason="FieldValueRequired",
        )
    if name_format := _GENERATED_FORMATS.get(kind.name_format):
        # A valid prefix may still generate an invalid name: upstream ignores the character before a last dash.
        form = f"format.{name_format}()"
        checked = f"{form}.validate({_GENERATED})"
        yield ValidationRule(
            "!has(self.generateName) || has(self.name) && size(self.name) > 0 || size(self.generateName) < 2"
            f" || !self.generateName.endsWith('-') || {form}.validate({_FORGIVEN}).hasValue()"
            f" || !{checked}.hasValue()",
            "does not generate a valid name",
            f"{checked}.value().join(', ')",
            field_path=".generateName",
        )
    if kind.scope == "Cluster":
        yield ValidationRule(
            "!has(self.__namespace__) || size(self.__namespace__) == 0",
            "objects of this kind have no namespace; the API server drops it",
            field_path=".namespace",
            warning=True,
        )


@cache
def _embedded_meta() -> Schema:
    file = Kind(group="", version="", kind="", plural="", scope="None", name_format="k8s-path-segment-name")
    return metadata_schema(file)


def embedded_object_schema(schema: Schema) -> Schema:
    """Return the schema of an `x-kubernetes-embedded-resource` with the fields that every object has."""
    version = ValidationRule("self.matches('^([^/]*/)?[^/]+$')", "must be `group/version` or `version`")
    kind = ValidationRule(
        "!format.dns1035Label().validate(self.lowerAscii()).hasValue()",
        "may have mixed case, but should otherwise match a DNS-1035 label",
    )
    head = (
        Property("apiVersion", replace(_TEXT, rules=(version,)), True),
        Property("kind", replace(_TEXT, rules=(kind,)), True),
        Property("metadata", replace(_embedded_meta(), nullable=True)),
    )
    described = {part.name: part for part in schema.properties}
    both = tuple(_narrowed(part, described.pop(part.name, None)) for part in head)
    undeclared = tuple(name for name in schema.undeclared if name not in _HEAD)
    if "metadata" in schema.undeclared:
        both = (*both[:2], replace(both[2], required=True))
    return replace(schema, embedded_resource=False, properties=(*both, *described.values()), undeclared=undeclared)


def _narrowed(part: Property, described: Property | None) -> Property:
    """Return a field that every object has, with the limits that a definition adds."""
    if described is None:
        return part
    limits = replace(described.schema, type="")
    schema = replace(part.schema, all_of=(limits,), default=limits.default, nullable=limits.nullable)
    return replace(part, schema=schema, required=part.required or described.required)


def object_schema(kind: Kind) -> Schema:
    """Return the schema of a kind with apiVersion, kind and metadata. A status may be anything."""
    schema = kind.schema
    parts = [part for part in schema.properties if not (part.name == "status" and kind.status_subresource)]
    if kind.status_subresource:
        parts.append(Property("status", _ANYTHING))
    head = [Property("apiVersion", _TEXT, True), Property("kind", _TEXT, True)]
    if kind.scope == "None":
        meta = _ANYTHING
    else:
        # Missing metadata counts as empty, so that the message is about the missing name.
        meta = replace(metadata_schema(kind), default={})
        if (limits := schema.at("metadata")) is not None and limits.properties:
            # A definition may limit the name and generateName, and nothing else.
            meta = replace(meta, all_of=(replace(limits, type=""),))
    head.append(Property("metadata", meta))
    return replace(schema, type="object", properties=(*head, *(part for part in parts if part.name not in _HEAD)))

"""Writes CustomResourceDefinitions (`apiextensions.k8s.io/v1`) from Tierwall's schemas.

The result obeys the rules of structural schemas. It leaves out everything that a CRD cannot express: warnings, hints,
checks of a map's keys and size, and formats that only Go validation of native kinds has.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from msgspec import UNSET

from tierwall.resources.kinds.registry import Kind, built_in_definition, versions_of
from tierwall.resources.kinds.releases import release_of
from tierwall.resources.schema import INT_OR_STRING, NO_VALUE, PLAIN_KEYWORDS, RULE_KEYWORDS, Schema, ValidationRule

_PLAIN = {
    keyword: attribute
    for keyword, attribute in PLAIN_KEYWORDS.items()
    if keyword not in ("description", "type", "format", "default") and not keyword.startswith("x-tierwall-")
}
_RULE = {keyword: attribute for keyword, attribute in RULE_KEYWORDS.items() if not keyword.startswith("x-tierwall-")}
# Of list types only `set` matters here: the list-map-keys of a `map` are compared themselves.
_NOT_COMPARED = ("description", "x-kubernetes-list-type", "x-kubernetes-map-type")
_HEAD = {"apiVersion": {"type": "string"}, "kind": {"type": "string"}, "metadata": {"type": "object"}}


def crd_documents(kinds: Iterable[Kind]) -> list[dict[str, Any]]:
    """Return a CRD with all versions for each of these kinds that is a custom resource, sorted by name."""
    names = {f"{kind.plural}.{kind.group}": (kind.group, kind.kind) for kind in kinds if kind.is_crd}
    return [_definition(name, *names[name]) for name in sorted(names)]


def _definition(name: str, group: str, kind: str) -> dict[str, Any]:
    document = built_in_definition(group, kind)
    annotations = {"tierwall.io/release": release_of(group, kind)}
    if group.endswith((".k8s.io", ".kubernetes.io")):
        # API servers refuse definitions in these groups without it (KEP-1111).
        annotations["api-approved.kubernetes.io"] = "unapproved, described for validation by tierwall"
    metadata = {"name": name, "annotations": annotations}
    versions = [
        {**version, "schema": {"openAPIV3Schema": _complete_schema(kind)}}
        for version, kind in zip(document["spec"]["versions"], versions_of(group, kind).values(), strict=True)
    ]
    return {
        "apiVersion": document["apiVersion"],
        "kind": document["kind"],
        "metadata": metadata,
        "spec": {**document["spec"], "versions": versions},
    }


def _complete_schema(kind: Kind) -> dict[str, Any]:
    schema = open_api(kind.schema)
    schema["properties"] = _HEAD | schema.get("properties", {})
    return {"description": kind.description} | schema if kind.description else schema


def definition_differences(installed: Mapping[str, Kind], known: Mapping[str, Kind]) -> Iterator[str]:
    """Yield the differences between installed and known versions of a kind: scope, served versions and schemas."""
    scopes = {kind.scope for kind in installed.values()} ^ {kind.scope for kind in known.values()}
    if scopes:
        yield "scope"
    for api_version, kind in known.items():
        other = installed.get(api_version)
        if other is None or not other.served:
            yield f"`{api_version}` is not served"
        else:
            yield from _schema_differences(_comparable_schema(other), _comparable_schema(kind), kind.version)
    yield from (f"`{name}` is served too" for name, kind in installed.items() if kind.served and name not in known)


def _comparable_schema(kind: Kind) -> dict[str, Any]:
    """Return the schema of a kind without the parts that all kinds share or that are not validated."""
    schema = open_api(kind.schema)
    unjudged = (*_HEAD, "status") if kind.status_subresource else tuple(_HEAD)
    schema["properties"] = {name: part for name, part in schema.get("properties", {}).items() if name not in unjudged}
    schema["required"] = [name for name in schema.get("required", ()) if name not in unjudged]
    return schema


def _schema_differences(installed: Any, known: Any, path: str) -> Iterator[str]:
    """Yield the places where two schemas differ. Descriptions and the order of rules do not matter."""
    if not isinstance(installed, dict) or not isinstance(known, dict):
        if installed != known:
            yield f"`{path}`"
        return
    for keyword in dict.fromkeys((*installed, *known)):
        new, old = installed.get(keyword), known.get(keyword)
        if keyword in _NOT_COMPARED and "set" not in (new, old):
            continue
        if keyword == "properties":
            new, old = new or {}, old or {}
            for name in dict.fromkeys((*new, *old)):
                yield from _schema_differences(new.get(name), old.get(name), f"{path}.{name}")
        elif keyword in ("items", "additionalProperties"):
            yield from _schema_differences(new, old, f"{path}[]" if keyword == "items" else f"{path}.*")
        elif keyword == "x-kubernetes-validations":
            if _expressions(new) != _expressions(old):
                yield f"rules of `{path}`"
        elif keyword == "enum" and sorted(map(repr, new or ())) == sorted(map(repr, old or ())):
            continue
        elif new != old and (new or old):
            yield f"{keyword} of `{path}`"


def _expressions(rules: Iterable[dict[str, Any]] | None) -> set[str]:
    return {"".join(rule["rule"].split()) for rule in rules or ()}


def open_api(schema: Schema) -> dict[str, Any]:
    """Return a schema as OpenAPI v3, with the `x-kubernetes-*` keywords."""
    out: dict[str, Any] = {}
    if schema.description:
        out["description"] = schema.description
    if schema.type:
        out["type"] = schema.type
    if schema.int_or_string:
        out["anyOf"] = INT_OR_STRING
    for keyword, attribute in _PLAIN.items():
        value = getattr(schema, attribute)
        # A value of any type may be null anyway, and `nullable` would require a type.
        if value is not None and value is not False and value != "" and not (keyword == "nullable" and not schema.type):
            out[keyword] = value
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
        more = schema.additional
        out["additionalProperties"] = False if more is NO_VALUE else more.bare or open_api(more)
    if schema.properties:
        out["properties"] = _properties(schema)
    if names := sorted([*schema.undeclared, *(part.name for part in schema.properties if part.required)]):
        out["required"] = names
    for keyword, parts in (("anyOf", schema.any_of), ("oneOf", schema.one_of), ("allOf", schema.all_of)):
        if parts:
            out[keyword] = [_open_api_alternative(part) for part in parts]
    if schema.none_of is not None:
        out["not"] = _open_api_alternative(schema.none_of)
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
    return properties


def _open_api_alternative(schema: Schema) -> dict[str, Any]:
    """Return a schema as OpenAPI inside anyOf, oneOf, allOf or not, without types, descriptions and defaults."""
    dropped = ("type", "description", "default", "nullable")
    out = {keyword: value for keyword, value in open_api(schema).items() if keyword not in dropped}
    if "properties" in out:
        out["properties"] = {part.name: _open_api_alternative(part.schema) for part in schema.properties}
    return out


def _rule(rule: ValidationRule) -> dict[str, Any]:
    keywords = {keyword: getattr(rule, attribute) for keyword, attribute in _RULE.items()}
    return {keyword: value for keyword, value in keywords.items() if value and value != "FieldValueInvalid"}

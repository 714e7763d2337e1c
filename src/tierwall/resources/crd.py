"""From our schemas to CustomResourceDefinitions (`apiextensions.k8s.io/v1`).

The result obeys the rules of structural schemas. What a CRD cannot say is left out: warnings, hints, checks of a map's
keys and of its size, and formats that only Go validation of native kinds knows.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from msgspec import UNSET

from tierwall.resources.kinds.registry import Kind, built_in_definition, versions_of
from tierwall.resources.schema import INT_OR_STRING, NO_VALUE, PLAIN_WORDS, RULE_WORDS, Schema, ValidationRule

_PLAIN = {
    word: attribute
    for word, attribute in PLAIN_WORDS.items()
    if word not in ("description", "type", "format", "default") and not word.startswith("x-tierwall-")
}
_RULE = {word: attribute for word, attribute in RULE_WORDS.items() if not word.startswith("x-tierwall-")}
_HEAD = {"apiVersion": {"type": "string"}, "kind": {"type": "string"}, "metadata": {"type": "object"}}


def crd_documents(kinds: Iterable[Kind]) -> list[dict[str, Any]]:
    """One CRD for every group and kind that is a CRD, all its versions in it, by name."""
    names = {f"{kind.plural}.{kind.group}": (kind.group, kind.kind) for kind in kinds if kind.is_crd}
    return [_definition(name, *names[name]) for name in sorted(names)]


def _definition(name: str, group: str, kind: str) -> dict[str, Any]:
    document = built_in_definition(group, kind)
    metadata: dict[str, Any] = {"name": name}
    if group.endswith((".k8s.io", ".kubernetes.io")):
        # Without it an API server refuses a definition in these groups (KEP-1111).
        metadata["annotations"] = {"api-approved.kubernetes.io": "unapproved, described for validation by tierwall"}
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
    """In what the versions of a kind differ from those that we know: served versions, scope, and what is admitted."""
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
    """The schema of a kind without what is the same everywhere or is not judged."""
    schema = open_api(kind.schema)
    unjudged = (*_HEAD, "status") if kind.status_subresource else tuple(_HEAD)
    schema["properties"] = {name: part for name, part in schema.get("properties", {}).items() if name not in unjudged}
    schema["required"] = [name for name in schema.get("required", ()) if name not in unjudged]
    return schema


def _schema_differences(one: Any, other: Any, path: str) -> Iterator[str]:
    """The places where two schemas differ. Descriptions are for people, and the order of rules is without meaning."""
    if not isinstance(one, dict) or not isinstance(other, dict):
        if one != other:
            yield f"`{path}`"
        return
    for word in dict.fromkeys((*one, *other)):
        if word in ("description", "x-kubernetes-list-type", "x-kubernetes-map-type") and "set" not in (
            one.get(word),
            other.get(word),
        ):
            continue
        if word == "properties":
            parts = one.get(word, {}), other.get(word, {})
            for name in dict.fromkeys((*parts[0], *parts[1])):
                yield from _schema_differences(parts[0].get(name), parts[1].get(name), f"{path}.{name}")
        elif word in ("items", "additionalProperties"):
            yield from _schema_differences(
                one.get(word), other.get(word), f"{path}[]" if word == "items" else f"{path}.*"
            )
        elif word == "x-kubernetes-validations":
            if _texts(one.get(word)) != _texts(other.get(word)):
                yield f"rules of `{path}`"
        elif word == "enum" and sorted(map(repr, one.get(word, ()))) == sorted(map(repr, other.get(word, ()))):
            continue
        elif one.get(word) != other.get(word) and (one.get(word) or other.get(word)):
            yield f"{word} of `{path}`"


def _texts(rules: Iterable[dict[str, Any]] | None) -> set[str]:
    return {"".join(rule["rule"].split()) for rule in rules or ()}


def open_api(schema: Schema) -> dict[str, Any]:
    """A schema as OpenAPI v3, with the `x-kubernetes-*` words."""
    out: dict[str, Any] = {}
    if schema.description:
        out["description"] = schema.description
    if schema.type:
        out["type"] = schema.type
    if schema.int_or_string:
        out["anyOf"] = INT_OR_STRING
    for word, attribute in _PLAIN.items():
        value = getattr(schema, attribute)
        # A value of any type is nullable by itself; saying so would need a type.
        if value is not None and value is not False and value != "" and not (word == "nullable" and not schema.type):
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
        more = schema.additional
        out["additionalProperties"] = False if more is NO_VALUE else more.bare or open_api(more)
    if schema.properties:
        out["properties"] = _properties(schema)
    if names := sorted([*schema.undeclared, *(part.name for part in schema.properties if part.required)]):
        out["required"] = names
    for word, parts in (("anyOf", schema.any_of), ("oneOf", schema.one_of), ("allOf", schema.all_of)):
        if parts:
            out[word] = [_open_api_alternative(part) for part in parts]
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
    """Inside anyOf and its like a structural schema may not repeat types, descriptions or defaults."""
    dropped = ("type", "description", "default", "nullable")
    out = {word: value for word, value in open_api(schema).items() if word not in dropped}
    if "properties" in out:
        out["properties"] = {part.name: _open_api_alternative(part.schema) for part in schema.properties}
    return out


def _rule(rule: ValidationRule) -> dict[str, Any]:
    said = {word: getattr(rule, attribute) for word, attribute in _RULE.items()}
    return {word: value for word, value in said.items() if value and value != "FieldValueInvalid"}

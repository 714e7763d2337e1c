"""A CustomResourceDefinition among the objects: what an API server would have against its schemas.

`kinds/data` says what a definition looks like outside its schemas. A schema must be structural (`structure`); where it
is, its defaults must fit and its rules must be CEL over the schema that they stand on: apiextensions'
`pkg/apiserver/schema/defaulting/validation.go` and `pkg/apiserver/schema/cel/compilation.go`. What is not checked is in
docs/definitions.md#what-is-not-done.

INVARIANT: the schema is somebody else's. It is walked once, and no further than a bound.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tierwall.cel import CheckError, Environment, ParseError
from tierwall.cel.check.checker import compile_source
from tierwall.cel.check.structural import schema_type
from tierwall.cel.types import BOOL, DYN, STRING, Type
from tierwall.resources.admission.expression import reads_old_self
from tierwall.resources.admission.problem import COUNT, DUPLICATE, RULE, AdmissionProblem, MeteredProblems
from tierwall.resources.admission.validate import MOST_PROBLEMS, SchemaCompiler
from tierwall.resources.definition.report import Keywords, Path, SchemaReport, schema_field_path
from tierwall.resources.definition.structure import alternatives, check_schema_node
from tierwall.resources.schema import SchemaReader

_HEAD = ("apiVersion", "kind", "metadata")
_MOST_SELECTABLE = 8
# What a definition with a status subresource may not say at its root.
_NOT_AT_ROOT = (
    *("allOf", "anyOf", "oneOf", "not", "enum", "default", "nullable", "maxProperties", "minProperties"),
    *("additionalProperties", "x-kubernetes-embedded-resource", "x-kubernetes-int-or-string"),
    *("x-kubernetes-list-map-keys", "x-kubernetes-list-type", "x-kubernetes-map-type"),
)


def schema_problems(document: Mapping[str, Any]) -> list[AdmissionProblem]:
    """What an API server would have against the schemas of a definition."""
    spec = document.get("spec")
    versions = spec.get("versions") if isinstance(spec, dict) else None
    report = SchemaReport()
    for index, version in enumerate(versions if isinstance(versions, list) else ()):
        schema = version.get("schema") if isinstance(version, dict) else None
        words = schema.get("openAPIV3Schema") if isinstance(schema, dict) else None
        if words is None:
            continue
        subresources = version.get("subresources")
        has_status = isinstance(subresources, dict) and subresources.get("status") is not None
        _judge(report, words, ("spec", "versions", index, "schema", "openAPIV3Schema"), has_status)
        if not report.problems and isinstance(version.get("selectableFields"), list):
            _selectable(report, version["selectableFields"], words, ("spec", "versions", index, "selectableFields"))
    return [*report.problems, *report.warnings][:MOST_PROBLEMS]


def _judge(report: SchemaReport, words: Any, path: Path, has_status: bool) -> None:
    """All of one version's schema. Defaults and rules are looked at where the schema itself is sound."""
    before = len(report.problems)
    check_schema_node(report, words, path, "root")
    if len(report.problems) > before:
        return
    if has_status:
        for word in _NOT_AT_ROOT:
            if words.get(word) not in (None, False):
                detail = "may not be at the root of the schema if the status subresource is enabled"
                report.invalid((*path, word), words[word], detail)
    if words.get("nullable"):
        report.forbidden((*path, "nullable"), "nullable cannot be true at the root")
    _complete(report, words, words, path, path)
    for name in _HEAD:
        described = (words.get("properties") or {}).get(name) or {}
        inside = (described.get("properties") or {}).items()
        for at, part in [((), described), *((("properties", below), inner) for below, inner in inside)]:
            if part.get("default") is not None:
                report.forbidden((*path, "properties", name, *at, "default"), f"must not be set in top-level {name}")
    if len(report.problems) == before:
        _contents(report, words, path, is_object=True, uncorrelated=None)


def _selectable(report: SchemaReport, fields: list[Any], words: Keywords, path: Path) -> None:
    """Fields that objects are selected by: a few scalars, each named once, by names and dots alone."""
    seen: set[str] = set()
    for index, selected in enumerate(fields):
        text = selected.get("jsonPath") if isinstance(selected, dict) else None
        at = (*path, index, "jsonPath")
        if not isinstance(text, str) or not text:
            report.required(at, "")
            continue
        node: Any = None
        if text.startswith(".") and "[" not in text:
            node = words
            for name in text[1:].split("."):
                node = (node.get("properties") or {}).get(name) if isinstance(node, dict) else None
        if not isinstance(node, dict) or text.startswith(".metadata."):
            report.invalid(at, text, "is an invalid path: does not refer to a valid field")
        elif node.get("type") not in ("string", "boolean", "integer"):
            report.invalid(at, text, "must point to a field of type string, boolean or integer")
        elif text in seen:
            report.invalid(at, text, "is a duplicate", DUPLICATE)
        seen.add(text)
    if len(seen) > _MOST_SELECTABLE:
        report.invalid(path, len(seen), f"must have at most {_MOST_SELECTABLE} items", COUNT)


def _complete(report: SchemaReport, words: Keywords, described: Keywords, path: Path, at: Path) -> None:
    """Every value that anyOf and its like judge at `at` must be described outside of them, at `path`."""
    for place, part in alternatives(words):
        for name, inner in (part.get("properties") or {}).items():
            outside = (described.get("properties") or {}).get(name)
            where = (*at, *place, "properties", name)
            if outside is None:
                report.required((*path, "properties", name), f"because it is defined in {schema_field_path(where)}")
            else:
                _complete(report, {"allOf": [inner]}, outside, (*path, "properties", name), where[:-1])
        if isinstance(part.get("items"), dict):
            if not isinstance(described.get("items"), dict):
                report.required(
                    (*path, "items"), f"because it is defined in {schema_field_path((*at, *place, 'items'))}"
                )
            else:
                _complete(report, {"allOf": [part["items"]]}, described["items"], (*path, "items"), (*at, *place))
        _complete(report, part, described, path, (*at, *place))


def _contents(
    report: SchemaReport,
    words: Keywords,
    path: Path,
    *,
    is_object: bool,
    uncorrelated: Path | None,
    in_map: bool = False,
) -> None:
    """Defaults must fit their schemas and rules must be CEL over them, here and below.

    `uncorrelated` is the first schema above whose old and new values cannot be told to be the same. Defaults of
    what is in the values of a map are not looked at.
    """
    if report.is_full:
        return
    before = len(report.problems)
    if words.get("x-kubernetes-validations"):
        self_type = schema_type("self", words, resource=is_object)
        if self_type == DYN and words.get("x-kubernetes-int-or-string") is not True:
            detail = "rules cannot stand on a schema that CEL has no type for"
            report.invalid((*path, "x-kubernetes-validations"), words.get("type", ""), detail, RULE)
            return
        for index, rule in enumerate(words["x-kubernetes-validations"]):
            _expression(report, rule, self_type, (*path, "x-kubernetes-validations", index), uncorrelated)
    inside = uncorrelated or (path if words.get("x-kubernetes-map-type") == "atomic" else None)
    for name, inner in (words.get("properties") or {}).items():
        if not (is_object and name in _HEAD):
            below = bool(inner.get("x-kubernetes-embedded-resource"))
            _contents(report, inner, (*path, "properties", name), is_object=below, uncorrelated=inside, in_map=in_map)
    items, values = words.get("items"), words.get("additionalProperties")
    if isinstance(items, dict):
        inside = uncorrelated or (path if words.get("x-kubernetes-list-type") != "map" else None)
        below = bool(items.get("x-kubernetes-embedded-resource"))
        _contents(report, items, (*path, "items"), is_object=below, uncorrelated=inside, in_map=in_map)
    if isinstance(values, dict):
        at_values = (*path, "additionalProperties")
        _contents(report, values, at_values, is_object=False, uncorrelated=uncorrelated, in_map=True)
    # A default is held against rules too, so they must be sound.
    if words.get("default") is not None and not in_map and len(report.problems) == before:
        _default(report, words, path)


def _default(report: SchemaReport, words: Keywords, path: Path) -> None:
    found = MeteredProblems()
    schema = SchemaReader({}, installed=True).read(words)
    SchemaCompiler(strict=True, native=False, metered=True, repeated=True).compile(schema)(
        words["default"], None, found
    )
    for problem in found[:MOST_PROBLEMS]:
        report.invalid((*path, "default"), words["default"], f"must fit: {problem.message}", problem.code)


def _expression(report: SchemaReport, rule: Keywords, self_type: Type, path: Path, uncorrelated: Path | None) -> None:
    optional = rule.get("optionalOldSelf") is True
    old = Type("optional_type", (self_type,)) if optional else self_type
    environment = Environment(variables={"self": self_type, "oldSelf": old})
    if not _compiles(report, rule["rule"], environment, BOOL, "a bool", (*path, "rule")):
        return
    if reads_old_self(rule["rule"]):
        if uncorrelated is not None:
            detail = "oldSelf cannot be used on the uncorrelatable portion of the schema within"
            report.invalid((*path, "rule"), rule["rule"], f"{detail} {schema_field_path(uncorrelated)}")
    elif rule.get("optionalOldSelf") is not None:
        detail = "may not be set if oldSelf is not used in rule"
        report.invalid((*path, "optionalOldSelf"), rule["optionalOldSelf"], detail)
    if rule.get("messageExpression"):
        at = (*path, "messageExpression")
        _compiles(report, rule["messageExpression"], environment, STRING, "a string", at)


def _compiles(report: SchemaReport, text: str, environment: Environment, wanted: Type, name: str, path: Path) -> bool:
    try:
        if compile_source(text, environment).type == wanted:
            return True
        report.invalid(path, text, f"cel expression must evaluate to {name}", RULE)
    except (ParseError, CheckError) as error:
        report.invalid(path, text, f"compilation failed: {error}", RULE)
    return False

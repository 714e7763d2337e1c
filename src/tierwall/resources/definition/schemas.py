"""Checks the schemas of a CustomResourceDefinition as an API server does.

`kinds/data` describes the rest of a definition. A schema must be structural (`structure`). If it is, its defaults must
fit it and its rules must be valid CEL over it: apiextensions' `pkg/apiserver/schema/defaulting/validation.go` and
`pkg/apiserver/schema/cel/compilation.go`. docs/definitions.md#what-is-not-done lists the checks that are missing.

INVARIANT: the schema is untrusted input. It is walked once, and only up to a limit.
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
from tierwall.resources.admission.validate import MAX_PROBLEMS, SchemaCompiler
from tierwall.resources.definition.report import Keywords, Path, SchemaReport, schema_field_path
from tierwall.resources.definition.structure import alternatives, check_schema_node
from tierwall.resources.schema import SchemaReader

_HEAD = ("apiVersion", "kind", "metadata")
_MAX_SELECTABLE = 8
# Keywords that a definition with a status subresource may not have at its root.
_NOT_AT_ROOT = (
    *("allOf", "anyOf", "oneOf", "not", "enum", "default", "nullable", "maxProperties", "minProperties"),
    *("additionalProperties", "x-kubernetes-embedded-resource", "x-kubernetes-int-or-string"),
    *("x-kubernetes-list-map-keys", "x-kubernetes-list-type", "x-kubernetes-map-type"),
)


def schema_problems(document: Mapping[str, Any]) -> list[AdmissionProblem]:
    """Return the problems of all schemas of a definition, warnings last."""
    spec = document.get("spec")
    versions = spec.get("versions") if isinstance(spec, dict) else None
    report = SchemaReport()
    for index, version in enumerate(versions if isinstance(versions, list) else ()):
        schema = version.get("schema") if isinstance(version, dict) else None
        keywords = schema.get("openAPIV3Schema") if isinstance(schema, dict) else None
        if keywords is None:
            continue
        subresources = version.get("subresources")
        has_status = isinstance(subresources, dict) and subresources.get("status") is not None
        _judge(report, keywords, ("spec", "versions", index, "schema", "openAPIV3Schema"), has_status)
        if not report.problems and isinstance(version.get("selectableFields"), list):
            _selectable(report, version["selectableFields"], keywords, ("spec", "versions", index, "selectableFields"))
    return [*report.problems, *report.warnings][:MAX_PROBLEMS]


def _judge(report: SchemaReport, keywords: Any, path: Path, has_status: bool) -> None:
    """Check the schema of one version. Defaults and rules are only checked if the schema itself is sound."""
    before = len(report.problems)
    check_schema_node(report, keywords, path, "root")
    if len(report.problems) > before:
        return
    if has_status:
        for keyword in _NOT_AT_ROOT:
            if keywords.get(keyword) not in (None, False):
                detail = "may not be at the root of the schema if the status subresource is enabled"
                report.invalid((*path, keyword), keywords[keyword], detail)
    if keywords.get("nullable"):
        report.forbidden((*path, "nullable"), "nullable cannot be true at the root")
    _complete(report, keywords, keywords, path, path)
    for name in _HEAD:
        described = (keywords.get("properties") or {}).get(name) or {}
        inside = (described.get("properties") or {}).items()
        for at, part in [((), described), *((("properties", below), inner) for below, inner in inside)]:
            if part.get("default") is not None:
                report.forbidden((*path, "properties", name, *at, "default"), f"must not be set in top-level {name}")
    if len(report.problems) == before:
        _contents(report, keywords, path, is_object=True, uncorrelated=None)


def _selectable(report: SchemaReport, fields: list[Any], keywords: Keywords, path: Path) -> None:
    """Check selectableFields: a few scalars, each listed once, by a path of plain names."""
    seen: set[str] = set()
    for index, selected in enumerate(fields):
        text = selected.get("jsonPath") if isinstance(selected, dict) else None
        at = (*path, index, "jsonPath")
        if not isinstance(text, str) or not text:
            report.required(at, "")
            continue
        node: Any = None
        if text.startswith(".") and "[" not in text:
            node = keywords
            for name in text[1:].split("."):
                node = (node.get("properties") or {}).get(name) if isinstance(node, dict) else None
        if not isinstance(node, dict) or text.startswith(".metadata."):
            report.invalid(at, text, "is an invalid path: does not refer to a valid field")
        elif node.get("type") not in ("string", "boolean", "integer"):
            report.invalid(at, text, "must point to a field of type string, boolean or integer")
        elif text in seen:
            report.invalid(at, text, "is a duplicate", DUPLICATE)
        seen.add(text)
    if len(seen) > _MAX_SELECTABLE:
        report.invalid(path, len(seen), f"must have at most {_MAX_SELECTABLE} items", COUNT)


def _complete(report: SchemaReport, keywords: Keywords, described: Keywords, path: Path, at: Path) -> None:
    """Check that every value that anyOf, oneOf, allOf or not limit at `at` is described outside of them, at `path`."""
    for place, part in alternatives(keywords):
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
    keywords: Keywords,
    path: Path,
    *,
    is_object: bool,
    uncorrelated: Path | None,
    in_map: bool = False,
) -> None:
    """Check that defaults fit their schemas and that rules are valid CEL, here and below.

    `uncorrelated` is the first schema above whose old and new values cannot be matched with each other. Defaults
    inside the values of a map are not checked.
    """
    if report.is_full:
        return
    before = len(report.problems)
    if keywords.get("x-kubernetes-validations"):
        self_type = schema_type("self", keywords, resource=is_object)
        if self_type == DYN and keywords.get("x-kubernetes-int-or-string") is not True:
            detail = "rules cannot stand on a schema that CEL has no type for"
            report.invalid((*path, "x-kubernetes-validations"), keywords.get("type", ""), detail, RULE)
            return
        for index, rule in enumerate(keywords["x-kubernetes-validations"]):
            _expression(report, rule, self_type, (*path, "x-kubernetes-validations", index), uncorrelated)
    inside = uncorrelated or (path if keywords.get("x-kubernetes-map-type") == "atomic" else None)
    for name, inner in (keywords.get("properties") or {}).items():
        if not (is_object and name in _HEAD):
            below = bool(inner.get("x-kubernetes-embedded-resource"))
            _contents(report, inner, (*path, "properties", name), is_object=below, uncorrelated=inside, in_map=in_map)
    items, values = keywords.get("items"), keywords.get("additionalProperties")
    if isinstance(items, dict):
        inside = uncorrelated or (path if keywords.get("x-kubernetes-list-type") != "map" else None)
        below = bool(items.get("x-kubernetes-embedded-resource"))
        _contents(report, items, (*path, "items"), is_object=below, uncorrelated=inside, in_map=in_map)
    if isinstance(values, dict):
        at_values = (*path, "additionalProperties")
        _contents(report, values, at_values, is_object=False, uncorrelated=uncorrelated, in_map=True)
    # A default must also satisfy the rules, so they must be valid first.
    if keywords.get("default") is not None and not in_map and len(report.problems) == before:
        _default(report, keywords, path)


def _default(report: SchemaReport, keywords: Keywords, path: Path) -> None:
    problems = MeteredProblems()
    schema = SchemaReader({}, installed=True).read(keywords)
    SchemaCompiler(strict=True, native=False, metered=True, repeated=True).compile(schema)(
        keywords["default"], None, problems
    )
    for problem in problems[:MAX_PROBLEMS]:
        report.invalid((*path, "default"), keywords["default"], f"must fit: {problem.message}", problem.code)


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

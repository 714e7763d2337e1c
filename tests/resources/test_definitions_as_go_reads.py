"""Cases in which Go reads a schema in an unexpected way. Each was checked with kube-apiserver 1.36.3."""

from __future__ import annotations

from typing import Any

import pytest

from tests.resources.test_definitions import definition, judged, widget
from tierwall.resources.admission import admit, with_defaults
from tierwall.resources.kinds.registry import read_kinds

EMBEDDED = {"type": "object", "x-kubernetes-embedded-resource": True, "x-kubernetes-preserve-unknown-fields": True}
HEAD = {"apiVersion": "v1", "kind": "Foo"}
SET = {"type": "array", "x-kubernetes-list-type": "set"}


def of(schema: dict[str, Any]) -> dict[str, Any]:
    """The definition of Widget whose spec has one field."""
    document = definition()
    properties = document["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]
    properties["spec"] = {"type": "object", "properties": {"field": schema}}
    return document


def refusals(document: dict[str, Any]) -> list[str]:
    return [problem.message for problem in admit(document) if problem.refuses]


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        # A number that does not fit into 64 bits, or has a point and is over 53 bits, is a fraction.
        ({"type": "integer"}, [2.0, 2**63 - 1], [2**63, 1e19, 1.5]),
        # The bounds of an integer must be integers, as Go prints them.
        ({"type": "integer", "maximum": 1.5}, [], [1]),
        ({"type": "integer", "maximum": 2**63 - 1}, [], [1]),
        ({"type": "integer", "minimum": -(2**63)}, [], [1]),
        ({"type": "integer", "format": "int32", "maximum": 2**31}, [], [1]),
        # Bounds of a number are cut to whole ones where the number has no point.
        ({"type": "number", "maximum": 1.5, "exclusiveMaximum": True}, [1.2], [1]),
        ({"type": "number", "maximum": 1e300}, [1.0], [1]),
        ({"type": "number", "minimum": 1e300}, [1], [1.0]),
        ({"type": "number", "format": "float"}, [1e38], [1e39]),
        ({"type": "number", "multipleOf": 0.1}, [0.3, 0.7, 1.0], [0.35, 1]),
        ({"type": "number", "multipleOf": 2}, [2, 4.0], [2**63 - 1, 1e19]),
        ({"type": "number", "multipleOf": 0}, [], [0, 1.5]),
        # A number is converted to the type of what is listed; null never is.
        ({"type": "number", "enum": [1, 2.5]}, [1, 1.5, 2.5], [0.5, 2]),
        ({"x-kubernetes-int-or-string": True, "enum": ["A", 7]}, ["A", 65, 7, 7.0], ["7", 66]),
        ({"type": "string", "nullable": True, "enum": ["a", None]}, ["a"], [None]),
        # A list passes for a text with a format, and nothing but both where there is no type.
        ({"type": "string", "format": "date"}, ["2026-11-16", [], ["a"]], ["a", {}, 1, [{"a": 1}]]),
        ({"type": "string", "format": "d-a-t-e"}, ["2026-11-16"], ["a"]),
        ({"type": "string", "format": "unheard-of"}, ["a"], [[]]),
        ({"type": "integer", "anyOf": [{"format": "uuid"}]}, [], [1]),
        ({"type": "integer", "not": {"format": "uuid"}}, [1], []),
        # 1 and 1.0 are two items of a set, unless they are inside of items.
        ({**SET, "items": {"type": "number"}}, [[1, 1.0]], [[1, 1], [1.5, 1.5], [2**63, 2.0**63]]),
        ({**SET, "items": {"type": "array", "items": {"type": "number"}}}, [[[1], [2]]], [[[1], [1.0]]]),
        ({"type": "object", "additionalProperties": False}, [{}], [{"a": 1}, {"a": None}]),
        (
            {"type": "object", "additionalProperties": False, "x-kubernetes-preserve-unknown-fields": True},
            [{}],
            [{"a": 1}],
        ),
        ({**EMBEDDED, "required": ["metadata"]}, [{**HEAD, "metadata": {}}, {**HEAD, "metadata": None}], [HEAD]),
        ({**EMBEDDED, "properties": {"kind": {"type": "string", "enum": ["Foo"]}}}, [HEAD], [{**HEAD, "kind": "Bar"}]),
        (EMBEDDED, [{**HEAD, "metadata": {"namespace": "a"}}], [{**HEAD, "metadata": {"namespace": "a b"}}]),
    ],
    ids=str,
)
def test_values_are_taken_and_refused_as_go_does(schema: dict[str, Any], good: list[Any], bad: list[Any]) -> None:
    document = of(schema)
    assert refusals(document) == []
    for value in good:
        assert judged(document, widget(spec={"field": value})) == [], value
    for value in bad:
        assert judged(document, widget(spec={"field": value})), value


@pytest.mark.parametrize(
    ("schema", "value", "stored"),
    [
        ({"type": "object", "properties": {"kind": {"type": "string", "default": "Foo"}}}, {}, {"kind": "Foo"}),
        ({**EMBEDDED, "properties": {"kind": {"type": "string", "default": "Foo"}}}, {"apiVersion": "v1"}, HEAD),
        (
            {"type": "object", "additionalProperties": {"type": "string", "default": "x"}},
            {"a": None, "b": "c"},
            {"a": "x", "b": "c"},
        ),
        (
            {"type": "object", "additionalProperties": {"type": "string", "default": "x", "nullable": True}},
            {"a": None},
            {"a": None},
        ),
    ],
    ids=str,
)
def test_defaults_are_filled_in_as_go_does(schema: dict[str, Any], value: Any, stored: Any) -> None:
    (kind,) = read_kinds(with_defaults(of(schema)), installed=True)
    assert with_defaults(widget(spec={"field": value}), kind)["spec"]["field"] == stored


@pytest.mark.parametrize(
    "schema",
    [
        # Nobody looks at defaults inside the values of a map, or at the types of lists in defaults.
        {"type": "object", "additionalProperties": {"type": "string", "maxLength": 1, "default": "long"}},
        {**SET, "items": {"type": "boolean"}, "default": [True, True]},
        {"type": "string", "pattern": r"\Q\C\E"},
        {"type": "string", "pattern": r"\\C"},
        {"type": "string", "externalDocs": {"url": "a"}},
    ],
    ids=str,
)
def test_definitions_that_go_takes(schema: dict[str, Any]) -> None:
    assert refusals(of(schema)) == []


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "string", "pattern": r"a\C"},
        {"type": "array", "maxItems": 2**70, "items": {"type": "string"}},
        {"type": "string", "anyOf": [{"default": ""}]},
        {"type": "string", "anyOf": [{"default": False}]},
        {"type": "string", "externalDocs": {"a": "b"}},
        {"type": "string", "externalDocs": {"url": 1}},
        {"type": "string", "x-kubernetes-validations": [{"rule": "true", "reason": ""}]},
        {"x-kubernetes-preserve-unknown-fields": True, "x-kubernetes-validations": [{"rule": "true"}]},
        # A default must satisfy the rules. A rule that does not parse does not stop the check.
        {"type": "string", "default": "a", "x-kubernetes-validations": [{"rule": "self =="}]},
        {"type": "integer", "default": 1e19},
        {"type": "number", "multipleOf": 0, "default": 1},
    ],
    ids=str,
)
def test_definitions_that_go_refuses(schema: dict[str, Any]) -> None:
    assert refusals(of(schema))


@pytest.mark.parametrize(
    ("change", "taken"),
    [
        ({"selectableFields": [{"jsonPath": ".spec.field"}]}, True),
        ({"selectableFields": [{"jsonPath": ".spec.field"}] * 2}, False),
        ({"selectableFields": [{"jsonPath": ".spec"}]}, False),
        ({"selectableFields": [{"jsonPath": ".spec['field']"}]}, False),
        ({"selectableFields": [{"jsonPath": ".metadata.name"}]}, False),
        ({"selectableFields": [{"jsonPath": ".spec.other"}]}, False),
        ({"selectableFields": [{"jsonPath": "spec.field"}]}, False),
    ],
    ids=str,
)
def test_fields_to_select_by(change: dict[str, Any], taken: bool) -> None:
    document = of({"type": "string"})
    document["spec"]["versions"][0] |= change
    assert (refusals(document) == []) is taken


@pytest.mark.parametrize(
    ("metadata", "taken"),
    [
        ({"type": "object", "properties": {"name": {"type": "string", "pattern": "^a"}}}, True),
        ({"type": "object", "properties": {"name": {"type": "string", "default": "x"}}}, False),
        ({"type": "object", "description": "x"}, False),
        ({"type": "object", "description": ""}, True),
    ],
    ids=str,
)
def test_what_may_be_said_of_metadata(metadata: dict[str, Any], taken: bool) -> None:
    document = of({"type": "string"})
    document["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["metadata"] = metadata
    assert (refusals(document) == []) is taken


@pytest.mark.parametrize("spec", [{"conversion": {}}, {"conversion": {"strategy": ""}}], ids=str)
def test_a_conversion_has_a_strategy(spec: dict[str, Any]) -> None:
    assert refusals(definition(**spec))


@pytest.mark.parametrize("word", ["categories", "shortNames"])
def test_names_are_not_empty(word: str) -> None:
    document = definition()
    document["spec"]["names"][word] = [""]
    assert refusals(document)

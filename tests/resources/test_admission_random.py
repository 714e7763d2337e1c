"""Admission never raises, whatever it is given, and every problem it names is at a place of the document."""

import json
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.randomness import examples
from tierwall.resources.admission import admit
from tierwall.resources.admission.problem import AdmissionProblem
from tierwall.resources.admission.validate import MAX_PROBLEMS, SchemaCompiler
from tierwall.resources.crd import open_api
from tierwall.resources.kinds.registry import Kind, all_kinds
from tierwall.resources.schema import Schema, read_schema

KINDS = list(all_kinds())
_scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.integers(-2, 5)
    | st.floats()
    | st.text(max_size=12)
    | st.sampled_from(["TCP", "10.0.0.0/8", "::/0", "a/b", "", "Allow", "In", "\ud800"])
)
_words = sorted({part.name for kind in KINDS for part in kind.schema.properties} | {"matchLabels", "name", "foo"})
_json = st.recursive(
    _scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(_words) | st.text(max_size=5), inner),
    max_leaves=15,
)


def _fitting(schema: Schema, depth: int) -> st.SearchStrategy[Any]:
    """Values that mostly fit a schema, with a mistake here and there."""
    right: st.SearchStrategy[Any]
    if schema.enum:
        right = st.sampled_from(schema.enum)
    elif schema.int_or_string:
        right = st.integers(0, 70000) | st.sampled_from(["http", "1%"])
    elif schema.type == "object" and depth > 0:
        fields = {part.name: _fitting(part.schema, depth - 1) for part in schema.properties}
        if schema.additional is not None:
            right = st.dictionaries(st.text(max_size=4), _fitting(schema.additional, depth - 1), max_size=3)
        else:
            right = st.fixed_dictionaries({}, optional=fields)
    elif schema.type == "array" and schema.items is not None and depth > 0:
        right = st.lists(_fitting(schema.items, depth - 1), max_size=3)
    elif schema.type in ("integer", "number"):
        right = st.integers(-1, 70000)
    elif schema.type == "boolean":
        right = st.booleans()
    else:
        right = st.sampled_from(["a", "x.y", "10.0.0.0/8", "1s", "https://x/y", "*"])
    return st.one_of(right, right, right, right, _json) if depth < 5 else right


def objects(kind: Kind) -> st.SearchStrategy[dict[str, Any]]:
    """Objects like and unlike those of a kind."""
    head = {"apiVersion": st.just(kind.api_version), "kind": st.just(kind.kind)}
    parts: dict[str, Any] = {part.name: _fitting(part.schema, 6) for part in kind.schema.properties}
    return st.fixed_dictionaries(head, optional=parts | {"metadata": _json | st.just({"name": "x"})})


def _node(document: Any, path: tuple[str | int, ...]) -> Any:
    for step in path:
        document = document[step]
    return document


def _check(document: Any) -> list[AdmissionProblem]:
    problems = admit(document)
    assert len(problems) <= MAX_PROBLEMS
    for problem in problems:
        _node(document, problem.path)
        assert problem.message
        assert len(problem.message) < 10_000
    return problems


@given(_json)
def test_any_json_value_is_answered(document: Any) -> None:
    _check(document)


@settings(max_examples=examples(300))
@given(st.sampled_from(KINDS), st.dictionaries(st.sampled_from(_words), _json, max_size=5))
def test_any_json_under_the_name_of_a_kind_is_answered(kind: Kind, rest: dict[str, Any]) -> None:
    _check({**rest, "apiVersion": kind.api_version, "kind": kind.kind})


@settings(max_examples=examples(600))
@given(st.data())
def test_objects_like_those_of_a_kind_are_answered(data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from(KINDS))
    document = data.draw(objects(kind))
    first = _check(document)
    assert _check(json.loads(json.dumps(document))) == first


def test_deep_nesting_is_refused_and_not_followed() -> None:
    value: Any = {}
    for _ in range(50_000):
        value = {"a": value}
    (problem,) = admit({"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "spec": value})
    assert "nested deeper" in problem.message


def test_a_long_list_of_mistakes_gives_a_short_report() -> None:
    policy = {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": "x"},
        "spec": {"ingress": [{"foo": 1}] * 100_000},
    }
    assert len(admit(policy)) == MAX_PROBLEMS


PLAIN = read_schema(
    yaml.safe_load("""
type: object
minProperties: 1
maxProperties: 4
required: [name]
properties:
  name: {type: string, minLength: 1, maxLength: 3, pattern: "^[a-z]*$"}
  size: {type: integer, minimum: 0, maximum: 10}
  ratio: {type: number, minimum: 0.5}
  "on": {type: boolean}
  mode: {type: string, enum: [A, B]}
  tags: {type: array, items: {type: string}, minItems: 1, maxItems: 2}
  port: {x-kubernetes-int-or-string: true, maximum: 10, maxLength: 2}
  labels: {type: object, additionalProperties: {type: string, maxLength: 1}, maxProperties: 2}
""")
)
_plain_values = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 12) | st.sampled_from([0.5, 2.0, "", "a", "abcd", "A", "B", "é"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("ab"), inner, max_size=3),
    max_leaves=4,
)
_plain_objects = st.dictionaries(st.sampled_from([part.name for part in PLAIN.properties]), _plain_values, max_size=6)


@settings(max_examples=examples(600))
@given(_plain_objects)
def test_the_structural_part_agrees_with_json_schema(value: dict[str, Any]) -> None:
    problems: list[AdmissionProblem] = []
    SchemaCompiler(strict=False, native=False).compile(PLAIN)(value, None, problems)
    assert (not problems) == jsonschema.Draft4Validator(open_api(PLAIN)).is_valid(value), problems

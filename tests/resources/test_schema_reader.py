"""A definition is read as it was written, and printed as an API server takes it."""

from typing import Any

import pytest
import yaml
from msgspec import UNSET

from tierwall.resources.crd import open_api
from tierwall.resources.kinds.registry import all_kinds, read_kinds, schema_of
from tierwall.resources.schema import SchemaReader, ValidationRule, read_schema

# What a CRD can say, each in the order in which it is printed.
PRINTED = """
- {type: object, properties: {a: {type: integer, minimum: 0, maximum: 9}, b: {type: boolean}}, required: [b]}
- {description: a text, type: string, pattern: ^a$, minLength: 1, maxLength: 2, format: date-time, default: ""}
- type: array
  minItems: 1
  maxItems: 3
  x-kubernetes-list-type: map
  x-kubernetes-list-map-keys: [k]
  items: {type: object, maxProperties: 2, additionalProperties: {type: number, exclusiveMinimum: true, minimum: 1.5}}
- {x-kubernetes-preserve-unknown-fields: true}
- {type: object, x-kubernetes-preserve-unknown-fields: true, x-kubernetes-embedded-resource: true}
- {anyOf: [{type: integer}, {type: string}], x-kubernetes-int-or-string: true, pattern: ^1$}
- {type: string, enum: [B, A], default: A}
- {type: string, nullable: true}
- type: object
  x-kubernetes-map-type: atomic
  oneOf: [{required: [a]}, {required: [b]}]
  not: {required: [c]}
- type: object
  x-kubernetes-validations:
  - {rule: self.a, message: "no", messageExpression: "'x'", fieldPath: .a, reason: FieldValueForbidden}
  - {rule: self.b, optionalOldSelf: true}
"""


@pytest.mark.parametrize("words", yaml.safe_load(PRINTED), ids=str)
def test_a_definition_is_printed_as_it_was_read(words: dict[str, Any]) -> None:
    assert open_api(read_schema(words)) == words


def test_tierwalls_own_keywords_are_read_and_not_printed() -> None:
    words = {
        "type": "object",
        "x-tierwall-max-bytes": 9,
        "x-tierwall-keys": {"type": "string", "format": "k8s-label-key"},
        "additionalProperties": {"type": "string", "format": "k8s-label-value"},
        "x-kubernetes-validations": [
            {"rule": "a", "x-tierwall-hint": "try b"},
            {"rule": "b", "message": "doubtful", "x-tierwall-warning": True},
        ],
    }
    schema = read_schema(words)
    assert schema.max_bytes == 9
    assert schema.keys is not None
    assert schema.keys.format == "k8s-label-key"
    assert schema.rules == (ValidationRule("a", hint="try b"), ValidationRule("b", "doubtful", warning=True))
    assert open_api(schema) == {
        "type": "object",
        "additionalProperties": {"type": "string"},
        "x-kubernetes-validations": [{"rule": "a"}],
    }


def test_a_fragment_is_the_same_schema_wherever_it_is_used() -> None:
    reader = SchemaReader({"Name": {"type": "string", "maxLength": 5}})
    words = {"a": {"$ref": "Name", "description": "the first", "x-tierwall-hint": "short"}, "b": {"$ref": "Name"}}
    first, second = reader.read({"type": "object", "properties": words}).properties
    assert first.schema is second.schema
    assert (first.schema.title, first.description, first.hint) == ("Name", "the first", "short")
    assert (second.schema.description, second.description) == ("", "")
    assert open_api(reader.read({"type": "object", "properties": words}))["properties"] == {
        "a": {"description": "the first", "type": "string", "maxLength": 5},
        "b": {"type": "string", "maxLength": 5},
    }


def test_a_null_counts_as_an_absent_keyword() -> None:
    schema = read_schema({"type": "object", "properties": None, "required": None, "default": None})
    assert schema.properties == ()
    assert schema.default is UNSET


def test_a_required_name_need_not_be_a_property() -> None:
    schema = read_schema({"type": "object", "properties": {"a": {"type": "string"}}, "required": ["b", "a"]})
    assert schema.undeclared == ("b",)
    assert schema.properties[0].required


def test_every_version_of_a_definition_is_a_kind() -> None:
    definition = yaml.safe_load("""
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: widgets.example.com}
spec:
  group: example.com
  names: {kind: Widget, plural: widgets, shortNames: [wd]}
  scope: Cluster
  versions:
  - {name: v1, served: true, storage: true, subresources: {status: {}}, schema: {openAPIV3Schema: {type: object}}}
  - {name: v2, served: false, storage: false, schema: {openAPIV3Schema: {type: object, description: the next}}}
""")
    first, second = read_kinds(definition)
    assert (first.api_version, first.scope, first.status_subresource) == ("example.com/v1", "Cluster", True)
    assert (first.served, first.storage, first.short_names, first.strict) == (True, True, ("wd",), True)
    assert (second.served, second.storage, second.description) == (False, False, "the next")


def test_a_field_of_a_kind_is_found_by_its_path() -> None:
    policy = "agentgateway.dev/v1alpha1", "AgentgatewayPolicy"
    assert schema_of(*policy, "spec", "traffic").at("retry") is not None
    for path in (("v2", "Pod"), (*policy, "spec", "trafic")):
        with pytest.raises(LookupError):
            schema_of(*path)


def test_a_schema_is_read_when_it_is_first_used() -> None:
    assert all(kind.schema is kind.schema for kind in all_kinds())

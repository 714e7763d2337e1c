"""Defaulting fills what is missing, prunes nulls, and never changes its input."""

import json
from typing import Any

import yaml
from hypothesis import given
from hypothesis import strategies as st

from tierwall.resources.admission import with_defaults
from tierwall.resources.admission.default import compile_defaults
from tierwall.resources.schema import Schema, read_schema

SCHEMA = read_schema(
    yaml.safe_load("""
type: object
properties:
  ports:
    type: array
    items: {type: object, properties: {port: {type: integer}, protocol: {type: string, default: TCP}}}
  mode: {type: string, default: Strict}
  options: {type: object, properties: {retries: {type: integer, default: 3}}, default: {}}
  extra: {type: object, additionalProperties: {type: object, properties: {"on": {type: string, default: "yes"}}}}
  note: {type: string, nullable: true}
  free: {x-kubernetes-preserve-unknown-fields: true, nullable: true}
""")
)
fill = compile_defaults(SCHEMA)


def test_missing_and_null_properties_take_their_defaults() -> None:
    assert fill({"mode": None, "ports": [{"port": 1}]}) == {
        "mode": "Strict",
        "ports": [{"port": 1, "protocol": "TCP"}],
        "options": {"retries": 3},
    }


def test_defaults_inside_a_missing_object_do_not_apply() -> None:
    inner = {"type": "object", "properties": {"a": {"type": "integer", "default": 1}}}
    schema = read_schema({"type": "object", "properties": {"inner": inner}})
    assert compile_defaults(schema)({}) == {}


def test_a_null_without_default_is_pruned_unless_it_is_allowed() -> None:
    done = fill({"note": None, "free": None, "ports": None})
    assert done == {"note": None, "free": None, "mode": "Strict", "options": {"retries": 3}}


def test_values_of_maps_are_filled_too() -> None:
    assert fill({"extra": {"a": {}, "b": None}})["extra"] == {"a": {"on": "yes"}}


def test_a_value_that_needs_no_change_is_the_same_object() -> None:
    value = {"mode": "Off", "options": {"retries": 1}, "ports": [{"protocol": "UDP"}]}
    assert fill(value) is value


def test_an_object_of_a_known_kind_is_filled_as_the_api_server_fills_it() -> None:
    document = {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": "x"},
        "spec": {"ingress": [{"ports": [{"port": 80}]}]},
    }
    assert with_defaults(document)["spec"]["ingress"][0]["ports"] == [{"port": 80, "protocol": "TCP"}]
    assert with_defaults({"kind": "Other"}) == {"kind": "Other"}


def reference(value: Any, schema: Schema) -> Any:
    """The rules of apiextensions' `schema/defaulting`, one sentence each."""
    if isinstance(value, dict) and schema.type == "object":
        out: dict[str, Any] = {}
        known = {part.name: part.schema for part in schema.properties}
        for name, item in value.items():
            inner = known.get(name, schema.additional)
            if inner is None or item is not None or inner.nullable:
                out[name] = item
        for name, inner in known.items():
            if name not in out and isinstance(inner.default, str | int | dict):
                out[name] = json.loads(json.dumps(inner.default))
        for name in out:
            below = known.get(name, schema.additional)
            if below is not None and out[name] is not None:
                out[name] = reference(out[name], below)
        return out
    if isinstance(value, list) and schema.items is not None:
        return [reference(item, schema.items) for item in value]
    return value


_names = st.sampled_from(["ports", "port", "protocol", "mode", "options", "retries", "extra", "on", "note", "free"])
_values = st.recursive(
    st.none() | st.integers(0, 3) | st.sampled_from(["a", "TCP"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_names, inner, max_size=5),
    max_leaves=12,
)


@given(st.dictionaries(_names, _values, max_size=6))
def test_defaulting_agrees_with_the_reference_and_does_not_change_its_input(value: dict[str, Any]) -> None:
    before = json.dumps(value, sort_keys=True)
    done = fill(value)
    assert json.dumps(value, sort_keys=True) == before
    assert done == reference(value, SCHEMA)
    assert fill(done) == done

"""The constructors build what the OpenAPI words say, and fragments are changed without touching the original."""

from msgspec import UNSET

from tierwall.resources.crd import open_api
from tierwall.resources.schema import (
    any_object,
    any_value,
    array,
    at_least_one_of,
    at_most_one_of,
    boolean,
    enum,
    exactly_one_of,
    extend,
    int_or_string,
    integer,
    mapping,
    number,
    obj,
    only_warn,
    optional,
    refine,
    required,
    rule,
    string,
    warning,
    without,
)


def test_an_object_lists_its_properties_and_the_required_ones() -> None:
    schema = obj(required("b", boolean()), optional("a", integer(minimum=1, maximum=9)))
    assert open_api(schema) == {
        "type": "object",
        "properties": {"a": {"type": "integer", "minimum": 1, "maximum": 9}, "b": {"type": "boolean"}},
        "required": ["b"],
    }


def test_a_description_of_the_field_wins_over_the_one_of_its_type() -> None:
    schema = obj(optional("a", string(description="a text"), "the name"))
    assert open_api(schema)["properties"]["a"]["description"] == "the name"


def test_lists_and_maps_carry_their_limits_and_list_types() -> None:
    schema = array(mapping(number(), max_properties=2), min_items=1, max_items=3, list_type="map", keys=("k",))
    assert open_api(schema) == {
        "type": "array",
        "minItems": 1,
        "maxItems": 3,
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": ["k"],
        "items": {"type": "object", "maxProperties": 2, "additionalProperties": {"type": "number"}},
    }


def test_values_of_any_type_and_int_or_string_have_no_type() -> None:
    assert open_api(any_value()) == {"x-kubernetes-preserve-unknown-fields": True}
    assert open_api(any_object()) == {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    assert open_api(int_or_string(pattern="^1$")) == {
        "anyOf": [{"type": "integer"}, {"type": "string"}],
        "x-kubernetes-int-or-string": True,
        "pattern": "^1$",
    }


def test_rules_become_validations_and_warnings_do_not() -> None:
    schema = obj(
        rule("self.a", "no", message_expression="'x'", field_path=".a", reason="FieldValueForbidden"),
        warning("self.b", "doubtful"),
    )
    assert open_api(schema)["x-kubernetes-validations"] == [
        {
            "rule": "self.a",
            "message": "no",
            "messageExpression": "'x'",
            "fieldPath": ".a",
            "reason": "FieldValueForbidden",
        }
    ]
    assert only_warn(rule("true")).warning


def test_union_rules_read_as_controller_gen_writes_them() -> None:
    assert exactly_one_of("a", "b").expression == "[has(self.a),has(self.b)].filter(x,x==true).size() == 1"
    assert exactly_one_of("a", "b").message == "exactly one of the fields in [a b] must be set"
    assert at_most_one_of("a", "b").message == "at most one of the fields in [a b] may be set"
    assert at_least_one_of("a").message == "at least one of the fields in [a] must be set"


def test_union_rules_escape_names_that_cel_reserves() -> None:
    assert exactly_one_of("namespace", "a-b").expression.startswith("[has(self.__namespace__),has(self.a__dash__b)]")


def test_fragments_are_copied_when_changed() -> None:
    original = obj(required("a", string()), rule("true"))
    wider = extend(original, optional("a", integer()), optional("b", string()), rule("false"))
    assert [(part.name, part.schema.type) for part in wider.properties] == [("a", "integer"), ("b", "string")]
    assert [one.expression for one in wider.rules] == ["true", "false"]
    assert [part.name for part in without(wider, "a").properties] == ["b"]
    assert refine(original, rule("x"), default={}).default == {}
    assert original.default is UNSET
    assert len(original.rules) == 1


def test_an_enum_keeps_its_order_and_default() -> None:
    assert open_api(enum("B", "A", default="A")) == {"type": "string", "enum": ["B", "A"], "default": "A"}

"""Every CEL rule of every kind type-checks against its schema and has a message."""

from collections.abc import Iterator

import pytest

from tierwall.cel.check.checker import compile_source
from tierwall.cel.check.structural import schema_type
from tierwall.cel.environment import Environment
from tierwall.cel.types import BOOL, STRING
from tierwall.resources.admission.expression import compile_expression
from tierwall.resources.admission.rules import optional_field, parse_field_path
from tierwall.resources.crd import open_api
from tierwall.resources.kinds.meta import object_schema
from tierwall.resources.kinds.registry import Kind, all_kinds
from tierwall.resources.schema import Schema, ValidationRule

KINDS = list(all_kinds())


def nodes(schema: Schema, path: str = "") -> Iterator[tuple[str, Schema]]:
    """Every schema in a schema, shared fragments once."""
    seen: set[int] = set()
    stack = [(path, schema)]
    while stack:
        place, node = stack.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        yield place, node
        stack += [(f"{place}.{part.name}", part.schema) for part in node.properties]
        stack += [(f"{place}[]", inner) for inner in (node.items, node.additional, node.keys) if inner is not None]
        stack += [(place, inner) for inner in (*node.any_of, *node.one_of, *node.all_of)]


def rules(kind: Kind) -> Iterator[tuple[str, Schema, ValidationRule]]:
    for place, schema in nodes(object_schema(kind)):
        for rule in schema.rules:
            yield place, schema, rule


def _environment(place: str, schema: Schema, rule: ValidationRule) -> Environment:
    described = open_api(schema)
    names = {"self": schema_type("self", described, resource=not place)}
    if rule.each:
        listed = schema.at(rule.each)
        assert listed is not None
        assert listed.items is not None
        names["item"] = schema_type("item", open_api(listed.items))
    return Environment(variables=names)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: f"{kind.kind}-{kind.api_version}")
def test_every_rule_is_a_bool_over_its_own_schema(kind: Kind) -> None:
    for place, schema, rule in rules(kind):
        environment = _environment(place, schema, rule)
        assert compile_source(rule.expression, environment).type == BOOL, (place, rule.expression)
        if rule.message_expression:
            assert compile_source(rule.message_expression, environment).type == STRING, (place, rule)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: f"{kind.kind}-{kind.api_version}")
def test_every_rule_points_at_a_field_of_its_schema(kind: Kind) -> None:
    for place, schema, rule in rules(kind):
        path = map(str, parse_field_path(rule.field_path))
        assert schema.at(*path) is not None, (place, rule.field_path)


@pytest.mark.parametrize(
    "kind", [kind for kind in KINDS if kind.is_crd], ids=lambda kind: f"{kind.kind}-{kind.version}"
)
def test_rules_of_custom_resources_use_only_keywords_of_crds(kind: Kind) -> None:
    for _, schema in nodes(kind.schema):
        for rule in schema.rules:
            assert not rule.each
            assert rule.reason != "FieldValueNotSupported"


def test_a_rule_about_an_optional_field_holds_where_the_field_is_absent() -> None:
    guarded = {rule.expression for kind in KINDS for _, _, rule in rules(kind) if optional_field(rule.expression)}
    assert len(guarded) > 40
    for expression in guarded:
        assert compile_expression(expression)({}, None) is True


@pytest.mark.parametrize(
    ("expression", "field"),
    [
        ("!has(self.a) || self.a > 1", "a"),
        ("!has(self.__namespace__) || self.a > 1", "namespace"),
        ("!has(self.a) || self.b ? false : true", ""),
        ("!has(self.a.b) || self.a.b > 1", ""),
        ("!has(self.a)", ""),
        ("has(self.a) || self.b", ""),
        ("!has(self.a) && has(self.b) || self.c", ""),
    ],
)
def test_the_optional_field_of_a_rule(expression: str, field: str) -> None:
    assert optional_field(expression) == field

"""The agentgateway schemas say exactly what its CustomResourceDefinitions say (agentgateway_fields/)."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from msgspec import UNSET

from tierwall.resources.crd import open_api
from tierwall.resources.kinds.registry import Kind, all_kinds
from tierwall.resources.schema import Schema, ValidationRule

LINE = re.compile(r"^(?P<name>[A-Za-z0-9]+)(?P<required>\*?): (?P<rest>.*)$")
RULE = re.compile(r"^`(?P<expression>.*)` => (?P<message>.*)$")
TYPES = {"obj": "object", "str": "string", "int": "integer", "bool": "boolean"}
LIMITS = {
    "minLen": "min_length",
    "maxLen": "max_length",
    "min": "minimum",
    "max": "maximum",
    "minItems": "min_items",
    "maxItems": "max_items",
    "minProps": "min_properties",
    "maxProps": "max_properties",
}
FIELDS = Path(__file__).parent / "agentgateway_fields"
KINDS = [kind for kind in all_kinds() if kind.group == "agentgateway.dev"]
DURATION = "^([0-9]{1,5}(h|m|s|ms)){1,4}$"


@dataclass
class Node:
    """One line of the tree with what is indented under it."""

    name: str
    required: bool
    rest: str
    children: list[Node] = field(default_factory=list)
    rules: list[tuple[str, str]] = field(default_factory=list)


def tree(text: str) -> Node:
    """The tree of one kind."""
    root = Node("spec", True, "obj")
    stack = [(-1, root)]
    for line in text.splitlines():
        body = line.lstrip(" ")
        depth = (len(line) - len(body)) // 2
        while stack[-1][0] >= depth:
            stack.pop()
        parent = stack[-1][1]
        if body.startswith("! "):
            match = RULE.match(body[2:])
            assert match is not None, line
            parent.rules.append((squeeze(match["expression"]), match["message"].strip()))
        else:
            match = LINE.match(body[2:])
            assert match is not None, line
            node = Node(match["name"], bool(match["required"]), match["rest"])
            parent.children.append(node)
            stack.append((depth, node))
    return root


def squeeze(expression: str) -> str:
    """An expression without spaces, which carry no meaning in these rules."""
    return expression.replace(" ", "")


def constraints(text: str) -> dict[str, str]:
    """`minLen=1 pattern=^a$ enum=A|B default=x` as a map. A pattern or default may hold anything except our words."""
    words = "|".join([*LIMITS, "enum", "default", "pattern"])
    limits: dict[str, str] = {}
    for match in re.finditer(rf"(?:^| )({words})=(.*?)(?=(?: (?:{words})=)|$)", text):
        limits[match[1]] = match[2]
    if "<duration>" in text:
        limits["duration"] = "yes"
    return limits


def differences(node: Node, schema: Schema, path: str) -> Iterator[str]:
    """Every way in which the schema and the tree's node differ."""
    rest = node.rest
    limits, each, value = "", "", ""
    if match := re.search(r" value\((.*)\)$", rest):
        value, rest = match[1], rest[: match.start()]
    if " = " in rest and rest.split(" = ")[1].split(" ")[0] in ("BackendObjectReference", "LocalSecretRef"):
        rest, shared = rest.split(" = ")
        yield from reference_differences(shared, schema, path)
        if "[]" not in rest:
            return
    if match := re.search(r" \(same as ([a-zA-Z0-9.]+)\)$", rest):
        rest = rest[: match.start()]
        target = at(match[1])
        if open_api(schema) != open_api(target):
            yield f"{path}: not the same as {match[1]}"
        return
    if match := re.search(r" each\((.*)\)$", rest):
        each, rest = match[1], rest[: match.start()]
    if match := re.match(r"^(\S+)(?: \[(.*)\])?$", rest):
        kind, limits = match[1], match[2] or ""
    else:
        raise AssertionError(rest)

    rules = list(schema.rules)
    inner = schema
    if kind.startswith("[]"):
        if schema.type != "array" or schema.items is None:
            yield f"{path}: {schema.type} instead of a list"
            return
        yield from type_differences(kind[2:], schema.items, path)
        yield from limit_differences(limits, schema, path)
        if each:
            yield from limit_differences(each, schema.items, f"{path}[]")
        rules += schema.items.rules
        inner = schema.items
    elif kind.startswith("map<"):
        if schema.additional is None:
            yield f"{path}: no map"
            return
        yield from type_differences(kind[4:-1], schema.additional, path)
        yield from limit_differences(limits, schema, path)
        yield from limit_differences(value, schema.additional, f"{path}{{}}")
        rules += schema.additional.rules
    else:
        yield from type_differences(kind, schema, path)
        yield from limit_differences(limits, schema, path)
    if " = " not in node.rest:
        yield from rule_differences(node.rules, rules, path)

    wanted = {child.name for child in node.children}
    had = {part.name for part in inner.properties}
    if " = " not in node.rest:
        yield from (f"{path}.{name}: not in the definition" for name in sorted(had - wanted))
    properties = {part.name: part for part in inner.properties}
    for child in node.children:
        part = properties.get(child.name)
        if part is None:
            yield f"{path}.{child.name}: missing"
            continue
        if part.required != child.required:
            yield f"{path}.{child.name}: required is {part.required}"
        yield from differences(child, part.schema, f"{path}.{child.name}")


def type_differences(kind: str, schema: Schema, path: str) -> Iterator[str]:
    if kind == "quantity":
        if not schema.int_or_string:
            yield f"{path}: no quantity"
    elif kind == "any":
        if not (schema.preserve_unknown and schema.type == ""):
            yield f"{path}: not any value"
    elif kind.startswith("map<"):
        if schema.additional is None:
            yield f"{path}: no map"
    elif schema.type != TYPES[kind]:
        yield f"{path}: type {schema.type}, want {kind}"


def limit_differences(text: str, schema: Schema, path: str) -> Iterator[str]:
    want = constraints(text)
    if want.pop("duration", None):
        if schema.pattern != DURATION:
            yield f"{path}: no duration"
    elif schema.pattern and "pattern" not in want:
        yield f"{path}: pattern {schema.pattern} is not in the definition"
    for word, attribute in LIMITS.items():
        have = getattr(schema, attribute)
        if (None if word not in want else int(want[word])) != have:
            yield f"{path}: {word} is {have}, want {want.get(word)}"
    if sorted(want["enum"].split("|") if "enum" in want else []) != sorted(map(str, schema.enum)):
        yield f"{path}: enum {schema.enum}"
    default = "" if schema.default is UNSET else str(schema.default)
    if want.get("default", "") != default or ("default" in want) != (schema.default is not UNSET):
        yield f"{path}: default {schema.default!r}, want {want.get('default')}"
    if "pattern" in want:
        pattern = want["pattern"]
        same = schema.pattern.startswith(pattern[:-1]) if pattern.endswith("…") else schema.pattern == pattern
        if not same:
            yield f"{path}: pattern {schema.pattern}, want {pattern}"


def rule_differences(want: list[tuple[str, str]], have: list[ValidationRule], path: str) -> Iterator[str]:
    wanted = Counter(want)
    had = Counter((squeeze(rule.expression), rule.message) for rule in have if not rule.warning)
    yield from (f"{path}: lacks rule {item}" for item in (wanted - had))
    yield from (f"{path}: rule not in the definition {item}" for item in (had - wanted))


def reference_differences(text: str, schema: Schema, path: str) -> Iterator[str]:
    """The two shared reference types, which the tree describes in words."""
    target = schema.items if schema.type == "array" and schema.items is not None else schema
    names = [part.name for part in target.properties]
    if text.startswith("BackendObjectReference"):
        if sorted(names) != ["group", "kind", "name", "namespace", "port"]:
            yield f"{path}: no BackendObjectReference"
    else:
        key = ["key"] if "; key" in text else []
        if sorted(names) != sorted(["group", "kind", "name", *key]):
            yield f"{path}: no LocalSecretRef ({text}): {names}"


def at(path: str) -> Schema:
    """The schema at a dotted path; lists are stepped into. `backend…` is the section of that name."""
    first, *rest = path.split(".")
    sections = (kind.schema.at("spec", first) for kind in KINDS)
    schema = next(section for section in sections if section is not None)
    for index, name in enumerate(rest):
        inner = schema.items if schema.type == "array" and schema.items is not None else schema
        below = inner.at(name)
        assert below is not None, (path, index)
        schema = below
    return schema


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.kind)
def test_every_field_limit_and_rule_of_the_definition_is_in_the_schema(kind: Kind) -> None:
    body = (FIELDS / f"{kind.kind}.txt").read_text()
    spec = kind.schema.at("spec")
    assert spec is not None
    assert list(differences(tree(body), spec, "spec")) == []


def test_the_inline_policies_of_a_backend_and_of_a_backend_reference_are_a_backend_section() -> None:
    assert open_api(at("policies")) == open_api(at("backend"))

"""A CustomResourceDefinition among the objects: what an API server would have against it, and the kinds it defines.

`kinds/data` says what a definition looks like outside its schemas. Here are the rules of structural schemas: text of
apiextensions' `pkg/apiserver/schema/validation.go` and `complete.go`, and of `ValidateCustomResourceDefinition` in
`pkg/apis/apiextensions/validation`. What is not checked is in docs/definitions.md#what-is-not-done.

INVARIANT: the schema is somebody else's. It is walked once, and no further than `_MOST_NODES`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal

import re2

from tierwall.cel import CheckError, Environment, ParseError
from tierwall.cel.check.checker import compile_source
from tierwall.cel.check.structural import object_type, schema_type
from tierwall.cel.types import BOOL, STRING, Type
from tierwall.resources.admission import wording
from tierwall.resources.admission.expression import reads_old_self
from tierwall.resources.admission.problem import (
    COUNT,
    INVALID,
    REQUIRED,
    RULE,
    UNKNOWN_FIELD,
    UNSUPPORTED,
    WRONG_TYPE,
    Metered,
    Problem,
    Step,
)
from tierwall.resources.admission.rules import field_steps
from tierwall.resources.admission.validate import MOST_PROBLEMS, Compiler
from tierwall.resources.schema import INT_OR_STRING, RULE_WORDS, Reader

Path = tuple[Step, ...]
Words = Mapping[str, Any]
Level = Literal["root", "item", "field"]

_MOST_NODES = 100_000  # of all schemas of a definition; an API server takes no object of more than 1.5 MB
_TYPES = ("array", "boolean", "integer", "number", "object", "string")
_REASONS = ("FieldValueDuplicate", "FieldValueForbidden", "FieldValueInvalid", "FieldValueRequired")
_HEAD = ("apiVersion", "kind", "metadata")
# What every word of a schema must hold.
_SHAPES = {
    **dict.fromkeys(("$ref", "$schema", "description", "format", "id", "pattern", "title", "type"), "string"),
    **dict.fromkeys(("maxItems", "maxLength", "maxProperties", "minItems", "minLength", "minProperties"), "integer"),
    **dict.fromkeys(("maximum", "minimum", "multipleOf"), "number"),
    **dict.fromkeys(("exclusiveMaximum", "exclusiveMinimum", "nullable", "uniqueItems"), "boolean"),
    **dict.fromkeys(("x-kubernetes-embedded-resource", "x-kubernetes-int-or-string"), "boolean"),
    "x-kubernetes-preserve-unknown-fields": "boolean",
    **dict.fromkeys(("x-kubernetes-list-type", "x-kubernetes-map-type"), "string"),
    **dict.fromkeys(("required", "x-kubernetes-list-map-keys"), "strings"),
    **dict.fromkeys(("allOf", "anyOf", "enum", "oneOf", "x-kubernetes-validations"), "array"),
    **dict.fromkeys(("definitions", "dependencies", "externalDocs", "not"), "object"),
    **dict.fromkeys(("patternProperties", "properties"), "object"),
    **dict.fromkeys(("additionalItems", "additionalProperties"), "object or boolean"),
    **dict.fromkeys(("default", "example"), "any"),
    "items": "object or array",
}
_RULE_SHAPES = {"optionalOldSelf": "boolean"}
_FITS: dict[str, Callable[[Any], bool]] = {
    "any": lambda value: True,
    "string": lambda value: type(value) is str,
    "integer": lambda value: type(value) is int,
    "number": lambda value: type(value) in (int, float),
    "boolean": lambda value: type(value) is bool,
    "array": lambda value: type(value) is list,
    "strings": lambda value: type(value) is list and all(type(item) is str for item in value),
    "object": lambda value: type(value) is dict,
    "object or boolean": lambda value: type(value) in (dict, bool),
    "object or array": lambda value: type(value) in (dict, list),
}
_NOT_SUPPORTED = ("$ref", "additionalItems", "definitions", "dependencies", "id", "patternProperties")
# What may not stand inside anyOf and its like, and what it must be there.
_NOT_NESTED = {
    "type": "empty",
    "additionalProperties": "undefined",
    "default": "undefined",
    "title": "empty",
    "description": "empty",
    "nullable": "false",
    "x-kubernetes-preserve-unknown-fields": "false",
    "x-kubernetes-embedded-resource": "false",
    "x-kubernetes-int-or-string": "false",
    "x-kubernetes-list-map-keys": "empty",
    "x-kubernetes-list-type": "undefined",
    "x-kubernetes-map-type": "undefined",
    "x-kubernetes-validations": "empty",
}
# What a definition with a status subresource may not say at its root.
_NOT_AT_ROOT = (
    *("allOf", "anyOf", "oneOf", "not", "enum", "default", "nullable", "maxProperties", "minProperties"),
    *("additionalProperties", "$schema", "x-kubernetes-embedded-resource", "x-kubernetes-int-or-string"),
    *("x-kubernetes-list-map-keys", "x-kubernetes-list-type", "x-kubernetes-map-type"),
)
_has_line_break = re.compile(r"[\n\r]").search


def schema_problems(document: Mapping[str, Any]) -> list[Problem]:
    """What an API server would have against the schemas of a definition."""
    spec = document.get("spec")
    versions = spec.get("versions") if isinstance(spec, dict) else None
    walk = _Walk()
    for index, version in enumerate(versions if isinstance(versions, list) else ()):
        schema = version.get("schema") if isinstance(version, dict) else None
        words = schema.get("openAPIV3Schema") if isinstance(schema, dict) else None
        if words is None:
            continue
        subresources = version.get("subresources")
        has_status = isinstance(subresources, dict) and subresources.get("status") is not None
        walk.version(words, ("spec", "versions", index, "schema", "openAPIV3Schema"), has_status)
    return walk.problems[:MOST_PROBLEMS]


def _field(path: Path) -> str:
    """A path as apimachinery prints it: names of properties are keys of a map, `properties[spec].type`."""
    out = ""
    for before, step in zip((None, *path), path, strict=False):
        if isinstance(step, int) or before == "properties":
            out += f"[{step}]"
        else:
            out += f".{step}" if out else step
    return out


class _Walk:
    """Goes through the schemas of one definition and collects what is wrong with them."""

    def __init__(self) -> None:
        self.problems: list[Problem] = []
        self._nodes = 0

    @property
    def is_over(self) -> bool:
        """Whether there is enough to say already."""
        return len(self.problems) >= MOST_PROBLEMS or self._nodes > _MOST_NODES

    def invalid(self, path: Path, value: Any, detail: str, code: str = INVALID) -> None:
        self.problems.append(Problem(code, path, f"{_field(path)}: Invalid value: {wording.shown(value)}: {detail}"))

    def forbidden(self, path: Path, detail: str) -> None:
        self.problems.append(Problem(INVALID, path, f"{_field(path)}: Forbidden: {detail}"))

    def required(self, path: Path, detail: str) -> None:
        self.problems.append(Problem(REQUIRED, path[:-1], f"{_field(path)}: Required value: {detail}"))

    def unsupported(self, path: Path, value: str, supported: tuple[str, ...]) -> None:
        listed = ", ".join(map(wording.quote, supported))
        message = f"{_field(path)}: Unsupported value: {wording.quote(value)}: supported values: {listed}"
        self.problems.append(Problem(UNSUPPORTED, path, message))

    def version(self, words: Any, path: Path, has_status: bool) -> None:
        """All of one version's schema. Defaults and rules are looked at where the schema itself is sound."""
        before = len(self.problems)
        self.node(words, path, "root")
        if len(self.problems) > before:
            return
        if has_status:
            for word in _NOT_AT_ROOT:
                if words.get(word) not in (None, False):
                    detail = "may not be at the root of the schema if the status subresource is enabled"
                    self.invalid((*path, word), words[word], detail)
        if words.get("nullable"):
            self.forbidden((*path, "nullable"), "nullable cannot be true at the root")
        self.complete(words, words, path, path)
        for name in _HEAD:
            if "default" in (words.get("properties") or {}).get(name, ()):
                self.forbidden((*path, "properties", name, "default"), f"must not be set in top-level {name}")
        if len(self.problems) == before:
            self.contents(words, path, is_object=True, uncorrelated=None)

    # the schema itself

    def node(self, given: Any, path: Path, level: Level, *, nested: bool = False) -> None:
        """A node and all below it; `nested` are those inside anyOf and its like."""
        self._nodes += 1
        if self._nodes == _MOST_NODES + 1:
            self.problems.append(Problem(COUNT, path, f"{_field(path)}: Too many: more than {_MOST_NODES} schemas"))
        if self.is_over:
            return
        words = self.shaped(given, path, _SHAPES)
        if words is None:
            return
        self.standard(words, path)
        if nested:
            self.nested(words, path)
        else:
            self.structural(words, path, level)
        self.lists(words, path)
        self.rules(words, path)
        self.below(words, path, nested)

    def shaped(self, given: Any, path: Path, shapes: Mapping[str, str]) -> Words | None:
        """The words that hold what they must; null is as if the word were not there."""
        if type(given) is not dict:
            self.wrong_type(path, "object", given)
            return None
        out: dict[str, Any] = {}
        for word, value in given.items():
            shape = shapes.get(word)
            if shape is None:
                self.problems.append(Problem(UNKNOWN_FIELD, (*path, word), f'unknown field "{_field((*path, word))}"'))
            elif value is not None and not _FITS[shape](value):
                self.wrong_type((*path, word), shape, value)
            elif value is not None:
                out[word] = value
        return out

    def wrong_type(self, path: Path, wanted: str, value: Any) -> None:
        found = wording.type_name(value)
        words = "array of strings" if wanted == "strings" else wanted
        message = f"{_field(path)}: Invalid value: {wording.quote(found)}: must be of type {words}"
        self.problems.append(Problem(WRONG_TYPE, path, message, expected=words, found=found))

    def standard(self, words: Words, path: Path) -> None:
        """What OpenAPI knows and definitions do not."""
        for word in _NOT_SUPPORTED:
            if words.get(word) not in (None, "", {}):
                self.forbidden((*path, word), f"{word} is not supported")
        kind = words.get("type", "")
        if kind and kind not in _TYPES:
            self.unsupported((*path, "type"), kind, _TYPES)
        if isinstance(words.get("items"), list):
            self.forbidden((*path, "items"), "items must be a schema object and not an array")
        if words.get("uniqueItems"):
            detail = "uniqueItems cannot be set to true since the runtime complexity becomes quadratic"
            self.forbidden((*path, "uniqueItems"), detail)
        if "additionalProperties" in words and words.get("properties") and words["additionalProperties"] is not True:
            self.forbidden((*path, "additionalProperties"), "additionalProperties and properties are mutual exclusive")
        if words.get("x-kubernetes-preserve-unknown-fields") is False:
            self.invalid((*path, "x-kubernetes-preserve-unknown-fields"), False, "must be true or undefined")
        if pattern := words.get("pattern"):
            try:
                re2.compile(pattern, _QUIET)
            except re2.error as error:
                reason = error.args[0]
                detail = f"must be a valid regular expression, but isn't: {reason.decode('utf-8', 'replace')}"
                self.invalid((*path, "pattern"), pattern, detail)

    def nested(self, words: Words, path: Path) -> None:
        """Inside anyOf and its like only values are judged; what a value is, is said outside."""
        for word, wanted in _NOT_NESTED.items():
            if words.get(word) not in (None, "", False, []) and not (word == "default" and words[word] is None):
                self.forbidden((*path, word), f"must be {wanted} to be structural")
        if "metadata" in words.get("properties", ()):
            self.forbidden((*path, "properties", "metadata"), "must not be specified in a nested context")

    def structural(self, words: Words, path: Path, level: Level) -> None:
        """The invariants of a structural schema."""
        kind = words.get("type", "")
        embedded = words.get("x-kubernetes-embedded-resource", False)
        preserves = words.get("x-kubernetes-preserve-unknown-fields", False)
        either = words.get("x-kubernetes-int-or-string", False)
        if kind == "array" and not isinstance(words.get("items"), dict | list):
            self.required((*path, "items"), "must be specified")
        if embedded and kind != "object":
            self.invalid((*path, "type"), kind, "must be object if x-kubernetes-embedded-resource is true")
        elif not kind and not either and not preserves:
            where = {"root": "at the root", "item": "for specified array items", "field": "for specified object fields"}
            self.required((*path, "type"), f"must not be empty {where[level]}")
        if level == "root" and kind not in ("", "object"):
            self.invalid((*path, "type"), kind, "must be object at the root")
        for word, value in (
            ("x-kubernetes-preserve-unknown-fields", preserves),
            ("x-kubernetes-embedded-resource", embedded),
        ):
            if either and value:
                self.invalid((*path, word), value, "must be false if x-kubernetes-int-or-string is true")
        if "additionalProperties" in words and (level == "root" or embedded):
            where_not = "at the root" if level == "root" else "if x-kubernetes-embedded-resource is set"
            self.forbidden((*path, "additionalProperties"), f"must not be used {where_not}")
        if embedded and not preserves and not words.get("properties"):
            detail = "must not be empty if x-kubernetes-embedded-resource is true"
            self.required((*path, "properties"), f"{detail} without x-kubernetes-preserve-unknown-fields")
        if level == "root" or embedded:
            self.head(words.get("properties", {}), (*path, "properties"), level == "root")

    def head(self, properties: Words, path: Path, is_root: bool) -> None:
        """What may be said about what every object has."""
        for name, wanted in (("apiVersion", "string"), ("kind", "string"), ("metadata", "object")):
            described = properties.get(name)
            if isinstance(described, dict) and described.get("type") != wanted:
                self.invalid((*path, name, "type"), described.get("type", ""), f"must be {wanted}")
        metadata = properties.get("metadata")
        if is_root and isinstance(metadata, dict):
            others = {word for word, value in metadata.items() if value} - {"type", "description", "properties"}
            if others or set(metadata.get("properties") or ()) - {"name", "generateName"}:
                detail = "must not specify anything other than name and generateName"
                self.forbidden((*path, "metadata"), f"{detail}, but metadata is implicitly specified")

    def lists(self, words: Words, path: Path) -> None:
        """`x-kubernetes-list-type`, `-list-map-keys` and `-map-type`."""
        list_type, map_type = words.get("x-kubernetes-list-type"), words.get("x-kubernetes-map-type")
        keys, kind = words.get("x-kubernetes-list-map-keys", []), words.get("type", "")
        for word, value, wanted, supported in (
            ("x-kubernetes-map-type", map_type, "object", ("atomic", "granular")),
            ("x-kubernetes-list-type", list_type, "array", ("atomic", "set", "map")),
        ):
            if value is not None and kind != wanted:
                self.invalid((*path, "type"), kind, f"must be {wanted} if {word} is specified")
            if value is not None and value not in supported:
                self.unsupported((*path, word), value, supported)
        if keys and list_type != "map":
            detail = "must be map if x-kubernetes-list-map-keys is non-empty"
            self.invalid((*path, "x-kubernetes-list-type"), list_type or "", detail)
        items = words.get("items")
        if list_type not in ("set", "map") or not isinstance(items, dict):
            return
        at_items = (*path, "items")
        if items.get("nullable"):
            self.forbidden((*at_items, "nullable"), f"cannot be nullable when x-kubernetes-list-type is {list_type}")
        if list_type == "set":
            which = {"array": "list", "object": "map"}.get(items.get("type", ""))
            implied = "atomic" if which == "list" else "granular"
            if which is not None and items.get(f"x-kubernetes-{which}-type", implied) != "atomic":
                detail = "must be atomic as item of a list with x-kubernetes-list-type=set"
                self.invalid((*at_items, f"x-kubernetes-{which}-type"), None, detail)
        else:
            self.keys(keys, items, path)

    def keys(self, keys: list[str], items: Words, path: Path) -> None:
        """The keys of a list that is a map."""
        at_keys, at_items = (*path, "x-kubernetes-list-map-keys"), (*path, "items")
        if not keys:
            self.required(at_keys, "must not be empty if x-kubernetes-list-type is map")
        if len(set(keys)) < len(keys):
            self.invalid(at_keys, keys, "must not contain duplicate entries")
        if items.get("type") != "object":
            detail = "must be object if parent array's x-kubernetes-list-type is map"
            self.invalid((*at_items, "type"), items.get("type", ""), detail)
            return
        properties, needed = items.get("properties"), items.get("required")
        for key in dict.fromkeys(keys):
            described = properties.get(key) if isinstance(properties, dict) else None
            at_key = (*at_items, "properties", key)
            if not isinstance(described, dict):
                self.invalid(at_keys, keys, "entries must all be names of item properties")
                continue
            if described.get("type") in ("array", "object"):
                detail = "must be a scalar type if parent array's x-kubernetes-list-type is map"
                self.invalid((*at_key, "type"), described["type"], detail)
            property_of = "this property is in x-kubernetes-list-map-keys, so it"
            if key not in (needed or ()) and described.get("default") is None:
                self.required((*at_key, "default"), f"{property_of} must have a default or be a required property")
            if described.get("nullable"):
                self.forbidden((*at_key, "nullable"), f"{property_of} cannot be nullable")

    def rules(self, words: Words, path: Path) -> None:
        """The texts of rules, before anybody reads them as CEL."""
        shapes = {word: _RULE_SHAPES.get(word, "string") for word in RULE_WORDS if not word.startswith("x-tierwall-")}
        for index, given in enumerate(words.get("x-kubernetes-validations", ())):
            at_rule = (*path, "x-kubernetes-validations", index)
            rule = self.shaped(given, at_rule, shapes)
            if rule is None:
                continue
            text, message = rule.get("rule", "").strip(), rule.get("message", "")
            if not text:
                self.required((*at_rule, "rule"), "rule is not specified")
            elif message and not message.strip():
                self.invalid((*at_rule, "message"), message, "must be non-empty if specified")
            elif _has_line_break(message.strip()):
                self.invalid((*at_rule, "message"), message, "must not contain line breaks")
            elif _has_line_break(text) and not message:
                self.required((*at_rule, "message"), "message must be specified if rule contains line breaks")
            if rule.get("messageExpression") and not rule["messageExpression"].strip():
                self.required((*at_rule, "messageExpression"), "messageExpression must be non-empty if specified")
            if rule.get("reason") and rule["reason"] not in _REASONS:
                self.unsupported((*at_rule, "reason"), rule["reason"], _REASONS)
            if rule.get("fieldPath") and not _leads_somewhere(rule["fieldPath"], words):
                self.invalid((*at_rule, "fieldPath"), rule["fieldPath"], "must be a valid path")

    def below(self, words: Words, path: Path, nested: bool) -> None:
        """The nodes inside a node."""
        properties = words.get("properties", {})
        for name, inner in properties.items():
            self.node(inner, (*path, "properties", name), "field", nested=nested)
        if isinstance(words.get("items"), dict):
            self.node(words["items"], (*path, "items"), "item", nested=nested)
        if isinstance(words.get("additionalProperties"), dict):
            self.node(words["additionalProperties"], (*path, "additionalProperties"), "field", nested=nested)
        for at, part in _alternatives(words):
            self.node(part, (*path, *at), "field", nested=True)

    def complete(self, words: Words, described: Words, path: Path, at: Path) -> None:
        """Every value that anyOf and its like judge at `at` must be described outside of them, at `path`."""
        for place, part in _alternatives(words):
            for name, inner in (part.get("properties") or {}).items():
                outside = (described.get("properties") or {}).get(name)
                where = (*at, *place, "properties", name)
                if outside is None:
                    self.required((*path, "properties", name), f"because it is defined in {_field(where)}")
                else:
                    self.complete({"allOf": [inner]}, outside, (*path, "properties", name), where[:-1])
            if part.get("items") is not None:
                if described.get("items") is None:
                    self.required((*path, "items"), f"because it is defined in {_field((*at, *place, 'items'))}")
                else:
                    self.complete({"allOf": [part["items"]]}, described["items"], (*path, "items"), (*at, *place))
            self.complete(part, described, path, (*at, *place))

    # defaults and rules

    def contents(self, words: Words, path: Path, *, is_object: bool, uncorrelated: Path | None) -> None:
        """Defaults must fit their schemas and rules must be CEL over them, here and below.

        `uncorrelated` is the first schema above whose old and new values cannot be told to be the same.
        """
        if self.is_over:
            return
        if words.get("default") is not None:
            self.default(words, path)
        if words.get("x-kubernetes-validations"):
            self_type = object_type("self", words) if is_object else schema_type("self", words)
            for index, rule in enumerate(words["x-kubernetes-validations"]):
                self.expression(rule, self_type, (*path, "x-kubernetes-validations", index), uncorrelated)
        inside = uncorrelated or (path if words.get("x-kubernetes-map-type") == "atomic" else None)
        for name, inner in (words.get("properties") or {}).items():
            if not (is_object and name in _HEAD):
                below = bool(inner.get("x-kubernetes-embedded-resource"))
                self.contents(inner, (*path, "properties", name), is_object=below, uncorrelated=inside)
        items, values = words.get("items"), words.get("additionalProperties")
        if isinstance(items, dict):
            inside = uncorrelated or (path if words.get("x-kubernetes-list-type") != "map" else None)
            below = bool(items.get("x-kubernetes-embedded-resource"))
            self.contents(items, (*path, "items"), is_object=below, uncorrelated=inside)
        if isinstance(values, dict):
            self.contents(values, (*path, "additionalProperties"), is_object=False, uncorrelated=uncorrelated)

    def default(self, words: Words, path: Path) -> None:
        found = Metered()
        schema = Reader({}, installed=True).read(words)
        Compiler(strict=True, native=False, metered=True).compile(schema)(words["default"], None, found)
        for problem in found[:MOST_PROBLEMS]:
            self.invalid((*path, "default"), words["default"], f"must fit: {problem.message}", problem.code)

    def expression(self, rule: Words, self_type: Type, path: Path, uncorrelated: Path | None) -> None:
        optional = rule.get("optionalOldSelf") is True
        old = Type("optional_type", (self_type,)) if optional else self_type
        environment = Environment(variables={"self": self_type, "oldSelf": old})
        if not self.compiles(rule["rule"], environment, BOOL, "a bool", (*path, "rule")):
            return
        if reads_old_self(rule["rule"]):
            if uncorrelated is not None:
                detail = "oldSelf cannot be used on the uncorrelatable portion of the schema within"
                self.invalid((*path, "rule"), rule["rule"], f"{detail} {_field(uncorrelated)}")
        elif rule.get("optionalOldSelf") is not None:
            detail = "may not be set if oldSelf is not used in rule"
            self.invalid((*path, "optionalOldSelf"), rule["optionalOldSelf"], detail)
        if rule.get("messageExpression"):
            at = (*path, "messageExpression")
            self.compiles(rule["messageExpression"], environment, STRING, "a string", at)

    def compiles(self, text: str, environment: Environment, wanted: Type, name: str, path: Path) -> bool:
        try:
            if compile_source(text, environment).type == wanted:
                return True
            self.invalid(path, text, f"cel expression must evaluate to {name}", RULE)
        except (ParseError, CheckError) as error:
            self.invalid(path, text, f"compilation failed: {error}", RULE)
        return False


def _alternatives(words: Words) -> Iterator[tuple[Path, Words]]:
    """The schemas inside anyOf and its like. Those that say int-or-string say nothing else."""
    for word in ("allOf", "anyOf", "oneOf"):
        if word == "anyOf" and words.get(word) == INT_OR_STRING:
            continue
        for index, part in enumerate(words.get(word) or ()):
            if word == "allOf" and index == 0 and isinstance(part, dict) and part.get("anyOf") == INT_OR_STRING:
                part = {key: value for key, value in part.items() if key != "anyOf"}
            yield (word, index), part
    if words.get("not") is not None:
        yield ("not",), words["not"]


def _leads_somewhere(field_path: str, words: Words) -> bool:
    try:
        steps = field_steps(field_path.strip())
    except ValueError:
        return False
    node: Any = words
    for step in steps:
        properties = node.get("properties") if isinstance(node, dict) else None
        values = node.get("additionalProperties") if isinstance(node, dict) else None
        if isinstance(properties, dict) and step in properties:
            node = properties[step]
        elif isinstance(values, dict):
            node = values
        else:
            return False
    return bool(steps)


_QUIET = re2.Options()
_QUIET.log_errors = False

"""Structural validation: compiles a schema once into functions that check a value and report every problem.

Follows kube-openapi's validators and apiextensions' list-type checks. If a value is missing, of a wrong type, too long,
unsupported or unknown, the API server skips all CEL rules of the object. Here only the rules that could read the damage
are skipped, so that users learn more at once.
"""

import sys
from collections.abc import Iterable
from typing import Any

import msgspec

from tierwall.core.diagnostics import near_miss
from tierwall.resources.admission import wording
from tierwall.resources.admission.problem import (
    COUNT,
    INVALID,
    REQUIRED,
    UNKNOWN_FIELD,
    WRONG_TYPE,
    AdmissionProblem,
    AdmissionProblems,
    PathStep,
    Trail,
    ValueCheck,
    path_of_trail,
)
from tierwall.resources.admission.rules import compile_metered_rules, compile_rules
from tierwall.resources.admission.values import TYPES, openapi_format, unique_items, value_checks
from tierwall.resources.kinds.meta import embedded_object_schema
from tierwall.resources.schema import NO_VALUE, Property, Schema

MAX_PROBLEMS = 200  # per object; hostile input must not make the report huge


class SchemaCompiler:
    """Compiles schemas to checks. Shared fragments are compiled once; `strict` makes unknown fields errors.

    `native` kinds report in the words of Go validation. `metered` kinds come from installed definitions, so their rules
    have a cost budget. `repeated` allows repeated items: API servers do not check list types in defaults.
    """

    def __init__(self, *, strict: bool, native: bool, metered: bool = False, repeated: bool = False) -> None:
        self.strict = strict
        self.native = native
        self.metered = metered
        self.repeated = repeated
        self._seen: dict[Schema, ValueCheck] = {}

    def compile(self, schema: Schema) -> ValueCheck:
        """Return the check of `schema`."""
        known = self._seen.get(schema)
        if known is None:
            known = self._seen[schema] = self._with_rules(schema, self._compile(schema))
        return known

    def _with_rules(self, schema: Schema, check: ValueCheck) -> ValueCheck:
        if not schema.rules:
            return check
        run = compile_metered_rules(schema) if self.metered else compile_rules(schema, native=self.native)

        def checked(value: Any, trail: Trail, problems: AdmissionProblems) -> bool:
            before = len(problems)
            if check(value, trail, problems):
                if value is not None:
                    run(value, trail, problems)
                return True
            damaged = _damaged(problems[before:], trail)
            if damaged and type(value) is dict:
                run(value, trail, problems, damaged)
            return False

        return checked

    def _compile(self, schema: Schema) -> ValueCheck:
        if schema.bare:
            return _check_bare_value
        if schema.embedded_resource:
            schema = embedded_object_schema(schema)
        wanted = "integer,string" if schema.int_or_string else schema.type
        fits = TYPES[wanted]
        parts = list(value_checks(schema, native=self.native))
        if self.metered and wanted in ("", "string") and openapi_format(schema.format) is not None:
            # kube-openapi accepts lists for a string with a format, and nothing else even if the schema has no type.
            fits = TYPES["string,array"]
            parts += [_check_bare_value] if wanted else []
        # A schema without a type stands in anyOf, oneOf, allOf or not. Each keyword judges values of its own type.
        if schema.type in ("array", "") and _is_about_items(schema):
            parts.append(self._array(schema))
        if schema.type in ("object", "") and _is_about_fields(schema):
            parts.append(self._object(schema))
        parts += [self._combined(schema)] if schema.any_of or schema.one_of or schema.all_of or schema.none_of else []
        nullable = schema.nullable or not wanted
        enum = parts[0] if schema.enum and not self.native else None
        form = "" if schema.format.startswith("k8s-") else schema.format

        def check(value: Any, trail: Trail, problems: AdmissionProblems) -> bool:
            if value is None and nullable:
                return enum is None or enum(value, trail, problems)
            if not fits(value):
                path = path_of_trail(trail)
                problems.append(
                    AdmissionProblem(
                        WRONG_TYPE,
                        path,
                        wording.wrong_type(path, wanted, value, form),
                        expected=wanted.replace(",", " or "),
                        actual=wording.type_name(value),
                        # YAML reads `y`, `no` and `1` as something other than text.
                        hint="put it in quotes" if wanted == "string" and type(value) in (bool, int, float) else "",
                    )
                )
                return False
            sound = True
            for part in parts:
                sound &= part(value, trail, problems)
            return sound

        return check

    def _array(self, schema: Schema) -> ValueCheck:
        item_check = self.compile(schema.items) if schema.items is not None else None
        least, most = _bounds(schema.min_items, schema.max_items)
        unique = unique_items(schema) if schema.list_type in ("set", "map") and not self.repeated else None

        def check(value: Any, trail: Trail, problems: AdmissionProblems) -> bool:
            sound = True
            if type(value) is not list:
                return True
            if item_check is not None:
                # A list over its limit is refused anyway, so items beyond the limit are not checked.
                for index, item in enumerate(value[:most]):
                    sound &= item_check(item, (trail, index), problems)
                    if len(problems) >= MAX_PROBLEMS:
                        return False
            if not least <= len(value) <= most:
                sound &= _count(len(value), "items", least, most, trail, problems)
            if unique is not None:
                unique(value, trail, problems)
            return sound

        return check

    def _object(self, schema: Schema) -> ValueCheck:
        properties = {part.name: part.schema for part in schema.properties}
        # The check of a field is compiled when an object first has the field: most objects use few fields of a kind.
        checks: dict[str, ValueCheck] = {}
        needed = [part for part in schema.properties if part.required]
        needed += [Property(name, schema, True) for name in schema.undeclared]
        forbids = schema.additional is NO_VALUE
        extra = self.compile(schema.additional) if schema.additional is not None and not forbids else None
        keys = self.compile(schema.keys) if schema.keys is not None else None
        closed = self.strict and schema.type == "object" and not schema.preserve_unknown and extra is None
        closed = closed or forbids
        least, most = _bounds(schema.min_properties, schema.max_properties)
        largest = schema.max_bytes
        hints = {part.name: part.hint for part in schema.properties if part.hint}

        def check(value: Any, trail: Trail, problems: AdmissionProblems) -> bool:
            sound = known = True
            if type(value) is not dict:
                return True
            for name, item in value.items():
                inner = checks.get(name)
                if inner is None and name in properties:
                    inner = checks[name] = self.compile(properties[name])
                if inner is not None:
                    if not inner(item, (trail, name), problems):
                        sound = False
                        if hints and name in hints:
                            problems[-1] = _with_hint(problems[-1], hints[name])
                elif extra is not None:
                    sound &= _map_entry(name, item, trail, problems, keys, extra)
                elif closed:
                    sound = known = False
                    problems.append(_unknown(name, trail, value, schema.properties))
                if len(problems) >= MAX_PROBLEMS:
                    return False
            for part in needed:
                if part.name not in value:
                    sound = False
                    # A misspelled field is both unknown and missing. The hint about the unknown field is enough.
                    path = path_of_trail(trail)
                    problems.append(
                        AdmissionProblem(REQUIRED, path, wording.required((*path, part.name)), hint=part.hint)
                    )
            if known and not least <= len(value) <= most:
                sound &= _count(len(value), "properties", least, most, trail, problems)
            if largest is not None and _size_in_bytes(value) > largest:
                path = path_of_trail(trail)
                problems.append(AdmissionProblem(COUNT, path, wording.too_long(path, largest)))
            return sound

        return check

    def _combined(self, schema: Schema) -> ValueCheck:
        """Check anyOf, oneOf, allOf and not. Problems inside the alternatives are not reported."""
        any_of = [self.compile(alternative) for alternative in schema.any_of]
        one_of = [self.compile(alternative) for alternative in schema.one_of]
        all_of = [self.compile(part) for part in schema.all_of]
        denied = self.compile(schema.none_of) if schema.none_of is not None else None

        def passes(check: ValueCheck, value: Any, trail: Trail) -> bool:
            problems: AdmissionProblems = []
            return check(value, trail, problems) and not problems

        def check(value: Any, trail: Trail, problems: AdmissionProblems) -> bool:
            name = wording.go_quote("" if trail is None else wording.field_path(path_of_trail(trail)))
            details: list[str] = []
            if any_of and not any(passes(alternative, value, trail) for alternative in any_of):
                details.append(f"{name} must validate at least one schema (anyOf)")
            valid = sum(passes(alternative, value, trail) for alternative in one_of)
            if one_of and valid != 1:
                alternatives = f"Found {valid} valid alternatives" if valid else "Found none valid"
                details.append(f"{name} must validate one and only one schema (oneOf). {alternatives}")
            if denied is not None and passes(denied, value, trail):
                details.append(f"{name} must not validate the schema (not)")
            problems += [
                AdmissionProblem(INVALID, path_of_trail(trail), f'<nil>: Invalid value: "": {detail}')
                for detail in details
            ]
            sound = not details
            for part in all_of:
                sound &= part(value, trail, problems)
            return sound

        return check


def _check_bare_value(value: Any, trail: Trail, problems: AdmissionProblems) -> bool:
    """Check a value without a schema: it may be anything, but objects in it may not have fields."""
    if type(value) is list:
        checks = [_check_bare_value(item, (trail, index), problems) for index, item in enumerate(value)]
        return all(checks)
    if type(value) is dict:
        problems += [_unknown(name, trail, value, ()) for name in value]
    return type(value) is not dict or not value


def _is_about_items(schema: Schema) -> bool:
    limits = (schema.items, schema.min_items, schema.max_items)
    return schema.type == "array" or any(limit is not None for limit in limits)


def _is_about_fields(schema: Schema) -> bool:
    limits = (schema.additional, schema.min_properties, schema.max_properties)
    named = bool(schema.properties or schema.undeclared)
    return schema.type == "object" or named or any(limit is not None for limit in limits)


def _damaged(problems: AdmissionProblems, trail: Trail) -> frozenset[PathStep]:
    """Return the fields of the node at `trail` that have problems; none if the node itself is damaged."""
    depth = len(path_of_trail(trail))
    # A missing field is reported at the object that lacks it. An unknown field may be any field, misspelled.
    if any(len(problem.path) <= depth + (problem.code == UNKNOWN_FIELD) for problem in problems):
        return frozenset()
    return frozenset(problem.path[depth] for problem in problems)


def _map_entry(
    name: str, item: Any, trail: Trail, problems: AdmissionProblems, keys: ValueCheck | None, values: ValueCheck
) -> bool:
    """Check an entry of a map. If keys have a schema too, as in labels, upstream's message names only the map."""
    if keys is None:
        return values(item, (trail, name), problems)
    before = len(problems)
    sound = keys(name, trail, problems) & values(item, trail, problems)
    for index in range(before, len(problems)):
        problems[index] = msgspec.structs.replace(problems[index], path=path_of_trail((trail, name)))
    return sound


def _bounds(least: int | None, most: int | None) -> tuple[int, int]:
    return least or 0, sys.maxsize if most is None else most


def _count(count: int, what: str, least: int, most: int, trail: Trail, problems: AdmissionProblems) -> bool:
    """Append a problem for too few or too many. Return whether CEL rules may run: they do on too few."""
    path = path_of_trail(trail)
    if count < least:
        detail = f"{wording.in_body(path)} should have at least {least} {what}"
        problems.append(AdmissionProblem(COUNT, path, wording.invalid(path, count, detail)))
    if count > most:
        problems.append(AdmissionProblem(COUNT, path, wording.too_many(path, count, most)))
        return False
    return True


def _size_in_bytes(value: dict[str, Any]) -> int:
    """Return the size of the keys and strings of a map."""
    strings = (string for entry in value.items() for string in entry if type(string) is str)
    return sum(len(string) if string.isascii() else len(string.encode("utf-8", "replace")) for string in strings)


def _unknown(name: str, trail: Trail, value: dict[str, Any], properties: Iterable[Property]) -> AdmissionProblem:
    path = path_of_trail((trail, name))
    absent = [part.name for part in properties if part.name not in value]
    message = f'unknown field "{wording.field_path(path)}"'
    return AdmissionProblem(UNKNOWN_FIELD, path, message, actual=f"`{name}`"[:80], hint=near_miss(name[:100], absent))


def _with_hint(problem: AdmissionProblem, hint: str) -> AdmissionProblem:
    return problem if problem.hint else msgspec.structs.replace(problem, hint=hint)

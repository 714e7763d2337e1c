"""The shape of objects of kinds that are known: what the schema of a definition says (docs/prove.md#what-may-come).

Types, required fields, enums and nullable are part of it; bounds, patterns and rules of validation are not. Definitions
among the objects count, and those that Tierwall has of Kubernetes' own kinds, which have some of the fields.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct

from tierwall.logic.cel.language import Languages
from tierwall.logic.cel.terms import Constant, LeafComparison
from tierwall.logic.cel.unknown import Unknown, ValueKind
from tierwall.resources.kinds.registry import Kind, judged_kinds, versions_of
from tierwall.resources.schema import Schema
from tierwall.resources.snapshot import Snapshot
from tierwall.resources.validity import installed_definitions

# What these are about are objects of the same kind.
SUBRESOURCES = ("", "status", "ephemeralcontainers", "resize")
_KINDS: Mapping[str, tuple[ValueKind, ...]] = {
    "object": (ValueKind.MAP,),
    "array": (ValueKind.LIST,),
    "string": (ValueKind.STRING,),
    "integer": (ValueKind.NUMBER,),
    "number": (ValueKind.NUMBER,),
    "boolean": (ValueKind.BOOL,),
    "": tuple(kind for kind in ValueKind if kind is not ValueKind.NULL),
}
# In no name of a group or resource.
_NOBODY = "\0"


class KnownKind(Struct, frozen=True, eq=False):
    """One kind with its versions. An object of a version that is not served is read as one of the storage version."""

    group: str
    plural: str
    versions: tuple[Kind, ...]

    def version(self, name: str) -> Kind:
        """Return the version of this name, or the one that is stored."""
        of_name = (kind for kind in self.versions if kind.version == name)
        return next(of_name, next((kind for kind in self.versions if kind.storage), self.versions[0]))


def known_kinds(snapshots: Sequence[Snapshot], group: Unknown, resource: Unknown) -> list[KnownKind]:
    """Return the kinds that the question tells apart from those that nobody knows.

    What it asks about the others is asked about the unknown ones, too, so their shapes add nothing. A kind that both
    sides of a change define differently counts as unknown.
    """
    by_name: dict[tuple[str, str], KnownKind] = {}
    for name, kinds in judged_kinds().items():
        if _is_told_apart(group, name):
            for kind in kinds:
                _add(by_name, versions_of(name, kind).values(), group, resource)
    for key in {key for snapshot in snapshots for key in installed_definitions(snapshot)}:
        of_sides = [installed_definitions(snapshot).get(key) for snapshot in snapshots]
        definitions = [definition for definition in of_sides if definition is not None]
        first = definitions[0].kinds
        if all(_schemas(definition.kinds) == _schemas(first) for definition in definitions):
            _add(by_name, first.values(), group, resource)
    return [by_name[key] for key in sorted(by_name)]


def _schemas(kinds: Mapping[str, Kind]) -> dict[str, Mapping[str, Any]]:
    return {name: kind.keywords for name, kind in kinds.items()}


def _add(
    by_name: dict[tuple[str, str], KnownKind], versions: Iterable[Kind], group: Unknown, resource: Unknown
) -> None:
    served = tuple(kind for kind in versions if kind.served and kind.scope != "None")
    if served and _is_told_apart(group, served[0].group) and _is_told_apart(resource, served[0].plural):
        by_name[served[0].group, served[0].plural] = KnownKind(served[0].group, served[0].plural, served)


def _is_told_apart(unknown: Unknown, text: str) -> bool:
    languages = unknown.world.languages
    return any(languages.has(language, text) != languages.has(language, _NOBODY) for language in unknown.languages)


class ShapeWriter:
    """Requires that objects have the shape of a kind, as far as the question looks into them."""

    def __init__(self, comparing: LeafComparison, premise: int) -> None:
        self._comparing = comparing
        self._circuit = comparing.circuit
        self._premise = premise

    def object(self, unknown: Unknown, kind: Kind) -> None:
        """Require the shape of a whole object; its metadata has that of every object."""
        named = {"apiVersion": kind.api_version, "kind": kind.kind}
        for name, field in unknown.fields.items():
            if name in named:
                self._require(-unknown.is_kind(ValueKind.MAP), field.present)
                self._require(-field.present, self._comparing.equal(field.value, Constant(named[name])))
            elif name != "metadata":
                self._field(unknown, name, kind.schema, is_closed=not kind.schema.preserve_unknown and kind.strict)

    def _require(self, *literals: int) -> None:
        self._circuit.require(-self._premise, *literals)

    def _field(self, parent: Unknown, name: str, schema: Schema, *, is_closed: bool) -> None:
        field = parent.fields[name]
        known = next((part for part in schema.properties if part.name == name), None)
        if known is not None:
            if known.required:
                self._require(-parent.is_kind(ValueKind.MAP), field.present)
            self._value(field.value, known.schema, is_closed=is_closed)
        elif schema.additional is not None:
            self._value(field.value, schema.additional, is_closed=is_closed)
        elif is_closed and not schema.preserve_unknown and not schema.bare:
            self._require(-field.present)

    def _value(self, unknown: Unknown, schema: Schema, *, is_closed: bool) -> None:
        """Require the shape of a value; whether it is there does not matter."""
        if schema.embedded_resource:
            return
        kinds = (ValueKind.NUMBER, ValueKind.STRING) if schema.int_or_string else _KINDS[schema.type]
        for kind in unknown.shape.kinds:
            if kind not in kinds and not (kind is ValueKind.NULL and schema.nullable):
                self._require(-unknown.is_kind(kind))
        if schema.type == "integer" or schema.int_or_string:
            unknown.whole_if.append(self._premise)
        if schema.enum:
            self._require(*(self._comparing.equal(unknown, Constant(value)) for value in schema.enum))
        if schema.type == "" and not schema.properties:
            return
        # Built-in definitions of Kubernetes' own kinds name only some fields.
        inner_is_closed = is_closed and not schema.preserve_unknown
        for name in unknown.fields:
            self._field(unknown, name, schema, is_closed=inner_is_closed)
        for extra in unknown.extras:
            if schema.additional is not None:
                self._value(extra.value, schema.additional, is_closed=inner_is_closed)
            elif inner_is_closed and not schema.bare:
                self._require(-extra.present)
        if schema.items is not None:
            for element in unknown.elements:
                self._value(element.value, schema.items, is_closed=inner_is_closed)
            for text, literal in unknown.members.items():
                if not _may_be_string(schema.items, text):
                    self._require(-literal)


def _may_be_string(schema: Schema, text: str) -> bool:
    if schema.enum and text not in schema.enum:
        return False
    return schema.embedded_resource or schema.int_or_string or ValueKind.STRING in _KINDS[schema.type]


def completed(value: Any, schema: Schema) -> Any:
    """Return a value with the fields that its schema requires and that nothing asked about."""
    if isinstance(value, dict):
        inner = {part.name: part.schema for part in schema.properties}
        whole = {
            name: completed(entry, of_entry) if (of_entry := inner.get(name, schema.additional)) is not None else entry
            for name, entry in value.items()
        }
        return whole | dict(_required(schema, whole))
    if isinstance(value, list) and schema.items is not None:
        return [completed(item, schema.items) for item in value]
    return value


def _required(schema: Schema, given: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for part in schema.properties:
        if part.required and part.name not in given:
            yield part.name, _simplest(part.schema)


def _simplest(schema: Schema) -> Any:
    if schema.enum:
        return schema.enum[0]
    match schema.type:
        case "object":
            return dict(_required(schema, {}))
        case "array":
            return []
        case "integer" | "number":
            return 0
        case "boolean":
            return False
        case "string":
            return _example(schema.pattern)
    return 0 if schema.int_or_string else {}


def _example(pattern: str) -> str:
    """Return a short string that matches a pattern; an empty one where proofs cannot read it."""
    from tierwall.logic.unsupported import Unsupported

    languages = Languages()
    try:
        wanted = languages.matching(pattern) if pattern else languages.anything
        return next(region.members[0] for region in languages.regions([wanted]) if region.passes[0])
    except (Unsupported, StopIteration):
        return ""

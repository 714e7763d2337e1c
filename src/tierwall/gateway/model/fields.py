"""The atomic fields of a policy, derived from the schemas of its sections (docs/gateway.md#how-settings-are-merged).

A field is merged whole: the winner's value is taken as it was written, nothing inside it is mixed. Each property of a
section is one field, except for four properties whose own properties are fields. Authorizations are unions: the rules
of all levels are taken together (docs/semantics.md#union-fields-add-up).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from tierwall.gateway.model.profile import Section
from tierwall.resources.kinds.agentgateway.backend import backend_section
from tierwall.resources.kinds.agentgateway.frontend import frontend_section
from tierwall.resources.kinds.agentgateway.traffic import traffic_section
from tierwall.resources.schema import Schema

SECTIONS: Mapping[Section, Schema] = {
    "frontend": frontend_section,
    "traffic": traffic_section,
    "backend": backend_section,
}
UNION_FIELDS = frozenset(("traffic.authorization", "frontend.networkAuthorization", "backend.mcp.authorization"))
# Properties that are not a setting of their own: their properties are.
_PARTED = {("traffic", "rateLimit"), ("traffic", "headerModifiers"), ("backend", "ai"), ("backend", "mcp")}
_NO_SETTING = {("traffic", "phase")}
CONDITIONAL = "conditional"


class Field(NamedTuple):
    """An atomic field: `traffic.rateLimit.local` is the keys `rateLimit`, `local` of the section `traffic`."""

    path: str
    section: Section
    keys: tuple[str, ...]
    union: bool
    # Whether its property may hold a `conditional` list instead of the value.
    conditional: bool

    @property
    def part(self) -> str:
        """For a field that is a part of a property, which part; else nothing."""
        return self.keys[1] if len(self.keys) > 1 else ""


def _derived() -> Iterator[Field]:
    for section, schema in SECTIONS.items():
        for outer in schema.properties:
            if (section, outer.name) in _NO_SETTING:
                continue
            conditional = outer.schema.property(CONDITIONAL) is not None
            keys: list[tuple[str, ...]] = [(outer.name,)]
            if (section, outer.name) in _PARTED:
                keys = [(outer.name, inner.name) for inner in outer.schema.properties if inner.name != CONDITIONAL]
            for names in keys:
                path = ".".join((section, *names))
                yield Field(path, section, names, path in UNION_FIELDS, conditional)


FIELDS: Mapping[str, Field] = {field.path: field for field in _derived()}
_BY_SECTION = {section: tuple(field for field in FIELDS.values() if field.section == section) for section in SECTIONS}


class Written(NamedTuple):
    """What one object writes about one field: a value, or the entries of a `conditional` list.

    `path` leads from the section to where it is written.
    """

    field: Field
    path: tuple[str | int, ...]
    value: Any = None
    entries: tuple[Mapping[str, Any], ...] | None = None


def written(section: Section, value: object) -> tuple[Written, ...]:
    """Everything that a section sets, in the order of the schema; null is not set."""
    return tuple(_written(section, value)) if isinstance(value, dict) else ()


def _written(section: Section, value: Mapping[str, Any]) -> Iterator[Written]:
    for field in _BY_SECTION[section]:
        outer = value.get(field.keys[0])
        if outer is None:
            continue
        if field.conditional and isinstance(outer, dict) and isinstance(outer.get(CONDITIONAL), list):
            entries = tuple(entry for entry in outer[CONDITIONAL] if isinstance(entry, dict))
            yield Written(field, (field.keys[0], CONDITIONAL), entries=entries)
        elif not field.part:
            yield Written(field, field.keys, outer)
        elif isinstance(outer, dict) and outer.get(field.part) is not None:
            yield Written(field, field.keys, outer[field.part])

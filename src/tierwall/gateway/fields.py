"""The atomic fields of a policy, derived from the schemas of its sections (docs/gateway.md#how-settings-are-merged).

A field is merged whole: the winner's value is taken as it was written, nothing inside it is mixed. Each property of a
section is one field, but for four properties whose own properties are fields. The fields that hold an authorization are
unions: the rules of all levels are taken together.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from tierwall.resources.kinds.agentgateway.authorization import authorization
from tierwall.resources.kinds.agentgateway.backend import backend_section
from tierwall.resources.kinds.agentgateway.frontend import frontend_section
from tierwall.resources.kinds.agentgateway.traffic import traffic_section
from tierwall.resources.schema import Schema

SECTIONS: Mapping[str, Schema] = {
    "frontend": frontend_section,
    "traffic": traffic_section,
    "backend": backend_section,
}
# Properties that are no setting of their own: their properties are.
_PARTED = {("traffic", "rateLimit"), ("traffic", "headerModifiers"), ("backend", "ai"), ("backend", "mcp")}
_NO_SETTING = {("traffic", "phase")}
CONDITIONAL = "conditional"


class Field(NamedTuple):
    """An atomic field: `traffic.rateLimit.local` is the keys `rateLimit`, `local` of the section `traffic`."""

    path: str
    section: str
    keys: tuple[str, ...]
    union: bool = False
    # Whether its property may hold a `conditional` list instead of the value.
    conditional: bool = False

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
            if (section, outer.name) not in _PARTED:
                path = f"{section}.{outer.name}"
                yield Field(path, section, (outer.name,), outer.schema is authorization, conditional)
                continue
            for inner in outer.schema.properties:
                if inner.name != CONDITIONAL:
                    path = f"{section}.{outer.name}.{inner.name}"
                    keys = (outer.name, inner.name)
                    yield Field(path, section, keys, inner.schema is authorization, conditional)


FIELDS: Mapping[str, Field] = {field.path: field for field in _derived()}
_BY_SECTION = {section: tuple(one for one in FIELDS.values() if one.section == section) for section in SECTIONS}


class Setting(NamedTuple):
    """What one object says about one field: a value, or the entries of a `conditional` list.

    `path` leads from the section to where it is written.
    """

    field: Field
    path: tuple[str | int, ...]
    value: Any = None
    entries: tuple[Mapping[str, Any], ...] | None = None


def settings(section: str, value: object) -> tuple[Setting, ...]:
    """Everything that a section sets, in the order of the schema; null is not set."""
    return tuple(_settings(section, value)) if isinstance(value, dict) else ()


def _settings(section: str, value: Mapping[str, Any]) -> Iterator[Setting]:
    for field in _BY_SECTION[section]:
        outer = value.get(field.keys[0])
        if outer is None:
            continue
        if field.conditional and isinstance(outer, dict) and isinstance(outer.get(CONDITIONAL), list):
            entries = tuple(entry for entry in outer[CONDITIONAL] if isinstance(entry, dict))
            yield Setting(field, (field.keys[0], CONDITIONAL), entries=entries)
        elif not field.part:
            yield Setting(field, field.keys, outer)
        elif isinstance(outer, dict) and outer.get(field.part) is not None:
            yield Setting(field, field.keys, outer[field.part])

"""The atomic fields of a policy, derived from the schemas of its sections (docs/gateway.md#how-settings-are-merged).

A field is merged as a whole: the winner's value is taken exactly as written. Each property of a section is one field,
except for four properties whose nested properties are the fields. Authorizations are unions: the rules of all levels
apply together (docs/semantics.md#union-fields-add-up). This module also says what depends on the profile, the section
and the phase of a request: how a field is merged, and where Override counts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal, TypeAlias

from msgspec import Struct

from tierwall.attach.acceptance import left_out_settings
from tierwall.attach.place import INFERENCE_POOL
from tierwall.attach.target import entries
from tierwall.core.diagnostics import near_miss
from tierwall.core.words import join_names
from tierwall.resources.kinds.registry import schema_of
from tierwall.resources.resource import Resource, nested_map
from tierwall.resources.schema import Schema

# Two readings of the precedence rules (docs/gateway.md#two-profiles): `docs` is what agentgateway documents,
# `agentgateway` is what its data plane does.
Profile: TypeAlias = Literal["docs", "agentgateway"]
PROFILES: tuple[Profile, ...] = ("docs", "agentgateway")

Phase: TypeAlias = Literal["PostRouting", "PreRouting"]
PHASES: tuple[Phase, ...] = ("PostRouting", "PreRouting")

Section: TypeAlias = Literal["frontend", "traffic", "backend"]

# The fields that the least specific level wins (docs/semantics.md#oddities-of-the-agentgateway-profile): the data plane
# goes from the least specific level to the most specific and sets them only while they are unset.
LEAST_SPECIFIC_WINS: Mapping[Profile, frozenset[str]] = {
    "docs": frozenset(),
    "agentgateway": frozenset(("traffic.buffer",)),
}


def _section(name: Section) -> Schema:
    return schema_of("agentgateway.dev/v1alpha1", "AgentgatewayPolicy", "spec", name)


SECTIONS: Mapping[Section, Schema] = {name: _section(name) for name in ("frontend", "traffic", "backend")}
UNION_FIELDS = frozenset(("traffic.authorization", "frontend.networkAuthorization", "backend.mcp.authorization"))
# Properties that are not settings themselves; their nested properties are.
_SPLIT = {("traffic", "rateLimit"), ("traffic", "headerModifiers"), ("backend", "ai"), ("backend", "mcp")}
_NOT_SETTINGS = {("traffic", "phase")}
CONDITIONAL = "conditional"


class PolicyField(Struct, frozen=True):
    """An atomic field: `traffic.rateLimit.local` has the keys `rateLimit` and `local` in the section `traffic`."""

    path: str
    section: Section
    keys: tuple[str, ...]
    union: bool
    # Whether its property may have a `conditional` list instead of a value.
    conditional: bool

    @property
    def part(self) -> str:
        """The nested property that the field is, or an empty string if the field is a whole property."""
        return self.keys[1] if len(self.keys) > 1 else ""


def _derive_fields() -> Iterator[PolicyField]:
    for section, schema in SECTIONS.items():
        for outer in schema.properties:
            if (section, outer.name) in _NOT_SETTINGS:
                continue
            conditional = outer.schema.at(CONDITIONAL) is not None
            keys: list[tuple[str, ...]] = [(outer.name,)]
            if (section, outer.name) in _SPLIT:
                keys = [(outer.name, inner.name) for inner in outer.schema.properties if inner.name != CONDITIONAL]
            for names in keys:
                path = ".".join((section, *names))
                yield PolicyField(path, section, names, path in UNION_FIELDS, conditional)


FIELDS: Mapping[str, PolicyField] = {field.path: field for field in _derive_fields()}
_BY_SECTION = {section: tuple(field for field in FIELDS.values() if field.section == section) for section in SECTIONS}


class WrittenField(Struct, frozen=True):
    """The value that one object writes for one field, or the entries of its `conditional` list.

    `path` leads from the section to the value or the list.
    """

    field: PolicyField
    path: tuple[str | int, ...]
    value: Any = None
    entries: tuple[Mapping[str, Any], ...] | None = None

    def entry_value(self, policy: Any) -> Any:
        """Return the value that the policy of an entry has for the field: the whole, or the part that the field is."""
        part = self.field.part
        return policy.get(part) if part and isinstance(policy, dict) else policy

    def has_part(self, entry: Mapping[str, Any]) -> bool:
        """Whether an entry has the part of the property that the field is, and it is not empty."""
        return not self.field.part or bool(self.entry_value(entry.get("policy")))


def field_hint(name: str) -> str:
    """Return what may have been meant by the name of a field that does not exist, or an empty string."""
    parts = [path for path in FIELDS if path.startswith(f"{name}.")]
    return f"its fields are {join_names(parts, None)}" if name.count(".") == 1 and parts else near_miss(name, FIELDS)


def has_override(policy: Resource) -> bool:
    """Whether a policy keeps more specific levels from changing the fields it sets."""
    return nested_map(policy.spec, "strategy").get("inheritance") == "Override"


def fields_written_by(policy: Resource, section: Section, phase: Phase) -> tuple[WrittenField, ...]:
    """Return the fields that a section of a policy sets in a phase. Only the traffic section has phases.

    A setting that is left out for its broken expression sets nothing (docs/gateway.md#status).
    """
    value = policy.spec.get(section)
    if section == "traffic" and isinstance(value, dict) and (value.get("phase") or "PostRouting") != phase:
        return ()
    written = written_fields(section, value)
    if left_out := left_out_settings(policy):
        return tuple(field for field in written if (section, field.field.keys[0]) not in left_out)
    return written


def unread_fields(policy: Resource) -> tuple[WrittenField, ...]:
    """Return the fields that no request looks for: `traffic` on InferencePools.

    Admission accepts such a policy and a controller says that it is attached, but requests look for traffic settings
    at Gateways, listeners and routes only (docs/gateway.md#settled-here).
    """
    if not any((entry.group, entry.kind) == INFERENCE_POOL for entry in entries(policy)):
        return ()
    return written_fields("traffic", policy.spec.get("traffic"))


def written_fields(section: Section, value: object) -> tuple[WrittenField, ...]:
    """Return the fields that a section sets, in the order of the schema. A field with a null value is not set."""
    return tuple(_written(section, value)) if isinstance(value, dict) else ()


def _written(section: Section, value: Mapping[str, Any]) -> Iterator[WrittenField]:
    for field in _BY_SECTION[section]:
        outer = value.get(field.keys[0])
        if outer is None:
            continue
        if field.conditional and isinstance(outer, dict) and isinstance(outer.get(CONDITIONAL), list):
            entries = tuple(entry for entry in outer[CONDITIONAL] if isinstance(entry, dict))
            yield WrittenField(field, (field.keys[0], CONDITIONAL), entries=entries)
        elif not field.part:
            yield WrittenField(field, field.keys, outer)
        elif isinstance(outer, dict) and outer.get(field.part) is not None:
            yield WrittenField(field, field.keys, outer[field.part])


def override_locks(section: Section, profile: Profile, phase: Phase) -> bool:
    """Whether Override keeps more specific levels from setting the fields of a section.

    docs/semantics.md#override-locks-a-field. Only the traffic section has a strategy, and the data plane ignores it
    before routing.
    """
    return section == "traffic" and (profile == "docs" or phase != "PreRouting")

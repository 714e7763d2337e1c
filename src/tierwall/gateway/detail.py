"""What only an answer of the gateway plane has (docs/semantics.md#what-a-gateway-answer-holds).

The walk of a question is the steps of its fields: `FieldDetail` groups the very steps that `Answer.steps` lists.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from tierwall.core.answer import Step
from tierwall.core.reference import Reference
from tierwall.gateway.model.fields import Phase, Profile


class Setting(msgspec.Struct, frozen=True):
    """The value of a field that is in force, and who set it.

    Of a union `value` is a list, and each of its values comes from the source at the same number; any other field has
    one source.
    """

    value: Any
    sources: tuple[Reference, ...]
    union: bool = False

    @property
    def written_from(self) -> str | list[str]:
        """The sources as `from` has them: a text, and a list of them for a union."""
        sources = [str(source) for source in self.sources]
        return sources if self.union else sources[0]


def equal_settings(one: Setting | None, other: Setting | None) -> bool:
    """Whether two settings have the same value from the same sources."""
    if one is None or other is None:
        return one is other
    return one.sources == other.sources and equal_values(one.value, other.value)


def equal_values(one: Any, other: Any) -> bool:
    """Equality of JSON values: true is not 1, and 1 is 1.0."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(equal_values(value, other[key]) for key, value in one.items())
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(equal_values, one, other))
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    return bool(one == other)


class FieldSetter(msgspec.Struct, frozen=True):
    """An object in force for a field: its step, whether it has Override, and which entry of a list is selected."""

    step: Step
    override: bool = False
    # Whether it has a `conditional` list; then `entry` is None if the list wins and selects nothing.
    conditional: bool = False
    entry: int | None = None


class FieldDetail(msgspec.Struct, frozen=True):
    """One field: its setting (None if it is not set), who is in force, and whom they beat and why."""

    field: str
    setting: Setting | None
    set_by: tuple[FieldSetter, ...]
    over: tuple[Step, ...]
    conflict: bool = False


class ProfileDifference(msgspec.Struct, frozen=True):
    """A field that the two profiles settle differently; None is a field that is not set."""

    field: str
    docs: Setting | None
    agentgateway: Setting | None
    # Whether each profile sees a conflict.
    docs_conflict: bool = False
    agentgateway_conflict: bool = False

    @property
    def disputed(self) -> bool:
        """Whether one profile sees a conflict and the other does not."""
        return self.docs_conflict != self.agentgateway_conflict


class GatewayDetail(msgspec.Struct, frozen=True, kw_only=True):
    """The settings in force at a place, by field path, and the fields that two policies of one level set."""

    effective: Mapping[str, Setting]
    conflicts: tuple[str, ...]
    place: str
    profile: Profile
    phase: Phase
    fields: tuple[FieldDetail, ...]
    profiles_differ: tuple[ProfileDifference, ...]
    notes: tuple[str, ...]

"""The part of an answer that only the gateway plane has (docs/semantics.md#what-a-gateway-answer-holds).

`FieldDetail` groups by field the same steps that `Answer.steps` lists.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from tierwall.core.answer import Step
from tierwall.core.reference import Reference
from tierwall.gateway.model.fields import Phase, Profile


class Setting(msgspec.Struct, frozen=True):
    """The value of a field that is in force, and the objects that set it.

    For a union, `value` is a list and `sources` has the source of each of its values. Any other field has one source.
    """

    value: Any
    sources: tuple[Reference, ...]
    union: bool = False

    @property
    def written_from(self) -> str | list[str]:
        """The sources as `from` writes them: a string, or a list of strings for a union."""
        sources = [str(source) for source in self.sources]
        return sources if self.union else sources[0]

    def with_own_value(self) -> Setting:
        """Return this setting with a copy of its value, which otherwise belongs to the object that sets it."""
        return msgspec.structs.replace(self, value=msgspec.to_builtins(self.value))


def equal_settings(left: Setting | None, right: Setting | None) -> bool:
    """Whether two settings have the same value from the same sources."""
    if left is None or right is None:
        return left is right
    return left.sources == right.sources and equal_values(left.value, right.value)


def equal_values(left: Any, right: Any) -> bool:
    """Whether two JSON values are equal: true does not equal 1, but 1 equals 1.0."""
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(equal_values(value, right[key]) for key, value in left.items())
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(equal_values, left, right))
    if isinstance(left, bool) or isinstance(right, bool):
        return left is right
    return bool(left == right)


class FieldSetter(msgspec.Struct, frozen=True):
    """An object that is in force for a field: its step, whether it has Override, and the selected list entry."""

    step: Step
    override: bool = False
    # Whether it has a `conditional` list. If that list wins and selects nothing, `entry` is None.
    conditional: bool = False
    entry: int | None = None


class FieldDetail(msgspec.Struct, frozen=True):
    """One field: its setting (None if it is not set), the objects in force, and the objects they beat and why."""

    field: str
    setting: Setting | None
    set_by: tuple[FieldSetter, ...]
    over: tuple[Step, ...]
    conflict: bool = False


class ProfileDifference(msgspec.Struct, frozen=True):
    """A field that the two profiles merge differently; None means that the field is not set."""

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
    """The settings in force at a place by field path, and the fields that two policies of the same level set."""

    effective: Mapping[str, Setting]
    conflicts: tuple[str, ...]
    place: str
    profile: Profile
    phase: Phase
    fields: tuple[FieldDetail, ...]
    profiles_differ: tuple[ProfileDifference, ...]
    notes: tuple[str, ...]
    # The levels of the place by section, least specific first, whether or not something is set there.
    levels: Mapping[str, tuple[str, ...]] = {}

"""The base class of questions, which reads and writes their keys.

A question is a frozen value whose fields are the keys of docs/policy-tests.md in snake case. The plane checks the
values, because only it knows which names exist. Unknown keys are reported here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Self

import msgspec

from tierwall.core.diagnostics import Diagnostic, InputError, unknown_keys


class Question(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """The base class of all questions; `plane` is the key under which a policy test asks them."""

    plane: ClassVar[str]

    @classmethod
    def keys(cls) -> tuple[str, ...]:
        """Return the keys of the YAML form."""
        return cls.__struct_encode_fields__

    @classmethod
    def read(cls, value: Mapping[str, Any], problems: list[Diagnostic]) -> Self:
        """Make a question from a map, and add unknown keys to `problems`. The plane checks the values later."""
        problems += unknown_keys("TW703", value, cls.keys(), f"a question of the {cls.plane} plane")
        names = zip(cls.__struct_encode_fields__, cls.__struct_fields__, strict=True)
        return cls(**{name: value[key] for key, name in names if key in value})

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> Self:
        """Make a question from its YAML form; raise InputError with every unknown key."""
        problems: list[Diagnostic] = []
        question = cls.read(value, problems)
        if problems:
            raise InputError(problems)
        return question

    def to_dict(self) -> dict[str, Any]:
        """Return the YAML form without default values."""
        return {
            field.encode_name: value
            for field in msgspec.structs.fields(type(self))
            if (value := getattr(self, field.name)) != field.default
        }

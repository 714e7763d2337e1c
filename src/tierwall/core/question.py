"""The base class of questions, which reads and writes their keys.

A question is a frozen value whose fields are the keys of docs/policy-tests.md in snake case. The plane checks the
values, because only it knows which names exist. Unknown keys are reported here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Self

import msgspec

from tierwall.core.diagnostics import Diagnostic, InputError, unknown_keys
from tierwall.core.reference import full_name, full_reference
from tierwall.core.words import as_given


class Question(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """The base class of all questions; `plane` is the key under which a policy test asks them."""

    plane: ClassVar[str]
    # The fields that name objects: as `namespace/name` or `Kind/namespace/name`, and only as the latter.
    names: ClassVar[tuple[str, ...]] = ()
    references: ClassVar[tuple[str, ...]] = ()

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
        given: object = value
        if not isinstance(given, Mapping):
            message = f"expected a map as a question of the {cls.plane} plane, found {as_given(given)}"
            raise InputError([Diagnostic("TW703", message)])
        question = cls.read(value, problems)
        if problems:
            raise InputError(problems)
        return question

    def in_namespace(self, namespace: str) -> Self:
        """Return this question with a namespace in each name that has none (docs/reference/sources.md)."""
        changed = {}
        for complete, fields in ((self.full_name, self.names), (full_reference, self.references)):
            for field in fields:
                given = getattr(self, field)
                # Mostly `namespace/name`, which is complete. Every question passes here.
                if given is None or (type(given) is str and given[:1].islower() and "/" in given):
                    continue
                if (full := complete(given, namespace)) != given:
                    changed[field] = full
        return msgspec.structs.replace(self, **changed) if changed else self

    @staticmethod
    def full_name(name: Any, namespace: str) -> Any:
        """Put a namespace into a name that has none."""
        return full_name(name, namespace)

    def to_dict(self) -> dict[str, Any]:
        """Return the YAML form without default values."""
        return {
            field.encode_name: value
            for field in msgspec.structs.fields(type(self))
            if (value := getattr(self, field.name)) != field.default
        }

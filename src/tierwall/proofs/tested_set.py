"""Sets of strings of a region, as tests on unknown strings."""

from __future__ import annotations

from tierwall.logic.cel.unknown import Unknown
from tierwall.proofs.value_set import SetForm, ValueSet


def in_set(unknown: Unknown, values: ValueSet) -> int:
    """Return the literal that says that a string is in a set."""
    languages = unknown.world.languages
    match values.form:
        case SetForm.IN:
            return unknown.in_language(languages.one_of(values.values))
        case SetForm.NOT:
            return -unknown.in_language(languages.one_of(values.values))
        case SetForm.PREFIX:
            return unknown.in_language(languages.starting_with(values.values[0]))
        case SetForm.SUFFIX:
            return unknown.in_language(languages.ending_with(values.values[0]))
        case SetForm.MATCHES:
            return unknown.in_language(languages.matching(values.values[0], whole=True))

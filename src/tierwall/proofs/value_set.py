"""A value of a region is a set of strings (docs/prove.md#regions). Every plane reads its fields with this.

A scalar is just that value; a list, one of these; `{not: [...]}`, none of these; `{prefix: p}`, `{suffix: s}` and
`{matches: re}` (the whole value, RE2) are what they say; a field that is left out is anything.
"""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct


class SetForm(StrEnum):
    """How a set of values is written; all but a list are keys of a map."""

    IN = "in"
    NOT = "not"
    PREFIX = "prefix"
    SUFFIX = "suffix"
    MATCHES = "matches"


class ValueSet(Struct, frozen=True):
    """A set of strings. `values` are those listed, or the one prefix, suffix or pattern."""

    form: SetForm
    values: tuple[str, ...] = ()

    @property
    def is_everything(self) -> bool:
        """Whether nothing is left out."""
        return self.form is SetForm.NOT and not self.values

    def contains(self, text: str) -> bool:
        """Whether a value is in the set."""
        if self.form is SetForm.IN:
            return text in self.values
        if self.form is SetForm.NOT:
            return text not in self.values
        (part,) = self.values
        if self.form is SetForm.PREFIX:
            return text.startswith(part)
        if self.form is SetForm.SUFFIX:
            return text.endswith(part)
        return whole_match(part, text)


ANYTHING = ValueSet(SetForm.NOT)


def pattern_problem(pattern: str) -> str:
    """Return why RE2 does not accept a pattern, or an empty string."""
    import re2  # few proofs have a pattern

    options = re2.Options()
    options.log_errors = False
    try:
        re2.compile(pattern, options)
    except re2.error as error:
        reason = error.args[0] if error.args else error
        return reason.decode() if isinstance(reason, bytes) else str(reason)
    return ""


def whole_match(pattern: str, text: str) -> bool:
    """Whether a pattern matches a whole value."""
    import re2

    return re2.fullmatch(pattern, text) is not None

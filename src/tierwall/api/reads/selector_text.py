"""Selectors as kubectl takes them: `-l 'env in (dev,test),!legacy' --field-selector spec.nodeName=n1`.

Read as apimachinery reads them (`labels.Parse`, `fields.ParseSelector`) and told to authorizers as the API server tells
them: `=` and `==` are `In`, `!=` is `NotIn`. It does not tell `>` and `<` at all.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator

import msgspec

from tierwall.core.labels import Requirement
from tierwall.values.names import label_key, label_value

_LABEL_TERM = re.compile(
    r"\s*(?:(?P<absent>!)\s*(?P<no>[^\s!=<>(),]+)"
    r"|(?P<key>[^\s!=<>(),]+)\s*(?:(?P<sign>==|=|!=|<|>)\s*(?P<value>[^\s!=<>(),]*)"
    r"|(?P<set>in|notin)\s*\((?P<values>[^()]*)\))?)\s*(?:,|$)"
)
_FIELD_TERM = re.compile(r"(?P<key>[^=!,]+)(?P<sign>==|=|!=)(?P<value>(?:\\[\\,=]|[^\\,=])*)")


class SelectorTextError(ValueError):
    """A text that is not a selector."""


class ReadSelector(msgspec.Struct, frozen=True):
    """The label and the field selector of one request."""

    labels: tuple[Requirement, ...] = ()
    fields: tuple[Requirement, ...] = ()

    @property
    def label_selector(self) -> str:
        """The label selector as a text."""
        return ",".join(map(_label_text, self.labels))

    @property
    def field_selector(self) -> str:
        """The field selector as a text; of several values, one requirement for each that is excluded."""
        return ",".join(text for requirement in self.fields for text in _field_texts(requirement))

    @property
    def options(self) -> str:
        """The options of kubectl, quoted for a shell; empty if everything is selected."""
        labels, fields = self.label_selector, self.field_selector
        words = ["-l", labels] if labels else []
        return shlex.join([*words, *(["--field-selector", fields] if fields else [])])

    @property
    def is_printable(self) -> bool:
        """Whether it can be printed as it is: control characters are escaped in every output."""
        return self.label_selector.isprintable() and self.field_selector.isprintable()

    def to_dict(self) -> dict[str, str]:
        """Return `{labelSelector, fieldSelector}`, as a list request has them."""
        return {"labelSelector": self.label_selector, "fieldSelector": self.field_selector}

    def __str__(self) -> str:
        return self.options


def _label_text(requirement: Requirement) -> str:
    if requirement.operator == "NotIn" and len(requirement.values) == 1:
        return f"{requirement.key}!={requirement.values[0]}"
    return str(requirement)


def _field_texts(requirement: Requirement) -> Iterator[str]:
    sign = "=" if requirement.operator == "In" else "!="
    for value in requirement.values:
        escaped = value.replace("\\", "\\\\").replace(",", "\\,").replace("=", "\\=")
        yield f"{requirement.key}{sign}{escaped}"


def exact_name(fields: Iterable[Requirement]) -> str:
    """Return the name that a field selector fixes: an API server tells it as the name of the request."""
    return next((each.values[0] for each in fields if (each.key, each.operator) == ("metadata.name", "In")), "")


def read_label_selector(text: str) -> tuple[Requirement, ...]:
    """Read a label selector; SelectorTextError says what is wrong with it."""
    requirements: list[Requirement] = []
    at = 0
    while text[at:].strip():
        term = _LABEL_TERM.match(text, at)
        if term is None:
            rest = text[at:].strip()
            raise SelectorTextError(f"expected `key=value`, `key in (a,b)`, `key` or `!key`, found `{rest}`")
        if term["sign"] in ("<", ">"):
            raise SelectorTextError(f"expected no `{term['sign']}`: API servers do not tell authorizers about it")
        requirements.append(_label_requirement(term))
        at = term.end()
    for requirement in requirements:
        reasons = label_key(requirement.key)
        for value in requirement.values:
            reasons += label_value(value)
        if reasons:
            raise SelectorTextError(f"`{requirement}`: {reasons[0]}")
    return tuple(sorted(requirements))


def _label_requirement(term: re.Match[str]) -> Requirement:
    if term["absent"]:
        return Requirement(term["no"], "DoesNotExist")
    if term["sign"]:
        return Requirement(term["key"], "NotIn" if term["sign"] == "!=" else "In", (term["value"],))
    if term["set"]:
        values = sorted({value.strip() for value in term["values"].split(",")})
        return Requirement(term["key"], "In" if term["set"] == "in" else "NotIn", tuple(values))
    return Requirement(term["key"], "Exists")


def read_field_selector(text: str) -> tuple[Requirement, ...]:
    """Read a field selector; SelectorTextError says what is wrong with it."""
    requirements: list[Requirement] = []
    for part in _split(text):
        term = _FIELD_TERM.fullmatch(part)
        if term is None:
            raise SelectorTextError(f"expected `field=value` or `field!=value`, found `{part}`")
        value = re.sub(r"\\(.)", r"\1", term["value"])
        requirements.append(Requirement(term["key"], "NotIn" if term["sign"] == "!=" else "In", (value,)))
    return tuple(requirements)


def _split(text: str) -> Iterable[str]:
    """Split at commas that no backslash precedes."""
    return (part for part in re.split(r"(?<!\\),", text) if part)

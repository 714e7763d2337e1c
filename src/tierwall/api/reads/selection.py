"""The selectors of a read: what they say about one label or field, and how kubectl writes them.

Requirements are ANDed, and each only narrows the selection: what cannot be read is left out, which is safe. A label
`In` demands the label, `NotIn` does not. A field always has a text: one that is not there has that of its zero value
(apimachinery `labels.Requirement.Matches`, `fields.Selector`; a SubjectAccessReview has no others).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from tierwall.api.algebra.request import Attributes
from tierwall.api.reads.selectable import NAME, NAMESPACE, SelectableField
from tierwall.core.labels import Requirement
from tierwall.values.names import label_key, label_value

# Longer values of fields exist nowhere, and those that are not ASCII would cost a state for every character.
MAX_VALUE = 253
MAX_REQUIREMENTS, MAX_VALUES = 64, 256


class KeySelection(msgspec.Struct, frozen=True):
    """All requirements on one key together. `values` are those allowed, None for any but the excluded ones.

    `present` is True or False for a label that must or must not be there; a field is None.
    """

    values: frozenset[str] | None = None
    excluded: frozenset[str] = frozenset()
    present: bool | None = None
    is_contradictory: bool = False

    def narrowed(self, requirement: Requirement, *, is_label: bool) -> KeySelection:
        """Return the constraint with one more requirement."""
        given = frozenset(requirement.values)
        match requirement.operator:
            case "In" if given:
                values = given if self.values is None else self.values & given
                return self._checked(values, self.excluded, True if is_label else None)
            case "NotIn" if given:
                return self._checked(self.values, self.excluded | given, self.present)
            case "Exists" if is_label and not given:
                return self._checked(self.values, self.excluded, True)
            case "DoesNotExist" if is_label and not given:
                return self._checked(self.values, self.excluded, False)
        return self

    def _checked(self, values: frozenset[str] | None, excluded: frozenset[str], present: bool | None) -> KeySelection:
        left = None if values is None else values - excluded
        other_presence = self.present is not None and present is not None and self.present is not present
        broken = self.is_contradictory or other_presence or (left is not None and not left)
        return KeySelection(left, excluded, self.present if present is None else present, broken)

    def allows(self, text: str | None) -> bool:
        """Whether an object is selected by the text of this field; None is a label that is not there."""
        if text is None:
            return not self.present and not self.is_contradictory
        return (
            self.present is not False
            and not self.is_contradictory
            and (self.values is None or text in self.values)
            and text not in self.excluded
        )


ANYTHING = KeySelection()


class Selection(msgspec.Struct, frozen=True):
    """The selectors of a request, by label and by field."""

    labels: Mapping[str, KeySelection]
    fields: Mapping[SelectableField, KeySelection]
    # Requirements on labels, and on fields, that do not count. Nothing is shown that they leave out, all the same.
    ignored_labels: tuple[Requirement, ...] = ()
    ignored_fields: tuple[Requirement, ...] = ()

    @property
    def ignored(self) -> tuple[str, ...]:
        """The keys of requirements that do not count."""
        return tuple(dict.fromkeys(each.key for each in (*self.ignored_labels, *self.ignored_fields)))

    @property
    def selects_nothing(self) -> bool:
        """Whether it contradicts itself."""
        return any(constraint.is_contradictory for constraint in (*self.labels.values(), *self.fields.values()))

    def selects(self, value: Mapping[str, Any]) -> bool:
        """Whether an object is selected, as an API server sees it.

        Nobody knows what ignored requirements on fields select: perhaps the resource does not select by these at all.
        """
        labels = value["metadata"].get("labels") or {}
        return (
            not self.ignored_fields
            and all(constraint.allows(labels.get(key)) for key, constraint in self.labels.items())
            and all(constraint.allows(field.text(value_at(value, field))) for field, constraint in self.fields.items())
            and all(ANYTHING.narrowed(each, is_label=True).allows(labels.get(each.key)) for each in self.ignored_labels)
        )


def value_at(value: Any, field: SelectableField) -> Any:
    """Return the value of a field, None if it is not there."""
    for name in field.path:
        value = value.get(name) if isinstance(value, Mapping) else None
    return value


def selection_of(attributes: Attributes, fields: Iterable[SelectableField]) -> Selection:
    """Return what the selectors, the namespace and the name of a request say.

    A list has a name only where a field selector or the path fixes it.
    """
    labels: dict[str, KeySelection] = {}
    ignored_labels: list[Requirement] = []
    for position, requirement in enumerate(attributes.label_selector or ()):
        if position < MAX_REQUIREMENTS and is_usable(requirement, is_label=True):
            labels[requirement.key] = labels.get(requirement.key, ANYTHING).narrowed(requirement, is_label=True)
        else:
            ignored_labels.append(requirement)
    by_name = {field.name: field for field in fields}
    of_fields: dict[SelectableField, KeySelection] = {}
    ignored_fields: list[Requirement] = []
    given: list[Requirement] = []
    if attributes.namespace and (attributes.group, attributes.resource) != ("", "namespaces"):
        given.append(Requirement(NAMESPACE.name, "In", (attributes.namespace,)))
    if attributes.name:
        given.append(Requirement(NAME.name, "In", (attributes.name,)))
    most = MAX_REQUIREMENTS + len(given)
    given += attributes.field_selector or ()
    for position, requirement in enumerate(given):
        field = by_name.get(requirement.key)
        if field is not None and position < most and is_usable(requirement, is_label=False):
            of_fields[field] = of_fields.get(field, ANYTHING).narrowed(requirement, is_label=False)
        else:
            ignored_fields.append(requirement)
    return Selection(labels, of_fields, tuple(ignored_labels), tuple(ignored_fields))


def is_usable(requirement: Requirement, *, is_label: bool) -> bool:
    """Whether a requirement counts: its texts are of a kind that objects have."""
    if len(requirement.values) > MAX_VALUES:
        return False
    if is_label:
        return not label_key(requirement.key) and not any(map(label_value, requirement.values))
    return all(len(text) <= MAX_VALUE and text.isascii() for text in requirement.values)

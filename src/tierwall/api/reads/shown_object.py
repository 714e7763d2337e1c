"""The object that a read may show, as an unknown: its shape, and its labels and fields as selectors tell them apart.

A label or field is in one of a few parts: it is not there, or in one of the regions that the conditions cut its values
into. The conditions cannot tell apart what is in one part, so a selector matters only by the parts that it leaves.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from tierwall.api.reads.selectable import NAME, NAMESPACE, FieldType, SelectableField
from tierwall.api.reads.selection import KeySelection
from tierwall.logic.cel.unknown import STRING, Element, Shape, Unknown, UnknownWorld, ValueKind
from tierwall.logic.cel.value_region import ValueRegion
from tierwall.logic.cel.values import Values
from tierwall.logic.circuit import FALSE, Circuit
from tierwall.values.names import LABEL_KEY, LABEL_VALUE

_KINDS = {
    FieldType.STRING: ValueKind.STRING,
    FieldType.BOOLEAN: ValueKind.BOOL,
    FieldType.INTEGER: ValueKind.NUMBER,
}
_LABELS = Shape(
    (ValueKind.MAP,),
    inner=Shape((ValueKind.STRING,), pattern=LABEL_VALUE),
    keys=Shape((ValueKind.STRING,), pattern=LABEL_KEY),
)
_METADATA = Shape(
    (ValueKind.MAP,),
    fields={
        "name": STRING,
        "namespace": STRING,
        "labels": _LABELS,
        "annotations": Shape((ValueKind.MAP,), inner=STRING),
    },
    required=frozenset(("name",)),
)
# As selectors write it: 64 bits have at most 19 digits.
_INTEGER = re.compile(r"0|-?[1-9][0-9]{0,18}")


class ValuePart(msgspec.Struct, frozen=True):
    """One thing that a label or field may be: not there (`region` is None), or in a region of values."""

    literal: int
    region: ValueRegion | None = None
    # The texts of a region that has just these.
    texts: frozenset[str] | None = None

    def __str__(self) -> str:
        return "absent" if self.region is None else f"one of {sorted(self.texts)}" if self.texts else "another value"


class SelectableValue:
    """A label or field in a world: the parts that it may be in."""

    def __init__(
        self, unknown: Unknown, present: int, presence: set[int], values: Values, field: SelectableField | None = None
    ) -> None:
        self.unknown = unknown
        self.kind = _KINDS[field.type] if field is not None else ValueKind.STRING
        self.field = field
        self._values = values
        circuit = unknown.world.circuit
        self._presence = presence
        is_there = circuit.all_of((present, unknown.is_kind(self.kind)))
        parts = [ValuePart(-is_there)]
        for literal, region, texts in self._regions():
            parts.append(ValuePart(circuit.all_of((is_there, literal)), region, texts))
        self.parts = tuple(part for part in parts if part.literal != FALSE)

    def _regions(self) -> Iterable[tuple[int, ValueRegion, frozenset[str] | None]]:
        if self.kind is ValueKind.BOOL:
            for value in (True, False):
                region = ValueRegion(frozenset(), (value,), True, True)
                yield self.unknown.truth if value else -self.unknown.truth, region, frozenset((str(value).lower(),))
            return
        for literal, region in self._values.places(self.unknown, self.kind):
            yield literal, region, frozenset(map(str, region.members)) if region.is_complete else None

    def matters(self, cone: set[int]) -> bool:
        """Whether what hangs on these variables asks about it, and not just about what is around it."""
        tests = (*self.unknown.languages.values(), *self.unknown.comparisons.values(), self.unknown.truth)
        return self.is_compared or not cone.isdisjoint(self._presence) or not cone.isdisjoint(map(abs, tests))

    @property
    def is_compared(self) -> bool:
        """Whether the conditions compare it with another value: then regions do not tell everything about it."""
        return self.kind is not ValueKind.BOOL and self._values.is_compared(self.unknown, self.kind)

    def excluded_by(self, constraint: KeySelection) -> list[ValuePart]:
        """Return the parts that no selected object is in."""
        return [part for part in self.parts if not self._leaves(constraint, part)]

    def _leaves(self, constraint: KeySelection, part: ValuePart) -> bool:
        if part.region is None:
            return constraint.allows(None if self.field is None else self.field.absent)
        if constraint.present is False:
            return False
        if part.texts is not None:
            return any(map(constraint.allows, part.texts))
        if constraint.values is None:
            return True
        return any(self.is_in(text, part.region) for text in constraint.values)

    def is_in(self, text: str, region: ValueRegion) -> bool:
        """Whether a text is the text of a value in a region."""
        value = self.value(text)
        return value is not None and region.has(value, self._values.passed(self.unknown, self.kind, value))

    def value(self, text: str) -> Any:
        """Return the value that has this text; None if no value has it."""
        if self.kind is ValueKind.STRING:
            return text
        if self.kind is ValueKind.BOOL:
            return {"true": True, "false": False}.get(text)
        return int(text) if _INTEGER.fullmatch(text) else None

    def selected_value(self, constraint: KeySelection, value: Any) -> Any:
        """Return a value that the constraint selects, in the region of this one; None if it is not there."""
        text = None if value is None else str(value).lower() if isinstance(value, bool) else str(value)
        if text is not None and constraint.allows(text):
            return value
        if text is None:
            return None
        region = next(part.region for part in self.parts if part.region is not None and self.is_in(text, part.region))
        texts = sorted(constraint.values or ()) or [f"{member}" for member in region.members]
        spare = next((other for other in texts if constraint.allows(other) and self.is_in(other, region)), None)
        return None if spare is None else self.value(spare)


class ShownObject:
    """The object of one world. `keys` and `texts` are labels and values that selectors name and conditions do not."""

    def __init__(
        self,
        world: UnknownWorld,
        fields: tuple[SelectableField, ...],
        keys: Iterable[str] = (),
        texts: Mapping[str | SelectableField, Iterable[str]] = {},
    ) -> None:
        self.value = world.unknown("object", _shape(fields))
        self._fields = {field: _element_at(self.value, field) for field in fields}
        metadata = _present(self.value, "metadata").value
        self._labels = _present(metadata, "labels")
        name = _present(metadata, "name").value
        world.circuit.require(-name.in_language(world.languages.constant("")))
        for field, (_, element) in self._fields.items():
            if field.type is FieldType.STRING:
                # Selectors take it for a field that is not there; so it is a region of its own.
                element.value.in_language(world.languages.constant(field.absent))
        for key in keys:
            self._labels.value.field(key)
        for named, constants in texts.items():
            value = self._labels.value.field(named) if isinstance(named, str) else self._fields[named][1]
            # An invalid key is not a field: no object has such a label.
            for constant in constants:
                if value is not None:
                    value.value.in_language(world.languages.constant(constant))

    def selectable(self, values: Values, circuit: Circuit) -> dict[str | SelectableField, SelectableValue]:
        """Return the labels that conditions name and the fields of the resource."""
        known: dict[str | SelectableField, SelectableValue] = {}
        for key, label in sorted(self._labels.value.fields.items()):
            present = circuit.all_of((self._labels.present, label.present))
            known[key] = SelectableValue(label.value, present, circuit.inputs_below([label.present]), values)
        for field, (around, element) in self._fields.items():
            present = circuit.all_of((around, element.present))
            presence = circuit.inputs_below([element.present]) - circuit.inputs_below([around])
            known[field] = SelectableValue(element.value, present, presence, values, field)
        return known

    @property
    def has_labels(self) -> int:
        """The literal that says that it has labels at all."""
        return self._labels.present

    @property
    def labels_matter_as_a_whole(self) -> bool:
        """Whether the conditions look at labels that they do not name."""
        return self._labels.value.is_whole


def _element_at(value: Unknown, field: SelectableField) -> tuple[int, Element]:
    """Return the element of a field, and the literal that says that everything around it is there."""
    around: list[int] = []
    for name in field.path[:-1]:
        element = _present(value, name)
        value = element.value
        around += (element.present, value.is_kind(ValueKind.MAP))
    return value.world.circuit.all_of(around), _present(value, field.path[-1])


def _shape(fields: Iterable[SelectableField]) -> Shape:
    """Return the shape of the objects of a resource: its fields have their types, anything else may be anything."""
    tree: dict[str, Any] = {}
    for field in fields:
        if field not in (NAME, NAMESPACE):
            inner = tree
            for name in field.path[:-1]:
                inner = inner.setdefault(name, {})
            inner[field.path[-1]] = field
    shapes = {name: _part(part) for name, part in tree.items()}
    shapes |= {"metadata": _METADATA, "apiVersion": STRING, "kind": STRING}
    return Shape((ValueKind.MAP,), fields=shapes, required=frozenset(("metadata",)))


def _part(part: SelectableField | dict[str, Any]) -> Shape:
    if isinstance(part, SelectableField):
        kind = _KINDS[part.type]
        kinds = (kind, ValueKind.NULL) if part.may_be_null else (kind,)
        return Shape(kinds, number="int")
    inner = {name: _part(each) for name, each in part.items()}
    may_be_null = any(ValueKind.NULL in shape.kinds for shape in inner.values())
    return Shape((ValueKind.MAP, ValueKind.NULL) if may_be_null else (ValueKind.MAP,), fields=inner)


def _present(parent: Unknown, name: str) -> Element:
    element = parent.field(name)
    assert element is not None, f"there may be a field {name}"
    return element

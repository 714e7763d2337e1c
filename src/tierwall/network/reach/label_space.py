"""All sets of labels that selectors tell apart: a space with one axis per label key.

On an axis, no selector distinguishes two values that none of them mentions. So the points of an axis are: the key is
absent, it has one of the mentioned values, or it has another value. A selector is a box: a set of points on every axis.
Cutting the space along the boxes of all selectors gives the regions that selectors tell apart. Every box that arises is
again a selector, so a region can be named by selectors that are true of all of it and of nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TypeAlias

from tierwall.core.labels import Requirement, Selector

# Points on an axis, as bits. The mentioned values follow.
ABSENT, OTHER, FIRST_VALUE = 1, 2, 4
# How a value begins that no selector mentions.
OTHER_VALUE = "any"
# The set of points on each axis, in the order of the axes.
LabelBox: TypeAlias = tuple[int, ...]
# Joining boxes looks at each of them along every axis. With more boxes times axes than this, their names stay long.
MAX_JOINED = 100_000


class LabelSpace:
    """The space of all sets of labels, as far as some selectors tell them apart."""

    def __init__(self, selectors: Iterable[Selector]) -> None:
        values: dict[str, set[str]] = {}
        for selector in selectors:
            for requirement in selector.requirements:
                values.setdefault(requirement.key, set()).update(requirement.values)
        self._values = {key: sorted(values[key]) for key in sorted(values)}
        self._places = {key: {value: at for at, value in enumerate(names)} for key, names in self._values.items()}
        self._full = {key: (FIRST_VALUE << len(names)) - 1 for key, names in self._values.items()}

    @property
    def everything(self) -> LabelBox:
        """The whole space."""
        return tuple(self._full.values())

    def box(self, selector: Selector) -> LabelBox:
        """Return the box of a selector; it is empty on some axis if the selector contradicts itself."""
        points = dict(self._full)
        for requirement in selector.requirements:
            points[requirement.key] &= self._points(requirement)
        return tuple(points.values())

    def _points(self, requirement: Requirement) -> int:
        key, operator, values = requirement
        if operator in ("Exists", "DoesNotExist"):
            return self._full[key] & ~ABSENT if operator == "Exists" else ABSENT
        places, named = self._places[key], 0
        for value in values:
            named |= FIRST_VALUE << places[value]
        return named if operator == "In" else self._full[key] & ~named

    def without(self, key: str, values: Iterable[str]) -> LabelBox:
        """Return all labels in which a key is present and has none of some values; everything if it is not an axis."""
        if key not in self._values:
            return self.everything
        mentioned = tuple(value for value in values if value in self._places[key])
        return self.box(Selector((Requirement(key, "Exists"), Requirement(key, "NotIn", mentioned))))

    def labels(self, box: LabelBox) -> dict[str, str]:
        """Return labels inside a box, as few as possible."""
        labels: dict[str, str] = {}
        for (key, values), points in zip(self._values.items(), box, strict=True):
            if points & ABSENT:
                continue
            mentioned = points // FIRST_VALUE
            labels[key] = values[(mentioned & -mentioned).bit_length() - 1] if mentioned else _another(values)
        return labels

    def selector(self, box: LabelBox) -> Selector:
        """Return the selector of a box."""
        return Selector(tuple(sorted(self._requirements(box))))

    def _requirements(self, box: LabelBox) -> Iterator[Requirement]:
        for (key, values), points in zip(self._values.items(), box, strict=True):
            mentioned = tuple(value for number, value in enumerate(values) if points & FIRST_VALUE << number)
            if not points & OTHER:
                yield Requirement(key, "In", mentioned) if mentioned else Requirement(key, "DoesNotExist")
                continue
            if not points & ABSENT:
                yield Requirement(key, "Exists")
            if len(mentioned) < len(values):
                yield Requirement(key, "NotIn", tuple(value for value in values if value not in mentioned))


def _another(values: Sequence[str]) -> str:
    value = OTHER_VALUE
    while value in values:
        value += "-other"
    return value


def is_empty(box: LabelBox) -> bool:
    """Whether no labels are in a box."""
    return not all(box)


def intersection(box: LabelBox, other: LabelBox) -> LabelBox:
    """Return the box of all labels that are in both boxes."""
    return tuple([points & others for points, others in zip(box, other, strict=True)])


def difference(box: LabelBox, removed: LabelBox) -> Iterator[LabelBox]:
    """Yield disjoint boxes that have everything in a box but not in another one that meets it."""
    for axis, points in enumerate(removed):
        outside = box[axis] & ~points
        if outside:
            yield (*box[:axis], outside, *box[axis + 1 :])
            box = (*box[:axis], box[axis] & points, *box[axis + 1 :])


def regions(whole: LabelBox, cuts: Iterable[LabelBox], limit: int) -> tuple[list[list[LabelBox]], bool]:
    """Cut a box along others; return the regions, each as disjoint boxes, and whether there are no more than `limit`.

    Beyond the limit a further cut only adds its own inside as one more region.
    """
    parts: list[list[LabelBox]] = [] if is_empty(whole) else [[whole]]
    extra: list[list[LabelBox]] = []
    for cut in cuts:
        if len(extra) >= limit:
            break
        inner = intersection(whole, cut)
        if is_empty(inner):
            continue
        divided = list(_divide(parts, cut)) if not extra else []
        if extra or len(divided) > limit:
            extra.append([inner])
        else:
            parts = divided
    return [*parts, *extra], not extra


def _divide(parts: Iterable[list[LabelBox]], cut: LabelBox) -> Iterator[list[LabelBox]]:
    for boxes in parts:
        inside: list[LabelBox] = []
        outside: list[LabelBox] = []
        for box in boxes:
            common = intersection(box, cut)
            if is_empty(common):
                outside.append(box)
            else:
                inside.append(common)
                outside.extend(difference(box, cut))
        yield from (part for part in (inside, outside) if part)


def join(boxes: Iterable[LabelBox]) -> list[LabelBox]:
    """Return fewer boxes with the same labels, by joining those that differ on one axis only."""
    joined = sorted(set(boxes))
    count = 0
    while len(joined) != count and len(joined) * len(joined[0]) <= MAX_JOINED:
        count = len(joined)
        for axis in range(len(joined[0])):
            joined = _joined_along(axis, joined)
    return sorted(joined)


def _joined_along(axis: int, boxes: Iterable[LabelBox]) -> list[LabelBox]:
    """Join boxes that differ on this axis only."""
    alike: dict[LabelBox, int] = {}
    for box in boxes:
        rest = (*box[:axis], 0, *box[axis + 1 :])
        alike[rest] = alike.get(rest, 0) | box[axis]
    return [
        (*rest[:axis], points, *rest[axis + 1 :]) for rest, union in alike.items() for points in _sayable_points(union)
    ]


def _sayable_points(points: int) -> tuple[int, ...]:
    # No selector says "absent or one of these values".
    if points & ABSENT and not points & OTHER and points != ABSENT:
        return points & ~ABSENT, ABSENT
    return (points,)

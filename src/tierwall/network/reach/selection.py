"""Finds selectors that are true of all pods of a set and of no other pod, such as `[env=prod]/[app=web]`.

docs/network.md#names-of-groups. A selector is a box: on some axes (the namespace, a label of the namespace, a label of
the pod) it allows only some values. Only labels that policies select by are axes, because groups differ by nothing
else. A set is covered by few boxes: by the smallest box around it if nothing else is inside, otherwise by boxes that
grow from a member as far as they have nothing else in them.

A set of classes is an integer, and a question about it costs a few operations on integers, however many pods it has:
the values of its members are found by taking one, removing all members with its value, and going on with the rest.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from msgspec import Struct, field

from tierwall.core.labels import Requirement, Selector
from tierwall.network.model.endpoints import NAMESPACE_NAME
from tierwall.network.model.rules import TieredPolicy, peers_by_kind
from tierwall.network.reach.classes import OTHER, EndpointClass, EndpointClasses
from tierwall.network.reach.spaces import mask_of

# The most values of a requirement, and the most namespaces of a box that are named one by one.
MAX_VALUES, MAX_NAMESPACES = 4, 4
# The most boxes that cover a set.
MAX_BOXES = 3
# Boxes with more classes than this are never small.
MAX_SMALL = 16
# The most label keys of pods, and of namespaces, that selectors are made of: those that policies use most.
MAX_KEYS = 8

# The value of a label that is not there. No label value is a number.
_ABSENT = 0
_Value = str | int | None


class SelectorSet(NamedTuple):
    """A set of classes of pods, and the names whose members together are exactly this set."""

    names: tuple[str, ...]
    mask: int


class SelectorSelection(NamedTuple):
    """Boxes of which each has only members of a set, and the members that are in none of them."""

    sets: tuple[SelectorSet, ...]
    rest: int


class _Bound(Struct, frozen=True, eq=False):
    """The values that a box allows on one axis: as requirements, or as namespaces, and as a set of classes."""

    axis: _Axis
    mask: int
    requirements: tuple[Requirement, ...] = ()
    namespaces: tuple[str, ...] = ()
    # The place in the order in which bounds are removed from a box that does not need them.
    order: tuple[bool, int, int] = (False, 0, 0)

    @classmethod
    def of(
        cls, axis: _Axis, mask: int, requirements: tuple[Requirement, ...] = (), namespaces: tuple[str, ...] = ()
    ) -> _Bound:
        """Return a bound. Of the bounds that a box does not need, several namespaces and long texts go first."""
        length = len(str(Selector(requirements)))
        return cls(axis, mask, requirements, namespaces, (axis.of_pods, -len(namespaces), -length))


class _Axis(Struct, frozen=True, eq=False):
    """The value of every class of pods for one label key, or its unit of namespaces.

    INVARIANT: pods are the first classes, so the number of a class is its place in `values`.
    """

    key: str
    of_pods: bool
    values: list[_Value]
    bits_of: dict[_Value, list[int]]
    units: Sequence[tuple[str, ...]] = ()
    known: dict[_Value, int] = field(default_factory=dict)
    # The bounds that were asked for, by value; after OTHER, by the values that are left out.
    bounds: dict[tuple[_Value, ...], _Bound | None] = field(default_factory=dict)

    def mask(self, values: Iterable[_Value]) -> int:
        """Return the classes that have one of some values."""
        whole = 0
        for value in values:
            mask = self.known.get(value)
            if mask is None:
                mask = self.known[value] = mask_of(self.bits_of[value])
            whole |= mask
        return whole

    def some_values(self, mask: int, limit: int) -> tuple[list[_Value], bool]:
        """Return up to `limit` values of a set's members, and whether these are all."""
        values: list[_Value] = []
        while mask and len(values) < limit:
            value = self.values[(mask & -mask).bit_length() - 1]
            values.append(value)
            mask &= ~self.mask((value,))
        return values, not mask

    def bound(self, inside: int, outside: int) -> _Bound | None:
        """Return the closest bound around a set, and if that would be long, one that leaves out members of another.

        Return None if every bound would be long.
        """
        values, are_all = self.some_values(inside, MAX_VALUES)
        key: tuple[_Value, ...] | None = tuple(values)
        if not are_all or (not self.units and (OTHER in values or (_ABSENT in values and len(values) > 1))):
            key = None if self.units else self._lacking(inside, outside)
        if not key:
            return None
        if key not in self.bounds:
            self.bounds[key] = self._bound(key)
        return self.bounds[key]

    def _lacking(self, inside: int, outside: int) -> tuple[_Value, ...]:
        """Return values that one set lacks and another has, after a mark; nothing if they are too many."""
        values, _ = self.some_values(outside, 2 * MAX_VALUES)
        lacking = [value for value in values if value is not OTHER and not self.mask((value,)) & inside]
        return (OTHER, *lacking) if 0 < len(lacking) <= MAX_VALUES else ()

    def _bound(self, key: tuple[_Value, ...]) -> _Bound | None:
        if self.units:
            names = [name for value in key if isinstance(value, int) for name in self.units[value]]
            fits = len(names) <= MAX_NAMESPACES
            return _Bound.of(self, self.mask(key), (), tuple(sorted(names))) if fits else None
        texts = tuple(sorted(value for value in key if isinstance(value, str)))
        if key[0] is not OTHER:
            requirement = Requirement(self.key, "In", texts) if texts else Requirement(self.key, "DoesNotExist")
            return _Bound.of(self, self.mask(key), (requirement,))
        requirements = [Requirement(self.key, "Exists")] if _ABSENT in key else []
        if texts:
            requirements.append(Requirement(self.key, "NotIn", texts))
        return _Bound.of(self, ~self.mask(key[1:]), tuple(requirements))


class SelectorFinder:
    """Finds boxes that cover sets of pods."""

    def __init__(self, classes: EndpointClasses) -> None:
        self._classes = classes
        pods = [pod_class for pod_class in classes.all if pod_class.representative.kind == "pod"]
        self._pods = mask_of(pod_class.bit for pod_class in pods)
        used = _keys_by_use(classes.model.policies)
        namespaces, labels = (
            [_label_axis(key, pods, place) for key, _ in keys.most_common(MAX_KEYS)] for place, keys in enumerate(used)
        )
        # Boxes are as wide as possible in the order of their axes: in one, first the namespaces, in the other, last.
        self._axes = [_unit_axis(classes, pods), *namespaces, *labels]
        self._orders = self._axes, [*labels, *self._axes[: -len(labels) or None]]

    def exact(self, target: int, allowed: int) -> SelectorSet | None:
        """Return a box with all members of a set and only allowed ones, or None."""
        forbidden = self._pods & ~allowed
        box = self._bounds(target, forbidden)
        return None if self._inside(box) & forbidden else self._named(self._fewest(box, forbidden))

    def hull(self, target: int) -> SelectorSet:
        """Return the smallest box around a set, with no more bounds than it needs."""
        box = self._bounds(target, self._pods & ~target)
        return self._named(self._fewest(box, self._pods & ~self._inside(box)))

    def cover(self, target: int, allowed: int) -> SelectorSelection:
        """Cover a set of pods by at most MAX_BOXES boxes with only allowed members; give up on a hopeless one."""
        forbidden = self._pods & ~allowed
        sets: list[SelectorSet] = []
        small, hopeless = target.bit_count() // (2 * MAX_BOXES), False
        while target and len(sets) < MAX_BOXES and not hopeless:
            box = max(
                (box for axes in self._orders if (box := self._grown(target, forbidden, axes)) is not None),
                key=lambda box: (self._inside(box) & target).bit_count(),
                default=None,
            )
            if box is None:
                break
            sets.append(self._named(box))
            # Large sets with a small box first are mostly without any pattern.
            gained = (target & sets[-1].mask).bit_count()
            hopeless = len(sets) > 1 and gained < small > MAX_SMALL
            target &= ~sets[-1].mask
        return SelectorSelection(tuple(sets), target)

    def _bounds(self, target: int, outside: int) -> list[_Bound]:
        return [bound for axis in self._axes if (bound := axis.bound(target, outside)) is not None]

    def _inside(self, box: Iterable[_Bound]) -> int:
        mask = self._pods
        for bound in box:
            mask &= bound.mask
        return mask

    def _fewest(self, box: list[_Bound], forbidden: int) -> list[_Bound]:
        """Remove bounds without which a box has no forbidden member either, the longest first.

        One namespace says more than any label, so it stays.
        """
        for bound in sorted(box, key=lambda bound: bound.order):
            others = [other for other in box if other is not bound]
            if len(bound.namespaces) != 1 and not self._inside(others) & forbidden:
                box = others
        if any(bound.namespaces for bound in box):
            # A namespace has only one set of labels.
            return [bound for bound in box if bound.namespaces or bound.axis.of_pods]
        return box

    def _grown(self, target: int, forbidden: int, axes: Sequence[_Axis]) -> list[_Bound] | None:
        """Return a box around the first member of a set that is as wide as possible, on one axis after the other."""
        first = target & -target
        box = {axis: bound for axis in axes if (bound := axis.bound(first, forbidden)) is not None}
        if self._inside(box.values()) & forbidden:
            return None
        for axis in axes:
            if axis not in box:
                continue
            others = self._inside(bound for other, bound in box.items() if other is not axis)
            wrong = others & forbidden
            if not wrong:
                del box[axis]
                continue
            values, are_all = axis.some_values(wrong, 2 * MAX_VALUES)
            right = others & ~axis.mask(values) if are_all else 0
            wider = axis.bound(right & target | first, wrong)
            if wider is not None and not others & wider.mask & forbidden:
                box[axis] = wider
        return self._fewest(list(box.values()), forbidden)

    def _named(self, box: list[_Bound]) -> SelectorSet:
        """Name a box: `shop/[app=web]`, `[env=prod]/*` …"""
        places: tuple[str, ...] = next((bound.namespaces for bound in box if bound.namespaces), ())
        namespaces, pods = (
            Selector(tuple(sorted(requirement for bound in part for requirement in bound.requirements)))
            for part in (
                [bound for bound in box if not bound.axis.of_pods],
                [bound for bound in box if bound.axis.of_pods],
            )
        )
        mask = self._inside(box)
        if len(places) > 1:
            # Namespaces that policies do not tell apart share classes; the box may have no pod in some of them.
            members = {pod.namespace for pod_class in self._classes.members(mask) for pod in pod_class.members}
            places = tuple(place for place in places if place in members)
        names = (f"{place}/{_bracketed(pods)}" for place in places or (_bracketed(namespaces),))
        return SelectorSet(tuple(names), mask)


def _bracketed(selector: Selector) -> str:
    return f"[{selector}]" if selector.requirements else "*"


def _keys_by_use(policies: Iterable[TieredPolicy]) -> tuple[Counter[str], Counter[str]]:
    """Count the label keys of namespaces and of pods that policies select by; the smallest key of equals is first."""
    namespaces: list[str] = []
    labels: list[str] = []
    for policy in policies:
        for namespace_selector, pods in _selectors(policy):
            namespaces += namespace_selector.keys - {NAMESPACE_NAME}
            labels += pods.keys
    return Counter(sorted(namespaces)), Counter(sorted(labels))


def _selectors(policy: TieredPolicy) -> Iterator[tuple[Selector, Selector]]:
    yield policy.namespaces, policy.pods
    for rule in policy.all_rules:
        pods, _addresses, _nodes, _domains = peers_by_kind(rule.peers)
        for peer in pods:
            if isinstance(peer.namespaces, Selector):
                yield peer.namespaces, peer.pods
            else:
                yield Selector(tuple(Requirement(key, "Exists") for key in peer.namespaces.keys)), peer.pods


def _label_axis(key: str, pods: Sequence[EndpointClass], place: int) -> _Axis:
    """Return the axis of a label; `place` is 0 for labels of namespaces and 1 for labels of pods."""
    values: list[_Value] = [next((value for name, value in pod.key[place] if name == key), _ABSENT) for pod in pods]
    return _Axis(key, place == 1, values, _bits(values, pods))


def _unit_axis(classes: EndpointClasses, pods: Sequence[EndpointClass]) -> _Axis:
    values: list[_Value] = [pod_class.unit for pod_class in pods]
    return _Axis("", False, values, _bits(values, pods), classes.units)


def _bits(values: Sequence[_Value], pods: Sequence[EndpointClass]) -> dict[_Value, list[int]]:
    bits_of: dict[_Value, list[int]] = {}
    for value, pod_class in zip(values, pods, strict=True):
        bits_of.setdefault(value, []).append(pod_class.bit)
    return bits_of

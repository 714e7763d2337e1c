"""The values of unknowns: which there are, as clauses, and which ones a model stands for.

The tests on a string cut all strings into regions, comparisons cut numbers at their constants. An unknown is in just
one region. Unknowns that are compared with one another form a group: they share their regions, each region shows as
many members as the group has unknowns, and a region with fewer is taken apart into its members, which are equal to
themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import combinations
from typing import Any

from tierwall.cel.values import OptionalValue, Uint
from tierwall.logic.cel.language import Languages, by_simplicity, seen
from tierwall.logic.cel.terms import ComputedValue, Constant, Items, Leaf, SeenString, Size, SomeValue
from tierwall.logic.cel.unknown import Shape, Unknown, UnknownWorld, ValueKind
from tierwall.logic.cel.value_region import ValueRegion, is_number, number_regions
from tierwall.logic.circuit import TRUE
from tierwall.logic.solver import CircuitSolver
from tierwall.logic.unsupported import Unsupported, WorldLimit

MAX_GROUP = 32
_CONTAINERS = (ValueKind.LIST, ValueKind.MAP)


class Values:
    """The regions of every unknown of a world. Making it adds the clauses; nothing may be asked of the world later."""

    def __init__(self, world: UnknownWorld, opened: Callable[[Hashable, Unsupported], int] | None = None) -> None:
        """`opened` returns the literal of a test that may hold or not, for what is not known of the values."""
        self.world = world
        self._opened = opened
        # By kind and unknown: its regions and their literals, and the group that it belongs to.
        self._places: dict[tuple[ValueKind, int], list[tuple[int, ValueRegion]]] = {}
        self._groups: dict[ValueKind, dict[int, list[Unknown]]] = {}
        for kind in (ValueKind.STRING, ValueKind.NUMBER):
            for group in self._grouped(kind):
                with _blaming(group):
                    self._regions(kind, group)
        for kind in _CONTAINERS:
            for group in self._grouped(kind):
                with _blaming(group):
                    if len(group) > 1 and any(unknown.is_looked_into or not unknown.shape.is_open for unknown in group):
                        raise Unsupported("== between lists or maps that are looked into")
                    self._transitive(kind, group)

    def preferences(self) -> list[int]:
        """Return literals whose truth makes a counterexample small, the most important first."""
        wanted: list[int] = []
        for unknown in sorted(self.world.unknowns, key=lambda unknown: (len(unknown.path), unknown.number)):
            contents = (*unknown.fields.values(), *unknown.elements, *unknown.extras)
            wanted += [-element.present for element in contents]
            wanted += [-literal for literal in unknown.members.values()]
        for unknown in self.world.unknowns:
            wanted += [unknown.is_kind(kind) for kind in unknown.shape.kinds]
            wanted.append(-unknown.truth)
            for kind in (ValueKind.STRING, ValueKind.NUMBER):
                wanted += [literal for literal, _ in self._places.get((kind, unknown.number), ())]
        wanted += [-literal for known in self.world.equalities.values() for _, literal in sorted(known.items())]
        return wanted

    def value(self, unknown: Unknown, model: CircuitSolver) -> Any:
        """Return the value that a model gives to an unknown."""
        kind = next(kind for kind in unknown.shape.kinds if model.is_true(unknown.is_kind(kind)))
        match kind:
            case ValueKind.NULL:
                return None
            case ValueKind.BOOL:
                return model.is_true(unknown.truth)
            case ValueKind.STRING | ValueKind.NUMBER:
                return self._member(kind, unknown, model)
        if (rank := self._rank(kind, unknown, model)) is not None:
            return [rank] if kind is ValueKind.LIST else {"key": rank}
        if kind is ValueKind.LIST:
            elements = [self.value(item.value, model) for item in unknown.elements if model.is_true(item.present)]
            return [*elements, *(text for text, literal in unknown.members.items() if model.is_true(literal))]
        entries = {name: field for name, field in unknown.fields.items() if model.is_true(field.present)}
        for extra in unknown.extras:
            if model.is_true(extra.present):
                assert isinstance(extra.key, Unknown)
                entries[self._member(ValueKind.STRING, extra.key, model)] = extra
        missing = unknown.shape.required - unknown.fields.keys()
        simplest = {name: simplest_value(unknown.shape.fields[name]) for name in sorted(missing)}
        return {name: self.value(entry.value, model) for name, entry in entries.items()} | simplest

    def leaf(self, leaf: Leaf, model: CircuitSolver) -> Any:
        """Return the value that a model gives to a leaf of an expression."""
        match leaf:
            case Unknown():
                return self.value(leaf, model)
            case SomeValue(value=inner):
                return OptionalValue(self.leaf(inner, model))
            case SeenString(of=unknown, view=view):
                return seen(self.value(unknown, model), view)
            case Size(of=whole):
                return len(self.leaf(whole, model))
            case Items(entries=entries):
                terms = [term for present, term in entries if model.is_true(present)]
                chosen = [next((leaf for guard, leaf in term if model.is_true(guard)), None) for term in terms]
                return [self.leaf(inner, model) for inner in chosen if inner is not None]
            case Constant(value=value):
                return value
            case ComputedValue(function=function):
                raise Unsupported(function)
        raise ValueError("missing data has no value")

    def places(self, unknown: Unknown, kind: ValueKind) -> Sequence[tuple[int, ValueRegion]]:
        """Return the regions that a string or number may be in, each with the literal that says so."""
        return self._places.get((kind, unknown.number), ())

    def is_compared(self, unknown: Unknown, kind: ValueKind) -> bool:
        """Whether an unknown is compared with another: then it matters which member of a region it is."""
        return len(self._groups.get(kind, {}).get(unknown.number, ())) > 1

    def passed(self, unknown: Unknown, kind: ValueKind, value: Any) -> dict[Any, bool]:
        """Return which of the tests on an unknown a string or number passes."""
        if kind is ValueKind.STRING:
            languages = self.world.languages
            return {test: languages.has(test, value) for test in unknown.languages}
        return {
            (sign, constant): value < constant if sign == "<" else value == constant
            for sign, constant in unknown.comparisons
        }

    def literals(self, unknown: Unknown, kind: ValueKind, value: Any) -> list[int]:
        """Return the literals of the region that a string or number is in. Tests put values into worlds by it."""
        passed = self.passed(unknown, kind, value)
        literals = [literal if passed[test] else -literal for test, literal in _tests(unknown, kind).items()]
        literals += [-literal for literal, place in self.places(unknown, kind) if not place.has(value, passed)]
        return literals

    def _grouped(self, kind: ValueKind) -> Iterable[list[Unknown]]:
        """Yield the unknowns that are tied by equality, and each other one alone."""
        unknowns = self.world.unknowns
        leader = {unknown.number: unknown.number for unknown in unknowns}

        def find(number: int) -> int:
            while leader[number] != number:
                number = leader[number]
            return number

        for first, second in self.world.equalities.get(kind, {}):
            leader[find(second)] = find(first)
        groups: dict[int, list[Unknown]] = {}
        for unknown in unknowns:
            if kind in unknown.shape.kinds:
                groups.setdefault(find(unknown.number), []).append(unknown)
        for group in groups.values():
            with _blaming(group):
                if len(group) > MAX_GROUP:
                    raise Unsupported("so many values compared with one another")
            self._groups.setdefault(kind, {}).update((unknown.number, group) for unknown in group)
            yield group

    def _regions(self, kind: ValueKind, group: list[Unknown]) -> None:
        circuit = self.world.circuit
        places = self._strings(group) if kind is ValueKind.STRING else number_regions(group)
        for unknown in group:
            allowed = [place for place in places if self._fits(kind, unknown, place)]
            literals = circuit.variables(len(allowed)) if len(allowed) > 1 else [TRUE] * len(allowed)
            circuit.require_one(literals)
            self._places[kind, unknown.number] = list(zip(literals, allowed, strict=True))
            for test, literal in _tests(unknown, kind).items():
                self._require_same(literal, test, self._places[kind, unknown.number])
            for literal in unknown.whole_if if kind is ValueKind.NUMBER else ():
                for region, place in self._places[kind, unknown.number]:
                    if not any(isinstance(member, int) or member.is_integer() for member in place.members):
                        circuit.require(-literal, -region)
        self._transitive(kind, group)
        if len(group) == 1:
            return
        for first, second in combinations(group, 2):
            equal = self.world.equality(kind, first, second)
            regions = [
                {id(place): literal for literal, place in self._places[kind, unknown.number]}
                for unknown in (first, second)
            ]
            for place in places:
                left, right = (known.get(id(place), -TRUE) for known in regions)
                circuit.require(-equal, -left, right)
                circuit.require(-equal, left, -right)
                if place.is_single:
                    circuit.require(equal, -left, -right)

    def _fits(self, kind: ValueKind, unknown: Unknown, place: ValueRegion) -> bool:
        if kind is ValueKind.NUMBER:
            return any(is_number(unknown, member) for member in place.members)
        pattern = unknown.shape.pattern
        return pattern is None or self.world.languages.matching(pattern, whole=True) in place.passes

    def _require_same(self, literal: int, test: Any, places: Sequence[tuple[int, ValueRegion]]) -> None:
        """A test holds in just those regions that pass it. Few clauses do, as every value is in one region."""
        require = self.world.circuit.require
        inside = [region for region, place in places if test in place.passes]
        if 2 * len(inside) > len(places):
            literal, inside = -literal, [region for region, place in places if test not in place.passes]
        require(-literal, *inside)
        for region in inside:
            require(-region, literal)

    def _transitive(self, kind: ValueKind, group: list[Unknown]) -> None:
        if len(group) < 3:
            return
        equality, require = self.world.equality, self.world.circuit.require
        strange: tuple[int, ...] = ()
        if kind is ValueKind.NUMBER and any(unknown.shape.number == "number" for unknown in group):
            # Two large integers that differ may both equal one double.
            error = Unsupported("== between three numbers that may be doubles")
            if self._opened is None:
                raise error
            strange = (self._opened(tuple(unknown.number for unknown in group), error),)
        for a, b, c in combinations(group, 3):
            ab, bc, ac = equality(kind, a, b), equality(kind, b, c), equality(kind, a, c)
            require(-ab, -bc, ac, *strange)
            require(-ab, -ac, bc, *strange)
            require(-ac, -bc, ab, *strange)

    def _strings(self, group: list[Unknown]) -> list[ValueRegion]:
        languages = self.world.languages
        tests = {test: None for unknown in group for test in unknown.languages}
        patterns = (unknown.shape.pattern for unknown in group)
        tests |= {languages.matching(pattern, whole=True): None for pattern in patterns if pattern is not None}
        constants: dict[str, list[int]] = {}
        for test in tests:
            for text in languages.texts(test) or ():
                constants.setdefault(text, []).append(test)
        others = [test for test in tests if languages.texts(test) is None]
        in_group = len(group) > 1
        # Each constant is a region of its own, so that the many constants of roles multiply no states.
        places = [
            ValueRegion(
                frozenset((*finite, *(test for test in others if languages.has(test, text)))), (text,), in_group, True
            )
            for text, finite in constants.items()
        ]
        for passes, members, is_complete in self._beside(
            others, constants, max(len(group), self.world.members_of_regions)
        ):
            if is_complete and in_group:
                places += [ValueRegion(passes, (member,), True, True) for member in members]
            else:
                places.append(ValueRegion(passes, members, False, is_complete))
        return sorted(places, key=lambda place: by_simplicity(place.members[0]))

    def _beside(
        self, tests: list[int], constants: Collection[str], count: int
    ) -> Iterator[tuple[frozenset[Any], tuple[str, ...], bool]]:
        """Yield the regions of all other strings: passed tests, up to `count` members, if that is all."""
        wanted, enough = count, count + len(constants)
        while True:
            regions = self.world.languages.regions(tests, wanted)
            rest = [[text for text in region.members if text not in constants] for region in regions]
            lacking = [region for region, members in zip(regions, rest, strict=True) if len(members) < count]
            if wanted >= enough or all(region.is_complete for region in lacking):
                break
            wanted = min(2 * wanted, enough)
        for region, members in zip(regions, rest, strict=True):
            if members:
                passes = frozenset(test for test, passed in zip(tests, region.passes, strict=True) if passed)
                yield passes, tuple(members[:count]), region.is_complete and len(members) <= count

    def _member(self, kind: ValueKind, unknown: Unknown, model: CircuitSolver) -> Any:
        """Return the string or number: of those in one region, equal ones get the same member, others the next."""
        place = self._place(kind, unknown, model)
        members = [member for member in place.members if kind is ValueKind.STRING or is_number(unknown, member)]
        taken = 0
        for other in self._groups[kind][unknown.number]:
            if other is unknown:
                break
            if not model.is_true(other.is_kind(kind)) or self._place(kind, other, model) is not place:
                continue
            if model.is_true(self.world.equality(kind, unknown, other)):
                return self._member(kind, other, model)
            taken += 1
        member = members[min(taken, len(members) - 1)]
        return Uint(member) if kind is ValueKind.NUMBER and unknown.shape.number == "uint" else member

    def _place(self, kind: ValueKind, unknown: Unknown, model: CircuitSolver) -> ValueRegion:
        return next(place for literal, place in self._places[kind, unknown.number] if model.is_true(literal))

    def _rank(self, kind: ValueKind, unknown: Unknown, model: CircuitSolver) -> int | None:
        """Return a number that only equal lists or maps share; None where none is compared with another."""
        group = self._groups[kind][unknown.number]
        if len(group) == 1:
            return None
        for rank, other in enumerate(group):
            equal = self.world.equality(kind, unknown, other)
            if other is unknown or (model.is_true(other.is_kind(kind)) and model.is_true(equal)):
                return rank
        return None


@contextmanager
def _blaming(group: Iterable[Unknown]) -> Iterator[None]:
    """Say which unknowns are more than can be told apart."""
    try:
        yield
    except Unsupported as error:
        raise WorldLimit(error.construct, tuple(unknown.number for unknown in group)) from None


def simplest_value(shape: Shape) -> Any:
    """Return a value of a shape that nothing asks about."""
    match shape.kinds[0]:
        case ValueKind.STRING:
            languages = Languages()
            language = languages.anything if shape.pattern is None else languages.matching(shape.pattern, whole=True)
            return next(region.members[0] for region in languages.regions([language]) if region.passes[0])
        case ValueKind.MAP:
            return {name: simplest_value(shape.fields[name]) for name in sorted(shape.required)}
    return {ValueKind.NUMBER: 0, ValueKind.BOOL: False, ValueKind.LIST: [], ValueKind.NULL: None}[shape.kinds[0]]


def _tests(unknown: Unknown, kind: ValueKind) -> Mapping[Any, int]:
    return unknown.languages if kind is ValueKind.STRING else unknown.comparisons

"""Unknown values: everything that an object of a question may be, as variables of a circuit.

An unknown has one kind (null, bool, number, string, list or map), and for each kind what expressions ask about it:
truth, tests on the string, comparisons with constants, fields that may be present, elements. Nothing else can matter,
so a model of the circuit stands for a value, and every value has a model.

A list has as many elements in the circuit as the question can tell apart (`Demands`): one for each quantifier that may
need a witness. Fewer would turn refutations into proofs. How many that is, and which keys of a map have names, is known
only when the question has been written down; so it is written down again until neither grows.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from enum import StrEnum
from typing import TypeAlias

import msgspec

from tierwall.logic.cel.language import Languages
from tierwall.logic.circuit import FALSE, TRUE, Circuit
from tierwall.logic.unsupported import Unsupported, WorldLimit

MAX_ELEMENTS = 16
MAX_SIZE = 400_000
# Comparisons of numbers beyond this would depend on how doubles are rounded.
MAX_NUMBER = 1 << 53
# A path from a variable; `*` stands for the elements of a list and for the keys of a map that have no name.
Path: TypeAlias = tuple[str, ...]
Number: TypeAlias = int | float


class ValueKind(StrEnum):
    """The kinds of JSON values."""

    STRING = "string"
    NUMBER = "number"
    BOOL = "bool"
    MAP = "map"
    LIST = "list"
    NULL = "null"


class Shape(msgspec.Struct, frozen=True):
    """The values that an unknown may have."""

    kinds: tuple[ValueKind, ...] = tuple(ValueKind)
    # `int`, `uint`, or `number` where it may be a double, too.
    number: str = "number"
    # The whole string matches this pattern; anything without one.
    pattern: str | None = None
    # The fields of a map whose shape is known, and whether it has no others.
    fields: Mapping[str, Shape] = {}
    is_closed: bool = False
    required: frozenset[str] = frozenset()
    # Of elements, and of values under keys that are not fields.
    inner: Shape | None = None
    # Of keys that are not fields.
    keys: Shape | None = None

    def of_field(self, name: str) -> Shape | None:
        """Return the shape of a field; None if there cannot be one of that name."""
        return self.fields.get(name) or (None if self.is_closed else self.inner or ANY)

    @property
    def is_open(self) -> bool:
        """Whether there are more values than any question can tell apart."""
        if ValueKind.LIST in self.kinds or (ValueKind.STRING in self.kinds and self.pattern is None):
            return True
        return ValueKind.MAP in self.kinds and (
            not self.is_closed or any(field.is_open for field in self.fields.values())
        )


ANY = Shape()
# A value that is there and of a type that proofs do not know.
OPAQUE = Shape(())
STRING = Shape((ValueKind.STRING,))
STRINGS = Shape((ValueKind.LIST,), inner=STRING)


class Demands(msgspec.Struct):
    """How many elements the question needs of each list and map, and the keys that it names."""

    elements: dict[Path, int] = {}
    keys: dict[Path, set[str]] = {}
    # Constants that lists are asked for.
    members: dict[Path, set[str]] = {}

    def covers(self, other: Demands) -> bool:
        """Whether these are enough for another's."""
        # The names of keys matter only where a map is looked through, and members where a list is.
        named = ((self.keys, other.keys, ValueKind.MAP), (self.members, other.members, ValueKind.LIST))
        return all(self.elements.get(path, 0) >= count for path, count in other.elements.items()) and all(
            mine.get(path, set()) >= names
            for mine, theirs, kind in named
            for path, names in theirs.items()
            if (*path, kind) in other.elements
        )

    def joined(self, other: Demands) -> Demands:
        """Return the demands of both."""
        elements = {path: max(self.elements.get(path, 0), count) for path, count in other.elements.items()}
        keys = {path: self.keys.get(path, set()) | names for path, names in other.keys.items()}
        members = {path: self.members.get(path, set()) | names for path, names in other.members.items()}
        return Demands(self.elements | elements, self.keys | keys, self.members | members)


class Element(msgspec.Struct, frozen=True):
    """An element of a list or a map: whether it is there, its key (None in a list), and its value."""

    present: int
    key: Unknown | str | None
    value: Unknown


class Unknown:
    """One unknown value."""

    def __init__(self, world: UnknownWorld, path: Path, shape: Shape) -> None:
        self.world = world
        self.path = path
        self.shape = shape
        self.number = len(world.unknowns)
        world.unknowns.append(self)
        variables = world.circuit.variables(len(shape.kinds)) if len(shape.kinds) > 1 else [TRUE]
        world.circuit.require_one(variables)
        self._kinds = dict(zip(shape.kinds, variables, strict=True))
        self.truth = world.circuit.variable() if ValueKind.BOOL in shape.kinds else FALSE
        # Literals of tests: of languages on the string, of comparisons (`<` or `=`, constant) on the number.
        self.languages: dict[int, int] = {}
        self.comparisons: dict[tuple[str, Number], int] = {}
        self.fields: dict[str, Element] = {}
        self.elements: list[Element] = []
        # Of a list: constants that may stand behind its elements, each with the literal that says that it does.
        self.members: dict[str, int] = {}
        self.extras: list[Element] = []
        self._expanded: set[ValueKind] = set()
        # How many elements this one list was asked for.
        self.asked: dict[ValueKind, int] = {}
        # Literals under which a number is an integer.
        self.whole_if: list[int] = []

    def is_kind(self, kind: ValueKind) -> int:
        """Return the literal that says whether it is of a kind."""
        return self._kinds.get(kind, FALSE)

    def in_language(self, language: int) -> int:
        """Return the literal that says whether the string is in a language; it means something for strings only."""
        self.world.note_use(self.number, language)
        if language not in self.languages:
            self.languages[language] = self.world.circuit.variable()
        return self.languages[language]

    def compares(self, sign: str, constant: Number) -> int:
        """Return the literal that says whether the number is `<` or `=` the constant."""
        if constant != constant:
            return FALSE
        if not -MAX_NUMBER <= constant <= MAX_NUMBER:
            raise Unsupported(f"a comparison with {constant}")
        key = sign, int(constant) if constant == int(constant) else constant
        self.world.note_use(self.number, None)
        if key not in self.comparisons:
            self.comparisons[key] = self.world.circuit.variable()
        return self.comparisons[key]

    def field(self, name: str) -> Element | None:
        """Return a field of the map; None if it cannot be there."""
        shape = self.shape.of_field(name)
        if shape is None or ValueKind.MAP not in self.shape.kinds:
            return None
        if name not in self.shape.fields and self.shape.keys is not None and self.shape.keys.pattern is not None:
            languages = self.world.languages
            if not languages.has(languages.matching(self.shape.keys.pattern, whole=True), name):
                return None
        if shape is OPAQUE:
            raise Unsupported(f"`{'.'.join((*self.path, name))}`")
        self.world.found.keys.setdefault(self.path, set()).add(name)
        if name not in self.fields:
            circuit = self.world.circuit
            is_map = self.is_kind(ValueKind.MAP)
            present = is_map if name in self.shape.required else circuit.all_of((is_map, circuit.variable()))
            self.fields[name] = Element(present, name, Unknown(self.world, (*self.path, name), shape))
        return self.fields[name]

    def contents(self, kind: ValueKind) -> list[Element]:
        """Return the elements of the list, or the fields of the map and the elements without a name."""
        if kind not in self._expanded:
            self._expanded.add(kind)
            if kind is ValueKind.LIST:
                self.elements = self._elements(kind)
                for literal in self.members.values() if self.elements else ():
                    self.world.circuit.require(-literal, self.elements[-1].present)
                for text in sorted(self.world.demands.members.get(self.path, ())):
                    self.member(text)
            else:
                for name in sorted(self.world.demands.keys.get(self.path, ())):
                    self.field(name)
                for name in self.shape.fields:
                    self.field(name)
                self.extras = self._elements(kind) if not self.shape.is_closed else []
        return self.elements if kind is ValueKind.LIST else [*self.fields.values(), *self.extras]

    def member(self, text: str) -> int:
        """Return the literal that says that a string stands in the list behind its elements.

        So a list that is asked for many constants needs no element for each. Something stands there only behind all
        elements of the question: a list of few values has them there.
        """
        inner, languages = self.shape.inner or ANY, self.world.languages
        if ValueKind.STRING not in inner.kinds or (
            inner.pattern is not None and not languages.has(languages.matching(inner.pattern, whole=True), text)
        ):
            return FALSE
        self.world.note_use(self.number, None)
        self.world.found.members.setdefault(self.path, set()).add(text)
        if text not in self.members:
            circuit, is_list = self.world.circuit, self.is_kind(ValueKind.LIST)
            self.members[text] = circuit.all_of((is_list, circuit.variable()))
            if self.elements:
                circuit.require(-self.members[text], self.elements[-1].present)
        return self.members[text]

    def ask_for(self, kind: ValueKind, count: int) -> None:
        """Say that the question needs so many more elements."""
        self.asked[kind] = self.asked.get(kind, 0) + count
        self.world.note_use(self.number, None)
        path = (*self.path, kind)
        elements = self.world.found.elements
        elements[path] = max(elements.get(path, 0), self.asked[kind])
        if self.asked[kind] > MAX_ELEMENTS:
            raise Unsupported(f"so many elements of `{'.'.join(self.path)}`")

    @property
    def is_looked_into(self) -> bool:
        """Whether the question asks about parts of it."""
        return bool(self.fields or self.members or self._expanded or self.asked)

    @property
    def is_whole(self) -> bool:
        """Whether the question looks at everything in it: goes through it, or compares it with another."""
        compared = self.world.equalities.get(ValueKind.MAP, {})
        return bool(self._expanded or self.asked) or any(self.number in pair for pair in compared)

    def _elements(self, kind: ValueKind) -> list[Element]:
        circuit = self.world.circuit
        path, before = (*self.path, "*"), self.is_kind(kind)
        elements: list[Element] = []
        wanted = self.world.demands.elements.get((*self.path, kind), 0)
        for _ in range(wanted + self.world.spare if wanted else 0):
            before = circuit.all_of((before, circuit.variable()))
            key = None
            if kind is ValueKind.MAP:
                key = Unknown(self.world, (*path, "key"), self.shape.keys or STRING)
                for name in sorted({*self.world.demands.keys.get(self.path, ()), *self.shape.fields}):
                    circuit.require(-key.in_language(self.world.languages.constant(name)))
                for other in elements:
                    assert isinstance(other.key, Unknown)
                    circuit.require(-self.world.equality(ValueKind.STRING, key, other.key))
            elements.append(Element(before, key, Unknown(self.world, path, self.shape.inner or ANY)))
        return elements


class UnknownWorld:
    """All unknowns of one question, and what is required of them.

    `effort` is a share of the limits. `members` says how many strings of each region are wanted, if it has so many.
    """

    def __init__(self, demands: Demands, spare: int = 0, *, effort: float = 1.0, members: int = 1) -> None:
        self.circuit = Circuit()
        self.languages = Languages(effort)
        self.members_of_regions = members
        self._max_size = MAX_SIZE * effort
        self.demands = demands
        # More elements than the question needs: tests show that they change nothing.
        self.spare = spare
        self.found = Demands({}, {}, {})
        self.unknowns: list[Unknown] = []
        self.equalities: dict[ValueKind, dict[tuple[int, int], int]] = {}
        self._computations: dict[Hashable, int] = {}
        # The expression that is being written down. What it asks for is kept, to blame it for a limit: of each unknown
        # the languages (None: something else), and how much everything grew.
        self.owner: Hashable | None = None
        self.uses: dict[int, dict[Hashable, set[int | None]]] = {}
        self.growth: dict[Hashable, int] = {}

    def unknown(self, name: str, shape: Shape = ANY) -> Unknown:
        """Make a variable."""
        return Unknown(self, (name,), shape)

    def equality(self, kind: ValueKind, left: Unknown, right: Unknown) -> int:
        """Return the literal that says whether two values of one kind are equal; lists and maps are not looked into."""
        if left is right:
            return TRUE
        first, second = sorted((left.number, right.number))
        self.note_use(first, None)
        self.note_use(second, None)
        known = self.equalities.setdefault(kind, {})
        if (first, second) not in known:
            known[first, second] = self.circuit.variable()
        return known[first, second]

    def may_succeed(self, key: Hashable) -> int:
        """Return the literal that says that a computation of numbers does not overflow; equal keys are the same one."""
        if key not in self._computations:
            self._computations[key] = self.circuit.variable()
        return self._computations[key]

    def at_least(self, literals: Iterable[int], count: int) -> int:
        """Return the literal that says whether so many of these are true."""
        if count <= 0:
            return TRUE
        reached = [TRUE] + [FALSE] * count
        for literal in literals:
            for number in range(count, 0, -1):
                step = self.circuit.all_of((reached[number - 1], literal))
                reached[number] = self.circuit.any_of((reached[number], step))
        return reached[count]

    @contextmanager
    def owned_by(self, owner: Hashable) -> Iterator[None]:
        """Keep what is asked for meanwhile as asked for by an expression."""
        before, self.owner = self.owner, owner
        size = self.circuit.size + self.languages.size
        try:
            yield
        finally:
            self.owner = before
            self.growth[owner] = self.growth.get(owner, 0) + self.circuit.size + self.languages.size - size

    def note_use(self, number: int, language: int | None) -> None:
        """Keep that the expression asks about an unknown."""
        if self.owner is not None:
            self.uses.setdefault(number, {}).setdefault(self.owner, set()).add(language)

    def check_size(self) -> None:
        """Refuse a question that has grown too large."""
        if self.circuit.size > self._max_size:
            raise WorldLimit("so large a question")

"""Terms of a circuit: what an expression comes to, as guarded leaves, and how leaves compare.

A term is a list of (guard, leaf). At most one guard is true; where none is, the expression is an error. Booleans are
the constants true and false under two guards, so that `&&` and `||` absorb errors by what the guards say alone.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import TypeAlias

import msgspec

from tierwall.cel.partial_evaluation import outcomes
from tierwall.cel.values import NONE, NUMERIC, OpaqueValue, OptionalValue, equal, map_keys
from tierwall.logic.cel.language import StringView
from tierwall.logic.cel.unknown import MAX_NUMBER, Element, Number, Unknown, UnknownWorld, ValueKind
from tierwall.logic.circuit import FALSE, TRUE, Circuit
from tierwall.logic.unsupported import Unsupported


class Constant(msgspec.Struct, frozen=True, eq=False):
    """A value that is known."""

    value: object


class SomeValue(msgspec.Struct, frozen=True, eq=False):
    """An optional that has a value; one that has none is a constant."""

    value: Leaf


class SeenString(msgspec.Struct, frozen=True, eq=False):
    """A part or form of a string."""

    of: Unknown
    view: StringView


class Size(msgspec.Struct, frozen=True, eq=False):
    """The size of a string, or of something with elements."""

    of: Unknown | SeenString | Items


class Items(msgspec.Struct, frozen=True, eq=False):
    """A list whose elements may be there or not. `ask_for` says how many the question must tell apart."""

    entries: tuple[tuple[int, Term], ...]
    ask_for: Callable[[int], None]
    # Whether no missing element stands before one that is there: not so after `filter`.
    is_dense: bool = True


class ComputedValue(msgspec.Struct, frozen=True, eq=False):
    """A string or a number that a function makes of some values. Nobody can tell more of it: what asks is given up.

    Where it `may_fail`, nobody can tell whether there is one either.
    """

    function: str
    of: tuple[Leaf, ...]
    may_fail: bool = False


class MissingData(msgspec.Struct, frozen=True):
    """A value that depends on data that a request does not carry. It is left over, as in partial evaluation.

    `possible` are the outcomes that the data may give it (`cel.partial_evaluation.outcomes`).
    """

    possible: int = outcomes.ANY


Leaf: TypeAlias = Constant | SomeValue | SeenString | Size | Items | ComputedValue | Unknown | MissingData
Term: TypeAlias = list[tuple[int, Leaf]]

MISSING, MISSING_BOOL = MissingData(), MissingData(outcomes.BOOL)
_PLAIN = (str, int, float, bool, type(None))
TRUTH, FALSEHOOD = Constant(True), Constant(False)
NOTHING = Constant(NONE)


def identity(leaf: Leaf) -> Hashable:
    """Return what two leaves have in common just if they are the same value."""
    match leaf:
        case Constant(value=value) if type(value) in _PLAIN:
            return type(value), repr(value)
        case SeenString():
            return leaf.of, leaf.view
        case ComputedValue(function=function, of=parts):
            return function, *map(identity, parts)
    # Others are the same only as the same object; the key keeps it.
    return leaf


def refuse_doubtful(leaf: Leaf) -> None:
    """Refuse a value that may be an error, where that counts and nothing else does."""
    if isinstance(leaf, ComputedValue) and leaf.may_fail:
        raise Unsupported(leaf.function)


def optional(leaf: Leaf) -> Leaf:
    """Return the optional with this value."""
    return Constant(OptionalValue(leaf.value)) if isinstance(leaf, Constant) else SomeValue(leaf)


def defined(circuit: Circuit, term: Term) -> int:
    """Return the literal that says that a term is not an error."""
    for _, leaf in term:
        refuse_doubtful(leaf)
    return circuit.any_of(guard for guard, _ in term)


def under(circuit: Circuit, condition: int, term: Term) -> Term:
    """Return the term where a condition holds, and an error elsewhere."""
    guarded = ((circuit.all_of((condition, guard)), leaf) for guard, leaf in term)
    return [(guard, leaf) for guard, leaf in guarded if guard != FALSE]


def boolean(true: int, false: int) -> Term:
    """Return the term of a bool from its two rails."""
    return [(guard, leaf) for guard, leaf in ((true, TRUTH), (false, FALSEHOOD)) if guard != FALSE]


def rails(circuit: Circuit, term: Term) -> tuple[int, int]:
    """Return the literals that say that a term is true, and that it is false; a value that is not a bool is neither."""
    true, false = [], []
    for guard, leaf in term:
        if isinstance(leaf, Constant):
            if leaf.value is True:
                true.append(guard)
            elif leaf.value is False:
                false.append(guard)
        elif isinstance(leaf, Unknown):
            guard = circuit.all_of((guard, leaf.is_kind(ValueKind.BOOL)))
            true.append(circuit.all_of((guard, leaf.truth)))
            false.append(circuit.all_of((guard, -leaf.truth)))
    return circuit.any_of(true), circuit.any_of(false)


def missing(circuit: Circuit, term: Term) -> int:
    """Return the literal that says that a term depends on missing data."""
    return circuit.any_of(guard for guard, leaf in term if isinstance(leaf, MissingData))


def known_leaves(term: Term) -> Term:
    """Return the leaves that do not depend on missing data."""
    return [(guard, leaf) for guard, leaf in term if not isinstance(leaf, MissingData)]


def decided(circuit: Circuit, guard: int, test: int) -> Term:
    """Return the bool of a test, where the guard holds."""
    return boolean(circuit.all_of((guard, test)), circuit.all_of((guard, -test)))


def merged(circuit: Circuit, terms: Iterable[Term]) -> Term:
    """Join terms whose guards exclude each other; the two truths become one leaf each."""
    true: list[int] = []
    false: list[int] = []
    rest: Term = []
    for term in terms:
        for guard, leaf in term:
            if isinstance(leaf, Constant) and isinstance(leaf.value, bool):
                (true if leaf.value else false).append(guard)
            elif guard != FALSE:
                rest.append((guard, leaf))
    return [*rest, *boolean(circuit.any_of(true), circuit.any_of(false))]


class LeafComparison:
    """Equality, order and membership of leaves that have a value."""

    def __init__(self, world: UnknownWorld) -> None:
        self.world = world
        self.circuit = world.circuit

    def equal(self, left: Leaf, right: Leaf) -> int:
        """`==`."""
        if isinstance(left, Constant):
            left, right = right, left
        if isinstance(right, Constant) and isinstance(right.value, OpaqueValue) and not isinstance(left, Constant):
            raise Unsupported(f"== with {right.value.cel_type}")
        match left, right:
            case Constant(), Constant():
                return TRUE if equal(left.value, right.value) else FALSE
            case SomeValue(), Constant(value=OptionalValue(present=True, value=value)):
                return self.equal(left.value, Constant(value))
            case SomeValue(), SomeValue():
                return self.equal(left.value, right.value)
            case (SomeValue(), _) | (_, SomeValue()):
                return FALSE
            case Unknown(), Constant():
                return self._is_constant(left, right.value)
            case Unknown(), Unknown():
                return self._are_equal(left, right)
            case SeenString(), Constant():
                if not isinstance(right.value, str):
                    return FALSE
                languages = self.world.languages
                return left.of.in_language(languages.before(languages.constant(right.value), left.view))
            case Size(), Constant():
                if type(right.value) not in NUMERIC:
                    return FALSE
                return self.order(left, right.value)[1]  # type: ignore[arg-type]
            case Items(), Constant():
                if not isinstance(right.value, list):
                    return FALSE
                return self._equal_lists(left, [[(TRUE, Constant(item))] for item in right.value])
            case Items(), Items():
                if any(present != TRUE for present, _ in right.entries):
                    left, right = right, left
                return self._equal_lists(left, [term for _, term in right.entries], right)
        raise Unsupported("== between two values that are not known")

    def order(self, leaf: Unknown | Size, constant: Number) -> tuple[int, int]:
        """Return the literals that say that a number is less than a constant, and equal to it."""
        if not -MAX_NUMBER <= constant <= MAX_NUMBER:
            raise Unsupported(f"a comparison with {constant}")
        if isinstance(leaf, Unknown):
            return leaf.compares("<", constant), leaf.compares("=", constant)
        # Sizes are integers: less than 2.5 is less than 3.
        least = -int(-constant // 1)
        less = self._smaller(leaf, least)
        if least != constant:
            return less, FALSE
        return less, self.circuit.all_of((-less, self._smaller(leaf, least + 1)))

    def _smaller(self, leaf: Size, size: int) -> int:
        """Return the literal that says that a size is smaller."""
        if isinstance(leaf.of, Unknown | SeenString):
            if size > 1 << 20:
                return TRUE
            language = self.world.languages.at_most(size - 1)
            if isinstance(leaf.of, Unknown):
                return leaf.of.in_language(language)
            return leaf.of.of.in_language(self.world.languages.before(language, leaf.of.view))
        if size <= 0:
            return FALSE
        leaf.of.ask_for(min(size, 1 << 20))
        return -self.world.at_least((present for present, _ in leaf.of.entries), size)

    def contains(self, container: Items, item: Leaf) -> int:
        """`item in container`."""
        container.ask_for(1)
        return self.circuit.any_of(
            self.circuit.all_of((present, guard, self.equal(item, leaf)))
            for present, term in container.entries
            for guard, leaf in term
        )

    def is_element(self, container: Unknown, item: Leaf) -> int:
        """`item in list`: a constant is one of the elements, or stands behind them."""
        if not isinstance(item, Constant) or not isinstance(item.value, str):
            return self.contains(self.items(container, ValueKind.LIST), item)
        behind = container.member(item.value)
        same = (
            self.circuit.all_of((element.present, self.equal(item, element.value)))
            for element in container.contents(ValueKind.LIST)
        )
        return self.circuit.any_of((behind, *same))

    def entry(self, mapping: Unknown, key: Leaf) -> list[Element]:
        """Return the entries of a map that may have this key, with guards that say that they do."""
        if isinstance(key, Constant):
            field = mapping.field(key.value) if isinstance(key.value, str) else None
            return [field] if field is not None else []
        if not isinstance(key, Unknown):
            raise Unsupported("a computed key")
        for element in mapping.extras:
            if element.key is key:
                return [element]
        mapping.ask_for(ValueKind.MAP, 1)
        entries = []
        for element in mapping.contents(ValueKind.MAP):
            name = Constant(element.key) if isinstance(element.key, str) else element.key
            assert name is not None
            same = self.circuit.all_of((element.present, self.equal(key, name)))
            if same != FALSE:
                entries.append(Element(same, element.key, element.value))
        return entries

    def items(self, leaf: Unknown, kind: ValueKind) -> Items:
        """Return the elements of a list, or the keys of a map."""

        def ask_for(count: int) -> None:
            leaf.ask_for(kind, count)

        contents = leaf.contents(kind)
        if kind is ValueKind.LIST:
            elements: list[tuple[int, Term]] = [(element.present, [(TRUE, element.value)]) for element in contents]
            behind: list[tuple[int, Term]] = [
                (present, [(TRUE, Constant(text))]) for text, present in leaf.members.items()
            ]
            return Items((*elements, *behind), ask_for)
        keys = ((element.present, element.key) for element in contents)
        return Items(
            tuple(
                (present, [(TRUE, Constant(key) if isinstance(key, str) else key)])
                for present, key in keys
                if key is not None
            ),
            ask_for,
        )

    def is_empty(self, container: Leaf) -> int:
        """Return whether nothing can be in a list or map."""
        match container:
            case Constant(value=list() | dict() as known):
                return FALSE if known else TRUE
            case Items():
                return self.order(Size(container), 0)[1]
            case Unknown():
                lists, maps = (container.is_kind(kind) for kind in (ValueKind.LIST, ValueKind.MAP))
                empty = [
                    self.circuit.all_of((guard, self.is_empty(self.items(container, kind))))
                    for guard, kind in ((lists, ValueKind.LIST), (maps, ValueKind.MAP))
                    if guard != FALSE
                ]
                return self.circuit.any_of(empty)
        return FALSE

    def is_zero(self, leaf: Unknown) -> int:
        """Return whether a value is the zero of its kind."""
        any_of, all_of = self.circuit.any_of, self.circuit.all_of
        empty = [
            all_of((leaf.is_kind(kind), self.order(Size(self.items(leaf, kind)), 0)[1]))
            for kind in (ValueKind.LIST, ValueKind.MAP)
            if leaf.is_kind(kind) != FALSE
        ]
        zeros = (self._is_constant(leaf, zero) for zero in (None, False, "", 0))
        return any_of((*zeros, *empty))

    def _is_constant(self, leaf: Unknown, value: object) -> int:
        all_of = self.circuit.all_of
        if value is None:
            return leaf.is_kind(ValueKind.NULL)
        if isinstance(value, bool):
            return all_of((leaf.is_kind(ValueKind.BOOL), leaf.truth if value else -leaf.truth))
        if isinstance(value, int | float):
            is_number = leaf.is_kind(ValueKind.NUMBER)
            return all_of((is_number, leaf.compares("=", value))) if is_number != FALSE else FALSE
        if isinstance(value, str):
            is_string = leaf.is_kind(ValueKind.STRING)
            if is_string == FALSE:
                return FALSE
            return all_of((is_string, leaf.in_language(self.world.languages.constant(value))))
        if isinstance(value, list):
            is_list = leaf.is_kind(ValueKind.LIST)
            if is_list == FALSE:
                return FALSE
            items = [[(TRUE, Constant(item))] for item in value]
            return all_of((is_list, self._equal_lists(self.items(leaf, ValueKind.LIST), items)))  # type: ignore[arg-type]
        if isinstance(value, dict):
            return self._is_map(leaf, value)
        return FALSE

    def _is_map(self, leaf: Unknown, value: dict[object, object]) -> int:
        is_map = leaf.is_kind(ValueKind.MAP)
        if is_map == FALSE:
            return FALSE
        needed = [is_map]
        for key in map_keys(value):
            field = leaf.field(key) if isinstance(key, str) else None
            if field is None:
                return FALSE
            needed += (field.present, self._is_constant(field.value, value[key]))
        needed.append(self.order(Size(self.items(leaf, ValueKind.MAP)), len(value))[1])
        return self.circuit.all_of(needed)

    def _equal_lists(self, left: Items, right: list[Term], other: Items | None = None) -> int:
        if other is not None and any(present != TRUE for present, _ in other.entries):
            raise Unsupported("== between two lists that are not known")
        needed = [self.order(Size(left), len(right))[1]]
        if not left.is_dense:
            raise Unsupported("== with a filtered list")
        for (_, mine), theirs in zip(left.entries, right, strict=False):
            needed.append(
                self.circuit.any_of(
                    self.circuit.all_of((guard, other_guard, self.equal(leaf, other_leaf)))
                    for guard, leaf in mine
                    for other_guard, other_leaf in theirs
                )
            )
        return self.circuit.all_of(needed)

    def _are_equal(self, left: Unknown, right: Unknown) -> int:
        if left is right:
            return TRUE
        same = [self.circuit.all_of((left.is_kind(ValueKind.NULL), right.is_kind(ValueKind.NULL)))]
        truths = self.circuit.same(left.truth, right.truth)
        same.append(self.circuit.all_of((left.is_kind(ValueKind.BOOL), right.is_kind(ValueKind.BOOL), truths)))
        for kind in (ValueKind.NUMBER, ValueKind.STRING, ValueKind.LIST, ValueKind.MAP):
            both = self.circuit.all_of((left.is_kind(kind), right.is_kind(kind)))
            if both != FALSE:
                same.append(self.circuit.all_of((both, self.world.equality(kind, left, right))))
        return self.circuit.any_of(same)

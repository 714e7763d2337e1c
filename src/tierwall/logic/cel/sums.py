"""`+` and `string()` of values that are not known: lists are joined, and a string stays what it is.

What a sum of strings or numbers is has no translation. So a value that may be a list, a string or a number can still
be looked through where it is a list.
"""

from __future__ import annotations

from tierwall.cel.values import NUMERIC
from tierwall.logic.cel.terms import (
    ComputedValue,
    Constant,
    Items,
    Leaf,
    LeafComparison,
    SeenString,
    Size,
    Term,
    identity,
)
from tierwall.logic.cel.unknown import Unknown, ValueKind
from tierwall.logic.circuit import FALSE, TRUE


class SumTranslator:
    """Translates sums and texts of leaves."""

    def __init__(self, comparing: LeafComparison) -> None:
        self._comparing = comparing
        self._circuit = comparing.circuit

    def plus(self, left: Leaf, right: Leaf) -> Term:
        """Join two lists. Of strings, only that there is a sum is known; of numbers, not even that."""
        joined = self._joined(left, right)
        numbers, strings = (
            self._circuit.all_of((is_scalar(left, kind), is_scalar(right, kind)))
            for kind in (ValueKind.NUMBER, ValueKind.STRING)
        )
        sums = [
            (strings, ComputedValue("+ of strings", (left, right))),
            (numbers, ComputedValue("+ of numbers", (left, right), may_fail=True)),
        ]
        if numbers != FALSE:
            # It may overflow.
            succeeds = self._comparing.world.may_succeed(identity(sums[1][1]))
            sums[1] = self._circuit.all_of((numbers, succeeds)), sums[1][1]
        return [*joined, *((guard, total) for guard, total in sums if guard != FALSE)]

    def _joined(self, left: Leaf, right: Leaf) -> Term:
        (first_guard, first), (second_guard, second) = self._as_list(left), self._as_list(right)
        guard = self._circuit.all_of((first_guard, second_guard))
        if guard == FALSE:
            return []

        def ask_for(count: int) -> None:
            first.ask_for(count)
            second.ask_for(count)

        is_dense = second.is_dense and all(present == TRUE for present, _ in first.entries)
        return [(guard, Items((*first.entries, *second.entries), ask_for, is_dense))]

    def _as_list(self, leaf: Leaf) -> tuple[int, Items]:
        """Return whether a value is a list, and its elements."""
        match leaf:
            case Items():
                return TRUE, leaf
            case Constant(value=list() as items):
                return TRUE, Items(tuple((TRUE, [(TRUE, Constant(item))]) for item in items), lambda count: None)
            case Unknown() if leaf.is_kind(ValueKind.LIST) != FALSE:
                return leaf.is_kind(ValueKind.LIST), self._comparing.items(leaf, ValueKind.LIST)
        return FALSE, Items((), lambda count: None)

    def string(self, leaf: Leaf) -> Term:
        """`string()`, which is known of strings and bools."""
        if isinstance(leaf, SeenString):
            return [(TRUE, leaf)]
        result: Term = [(is_scalar(leaf, ValueKind.NUMBER), ComputedValue("string() of a number", (leaf,)))]
        if isinstance(leaf, Unknown):
            truth = self._circuit.all_of((leaf.is_kind(ValueKind.BOOL), leaf.truth))
            falsehood = self._circuit.all_of((leaf.is_kind(ValueKind.BOOL), -leaf.truth))
            result += [
                (leaf.is_kind(ValueKind.STRING), leaf),
                (truth, Constant("true")),
                (falsehood, Constant("false")),
            ]
        return [(guard, value) for guard, value in result if guard != FALSE]


def is_scalar(leaf: Leaf, kind: ValueKind) -> int:
    """Return whether a value is a number, or a string."""
    match leaf:
        case Unknown():
            return leaf.is_kind(kind)
        case Constant(value=value):
            return TRUE if type(value) in (NUMERIC if kind is ValueKind.NUMBER else (str,)) else FALSE
        case SeenString():
            return TRUE if kind is ValueKind.STRING else FALSE
        case Size():
            return TRUE if kind is ValueKind.NUMBER else FALSE
        case ComputedValue():
            return TRUE
    return FALSE

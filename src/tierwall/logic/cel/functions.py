"""The functions of CEL that proofs understand: operators, tests on strings, size, membership, optionals.

Where every argument is known, the evaluator itself computes the result, so functions without a translation are
understood there, too.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from math import inf

from tierwall.cel.environment import Environment
from tierwall.cel.errors import Failure
from tierwall.cel.evaluate.dispatch import Meter, find_dispatcher
from tierwall.cel.library.cost import CALL_LIMIT
from tierwall.cel.library.regex import compile_pattern
from tierwall.cel.partial_evaluation.signature import result_of_call
from tierwall.cel.values import NUMERIC, OptionalValue, map_keys
from tierwall.logic.cel.language import StringView
from tierwall.logic.cel.outcome import Possible
from tierwall.logic.cel.sums import SumTranslator
from tierwall.logic.cel.terms import (
    NOTHING,
    ComputedValue,
    Constant,
    Items,
    Leaf,
    LeafComparison,
    MissingData,
    SeenString,
    Size,
    SomeValue,
    Term,
    boolean,
    decided,
    merged,
    optional,
    under,
)
from tierwall.logic.cel.unknown import Unknown, ValueKind
from tierwall.logic.circuit import FALSE, TRUE
from tierwall.logic.unsupported import Unsupported

MAX_COMBINATIONS = 2_000
_ORDER = ("_<_", "_<=_", "_>_", "_>=_")
_MIRRORED = {"_<_": "_>_", "_<=_": "_>=_", "_>_": "_<_", "_>=_": "_<=_"}
_STRING_TESTS = ("startsWith", "endsWith", "contains", "matches")
_TWO = ("_==_", "_!=_", "@in", "_[_]", "_[?_]", "_+_")


class Functions:
    """Calls of functions with terms."""

    def __init__(self, comparing: LeafComparison, environment: Environment) -> None:
        self._comparing = comparing
        self._world = comparing.world
        self._circuit = comparing.circuit
        self._environment = environment
        sums = SumTranslator(comparing)
        self._special: dict[str, Callable[..., Term]] = {
            "_==_": self._equal,
            "_!=_": self._not_equal,
            "@in": self._in,
            "_[_]": self._index,
            "_[?_]": self._optional_index,
            "_+_": sums.plus,
            "string": sums.string,
            "size": self._size,
            "lowerAscii": lambda leaf: self._seen(leaf, StringView.LOWER),
            "upperAscii": lambda leaf: self._seen(leaf, StringView.UPPER),
            "dyn": lambda leaf: [(TRUE, leaf)],
            "optional.of": lambda leaf: [(TRUE, SomeValue(leaf))],
            "optional.ofNonZeroValue": self._of_non_zero,
            "hasValue": self._has_value,
            "value": self._value,
        }

    def call(self, function: str, terms: list[Term]) -> Term:
        """Return the result of a call; its arguments are all evaluated."""
        combinations = 1
        for term in terms:
            combinations *= len(term)
        if combinations > MAX_COMBINATIONS:
            raise Unsupported(f"so many cases of {_name(function)}")
        results: list[Term] = []
        for chosen in product(*terms):
            guard = self._circuit.all_of(guard for guard, _ in chosen)
            if guard != FALSE:
                leaves = [leaf for _, leaf in chosen]
                if any(isinstance(leaf, MissingData) for leaf in leaves):
                    results.append(under(self._circuit, guard, self._left_over(function, leaves)))
                    continue
                results.append(under(self._circuit, guard, self._apply(function, leaves)))
        return merged(self._circuit, results)

    def _apply(self, function: str, leaves: list[Leaf]) -> Term:
        if all(isinstance(leaf, Constant) for leaf in leaves):
            return self._computed(function, [leaf.value for leaf in leaves if isinstance(leaf, Constant)])
        if find_dispatcher(self._environment, function, len(leaves)) is None:
            return []
        container = {"_[_]": 0, "@in": 1}.get(function)
        if container is not None and isinstance(leaves[container], ComputedValue):
            return []
        computed = next((leaf for leaf in leaves if isinstance(leaf, ComputedValue)), None)
        if computed is not None and function != "_+_":
            raise Unsupported(computed.function)
        if function in _ORDER:
            return self._order(function, *leaves)
        if function in _STRING_TESTS and len(leaves) == 2:
            return self._string_test(function, *leaves)
        special = self._special.get(function)
        if special is None or len(leaves) > (2 if function in _TWO else 1):
            raise Unsupported(_name(function))
        return special(*leaves)

    def _left_over(self, function: str, leaves: list[Leaf]) -> Term:
        """Return what is left of a call with missing data: nothing of one that fails whatever the data is."""
        if function == "matches" and isinstance(pattern := leaves[-1], Constant) and _is_broken(pattern.value):
            return []
        if function == "@in" and not isinstance(leaves[-1], MissingData):
            return Possible(FALSE, FALSE, -self._comparing.is_empty(leaves[-1]), TRUE, TRUE).term(self._circuit)
        possible, _ = result_of_call(function, len(leaves))
        return [(TRUE, MissingData(possible))]

    def _computed(self, function: str, arguments: list[object]) -> Term:
        dispatcher = find_dispatcher(self._environment, function, len(arguments))
        if dispatcher is None:
            return []
        try:
            return [(TRUE, Constant(dispatcher.invoke(Meter(CALL_LIMIT), *arguments)))]
        except Failure:
            return []

    def _equal(self, left: Leaf, right: Leaf) -> Term:
        return decided(self._circuit, TRUE, self._comparing.equal(left, right))

    def _not_equal(self, left: Leaf, right: Leaf) -> Term:
        return decided(self._circuit, TRUE, -self._comparing.equal(left, right))

    def _order(self, function: str, left: Leaf, right: Leaf) -> Term:
        if isinstance(left, Constant):
            return self._order(_MIRRORED[function], right, left)
        if isinstance(left, SomeValue | Items) or (isinstance(right, SomeValue | Items)):
            return []
        if not isinstance(right, Constant):
            raise Unsupported(f"{_name(function)} between two values that are not known")
        if type(right.value) not in NUMERIC:
            return self._unordered(function, left, right.value)
        if isinstance(left, SeenString):
            return []
        is_number = left.is_kind(ValueKind.NUMBER) if isinstance(left, Unknown) else TRUE
        if is_number == FALSE:
            return []
        less, equal = self._comparing.order(left, right.value)  # type: ignore[arg-type]
        test = {"_<_": less, "_>=_": -less}.get(function)
        if test is None:
            at_most = self._circuit.any_of((less, equal))
            test = at_most if function == "_<=_" else -at_most
        return decided(self._circuit, is_number, test)

    def _unordered(self, function: str, left: Leaf, value: object) -> Term:
        """Order strings and bools, which is not understood; values of other types have no order with an unknown."""
        kind = {str: ValueKind.STRING, bool: ValueKind.BOOL}.get(type(value))
        if kind is None or (isinstance(left, Unknown) and left.is_kind(kind) == FALSE) or isinstance(left, Size):
            return []
        raise Unsupported(f"{_name(function)} between strings or bools")

    def _string_test(self, function: str, left: Leaf, right: Leaf) -> Term:
        languages = self._world.languages
        if isinstance(left, Constant):
            return self._part_of(function, left.value, right)
        is_string = TRUE if isinstance(left, SeenString) else FALSE
        if isinstance(left, Unknown):
            is_string = left.is_kind(ValueKind.STRING)
        if is_string == FALSE:
            return []
        if not isinstance(right, Constant):
            if isinstance(right, Unknown) and right.is_kind(ValueKind.STRING) == FALSE:
                return []
            raise Unsupported(f"{function} with a string that is not known")
        if not isinstance(right.value, str):
            return []
        match function:
            case "startsWith":
                language = languages.starting_with(right.value)
            case "endsWith":
                language = languages.ending_with(right.value)
            case "contains":
                language = languages.containing(right.value)
            case _:
                if _is_broken(right.value):
                    return []
                language = languages.matching(right.value)
        if isinstance(left, SeenString):
            return decided(self._circuit, TRUE, left.of.in_language(languages.before(language, left.view)))
        assert isinstance(left, Unknown)
        return decided(self._circuit, is_string, left.in_language(language))

    def _part_of(self, function: str, text: object, part: Leaf) -> Term:
        """Test a known string with an unknown one: it has finitely many parts."""
        if not isinstance(text, str) or not isinstance(part, Unknown) or part.is_kind(ValueKind.STRING) == FALSE:
            if isinstance(part, SeenString) and isinstance(text, str):
                raise Unsupported(f"{function} with a string that is not known")
            return []
        length = len(text)
        if function == "matches" or length > 40:
            raise Unsupported(f"{function} with a string that is not known")
        starts = range(length + 1) if function != "startsWith" else (0,)
        ends = range(length + 1) if function != "endsWith" else (length,)
        parts = {text[start:end] for start in starts for end in ends if start <= end}
        test = part.in_language(self._world.languages.one_of(sorted(parts)))
        return decided(self._circuit, part.is_kind(ValueKind.STRING), test)

    def _in(self, item: Leaf, container: Leaf) -> Term:
        equal, any_of = self._comparing.equal, self._circuit.any_of
        match container:
            case Constant(value=list() as items):
                return decided(self._circuit, TRUE, any_of(equal(item, Constant(known)) for known in items))
            case Constant(value=dict() as entries):
                keys = map_keys(entries)
                return decided(self._circuit, TRUE, any_of(equal(item, Constant(key)) for key in keys))
            case Items():
                return decided(self._circuit, TRUE, self._comparing.contains(container, item))
            case Unknown():
                results: list[Term] = []
                if container.is_kind(ValueKind.LIST) != FALSE:
                    test = self._comparing.is_element(container, item)
                    results.append(decided(self._circuit, container.is_kind(ValueKind.LIST), test))
                if container.is_kind(ValueKind.MAP) != FALSE:
                    test = any_of(entry.present for entry in self._comparing.entry(container, item))
                    results.append(decided(self._circuit, container.is_kind(ValueKind.MAP), test))
                return merged(self._circuit, results)
        return []

    def _index(self, container: Leaf, key: Leaf) -> Term:
        if _is_optional(container):
            return self._optional_index(container, key)
        return self._indexed(container, key)

    def _optional_index(self, container: Leaf, key: Leaf) -> Term:
        if not isinstance(key, Constant):
            raise Unsupported("an optional index that is not known")
        if not isinstance(key.value, bool | int | float | str):
            return []
        if _is_optional(container):
            return (
                self._optional_index(container.value, key)
                if isinstance(container, SomeValue)
                else self._in_known(container, key)
            )
        elements = self._indexed(container, key)
        missing = [-guard for guard, _ in elements]
        if not _is_whole(key.value):
            # A list has no such index at all: that is an error.
            is_list = container.is_kind(ValueKind.LIST) if isinstance(container, Unknown) else FALSE
            missing.append(TRUE if isinstance(container, Items) else is_list)
            missing[-1] = -missing[-1]
        none = self._circuit.all_of(missing)
        return [(none, NOTHING), *((guard, optional(leaf)) for guard, leaf in elements)]

    def _in_known(self, container: Leaf, key: Leaf) -> Term:
        return self._computed("_[?_]", [leaf.value for leaf in (container, key) if isinstance(leaf, Constant)])

    def _indexed(self, container: Leaf, key: Leaf) -> Term:
        """Return the element with a key, where there is one."""
        match container:
            case Constant(value=list() as items):
                return [
                    (self._comparing.equal(key, Constant(place)), Constant(item)) for place, item in enumerate(items)
                ]
            case Constant(value=dict() as entries):
                pairs = zip(map_keys(entries), entries.values(), strict=True)
                return [(self._comparing.equal(key, Constant(known)), Constant(value)) for known, value in pairs]
            case Items():
                return self._element(container, key)
            case Unknown():
                elements: Term = []
                if container.is_kind(ValueKind.LIST) != FALSE:
                    is_list = container.is_kind(ValueKind.LIST)
                    elements += under(self._circuit, is_list, self._element(container, key))
                if container.is_kind(ValueKind.MAP) != FALSE:
                    elements += [(entry.present, entry.value) for entry in self._comparing.entry(container, key)]
                return elements
        return []

    def _element(self, container: Items | Unknown, key: Leaf) -> Term:
        """Return the element of a list at an index."""
        if isinstance(key, Unknown) and key.is_kind(ValueKind.NUMBER) == FALSE:
            return []
        if not isinstance(key, Constant):
            raise Unsupported("an index that is not known")
        if not _is_whole(key.value):
            return []
        place = int(key.value)  # type: ignore[call-overload]
        items = container if isinstance(container, Items) else self._comparing.items(container, ValueKind.LIST)
        if place < 0:
            return []
        items.ask_for(place + 1)
        if not items.is_dense:
            raise Unsupported("an index of a filtered list")
        if place >= len(items.entries):
            return []
        present, term = items.entries[place]
        return under(self._circuit, present, term)

    def _size(self, leaf: Leaf) -> Term:
        match leaf:
            case Items():
                return [(TRUE, Size(leaf))]
            case SeenString():
                return [(TRUE, Size(leaf))]
            case Unknown():
                sizes: Term = [(leaf.is_kind(ValueKind.STRING), Size(leaf))]
                for kind in (ValueKind.LIST, ValueKind.MAP):
                    if leaf.is_kind(kind) != FALSE:
                        sizes.append((leaf.is_kind(kind), Size(self._comparing.items(leaf, kind))))
                return sizes
        return []

    def _seen(self, leaf: Leaf, view: StringView) -> Term:
        if isinstance(leaf, SeenString):
            if leaf.view is view:
                return [(TRUE, leaf)]
            raise Unsupported(f"{view.value} of {leaf.view.value}")
        return [(leaf.is_kind(ValueKind.STRING), SeenString(leaf, view))] if isinstance(leaf, Unknown) else []

    def _of_non_zero(self, leaf: Leaf) -> Term:
        if not isinstance(leaf, Unknown):
            raise Unsupported("optional.ofNonZeroValue of a computed value")
        is_zero = self._comparing.is_zero(leaf)
        return [(is_zero, NOTHING), (-is_zero, SomeValue(leaf))]

    def _has_value(self, leaf: Leaf) -> Term:
        return boolean(TRUE, FALSE) if isinstance(leaf, SomeValue) else []

    def _value(self, leaf: Leaf) -> Term:
        return [(TRUE, leaf.value)] if isinstance(leaf, SomeValue) else []


def _is_optional(leaf: Leaf) -> bool:
    return isinstance(leaf, SomeValue) or (isinstance(leaf, Constant) and isinstance(leaf.value, OptionalValue))


def _is_broken(pattern: object) -> bool:
    """Whether a pattern is one that `matches` refuses."""
    if not isinstance(pattern, str):
        return False
    try:
        compile_pattern(pattern)
    except Failure:
        return True
    return False


def _is_whole(value: object) -> bool:
    """Whether a value can be the index of a list."""
    return type(value) in NUMERIC and value == value and value not in (inf, -inf) and value == int(value)  # type: ignore[call-overload]


def _name(function: str) -> str:
    """Return the function as people write it."""
    operator = function.strip("_@").replace("_", "")
    return f"{operator}()" if (operator.isidentifier() and operator != "in") or "." in operator else operator

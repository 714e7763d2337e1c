"""Comprehensions over one variable: `all`, `exists` and `exists_one`, `filter` and `map`.

`all` and `exists` absorb errors as `&&` and `||` do; in the others an error of an element is one of the whole. What
depends on missing data is left over.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from tierwall.cel.partial_evaluation import outcomes
from tierwall.cel.syntax import ast
from tierwall.logic.cel.outcome import Possible, conjunction, opposite
from tierwall.logic.cel.terms import (
    MISSING,
    Items,
    MissingData,
    Term,
    decided,
    defined,
    known_leaves,
    merged,
    missing,
)
from tierwall.logic.cel.unknown import UnknownWorld
from tierwall.logic.circuit import FALSE, TRUE, Circuit
from tierwall.logic.unsupported import Unsupported


class Loop:
    """One comprehension. `evaluate` returns what a part of it comes to for an element, `judge` the same of a bool."""

    def __init__(
        self,
        world: UnknownWorld,
        node: ast.Comprehension,
        evaluate: Callable[[ast.Expr, Term], Term],
        judge: Callable[[ast.Expr, Term], Possible],
    ) -> None:
        self._world = world
        self._circuit = world.circuit
        self._node = node
        self._evaluate = evaluate
        self._judge = judge

    def left_over(self) -> Term:
        """Return what may come of missing data, which may have no elements at all."""
        if self._node.macro not in ("all", "exists", "exists_one"):
            return [(TRUE, MissingData(outcomes.VALUE))]
        body = self._judge(self._node.args[0], [(TRUE, MISSING)])
        may_be = (TRUE, body.may_be_false) if self._node.macro == "all" else (body.may_be_true, TRUE)
        return Possible(FALSE, FALSE, *may_be, TRUE).term(self._circuit)

    def over(self, items: Items) -> Term:
        """Return what comes of some elements."""
        circuit, node = self._circuit, self._node
        items.ask_for(2 if node.macro == "exists_one" else 1)
        presents = [present for present, _ in items.entries]
        has_test = node.macro != "map" or len(node.args) > 1
        tests = [self._judge(node.args[0], element) for _, element in items.entries] if has_test else []
        if node.macro in ("all", "exists"):
            wanted = tests if node.macro == "all" else list(map(opposite, tests))
            every = conjunction(circuit, [_where(circuit, *pair) for pair in zip(presents, wanted, strict=True)])
            return (every if node.macro == "all" else opposite(every)).term(circuit)
        judged = _Judged(circuit, list(zip(presents, tests, strict=False)))
        match node.macro:
            case "exists_one":
                return self._exactly_one(judged)
            case "filter":
                entries = zip(judged.passes, (element for _, element in items.entries), strict=True)
                made = Items(tuple(entries), items.ask_for, is_dense=False)
                return [(judged.is_sound, made), (judged.is_lacking(), MissingData(outcomes.VALUE))]
            case "map":
                return self._mapped(items, judged, judged.passes if has_test else presents, has_test)
        raise Unsupported(f"`{node.macro}`", node.at)

    def _mapped(self, items: Items, judged: _Judged, shown: Sequence[int], is_filtered: bool) -> Term:
        circuit = self._circuit
        body = self._node.args[-1]
        results = [
            (show, self._evaluate(body, element)) for show, (_, element) in zip(shown, items.entries, strict=True)
        ]
        whole = circuit.all_of(circuit.any_of((-show, defined(circuit, result))) for show, result in results)
        absent = (circuit.all_of((show, missing(circuit, result))) for show, result in results)
        lacking = circuit.all_of((judged.is_lacking(absent), whole))
        entries = tuple((show, known_leaves(result)) for show, result in results)
        made = Items(entries, items.ask_for, items.is_dense and not is_filtered)
        return [
            (circuit.all_of((judged.is_sound, -lacking, whole)), made),
            (lacking, MissingData(outcomes.VALUE)),
        ]

    def _exactly_one(self, judged: _Judged) -> Term:
        circuit, at_least = self._circuit, self._world.at_least
        passes_once = circuit.all_of((at_least(judged.passes, 1), -at_least(judged.passes, 2)))
        lacking = judged.is_lacking()
        if lacking == FALSE:
            return decided(circuit, judged.is_sound, passes_once)
        # As partial evaluation judges it: none passes yet and one may, or one passes and no other must.
        left_open = [(circuit.all_of((present, test.is_missing)), test) for present, test in judged.elements]
        may_pass = circuit.any_of(circuit.all_of((is_open, test.may_be_true)) for is_open, test in left_open)
        may_fail = circuit.all_of(circuit.any_of((-is_open, test.may_be_false)) for is_open, test in left_open)
        may_be_one = circuit.any_of(
            (circuit.all_of((-at_least(judged.passes, 1), may_pass)), circuit.all_of((passes_once, may_fail)))
        )
        left = Possible(FALSE, FALSE, may_be_one, TRUE, lacking).term(circuit)
        return merged(circuit, [decided(circuit, circuit.all_of((judged.is_sound, -lacking)), passes_once), left])


class _Judged:
    """Elements, each with whether it is there, and with what a test says about it."""

    def __init__(self, circuit: Circuit, elements: Sequence[tuple[int, Possible]]) -> None:
        self._circuit = circuit
        self.elements = elements
        self.passes = [circuit.all_of((present, test.true)) for present, test in elements]
        self.is_sound = circuit.all_of(circuit.any_of((-present, test.true, test.false)) for present, test in elements)

    def is_lacking(self, absent: Iterable[int] = ()) -> int:
        """Return whether missing data decides about some element, and no element is an error."""
        any_of, all_of = self._circuit.any_of, self._circuit.all_of
        undecided = any_of((*absent, *(all_of((present, test.is_missing)) for present, test in self.elements)))
        no_error = (any_of((-present, test.true, test.false, test.is_missing)) for present, test in self.elements)
        return all_of((undecided, *no_error))


def _where(circuit: Circuit, present: int, test: Possible) -> Possible:
    """Return what an element says to `all`: one that is not there settles nothing."""
    return Possible(
        circuit.any_of((-present, test.true)),
        circuit.all_of((present, test.false)),
        circuit.any_of((-present, test.may_be_true)),
        circuit.all_of((present, test.may_be_false)),
        circuit.all_of((present, test.is_missing)),
    )

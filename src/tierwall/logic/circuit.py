"""Boolean circuits: the one form into which every plane translates its policies for a proof.

A literal is an integer; its negation is the negative one. Gates are conjunctions of two or more literals. Equal gates
are made once and constants are folded, so that two policy sets that share most of their rules share most of their
gates: what a change leaves alone drops out before a solver sees it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

TRUE = 1
FALSE = -1


class Circuit:
    """Variables, gates, and clauses that hold for everything that may come."""

    def __init__(self) -> None:
        self._last = TRUE
        self._gates: dict[tuple[int, ...], int] = {}
        self._inputs: dict[int, tuple[int, ...]] = {}
        self._clauses: list[tuple[int, ...]] = []
        # Variables that say "one of those so far", each with the literals it is about.
        self._so_far: dict[int, tuple[int, int]] = {}

    @property
    def size(self) -> int:
        """How many variables and gates there are."""
        return self._last

    def variable(self) -> int:
        """Make a new variable."""
        self._last += 1
        return self._last

    def variables(self, count: int) -> list[int]:
        """Make several new variables."""
        return [self.variable() for _ in range(count)]

    def all_of(self, literals: Iterable[int]) -> int:
        """Return the literal that is true if all of these are."""
        needed = set(literals)
        needed.discard(TRUE)
        if FALSE in needed or any(-literal in needed for literal in needed if literal > 0):
            return FALSE
        if len(needed) < 2:
            return needed.pop() if needed else TRUE
        key = tuple(sorted(needed))
        gate = self._gates.get(key)
        if gate is None:
            gate = self._gates[key] = self.variable()
            self._inputs[gate] = key
        return gate

    def any_of(self, literals: Iterable[int]) -> int:
        """Return the literal that is true if one of these is."""
        return -self.all_of([-literal for literal in literals])

    def choose(self, condition: int, then: int, otherwise: int) -> int:
        """Return the literal that equals `then` if the condition is true, and `otherwise` if it is false."""
        if then == otherwise:
            return then
        return self.any_of((self.all_of((condition, then)), self.all_of((-condition, otherwise))))

    def same(self, left: int, right: int) -> int:
        """Return the literal that is true if both are true or both are false."""
        return self.choose(left, right, -right)

    def implies(self, premise: int, conclusion: int) -> int:
        """Return the literal that is false only if the premise is true and the conclusion false."""
        return self.any_of((-premise, conclusion))

    def require(self, *literals: int) -> None:
        """Let at least one of these literals be true in everything that may come."""
        if TRUE not in literals:
            self._clauses.append(tuple(literal for literal in literals if literal != FALSE))

    def require_one(self, literals: list[int]) -> None:
        """Let exactly one of these literals be true."""
        self.require(*literals)
        self.require_at_most_one(literals)

    def require_at_most_one(self, literals: list[int]) -> None:
        """Let at most one of these literals be true."""
        if len(literals) <= 6:
            for position, first in enumerate(literals):
                for second in literals[position + 1 :]:
                    self.require(-first, -second)
            return
        # A chain says "one of those so far": three clauses for each literal instead of one for each pair.
        before = literals[0]
        for literal in literals[1:]:
            so_far = self.variable()
            self._so_far[so_far] = (before, literal)
            self.require(-before, so_far)
            self.require(-before, -literal)
            self.require(-literal, so_far)
            before = so_far

    def clauses(self, start: int = 0) -> list[tuple[int, ...]]:
        """Return the clauses that were required, without the first `start` of them."""
        return self._clauses[start:]

    def inputs(self, node: int) -> tuple[int, ...]:
        """Return what a node hangs on: a gate, or a variable that says "one of those so far"; nothing for others."""
        return self._inputs[node] if node in self._inputs else self._so_far.get(node, ())

    def is_conjunction(self, node: int) -> bool:
        """Whether a node is a gate, which is true if all its inputs are."""
        return node in self._inputs

    def definitions(self, roots: Iterable[int], known: set[int]) -> Iterator[tuple[int, ...]]:
        """Yield clauses that define every gate below the roots that is not known yet, and add it to those known."""
        waiting = [abs(root) for root in roots]
        while waiting:
            gate = waiting.pop()
            if gate in known:
                continue
            known.add(gate)
            inputs = self._inputs.get(gate)
            if inputs is None:
                continue
            for literal in inputs:
                yield (-gate, literal)
                waiting.append(abs(literal))
            yield (gate, *[-literal for literal in inputs])

    def inputs_below(self, roots: Iterable[int]) -> set[int]:
        """Return the variables (not gates) that the roots hang on."""
        seen: set[int] = set()
        waiting = [abs(root) for root in roots]
        while waiting:
            node = waiting.pop()
            if node not in seen:
                seen.add(node)
                waiting.extend(abs(literal) for literal in self._inputs.get(node, ()))
        return {node for node in seen if node not in self._inputs and node != TRUE}

    def value(self, root: int, true: set[int]) -> bool:
        """Evaluate a literal where just these variables are true. Tests compare circuits with decisions by it."""
        known: dict[int, bool] = {TRUE: True}
        waiting = [abs(root)]
        while waiting:
            node = waiting[-1]
            if node in known:
                waiting.pop()
                continue
            inputs = self._inputs.get(node)
            if inputs is None:
                known[node] = node in true
                continue
            missing = [abs(literal) for literal in inputs if abs(literal) not in known]
            if missing:
                waiting.extend(missing)
            else:
                known[node] = all(known[abs(literal)] == (literal > 0) for literal in inputs)
        return known[abs(root)] == (root > 0)

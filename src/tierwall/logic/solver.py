"""The form of a solver of clauses, and the choice of one: native where it is installed, otherwise our own.

Answers never depend on which: a question is satisfiable or not, and `smallest` narrows a model by questions alone until
only one model is left.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from importlib.util import find_spec
from typing import Any, Protocol

from tierwall.logic.circuit import TRUE, Circuit
from tierwall.logic.conflict_driven import ConflictDrivenSolver


class Solver(Protocol):
    """Clauses to satisfy, added one by one and asked about again and again."""

    def add(self, clause: Iterable[int]) -> None:
        """Add a clause."""

    def solve(self, assumptions: Sequence[int] = (), conflicts: int | None = None) -> bool | None:
        """Return whether all clauses can be true under the assumptions, or None after that many conflicts."""

    def is_true(self, literal: int) -> bool:
        """Return the value of a literal in the last model that `solve` found."""


class NativeSolver:
    """MiniSat 2.2 of python-sat, which can be given a budget.

    Glucose 4 of python-sat 1.9 aborted the process while it was freed, in runs with thousands of solvers.
    """

    def __init__(self) -> None:
        from pysat.solvers import Minisat22

        self._solver: Any = Minisat22()
        self._true: set[int] = set()

    def add(self, clause: Iterable[int]) -> None:
        """Add a clause."""
        self._solver.add_clause(list(clause))

    def solve(self, assumptions: Sequence[int] = (), conflicts: int | None = None) -> bool | None:
        """Return whether all clauses can be true under the assumptions, or None after that many conflicts."""
        if conflicts is None:
            answer: bool | None = self._solver.solve(assumptions=list(assumptions))
        else:
            self._solver.conf_budget(conflicts)
            answer = self._solver.solve_limited(assumptions=list(assumptions))
        if answer:
            self._true = set(self._solver.get_model())
        return answer

    def is_true(self, literal: int) -> bool:
        """Return the value of a literal in the last model that `solve` found."""
        return literal in self._true


def solver() -> Solver:
    """Return the fastest solver that is installed."""
    return NativeSolver() if find_spec("pysat") else ConflictDrivenSolver()


class CircuitSolver:
    """A circuit and a solver that holds its clauses. Gates are handed over when a question needs them."""

    def __init__(self, circuit: Circuit, engine: Solver | None = None) -> None:
        self.circuit = circuit
        self._engine = engine or solver()
        self._known: set[int] = set()
        self._required = 0
        self._engine.add((TRUE,))

    def possible(self, literals: Sequence[int], conflicts: int | None = None) -> bool | None:
        """Return whether all these literals can be true at once, or None after that many conflicts.

        A literal that the circuit does not have raises: a solver takes it for a free variable, and answers about that.
        """
        self._hand_over(literals)
        return self._engine.solve(literals, conflicts)

    def is_true(self, literal: int) -> bool:
        """Return the value of a literal in the last model that `possible` found; it must be part of some question."""
        return self._engine.is_true(literal)

    def know(self, literals: Iterable[int]) -> None:
        """Let the next models have these literals, too."""
        self._hand_over(list(literals))

    def smallest(
        self,
        literals: Sequence[int],
        preferences: Iterable[int],
        conflicts: int | None = None,
        most: int | None = None,
    ) -> list[int]:
        """Return the literals with every preference added, in order, that is still possible beside those before it.

        The literals must be possible. Where the preferences decide every variable, the result is the one smallest
        model, whichever solver found it; unless one preference takes more than so many conflicts, and is left out. Of
        more than `most` preferences, the others are only part of the question.
        """
        chosen = list(literals)
        wanted = list(preferences)
        self._hand_over([*chosen, *wanted])
        current = self._model(chosen, wanted)
        for position, literal in enumerate(wanted[:most]):
            if literal in current:
                chosen.append(literal)
            elif self._engine.solve([*chosen, literal], conflicts):
                chosen.append(literal)
                current = {later for later in wanted[position:] if self._engine.is_true(later)}
            else:
                chosen.append(-literal)
        self._engine.solve(chosen)
        return chosen

    def _model(self, literals: list[int], wanted: list[int]) -> set[int]:
        if not self._engine.solve(literals):
            raise ValueError("only what is possible has a smallest model")
        return {literal for literal in wanted if self._engine.is_true(literal)}

    def _hand_over(self, literals: Sequence[int]) -> None:
        strange = [literal for literal in literals if not 0 < abs(literal) <= self.circuit.size]
        if strange:
            raise ValueError(f"the circuit has no literal {strange[0]}")
        required = self.circuit.clauses(self._required)
        for clause in required:
            self._engine.add(clause)
        self._required += len(required)
        roots = [literal for clause in required for literal in clause]
        for clause in self.circuit.definitions([*roots, *literals], self._known):
            self._engine.add(clause)

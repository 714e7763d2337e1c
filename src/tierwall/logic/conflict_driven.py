"""A small solver of clauses that is always there: conflict-driven clause learning in plain Python.

Proofs must not need a native wheel. The formulas of policies are shallow (tens of conflicts for a thousand policies),
so the textbook algorithm is fast enough: two watched literals, first unique implication point, activity of variables,
restarts. Nothing depends on hashing or time: the same clauses give the same model.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from heapq import heapify, heappop, heappush

OPEN = 2
RESTART_AFTER = 100
ACTIVITY_GROWTH = 1.05
ACTIVITY_LIMIT = 1e100


def _encoded(literal: int) -> int:
    """Return a literal as an index: twice its variable, plus one if it is negative."""
    return literal << 1 if literal > 0 else (-literal << 1) | 1


def _common_length(first: list[int], second: list[int]) -> int:
    """Return how many of their first literals two lists have in common."""
    length = 0
    for left, right in zip(first, second, strict=False):
        if left != right:
            break
        length += 1
    return length


class ConflictDrivenSolver:
    """Clauses to satisfy; see `tierwall.logic.solver.Solver`."""

    def __init__(self) -> None:
        # By encoded literal: 1 true, 0 false, OPEN. By variable: where its value comes from.
        self._value: list[int] = [OPEN, OPEN]
        self._watches: list[list[list[int]]] = [[], []]
        self._level: list[int] = [0]
        self._reason: list[list[int] | None] = [None]
        self._activity: list[float] = [0.0]
        self._phase: list[int] = [1]
        self._heap: list[tuple[float, int]] = []
        self._trail: list[int] = []
        self._starts: list[int] = []
        # What the first levels assume.
        self._wanted: list[int] = []
        self._head = 0
        self._bump = 1.0
        self._impossible = False

    def add(self, clause: Iterable[int]) -> None:
        """Add a clause."""
        self._back_to(0)
        literals: list[int] = []
        for literal in clause:
            self._make(abs(literal))
            code = _encoded(literal)
            value = self._value[code]
            if value == 1 or code ^ 1 in literals:
                return
            if value == OPEN and code not in literals:
                literals.append(code)
        if not literals:
            self._impossible = True
        elif len(literals) == 1:
            self._assign(literals[0], None)
        else:
            self._watch(literals)

    def solve(self, assumptions: Sequence[int] = (), conflicts: int | None = None) -> bool | None:
        """Return whether all clauses can be true under the assumptions, or None after that many conflicts."""
        wanted = []
        for literal in assumptions:
            self._make(abs(literal))
            wanted.append(_encoded(literal))
        # Questions that begin alike keep what follows from their beginning: smallest models ask thousands of those.
        self._back_to(_common_length(self._wanted, wanted))
        self._wanted = wanted
        left, until_restart = conflicts, RESTART_AFTER
        while not self._impossible:
            conflict = self._propagate()
            if conflict is not None:
                if not self._starts:
                    self._impossible = True
                    break
                self._learn(conflict)
                until_restart -= 1
                if left is not None:
                    left -= 1
                    if left < 0:
                        return None
                continue
            if until_restart <= 0:
                until_restart = RESTART_AFTER
                self._back_to(len(wanted))
                continue
            if len(self._starts) < len(wanted):
                code = wanted[len(self._starts)]
                if self._value[code] == 0:
                    return False
                self._starts.append(len(self._trail))
                if self._value[code] == OPEN:
                    self._assign(code, None)
                continue
            variable = self._most_active()
            if variable is None:
                return True
            self._starts.append(len(self._trail))
            self._assign(variable << 1 | self._phase[variable], None)
        return False

    def is_true(self, literal: int) -> bool:
        """Return the value of a literal in the model that `solve` found."""
        code = _encoded(literal)
        return code < len(self._value) and self._value[code] == 1

    def _make(self, variable: int) -> None:
        while len(self._level) <= variable:
            new = len(self._level)
            self._value += (OPEN, OPEN)
            self._watches += ([], [])
            self._level.append(0)
            self._reason.append(None)
            self._activity.append(0.0)
            self._phase.append(1)
            heappush(self._heap, (0.0, new))

    def _watch(self, clause: list[int]) -> None:
        self._watches[clause[0]].append(clause)
        self._watches[clause[1]].append(clause)

    def _assign(self, code: int, reason: list[int] | None) -> None:
        self._value[code] = 1
        self._value[code ^ 1] = 0
        variable = code >> 1
        self._level[variable] = len(self._starts)
        self._reason[variable] = reason
        self._trail.append(code)

    def _propagate(self) -> list[int] | None:
        """Assign what follows; return a clause that is false, if there is one."""
        value, watches, trail = self._value, self._watches, self._trail
        while self._head < len(trail):
            false = trail[self._head] ^ 1
            self._head += 1
            watching = watches[false]
            kept: list[list[int]] = []
            for position, clause in enumerate(watching):
                if clause[0] == false:
                    clause[0], clause[1] = clause[1], false
                first = clause[0]
                if value[first] == 1:
                    kept.append(clause)
                    continue
                for place in range(2, len(clause)):
                    other = clause[place]
                    if value[other]:
                        clause[1], clause[place] = other, false
                        watches[other].append(clause)
                        break
                else:
                    kept.append(clause)
                    if value[first] == 0:
                        kept += watching[position + 1 :]
                        watches[false] = kept
                        return clause
                    self._assign(first, clause)
            watches[false] = kept
        return None

    def _learn(self, conflict: list[int]) -> None:
        """Add the clause that this conflict teaches, go back to where it says something, and say it."""
        here = len(self._starts)
        learned: list[int] = [0]
        seen: set[int] = set()
        open_ones, position, clause = 0, len(self._trail), conflict
        while True:
            for code in clause:
                variable = code >> 1
                # A reason's own literal was seen before: it is the one that is being replaced.
                if variable in seen or not self._level[variable]:
                    continue
                seen.add(variable)
                self._bumped(variable)
                if self._level[variable] == here:
                    open_ones += 1
                else:
                    learned.append(code)
            position -= 1
            while self._trail[position] >> 1 not in seen:
                position -= 1
            code = self._trail[position]
            open_ones -= 1
            if not open_ones:
                learned[0] = code ^ 1
                break
            clause = self._reason[code >> 1] or []
        self._bump *= ACTIVITY_GROWTH
        if len(learned) == 1:
            self._back_to(0)
            self._assign(learned[0], None)
            return
        # The second literal must be the one of the highest level below: it is watched.
        second = max(range(1, len(learned)), key=lambda place: self._level[learned[place] >> 1])
        learned[1], learned[second] = learned[second], learned[1]
        self._back_to(self._level[learned[1] >> 1])
        self._watch(learned)
        self._assign(learned[0], learned)

    def _bumped(self, variable: int) -> None:
        self._activity[variable] += self._bump
        if self._activity[variable] > ACTIVITY_LIMIT:
            self._activity = [activity / ACTIVITY_LIMIT for activity in self._activity]
            self._bump /= ACTIVITY_LIMIT
            self._heap = [(-self._activity[known], known) for _, known in self._heap]
            heapify(self._heap)
        heappush(self._heap, (-self._activity[variable], variable))

    def _most_active(self) -> int | None:
        """Return the open variable that took part in most conflicts lately. The heap may hold old entries."""
        while self._heap:
            _, variable = heappop(self._heap)
            if self._value[variable << 1] == OPEN:
                return variable
        return None

    def _back_to(self, level: int) -> None:
        if len(self._starts) <= level:
            return
        start = self._starts[level]
        for code in self._trail[start:]:
            variable = code >> 1
            self._value[code] = self._value[code ^ 1] = OPEN
            self._phase[variable] = code & 1
            heappush(self._heap, (-self._activity[variable], variable))
        del self._trail[start:]
        del self._starts[level:]
        self._head = min(self._head, start)

"""A small solver of clauses that is always there: conflict-driven clause learning in plain Python.

Proofs must not need a native wheel. The formulas of policies are shallow (tens of conflicts for a thousand policies),
so the textbook algorithm is fast enough: two watched literals, first unique implication point, activity of variables,
restarts. Nothing depends on hashing or time: the same clauses give the same model.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from heapq import heapify, heappop, heappush
from typing import TypeAlias

OPEN = 2
RESTART_AFTER = 100
ACTIVITY_GROWTH = 1.05
ACTIVITY_LIMIT = 1e100
_ROOM = 64

# Why a literal is true: a clause of which all others are false, the literal that implies it, or a choice.
Reason: TypeAlias = list[int] | int | None


def _common_length(first: list[int], second: list[int]) -> int:
    """Return how many of their first literals two lists have in common."""
    length = 0
    for left, right in zip(first, second, strict=False):
        if left != right:
            break
        length += 1
    return length


class ConflictDrivenSolver:
    """Clauses to satisfy; see `tierwall.logic.solver.Solver`.

    Lists by literal have those of negative literals at their ends, where Python's negative indices find them.
    """

    def __init__(self) -> None:
        self._room = _ROOM
        # By literal: 1 true, 0 false, OPEN; the long clauses that watch it; the literals that follow from it.
        self._value: list[int] = [OPEN] * (2 * _ROOM + 1)
        self._watches: list[list[list[int]]] = [[] for _ in range(2 * _ROOM + 1)]
        self._implied: list[list[int]] = [[] for _ in range(2 * _ROOM + 1)]
        # By true literal: when it became true, and why.
        self._level: list[int] = [0] * (2 * _ROOM + 1)
        self._reason: list[Reason] = [None] * (2 * _ROOM + 1)
        # By variable: its last literal, and how often it took part in conflicts.
        self._phase: list[int] = [0]
        self._activity: list[float] = [0.0]
        # Whether the heap of open variables has an entry with the latest activity. It may hold old ones, too.
        self._is_waiting: list[bool] = [False]
        self._heap: list[tuple[float, int]] = []
        self._trail: list[int] = []
        self._starts: list[int] = []
        # What the first levels assume.
        self._wanted: list[int] = []
        # The values of the last model.
        self._model: list[int] = []
        self._head = 0
        self._bump = 1.0
        self._impossible = False
        # How often it learned a clause; they are never forgotten.
        self.learned = 0

    def add(self, clause: Iterable[int]) -> None:
        """Add a clause."""
        if self._starts:
            self._back_to(0)
        value = self._value
        literals: list[int] = []
        for literal in clause:
            if abs(literal) >= len(self._phase):
                self._make(abs(literal))
                value = self._value
            known = value[literal]
            if known == 1 or -literal in literals:
                return
            if known == OPEN and literal not in literals:
                literals.append(literal)
        if len(literals) > 1:
            self._keep(literals)
        elif literals:
            self._assign(literals[0], None)
        else:
            self._impossible = True

    def solve(self, assumptions: Sequence[int] = (), conflicts: int | None = None) -> bool | None:
        """Return whether all clauses can be true under the assumptions, or None after that many conflicts."""
        wanted = list(assumptions)
        for literal in wanted:
            self._make(abs(literal))
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
                is_assumed = len(self._starts) <= len(wanted)
                self._learn(conflict)
                if is_assumed:
                    # Nothing was tried yet: the assumptions alone make a clause false.
                    return False
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
                literal = wanted[len(self._starts)]
                if self._value[literal] == 0:
                    return False
                self._starts.append(len(self._trail))
                if self._value[literal] == OPEN:
                    self._assign(literal, None)
                continue
            variable = self._most_active()
            if variable is None:
                self._model = self._value.copy()
                return True
            self._starts.append(len(self._trail))
            self._assign(self._phase[variable], None)
        return False

    def is_true(self, literal: int) -> bool:
        """Return the value of a literal in the last model that `solve` found."""
        return 2 * abs(literal) < len(self._model) and self._model[literal] == 1

    def _make(self, variable: int) -> None:
        if variable > self._room:
            self._enlarge(max(variable, 2 * self._room))
        while len(self._phase) <= variable:
            new = len(self._phase)
            self._phase.append(-new)
            self._activity.append(0.0)
            self._is_waiting.append(True)
            heappush(self._heap, (0.0, new))

    def _enlarge(self, room: int) -> None:
        """Make room for more variables, between the positive and the negative literals."""
        old, more = self._room, 2 * (room - self._room)
        self._value[old + 1 : old + 1] = [OPEN] * more
        self._watches[old + 1 : old + 1] = [[] for _ in range(more)]
        self._implied[old + 1 : old + 1] = [[] for _ in range(more)]
        self._level[old + 1 : old + 1] = [0] * more
        self._reason[old + 1 : old + 1] = [None] * more
        self._room = room

    def _keep(self, clause: list[int]) -> None:
        """Keep a clause of two or more literals; of a long one, the first two are watched."""
        first, second = clause[0], clause[1]
        if len(clause) == 2:
            self._implied[-first].append(second)
            self._implied[-second].append(first)
        else:
            self._watches[first].append(clause)
            self._watches[second].append(clause)

    def _assign(self, literal: int, reason: Reason) -> None:
        self._value[literal], self._value[-literal] = 1, 0
        self._level[literal] = len(self._starts)
        self._reason[literal] = reason
        self._trail.append(literal)

    def _propagate(self) -> list[int] | None:
        """Assign what follows; return a clause that is false, if there is one."""
        value, watches, implied, trail = self._value, self._watches, self._implied, self._trail
        level, reason, here = self._level, self._reason, len(self._starts)
        head = self._head
        while head < len(trail):
            literal = trail[head]
            head += 1
            for other in implied[literal]:
                known = value[other]
                if known == 1:
                    continue
                if known == 0:
                    self._head = head
                    return [other, -literal]
                value[other], value[-other] = 1, 0
                level[other], reason[other] = here, literal
                trail.append(other)
            watching = watches[-literal]
            if not watching:
                continue
            false = -literal
            kept: list[list[int]] = []
            watches[false] = kept
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
                        self._head = head
                        return clause
                    value[first], value[-first] = 1, 0
                    level[first], reason[first] = here, clause
                    trail.append(first)
        self._head = head
        return None

    def _learn(self, conflict: list[int]) -> None:
        """Add the clause that this conflict teaches, go back to where it says something, and say it."""
        self.learned += 1
        here, level, trail = len(self._starts), self._level, self._trail
        learned: list[int] = [0]
        # True literals that were met.
        seen: set[int] = set()
        open_ones, position = 0, len(trail)
        clause: Sequence[int] = conflict
        while True:
            for literal in clause:
                true = -literal
                # A reason's own literal was met before: it is the one that is being replaced.
                if true in seen or literal in seen or not level[true]:
                    continue
                seen.add(true)
                self._bumped(abs(literal))
                if level[true] == here:
                    open_ones += 1
                else:
                    learned.append(literal)
            position -= 1
            while trail[position] not in seen:
                position -= 1
            open_ones -= 1
            if not open_ones:
                learned[0] = -trail[position]
                break
            clause = self._because(trail[position])
        self._bump *= ACTIVITY_GROWTH
        # What follows from the rest says nothing new.
        learned[1:] = [literal for literal in learned[1:] if not self._follows(-literal, seen)]
        if len(learned) == 1:
            self._back_to(0)
            self._assign(learned[0], None)
            return
        # The second literal must be the one of the highest level below: it is watched.
        second = max(range(1, len(learned)), key=lambda place: level[-learned[place]])
        learned[1], learned[second] = learned[second], learned[1]
        self._back_to(level[-learned[1]])
        self._keep(learned)
        self._assign(learned[0], learned)

    def _because(self, literal: int) -> Sequence[int]:
        """Return the false literals that make a literal true; a clause has the literal, too."""
        reason = self._reason[literal]
        return (-reason,) if isinstance(reason, int) else reason or ()

    def _follows(self, literal: int, seen: set[int]) -> bool:
        """Whether a true literal follows from others that were met."""
        because = self._because(literal)
        return bool(because) and all(other == literal or -other in seen or not self._level[-other] for other in because)

    def _bumped(self, variable: int) -> None:
        self._activity[variable] += self._bump
        if self._activity[variable] > ACTIVITY_LIMIT:
            self._activity = [activity / ACTIVITY_LIMIT for activity in self._activity]
            self._bump /= ACTIVITY_LIMIT
            self._heap = [(-self._activity[known], known) for _, known in self._heap]
            heapify(self._heap)
        self._is_waiting[variable] = True
        heappush(self._heap, (-self._activity[variable], variable))

    def _most_active(self) -> int | None:
        """Return the open variable that took part in most conflicts lately."""
        heap, value, is_waiting = self._heap, self._value, self._is_waiting
        while heap:
            _, variable = heappop(heap)
            is_waiting[variable] = False
            if value[variable] == OPEN:
                return variable
        return None

    def _back_to(self, level: int) -> None:
        if len(self._starts) <= level:
            return
        start = self._starts[level]
        value, phase, is_waiting = self._value, self._phase, self._is_waiting
        for literal in self._trail[start:]:
            value[literal] = value[-literal] = OPEN
            variable = abs(literal)
            phase[variable] = literal
            if not is_waiting[variable]:
                is_waiting[variable] = True
                heappush(self._heap, (-self._activity[variable], variable))
        del self._trail[start:]
        del self._starts[level:]
        self._head = min(self._head, start)

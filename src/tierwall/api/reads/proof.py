"""Whether selectors imply conditions: for every object that they select, the conditions allow it.

The conditions are written down once, and the solver that holds them is kept: a request only adds assumptions, which
parts its selectors leave. Work is limited by sizes and conflicts, never by the clock; beyond a limit nothing is
implied. Conditions that ask for too much fail, so that others about the same object can still allow.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from threading import RLock
from typing import Any, TypeAlias

import msgspec

from tierwall.api.algebra.condition_words import bounded
from tierwall.api.reads.conditions import ConditionCircuit, ReadConditions, ReadExpressions, shows
from tierwall.api.reads.kept_proofs import KeptProofs
from tierwall.api.reads.selectable import SelectableField
from tierwall.api.reads.selection import KeySelection, Selection, value_at
from tierwall.api.reads.selector_text import ReadSelector
from tierwall.api.reads.shown_object import ShownObject
from tierwall.logic.cel.encoder import settle
from tierwall.logic.cel.unknown import UnknownWorld, ValueKind
from tierwall.logic.cel.values import Values
from tierwall.logic.circuit import TRUE
from tierwall.logic.conflict_driven import ConflictDrivenSolver
from tierwall.logic.solver import CircuitSolver
from tierwall.logic.unsupported import Unsupported, WorldLimit

# A share of what a proof may cost, because a request waits; and conflicts of the solver.
EFFORT = 0.1
CONFLICTS = 1_000
# What the search for a small object may look through: each wish for it takes as much as the circuit is large.
SMALLNESS = 200_000
# How many texts of a region are looked for: selectors can say a region of so few.
MEMBERS = 4
# How often conditions are written down: each time, the worst one that is left is given up, then two, four …
MAX_ROUNDS = 8
# What a solver may learn from requests before it starts anew, and what all proofs may take, in kilobytes.
MAX_LEARNED = 10_000
MAX_SIZE = 100_000
# Labels and texts of one request that make a proof of their own.
MAX_NAMED = 16
MAX_KEPT, MAX_ANSWERS = 16, 64
_MAX_KEY = 60
_LIMIT = "the limit of work is reached"


class ImplicationResult(msgspec.Struct, frozen=True):
    """Whether the selectors imply the conditions; if not, an object that they show, or why nobody knows."""

    is_implied: bool
    witness: Mapping[str, Any] | None = None
    why: str = ""


# An object, and what conditions may read besides it.
Counterexample: TypeAlias = tuple[Mapping[str, Any], dict[str, Any]]
IMPLIED = ImplicationResult(True)


class ReadProof:
    """The conditions of one chain on the objects of one resource, with a warm solver. Threads may share it.

    `unsupported` are constructs that count as errors, because they cannot be expressed.
    """

    def __init__(
        self,
        conditions: ReadConditions,
        fields: tuple[SelectableField, ...],
        is_delete: bool,
        keys: tuple[str, ...] = (),
        texts: tuple[tuple[str | SelectableField, tuple[str, ...]], ...] = (),
    ) -> None:
        self._question = conditions, fields, is_delete
        self._is_specialised = bool(keys or texts)

        expressions = ReadExpressions()
        latest: UnknownWorld

        def build(world: UnknownWorld) -> tuple[ShownObject, ConditionCircuit, int]:
            nonlocal latest
            latest = world
            shown = ShownObject(world, fields, keys, dict(texts))
            circuit = ConditionCircuit(world, conditions, shown.value, expressions)
            return shown, circuit, circuit.allowed(is_delete=is_delete)

        for round_number in range(MAX_ROUNDS):
            try:
                world, (shown, circuit, allowed) = settle(build, effort=EFFORT, members=MEMBERS)
                values = Values(world)
                break
            except WorldLimit as limit:
                if round_number == MAX_ROUNDS - 1 or not expressions.give_up(latest, limit, 1 << round_number):
                    raise
        self._shown, self._conditions, self._values, self.allowed = shown, circuit, values, allowed
        self.circuit = world.circuit
        self.size = self.circuit.size + world.languages.size
        self.selectable = shown.selectable(values, self.circuit)
        self._start_anew()
        self.lock = RLock()
        # The widest selectors that were found, and whether there are no others, by what a request fixes.
        self.widest: dict[tuple[int, ...], tuple[list[ReadSelector], bool]] = {}
        # By what selectors leave: the smallest object that is not allowed, and what else is given; None if all are.
        self._answers: dict[tuple[int, ...], Counterexample | None] = {}

    def _start_anew(self) -> None:
        self._engine = ConflictDrivenSolver()
        self._solver = CircuitSolver(self.circuit, self._engine)

    @property
    def unsupported(self) -> tuple[str, ...]:
        """Constructs that count as errors."""
        return tuple(dict.fromkeys(self._conditions.unsupported))

    def implied_by(self, selection: Selection) -> ImplicationResult:
        """Whether every object that is selected is allowed."""
        if selection.selects_nothing or self.allowed == TRUE:
            return IMPLIED
        special = None if self._is_specialised else self._specialised(selection)
        if special is not None:
            return special.implied_by(selection)
        with self.lock:
            if self._engine.learned > MAX_LEARNED:
                self._start_anew()
            question = (*self.assumptions(selection), -self.allowed)
            if question in self._answers:
                counterexample = self._answers[question]
            else:
                possible = self.possible(question)
                if possible is None:
                    return ImplicationResult(False, why=_LIMIT)
                counterexample = self._counterexample(question) if possible else None
                if len(self._answers) >= MAX_ANSWERS:
                    self._answers.clear()
                self._answers[question] = counterexample
        return IMPLIED if counterexample is None else self._refuted(selection, *counterexample)

    def forget_answers(self) -> None:
        """Answer as if nobody had asked before."""
        with self.lock:
            self._answers.clear()

    def keep_widest(self, key: tuple[int, ...], widest: tuple[list[ReadSelector], bool]) -> None:
        """Keep what a search found for requests that fix the same."""
        if len(self.widest) >= MAX_KEPT:
            self.widest.clear()
        self.widest[key] = widest

    def possible(self, literals: Sequence[int]) -> bool | None:
        """Return whether some object is like this; None at the limit."""
        return self._solver.possible(literals, CONFLICTS)

    def assumptions(self, selection: Selection) -> list[int]:
        """Return literals that are true of every object that is selected."""
        literals: list[int] = []
        for key, constraint in _constraints(selection):
            value = self.selectable.get(key)
            if value is not None:
                literals += [-part.literal for part in value.excluded_by(constraint)]
            elif constraint.present:
                literals.append(self._shown.has_labels)
        return literals

    def value_in_model(self, preferences: list[int], literals: Sequence[int]) -> Mapping[str, Any]:
        """Return the smallest object for which these literals are true; they must be possible."""
        wanted = [*preferences, *self._values.preferences()]
        self._solver.smallest(literals, wanted, CONFLICTS, SMALLNESS // self.circuit.size)
        value: Mapping[str, Any] = self._values.value(self._shown.value, self._solver)
        return value

    def holds(self, literal: int) -> bool:
        """Whether a literal is true in the latest model."""
        return self._solver.is_true(literal)

    def _counterexample(self, question: Sequence[int]) -> Counterexample:
        shown = self.value_in_model([], question)
        others = self._conditions.others.items()
        return shown, {name: self._values.value(unknown, self._solver) for name, unknown in others}

    def _refuted(self, selection: Selection, shown: Mapping[str, Any], others: dict[str, Any]) -> ImplicationResult:
        """Return an object that is selected and not allowed, confirmed by the evaluator."""
        witness = self._selected(selection, shown)
        conditions, _, is_delete = self._question
        is_selected = witness is not None and selection.selects(witness)
        if is_selected and not shows(conditions, witness, others, is_delete=is_delete):
            return ImplicationResult(False, witness)
        if self.unsupported:
            return ImplicationResult(False, why=f"{', '.join(self.unsupported)} cannot be part of a proof")
        if selection.ignored:
            return ImplicationResult(False, why=f"what the selector says about {_told(selection.ignored)} is ignored")
        return ImplicationResult(False, why="no proof was found")

    def _selected(self, selection: Selection, shown: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return the object with the texts that selectors demand, which conditions cannot tell from those it has."""
        value: dict[str, Any] = _copy(shown)
        labels: dict[str, str] = value["metadata"].get("labels", {})
        for key, constraint in sorted(selection.labels.items()):
            known = self.selectable.get(key)
            if known is not None and key in labels:
                text = known.selected_value(constraint, labels[key])
                if text is None:
                    return None
                labels[key] = text
            elif known is None and constraint.present:
                labels[key] = min(constraint.values) if constraint.values is not None else "x"
                while not constraint.allows(labels[key]):
                    labels[key] += "x"
        if labels:
            value["metadata"]["labels"] = labels
        for field, constraint in selection.fields.items():
            inner = value_at(value, field)
            if inner is not None and not constraint.allows(field.text(inner)):
                chosen = self.selectable[field].selected_value(constraint, inner)
                if chosen is None:
                    return None
                _put(value, field, chosen)
        return value

    def _specialised(self, selection: Selection) -> ReadProof | None:
        """Return the proof that names labels and texts of the selectors, where conditions may look at them unnamed."""
        keys: tuple[str, ...] = ()
        if self._shown.labels_matter_as_a_whole:
            keys = tuple(sorted(set(selection.labels) - self.selectable.keys()))
        texts: list[tuple[str | SelectableField, tuple[str, ...]]] = []
        for key, constraint in _constraints(selection):
            value = self.selectable.get(key)
            if value is not None and value.is_compared and value.kind is ValueKind.STRING:
                named = constraint.excluded if constraint.values is None else constraint.values
                texts.append((key, tuple(sorted(named))))
        if (not keys and not texts) or len(keys) + sum(len(named) for _, named in texts) > MAX_NAMED:
            return None
        proof = read_proof(*self._question, keys, tuple(texts))
        return proof if isinstance(proof, ReadProof) else None


class UnprovableRead(msgspec.Struct, frozen=True):
    """Conditions about which nothing can be proved, and why."""

    why: str
    size: int


PROOFS: KeptProofs[ReadProof | UnprovableRead] = KeptProofs(MAX_SIZE)


def read_proof(
    conditions: ReadConditions,
    fields: tuple[SelectableField, ...],
    is_delete: bool,
    keys: tuple[str, ...] = (),
    texts: tuple[tuple[str | SelectableField, tuple[str, ...]], ...] = (),
) -> ReadProof | str:
    """Return the proof about these conditions, or why nothing can be proved. Equal conditions share it."""

    def make() -> ReadProof | UnprovableRead:
        try:
            return ReadProof(conditions, fields, is_delete, keys, texts)
        except Unsupported as error:
            return UnprovableRead(f"{error.construct} cannot be part of a proof", 1 + len(str(conditions)) // 1000)

    proof = PROOFS.get((conditions, fields, is_delete, keys, texts), make)
    return proof.why if isinstance(proof, UnprovableRead) else proof


def _told(keys: tuple[str, ...]) -> str:
    more = f" and {len(keys) - 1} more" if len(keys) > 1 else ""
    return f"`{bounded(keys[0], _MAX_KEY)}`{more}"


def _constraints(selection: Selection) -> Iterator[tuple[str | SelectableField, KeySelection]]:
    yield from selection.labels.items()
    yield from selection.fields.items()


def _copy(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _copy(inner) for key, inner in value.items()}
    return [_copy(inner) for inner in value] if isinstance(value, list) else value


def _put(value: dict[str, Any], field: SelectableField, chosen: Any) -> None:
    for name in field.path[:-1]:
        value = value[name]
    value[field.path[-1]] = chosen

"""Questions in which some expressions are open: how they are written down, and models that the evaluator agrees with.

What has no translation is given up, and so is, where a limit of the whole question is reached, the expression that asks
for most of it. Then the question is written down again. A model in which an open expression comes out as it really does
for the model's values is one of the real question; whether it is, the evaluator says.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Hashable, Mapping, Sequence
from typing import TypeVar

import msgspec

from tierwall.cel.environment import Environment
from tierwall.cel.errors import Failure
from tierwall.cel.evaluate.evaluator import Evaluator
from tierwall.cel.partial_evaluation import PartialError, outcomes, partial
from tierwall.cel.syntax import ast
from tierwall.logic.cel.open_outcome import OpenOutcome, OpenOutcomes
from tierwall.logic.cel.terms import Leaf, MissingData
from tierwall.logic.cel.unknown import Demands, UnknownWorld
from tierwall.logic.cel.values import Values
from tierwall.logic.circuit import FALSE, Circuit
from tierwall.logic.solver import CircuitSolver
from tierwall.logic.unsupported import Unsupported, WorldLimit

# How often a question is written down, and how many models are tried.
MAX_ROUNDS = 40
MAX_MODELS = 8
# Reasons that a result names.
MAX_REASONS = 3
Result = TypeVar("Result")


def settle_open(
    build: Callable[[UnknownWorld, OpenOutcomes], Result],
) -> tuple[Values, OpenOutcomes, Result]:
    """Write a question down until it has all elements that it asks for, and nothing in it that has no translation."""
    demands = Demands({}, {})
    given_up: dict[Hashable, Unsupported] = {}
    blamed, rounds = 1, 0
    for _ in range(MAX_ROUNDS):
        world = UnknownWorld(demands)
        opened = OpenOutcomes(world.circuit, given_up)
        before = len(given_up)
        rounds += 1
        try:
            result = build(world, opened)
            if len(given_up) == before and demands.covers(world.found):
                return Values(world, opened.test), opened, result
            if rounds > MAX_ROUNDS // 4:
                raise WorldLimit("lists that depend on each other")
        except RecursionError:
            raise Unsupported("so deep an expression") from None
        except WorldLimit as limit:
            at_fault = culprits(world, limit, given_up)[:blamed]
            if not at_fault:
                raise
            given_up.update(dict.fromkeys(at_fault, Unsupported(limit.construct)))
            blamed *= 2
        if len(given_up) > before:
            # What was given up asks for nothing any more.
            demands, rounds = Demands({}, {}), 0
        else:
            demands = demands.joined(world.found)
    raise Unsupported("so many expressions that cannot be part of a proof")


def culprits(world: UnknownWorld, limit: WorldLimit, given_up: Container[Hashable]) -> list[Hashable]:
    """Return the expressions that may be given up for a limit, the one that asks for most first."""
    weights: dict[Hashable, int] = {}
    if not limit.unknowns:
        weights.update(world.growth)
    for number in limit.unknowns:
        for owner, languages in world.uses.get(number, {}).items():
            # Constants are cheap.
            tests = (language for language in languages if language is not None)
            weight = _states(world, sorted(test for test in tests if world.languages.texts(test) is None))
            weights[owner] = weights.get(owner, 0) + weight
    known = [owner for owner in weights if owner not in given_up]
    return sorted(known, key=lambda owner: -weights[owner])


def _states(world: UnknownWorld, languages: list[int]) -> int:
    """Return into how many regions the tests of one expression cut strings."""
    try:
        return len(world.languages.regions(languages))
    except Unsupported:
        return 1 << 30


class OpenModel(msgspec.Struct, frozen=True):
    """The open expressions that count for a model: whether they come out as they really do, and why they are open.

    Even then it is the decision that has the last word: it sees whole objects, a model only what the question asks.
    """

    is_real: bool
    why: str


def find_model(
    solver: CircuitSolver, wanted: Sequence[int], opened: OpenOutcomes, values: Values, preferences: Sequence[int]
) -> OpenModel:
    """Find the smallest model, which must be possible, if there is one in which open expressions come out right."""
    counting = _counting(values.world.circuit, wanted, opened)
    solver.know(guard for outcome in counting for term in outcome.scope.values() for guard, _ in term)
    # What nobody knows fails most often.
    usual = [literal for outcome in counting for literal in (outcome.fails, -outcome.possible.true)]
    preferred = [*usual, *preferences]
    chosen = solver.smallest(wanted, preferred)
    hangs: list[OpenOutcome] = []
    fixed: list[int] = []
    for _ in range(MAX_MODELS):
        real = [(outcome, real_literals(outcome, values, solver)) for outcome in counting]
        wrong = [outcome for outcome, literals in real if literals is None or not all(map(solver.is_true, literals))]
        if not wrong:
            return OpenModel(True, _reasons(counting))
        hangs = hangs or wrong
        # Perhaps there is another one in which they come out like this.
        guess = [literal for _, literals in real for literal in literals or ()]
        if guess == fixed or not solver.possible([*wanted, *guess]):
            solver.possible(chosen)
            break
        fixed = guess
        chosen = solver.smallest([*wanted, *fixed], preferred)
    return OpenModel(False, _reasons(hangs))


def _reasons(outcomes: Sequence[OpenOutcome]) -> str:
    reasons = list(dict.fromkeys(outcome.why for outcome in outcomes))
    more = f" and {len(reasons) - MAX_REASONS} more" if len(reasons) > MAX_REASONS else ""
    return f"{'; '.join(reasons[:MAX_REASONS])}{more}"


def _counting(circuit: Circuit, wanted: Sequence[int], opened: OpenOutcomes) -> list[OpenOutcome]:
    """Return the open expressions on which a question may hang."""
    open_ones = list(opened)
    if not open_ones:
        return []
    below = circuit.inputs_below([*wanted, *(literal for clause in circuit.clauses() for literal in clause)])
    return [outcome for outcome in open_ones if not below.isdisjoint(circuit.inputs_below([outcome.possible.true]))]


def real_literals(outcome: OpenOutcome, values: Values, model: CircuitSolver) -> list[int] | None:
    """Return the literals that say what an expression really comes to for the values of a model; None if unknown."""
    possible = outcome.possible
    if outcome.node is None or outcome.environment is None:
        return None
    known: dict[str, object] = {}
    absent: list[str] = []
    leaves: list[tuple[str, Leaf]] = list(outcome.variables.items())
    for name, term in outcome.scope.items():
        chosen = next((leaf for guard, leaf in term if model.is_true(guard)), None)
        if chosen is None:
            return []  # It is about an element that is not there.
        leaves.append((name, chosen))
    for name, leaf in sorted(leaves, key=lambda pair: pair[0].count(".")):
        if isinstance(leaf, MissingData):
            absent.append(name)
            continue
        first, _, rest = name.partition(".")
        try:
            inner = values.leaf(leaf, model)
        except Unsupported:
            return None
        known[first] = {**known.get(first, {}), rest: inner} if rest else inner  # type: ignore[dict-item]
    if absent or possible.is_missing != FALSE:
        return _left_over(outcome, known, absent)
    return _literals(outcome, _value(outcome.node, outcome.environment, known))


def is_true(node: ast.Expr, environment: Environment, known: Mapping[str, object]) -> bool:
    """Whether an expression is really true."""
    return _value(node, environment, known) is True


def _value(node: ast.Expr, environment: Environment, known: Mapping[str, object]) -> object:
    try:
        return Evaluator(node, environment).evaluate(known)
    except (Failure, RecursionError):
        return None


def _literals(outcome: OpenOutcome, value: object) -> list[int]:
    possible = outcome.possible
    literals = [
        possible.true if value is True else -possible.true,
        possible.false if value is False else -possible.false,
    ]
    return [*literals, -possible.is_missing]


def _left_over(outcome: OpenOutcome, known: dict[str, object], absent: list[str]) -> list[int] | None:
    assert outcome.node is not None
    assert outcome.environment is not None
    try:
        result = partial(outcome.node, known, tuple(absent), boolean=True, environment=outcome.environment)
    except (PartialError, Failure, RecursionError):
        return None
    if result.residual is None and not result.fails_late:
        return _literals(outcome, result.value if result.error is None else None)
    possible, left = outcome.possible, 0 if result.fails_late else result.outcomes
    return [
        possible.is_missing,
        possible.may_be_true if left & outcomes.TRUE else -possible.may_be_true,
        possible.may_be_false if left & outcomes.FALSE else -possible.may_be_false,
    ]

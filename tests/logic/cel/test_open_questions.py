"""Expressions without a translation, held to the evaluator: what they really come to is always among what is left open.

A proof is sound because of it. That equal expressions come out alike keeps changes provable that leave them alone.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from typing import Any

import pytest

from tests.logic.cel.questions import ENVIRONMENT, SHAPES, Expressions, Worlds, placed
from tests.randomness import seeds
from tierwall.cel.errors import Failure
from tierwall.cel.evaluate.evaluator import Evaluator
from tierwall.logic.cel import open_outcome
from tierwall.logic.cel.encoder import Encoder, Rails
from tierwall.logic.cel.open_outcome import OpenOutcomes
from tierwall.logic.cel.open_question import find_model, real_literals, settle_open
from tierwall.logic.cel.unknown import Unknown, UnknownWorld
from tierwall.logic.solver import CircuitSolver
from tierwall.logic.unsupported import Unsupported

# What policies write, and expressions without a translation in its place.
EXOTIC = (
    ("object.name", ('object.name.split("o")[0]', 'object.name.replace("a", "b")', "object.name")),
    ("object.n ", ("(object.n * 2) ", "object.n ")),
    ("other.n ", ("(other.n + object.n) ", "other.n ")),
    ("request.user", ("request.user.substring(0, 1)", "request.user")),
    ("object.b", ("(object.n < other.n)", "object.b")),
    ("in request.groups", ('in request.groups.map(g, g.replace("a", ""))', "in request.groups")),
)


class OpenlyWritten:
    """Expressions in one world, as the sides of a change are."""

    def __init__(self, *texts: str) -> None:
        trees = [ENVIRONMENT.parse(text) for text in texts]

        def build(world: UnknownWorld, opened: OpenOutcomes) -> tuple[dict[str, Unknown], list[Rails]]:
            variables = {name: world.unknown(name, shape) for name, shape in SHAPES.items()}
            encoder = Encoder(world, ENVIRONMENT, variables, opened)
            return variables, [encoder.rails(tree) for tree in trees]

        self.values, self.opened, (self.variables, self.rails) = settle_open(build)
        self.solver = CircuitSolver(self.values.world.circuit)
        self._evaluators = [Evaluator(tree, ENVIRONMENT) for tree in trees]

    def evaluate(self, variables: dict[str, Any], number: int = 0) -> bool | None:
        try:
            value = self._evaluators[number].evaluate(variables)
        except Failure:
            return None
        return value if isinstance(value, bool) else None

    def outcome(self, outcome: bool | None, number: int = 0) -> list[int]:
        rails = self.rails[number]
        return [rails.true if outcome is True else -rails.true, rails.false if outcome is False else -rails.false]

    def model(self) -> dict[str, Any]:
        return {name: self.values.value(unknown, self.solver) for name, unknown in self.variables.items()}

    def place(self, variables: dict[str, Any]) -> list[int] | None:
        return placed(self.values, [(unknown, variables[name]) for name, unknown in self.variables.items()])


def exotic(numbers: random.Random, depth: int = 2) -> str:
    text = Expressions(numbers.randrange).boolean(depth)
    for plain, others in EXOTIC:
        text = re.sub(rf"(?<!has\(){re.escape(plain)}", numbers.choice(others), text)
    return text


@pytest.mark.hypothesis
def test_what_an_expression_really_comes_to_is_among_what_is_left_open() -> None:
    counts: Counter[object] = Counter()
    for seed in seeds(120):
        numbers = random.Random(seed)
        text = exotic(numbers)
        question = OpenlyWritten(text)
        opened = len(list(question.opened))
        counts["open" if opened else "known"] += 1
        for _ in range(8):
            values = Worlds(numbers.randrange).variables()
            outcome, place = question.evaluate(values), question.place(values)
            if place is None:
                counts["too few elements"] += 1
                continue
            assert question.solver.possible([*place, *question.outcome(outcome)]), (seed, text, values)
            ways = [question.solver.possible([*place, *question.outcome(other)]) for other in (True, False, None)]
            counts["settled all the same" if opened and ways.count(True) == 1 else outcome] += 1
            if not opened:
                assert ways.count(True) == 1, (seed, text)
    assert counts["open"] > 30, counts
    assert counts["settled all the same"] > 30, counts
    assert all(counts[outcome] > 20 for outcome in (True, False, None)), counts


@pytest.mark.hypothesis
def test_a_model_that_hangs_on_nothing_is_real() -> None:
    counts: Counter[str] = Counter()
    for seed in seeds(80):
        text = exotic(random.Random(seed))
        question = OpenlyWritten(text)
        for outcome in (True, False, None):
            wanted = question.outcome(outcome)
            if not question.solver.possible(wanted):
                continue
            model = find_model(question.solver, wanted, question.opened, question.values, question.values.preferences())
            real = question.evaluate(question.model()) is outcome
            counts[f"{'hangs' if not model.is_real else 'hangs on nothing'}, {'real' if real else 'not real'}"] += 1
            assert real or not model.is_real, (seed, text, outcome)
    assert counts["hangs on nothing, real"] > 50, counts
    assert counts["hangs, not real"], counts


def possible(question: OpenlyWritten, *outcomes: bool | None) -> bool:
    literals = [literal for number, outcome in enumerate(outcomes) for literal in question.outcome(outcome, number)]
    return bool(question.solver.possible(literals))


SPLIT = "object.name.split('/')[0] == 'a'"


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (SPLIT, SPLIT),
        (f"request.user == 'a' && {SPLIT}", f"{SPLIT} && request.user == 'a'"),
        (f"object.items.all(i, i.n + 1 == 2 || {SPLIT})", f"object.items.all(i, i.n + 1 == 2 || {SPLIT})"),
        ("[1, 2].exists(n, object.n + n == 3)", "[1, 2].exists(n, object.n + n == 3)"),
    ],
)
def test_equal_expressions_about_the_same_come_out_alike(first: str, second: str) -> None:
    question = OpenlyWritten(first, second)
    assert not possible(question, True, False)
    assert not possible(question, None, True)
    for outcome in (True, False, None):
        assert possible(question, outcome, outcome)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (SPLIT, SPLIT.replace("'a'", "'b'")),
        (SPLIT, SPLIT.replace("object", "other")),
        # The same text about other elements, and about a name that means something else inside.
        ("[object].exists(i, i.n + 1 == 2)", "[other].exists(i, i.n + 1 == 2)"),
        ("request.groups.exists(other, other.split('/')[0] == 'a')", "other.split('/')[0] == 'a'"),
        (
            "object.items.exists(g, [g].exists(other, .other.n + 1 == 2))",
            "object.items.exists(g, [g].exists(other, other.n + 1 == 2))",
        ),
        # Each side of a change asks its own chain.
        ("authorizer.path('/x').check('get').allowed()", "authorizer.path('/x').check('get').allowed()"),
    ],
)
def test_different_ones_may_come_out_differently(first: str, second: str) -> None:
    assert possible(OpenlyWritten(first, second), True, False)


def test_one_element_has_one_outcome_and_another_another() -> None:
    mixed = "object.items.exists(i, i.n + 1 == 2) && !object.items.all(i, i.n + 1 == 2)"
    assert possible(OpenlyWritten(mixed), True)
    assert not possible(OpenlyWritten("object.items.exists(i, i.n + 1 == 2 && !(i.n + 1 == 2))"), True)
    three = " && ".join(f"object.items.exists(i, i.name == '{name}' && i.n + 1 == 2)" for name in "abc")
    assert possible(OpenlyWritten(three), True)


@pytest.mark.parametrize(
    ("limit", "others"),
    [
        # Each alone is more than one question may have.
        (" || ".join(f"request.user.contains('{word}')" for word in "abcdefghijkl"), "request.user.startsWith('a')"),
        ("object.items.all(i, object.items.exists(j, i.a == j.b))", "object.items.exists(i, i.name == 'a')"),
        ("object.x == other && object.x.y == 1 && other.z == 2", "object.x == 1"),
        ("request.user.matches('(a|b)*a(a|b){12}')", "request.user.matches('^a')"),
    ],
)
def test_one_expression_beyond_the_limits_leaves_others_alone(limit: str, others: str) -> None:
    question = OpenlyWritten(others, limit)
    assert {outcome.why for outcome in question.opened}
    assert all(possible(question, True, outcome) for outcome in (True, False))
    contradiction = OpenlyWritten(f"({others}) && !({others})", limit)
    assert not possible(contradiction, True, True)


def test_what_nobody_asked_for_is_nobodys_fault() -> None:
    def build(world: UnknownWorld, opened: OpenOutcomes) -> None:
        user = world.unknown("user", SHAPES["request"].fields["user"])
        for part in "abcdefghijkl":
            user.in_language(world.languages.containing(part))

    with pytest.raises(Unsupported, match="so many tests on one string"):
        settle_open(build)


class TestPlantedFaults:
    """Faults that would make false proofs must be found by what stands above."""

    def test_outcomes_shared_by_text_alone(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(open_outcome, "identity", lambda leaf: 0)
        monkeypatch.setattr(open_outcome, "_term_identity", lambda term: 0)
        question = OpenlyWritten("[object].exists(i, i.n + 1 == 2)", "[other].exists(i, i.n + 1 == 2)")
        assert not possible(question, True, False)

    def test_an_open_expression_that_never_fails(self, monkeypatch: pytest.MonkeyPatch) -> None:
        right = OpenOutcomes._possible

        def two_values(self: OpenOutcomes, may_be_missing: bool) -> Any:
            possible = right(self, may_be_missing)
            self._circuit.require(possible.true, possible.false)
            return possible

        monkeypatch.setattr(OpenOutcomes, "_possible", two_values)
        with pytest.raises(AssertionError):
            test_what_an_expression_really_comes_to_is_among_what_is_left_open()


def test_real_outcomes_of_elements_are_those_of_the_evaluator() -> None:
    question = OpenlyWritten("object.items.exists(i, i.n + 1 == 2) && object.items.exists(i, i.name == 'a')")
    values = {
        "object": {"items": [{"n": 1}, {"name": "a"}]},
        "other": None,
        "request": {"user": "", "groups": [], "count": 0},
    }
    place = question.place(values)
    assert place is not None
    question.solver.know(question.values.preferences())
    guards = [guard for outcome in question.opened for term in outcome.scope.values() for guard, _ in term]
    question.solver.know(guards)
    assert question.solver.possible(place)
    real = [real_literals(outcome, question.values, question.solver) for outcome in question.opened]
    assert all(literals is not None for literals in real)
    assert question.solver.possible([*place, *(literal for literals in real for literal in literals or ())])

"""CEL as a circuit, held to the evaluator: random expressions and values in all three outcomes, and back.

Every value of the variables stands in the world of an expression, and there the circuit says what the evaluator says.
Every model of the circuit is a value for which the evaluator says the same. `make fuzz` tries more.
"""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest

from tests.logic.cel.questions import ENVIRONMENT, REQUEST, Expressions, Worlds, Written, placed
from tests.randomness import seeds
from tierwall.api.authorizers.expression import FailedExpression, ResidualExpression, outcome_of
from tierwall.cel.partial_evaluation import partial
from tierwall.logic.cel import outcome as bools
from tierwall.logic.cel import terms
from tierwall.logic.cel.encoder import Encoder, Rails, settle
from tierwall.logic.cel.language import Languages
from tierwall.logic.cel.terms import MISSING, Leaf, boolean
from tierwall.logic.cel.unknown import Unknown, UnknownWorld, ValueKind
from tierwall.logic.cel.values import Values
from tierwall.logic.circuit import TRUE
from tierwall.logic.solver import CircuitSolver
from tierwall.logic.unsupported import Unsupported

VALUES = 20


def written(text: str, spare: int = 0) -> Written:
    return Written(ENVIRONMENT.parse(text), spare)


def can_be(text: str, outcome: bool | None = True) -> bool:
    question = written(text)
    return bool(question.solver.possible(question.outcomes[outcome]))


def differences(seed: int, outcomes: Counter[object]) -> list[str]:
    """How one random expression differs from the evaluator, in models and in random values."""
    numbers = random.Random(seed)
    text = Expressions(numbers.randrange).boolean(2)
    try:
        question = written(text)
    except Unsupported:
        outcomes["unsupported"] += VALUES
        return []
    wrong: list[str] = []
    for outcome, literals in question.outcomes.items():
        if question.solver.possible(literals):
            question.solver.smallest(literals, question.values.preferences())
            model = question.model()
            if question.evaluate(model) is not outcome:
                wrong.append(f"seed {seed}: {text} is not {outcome} for {model}")
    for _ in range(VALUES):
        values = Worlds(numbers.randrange).variables()
        outcome, place = question.evaluate(values), question.literals(values)
        if place is None:
            outcomes["too few elements"] += 1
            continue
        outcomes[outcome] += 1
        says = [question.solver.possible([*place, *literals]) for literals in question.outcomes.values()]
        if says != [outcome is other for other in question.outcomes]:
            wrong.append(f"seed {seed}: {text} is {outcome}, not {says}, for {values}")
    return wrong


@pytest.mark.hypothesis
def test_the_circuit_says_what_the_evaluator_says_and_the_other_way_round() -> None:
    outcomes: Counter[object] = Counter()
    wrong = [difference for seed in seeds(150) for difference in differences(seed, outcomes)]
    assert not wrong, "\n".join(wrong[:5])
    compared = sum(outcomes[outcome] for outcome in (True, False, None))
    assert all(outcomes[outcome] >= compared / 10 for outcome in (True, False, None)), outcomes
    assert compared >= 0.6 * outcomes.total(), outcomes
    print(f"{compared} pairs: {outcomes}")


@pytest.mark.hypothesis
def test_more_elements_than_the_question_needs_change_nothing() -> None:
    asked = 0
    for seed in seeds(60):
        text = Expressions(random.Random(seed).randrange).boolean(2)
        try:
            question, wider = written(text), written(text, spare=3)
        except Unsupported:
            continue
        asked += 1
        for outcome, literals in question.outcomes.items():
            assert question.solver.possible(literals) == wider.solver.possible(wider.outcomes[outcome]), text
    assert asked


def without_data(text: str) -> tuple[Values, Unknown, Rails]:
    """An expression about a request that carries no objects."""
    tree = ENVIRONMENT.parse(text)

    def build(world: UnknownWorld) -> tuple[Unknown, Rails]:
        request = world.unknown("request", REQUEST)
        variables: dict[str, Leaf] = {"request": request, "object": MISSING, "other": MISSING}
        return request, Encoder(world, ENVIRONMENT, variables).rails(tree)

    world, (request, rails) = settle(build)
    return Values(world), request, rails


KNOWN = (
    ("object.name", "request.user"),
    ("object.n ", "request.count "),
    ("object.b", "true"),
    ("object.tags", "request.groups"),
)
# What partial evaluation leaves over, and whether the rest may make it true.
LEFT = {True: "true", False: "false", None: "error", (True,): "left", (False,): "left, and never true"}


@pytest.mark.hypothesis
def test_what_data_decides_is_what_partial_evaluation_leaves_over() -> None:
    outcomes: Counter[str] = Counter()
    for seed in seeds(500):
        choose = random.Random(seed).randrange
        text = Expressions(choose).boolean(2)
        # More about the request, which is known.
        for mine, of_request in KNOWN:
            text = text.replace(mine, of_request) if choose(2) and "has(" not in text else text
        try:
            values, request, rails = without_data(text)
        except Unsupported:
            continue
        solver = CircuitSolver(values.world.circuit)
        literals = {
            True: [rails.true],
            False: [rails.false],
            None: [-rails.true, -rails.false, -rails.missing],
            (True,): [rails.missing_true],
            (False,): [rails.missing, -rails.missing_true],
        }
        for _ in range(5):
            value = Worlds(choose).variables()["request"]
            place = placed(values, [(request, value)])
            if place is None:
                continue
            said = [LEFT[name] for name, parts in literals.items() if solver.possible([*place, *parts])]
            known, tree = {"request": value}, ENVIRONMENT.parse(text)
            left = partial(tree, known, ("object", "other"), boolean=True, environment=ENVIRONMENT)
            result = outcome_of(left, names_authorizer=False)
            if isinstance(result, ResidualExpression):
                expected = LEFT[(result.can_be_true,)]
            else:
                expected = LEFT[None if isinstance(result, FailedExpression) else result]
            assert said == [expected], f"seed {seed}: {text} with {value}"
            outcomes[expected] += 1
    assert min(outcomes[name] for name in ("true", "false", "left", "left, and never true")) > 10, outcomes
    assert outcomes["error"], outcomes


THREE = " && ".join(f'object.items.exists(i, i.name == "{name}")' for name in "abc")


@pytest.mark.parametrize(
    ("text", "outcome", "expected"),
    [
        (THREE, True, True),
        ("object.items.exists_one(i, i.name == 'a') || size(object.items) < 2", False, True),
        ("size(object.items) > 3 && object.items.all(i, i.name == 'a')", True, True),
        ("object.labels.exists(k, k == 'x') && !('x' in object.labels)", True, False),
        ("object.labels.all(k, k == 'x') && size(object.labels) > 1", True, False),
        ("object.labels.all(k, object.labels[k] == 'v') && object.labels.env == 'w'", True, False),
        # Absorption: an error beside what settles it does not count.
        ("object.missing == 1 || request.user == 'a'", None, True),
        ("request.user == 'a' || true || object.missing == 1", None, False),
        ("[1, 2].all(n, n == 1 || object.missing)", None, True),
        ("has(object.labels.env) && object.labels.env == 'a' && object.labels.env != 'a'", True, False),
        # `has` needs its operand.
        ("has(object.labels.env)", None, True),
        ("!has(object.labels) || has(object.labels.env) || !has(object.labels.env)", False, False),
        # Equal strings have equal tests, also through a third one.
        (
            "request.user == object.name && object.name == object.labels.env && request.user != object.labels.env",
            True,
            False,
        ),
        ("request.user == object.name && request.user.startsWith('a') && object.name.startsWith('b')", True, False),
        ("request.user != object.name && request.user in ['a'] && object.name in ['a']", True, False),
        ("request.user != object.name && request.user in ['a', 'b'] && object.name in ['a', 'b']", True, True),
        ("request.count > 3 && request.count < 5 && request.count != 4", True, False),
        ("object.n > 3 && object.n < 4", True, True),
        ("request.user.matches('a$') && request.user.endsWith('\\n')", True, False),
        ("request.user.lowerAscii() == 'abc' && request.user.contains('B')", True, True),
        ("request.user.lowerAscii().contains('B')", True, False),
        ("object.x == [1, 'a'] && object.x[1] != 'a'", True, False),
        ("object.x == {'k': 1} && has(object.x.other)", True, False),
        ("request.user in request.groups && !request.groups.exists(g, g == request.user)", True, False),
        # Constants that a list is asked for, and what goes through it.
        ("'a' in object.tags && object.tags.all(t, t != 'a')", True, False),
        ("'a' in object.tags && 'b' in object.tags && object.tags.exists_one(t, t in ['a', 'b'])", True, False),
        ("'a' in object.tags && size(object.tags) == 1 && object.tags[0] != 'a'", True, False),
        ("'a' in object.tags && 'b' in object.tags && object.tags[1] == 'c'", True, True),
        ("'a' in object.tags && !(object.tags.exists_one(t, t == 'a'))", True, True),
        ("'a' in object.tags && object.tags == ['b', 'a']", True, True),
        ("'a' in object.tags && object.tags == ['b']", True, False),
        ("'a' in object.tags && object.tags.map(t, t.size()).all(n, n > 1)", True, False),
        ("'a' in object.tags && 'b' in object.tags && size(object.tags) < 2", True, False),
        ("'a' in object.x && object.x.a == 'b'", True, True),
        # Two lists that are not known, and what may be a list.
        (
            "(object.tags + object.more).exists(t, t == 'a') && !('a' in object.tags) && !('a' in object.more)",
            True,
            False,
        ),
        (
            "(object.tags + object.more).all(t, t == 'a') && size((object.tags + object.more).filter(t, true)) == 2",
            True,
            True,
        ),
        ("(object.tags + object.tags).exists_one(t, t == 'a')", True, False),
        ("(object.x + object.y).exists(t, t == 'a') && object.x == 'a'", True, False),
        ("'a' in (object.x + object.y) && object.x == 1", True, False),
        ("(object.x + 'a').all(t, true)", True, False),
        ("object.items.all(i, (object.tags + other.tags).exists(t, t == 'a'))", False, True),
        # A loop inside a loop that is not about its elements.
        ("object.items.exists(i, i.name == 'a' && !object.items.exists(j, j.name == 'a'))", True, False),
        ("object.items.exists_one(i, object.items.exists(j, j.name == 'a'))", True, True),
        ("object.items.all(i, !object.items.exists(j, true))", False, True),
        ("string(object.labels.env) == 'a' && object.labels.env != 'a'", True, False),
        ("string(object.labels.env) == 'a' && object.labels.env == 'a'", True, True),
    ],
)
def test_known_questions_have_known_answers(text: str, outcome: bool | None, expected: bool) -> None:
    assert can_be(text, outcome) is expected


@pytest.mark.parametrize(
    ("text", "construct", "at"),
    [
        ("request.user == 'a' && quantity(object.x).sign() > 0", "quantity()", 23),
        ("object.x.startsWith(object.y)", "startsWith with a string that is not known", 9),
        ("object.x.matches('(?i)a')", "`(?i)` in a regular expression", 9),
        ("object.x + 'a' == 'ba'", "+ of strings", 15),
        ("object.items.exists(i, i.n + 1 == 2)", "+ of numbers", 31),
        ("string(object.x) == '1'", "string() of a number", 17),
        ("object.n < other.n", "< between two values that are not known", 9),
        ("object.items.all(i, object.items.exists(j, i.a == j.b))", "so many elements of `object.items`", 33),
        ("size(object.items) > 40", "so many elements of `object.items`", 19),
        ("object.items.all(n, i, i.a == n)", "`all` with 2 variables", 13),
    ],
)
def test_what_a_proof_cannot_say_is_named_with_its_place(text: str, construct: str, at: int) -> None:
    with pytest.raises(Unsupported) as caught:
        written(text)
    assert (caught.value.construct, caught.value.at) == (construct, at)


def test_many_constants_cost_little() -> None:
    names = [f"system:serviceaccount:ns-{number % 7}:name-{number}" for number in range(400)]
    of_user = " || ".join(f"request.user == '{name}'" for name in names)
    of_groups = " || ".join(f"'{name}' in request.groups" for name in names)
    question = written(f"({of_user} || {of_groups}) && request.user.startsWith('system:serviceaccount:ns-3:')")
    assert question.world.circuit.size < 10_000
    for outcome, literals in question.outcomes.items():
        assert bool(question.solver.possible(literals)) is (outcome is not None)
        if outcome is not None:
            question.solver.smallest(literals, question.values.preferences())
            assert question.evaluate(question.model()) is outcome
    nobody = written(f"({of_user}) && !request.user.startsWith('system:') || request.user in {names} && !({of_user})")
    assert not nobody.solver.possible(nobody.outcomes[True])


def test_strings_that_are_no_constants_have_their_own_witnesses() -> None:
    # All short strings are constants, and two more are wanted that differ.
    text = " && ".join(f"request.user != '{word}' && object.name != '{word}'" for word in ("", *"abcdefghij"))
    assert can_be(
        f"{text} && request.user != object.name && request.user.matches('^[a-l]?$') && object.name.size() < 2"
    )
    assert not can_be(f"{text} && request.user.matches('^[a-j]?$')")
    narrow = f"{text} && request.user != object.name"
    assert can_be(f"{narrow} && request.user.matches('^[a-l]?$') && object.name.matches('^[a-l]?$')")
    assert not can_be(f"{narrow} && request.user.matches('^[a-k]?$') && object.name.matches('^[a-k]?$')")


@pytest.mark.parametrize("text", ["object == object.spec", "object.x == object.x.y", "object.items == object.items[0]"])
def test_a_value_compared_with_a_part_of_itself_ends(text: str) -> None:
    with pytest.raises(Unsupported, match="== between lists or maps that are looked into"):
        written(text)


def test_a_counterexample_is_small() -> None:
    question = written("has(object.labels) && object.labels.env != 'prod' && request.user.startsWith('a')")
    literals = question.outcomes[True]
    assert question.solver.possible(literals)
    question.solver.smallest(literals, question.values.preferences())
    assert question.model() == {
        "object": {"labels": {"env": ""}},
        "other": "",
        "request": {"user": "a", "groups": [], "count": 0},
    }


class TestPlantedFaults:
    """Faults that were made once, or nearly, must be found by what stands above."""

    def test_too_few_elements(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(Unknown, "ask_for", lambda self, kind, count: _ask_for_one(self, kind))
        assert not can_be(THREE)

    def test_has_on_a_missing_map(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(Encoder, "_has", lambda self, leaf, name: boolean(TRUE, -TRUE))
        assert found_by_chance()

    def test_an_error_that_counts_as_false(self, monkeypatch: pytest.MonkeyPatch) -> None:
        right = terms.rails

        def two_values(circuit: Any, term: Any) -> tuple[int, int]:
            true, _ = right(circuit, term)
            return true, -true

        monkeypatch.setattr(bools, "rails", two_values)
        assert found_by_chance()

    def test_an_end_before_the_last_newline(self, monkeypatch: pytest.MonkeyPatch) -> None:
        right = Languages._matching
        monkeypatch.setattr(
            Languages, "_matching", lambda self, text, whole: right(self, text.replace("$", "\n?$"), whole)
        )
        assert can_be("request.user.matches('a$') && request.user.endsWith('\\n')")

    def test_equality_without_transitivity(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(Values, "_transitive", lambda self, kind, group: None)
        text = "request.user == object.name && object.name == object.labels.env && request.user != object.labels.env"
        assert can_be(text)

    def test_one_witness_for_strings_that_differ(self, monkeypatch: pytest.MonkeyPatch) -> None:
        right = Languages.regions
        monkeypatch.setattr(Languages, "regions", lambda self, tests, count=1: right(self, tests, 1))
        question = written("request.user != object.name && request.user == other.name")
        assert question.solver.possible(question.outcomes[True])
        assert question.evaluate(question.model()) is not True


def _ask_for_one(unknown: Unknown, kind: ValueKind) -> None:
    unknown.world.found.elements[*unknown.path, kind] = 1


def found_by_chance() -> bool:
    return any(differences(seed, Counter()) for seed in range(60))

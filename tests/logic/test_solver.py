from __future__ import annotations

import tracemalloc
from itertools import product
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tierwall.logic.circuit import FALSE, TRUE, Circuit
from tierwall.logic.conflict_driven import ConflictDrivenSolver
from tierwall.logic.solver import CircuitSolver, NativeSolver, Solver

VARIABLES = (2, 3, 4, 5, 6)
SOLVERS = (ConflictDrivenSolver, NativeSolver)
literals = st.sampled_from(VARIABLES).flatmap(lambda variable: st.sampled_from((variable, -variable)))
clauses = st.lists(st.lists(literals, max_size=4), max_size=30)


def models(wanted: list[list[int]], assumptions: list[int]) -> list[set[int]]:
    """All models, by trying every assignment."""
    worlds = (
        {variable if value else -variable for variable, value in zip(VARIABLES, values, strict=True)}
        for values in product((False, True), repeat=len(VARIABLES))
    )
    return [w for w in worlds if set(assumptions) <= w and all(w.intersection(clause) for clause in wanted)]


@pytest.mark.parametrize("kind", SOLVERS)
@given(wanted=clauses, first=st.lists(literals, max_size=3), second=st.lists(literals, max_size=3))
def test_a_solver_finds_a_model_just_where_there_is_one(
    kind: type[Solver], wanted: list[list[int]], first: list[int], second: list[int]
) -> None:
    solver = kind()
    half = len(wanted) // 2
    for clause in wanted[:half]:
        solver.add(clause)
    solver.solve(second)
    for clause in wanted[half:]:
        solver.add(clause)
    for assumptions in (first, second, []):
        possible = models(wanted, assumptions)
        assert solver.solve(assumptions) is bool(possible)
        if possible:
            mentioned = {abs(literal) for clause in [*wanted, assumptions] for literal in clause}
            model = {v if solver.is_true(v) else -v for v in mentioned}
            assert any(model <= world for world in possible)


def test_questions_without_end_take_no_memory() -> None:
    solver = ConflictDrivenSolver()
    for variable in range(2, 201):
        solver.add([-variable, variable + 1])
    for literal in range(2, 201):
        assert solver.solve([literal, -201]) is False
    tracemalloc.start()
    try:
        for literal in (*range(2, 201), *range(2, 201), *range(2, 201)):
            solver.solve([literal, -201])
        assert tracemalloc.get_traced_memory()[0] < 100_000
    finally:
        tracemalloc.stop()


def pigeons(solver: Solver, holes: int) -> None:
    """No two of `holes` + 1 pigeons share a hole: impossible, and hard to see."""

    def sits(pigeon: int, hole: int) -> int:
        return 2 + pigeon * holes + hole

    for pigeon in range(holes + 1):
        solver.add([sits(pigeon, hole) for hole in range(holes)])
    for hole in range(holes):
        for pigeon in range(holes + 1):
            for other in range(pigeon):
                solver.add((-sits(pigeon, hole), -sits(other, hole)))


@pytest.mark.parametrize("kind", SOLVERS)
def test_a_limit_ends_the_search_without_an_answer(kind: type[Solver]) -> None:
    solver = kind()
    pigeons(solver, 6)
    assert solver.solve((), 5) is None
    assert solver.solve(()) is False


@pytest.mark.parametrize("kind", SOLVERS)
def test_a_question_that_has_no_model_leaves_the_last_one(kind: type[Solver]) -> None:
    solver = kind()
    solver.add((2, 3))
    assert solver.solve((-3,))
    assert not solver.solve((-2, -3))
    assert solver.is_true(2)
    assert not solver.is_true(3)


@pytest.mark.parametrize("kind", SOLVERS)
def test_variables_of_any_number_may_come_later(kind: type[Solver]) -> None:
    solver = kind()
    solver.add((2, 3))
    assert solver.solve((-2,))
    solver.add((-3, 500))
    solver.add((-500, 10_000))
    assert solver.solve((-2,))
    assert all(map(solver.is_true, (3, 500, 10_000)))
    assert not solver.solve((-10_000, -2))


def test_assumptions_that_exclude_each_other_are_refused_at_the_first_conflict() -> None:
    solver = ConflictDrivenSolver()
    # Each of many assumptions takes one hole away from the pigeons; without holes, nothing is left to search.
    pigeons(solver, 60)
    closed = [-(2 + pigeon * 60 + hole) for hole in range(60) for pigeon in range(61)]
    assert solver.solve(closed, 1) is False


def test_both_solvers_agree_on_larger_formulas() -> None:
    random = Random(7)
    answers = set()
    for _ in range(40):
        ours, native = ConflictDrivenSolver(), NativeSolver()
        for _ in range(255):
            clause = [random.choice((1, -1)) * variable for variable in random.sample(range(2, 62), 3)]
            ours.add(clause)
            native.add(clause)
        answer = ours.solve()
        assert answer is native.solve()
        answers.add(answer)
    assert answers == {True, False}


gates = st.recursive(
    st.sampled_from(("a", "b", "c", "d", True, False)),
    lambda inner: st.one_of(
        st.tuples(st.just("not"), inner),
        st.tuples(st.sampled_from(("and", "or")), st.lists(inner, max_size=4)),
        st.tuples(st.sampled_from(("same", "implies")), inner, inner),
        st.tuples(st.just("choose"), inner, inner, inner),
    ),
    max_leaves=12,
)


def meaning(gate: object, world: dict[str, bool]) -> bool:
    match gate:
        case bool():
            return gate
        case str():
            return world[gate]
        case ("not", inner):
            return not meaning(inner, world)
        case ("and", list(inner)):
            return all(meaning(part, world) for part in inner)
        case ("or", list(inner)):
            return any(meaning(part, world) for part in inner)
        case ("same", left, right):
            return meaning(left, world) == meaning(right, world)
        case ("implies", left, right):
            return not meaning(left, world) or meaning(right, world)
        case ("choose", condition, then, otherwise):
            return meaning(then, world) if meaning(condition, world) else meaning(otherwise, world)
    raise AssertionError(gate)


def built(gate: object, circuit: Circuit, names: dict[str, int]) -> int:
    match gate:
        case bool():
            return TRUE if gate else FALSE
        case str():
            return names[gate]
        case ("not", inner):
            return -built(inner, circuit, names)
        case ("and", list(inner)):
            return circuit.all_of([built(part, circuit, names) for part in inner])
        case ("or", list(inner)):
            return circuit.any_of([built(part, circuit, names) for part in inner])
        case ("same", left, right):
            return circuit.same(built(left, circuit, names), built(right, circuit, names))
        case ("implies", left, right):
            return circuit.implies(built(left, circuit, names), built(right, circuit, names))
        case ("choose", *parts):
            return circuit.choose(*(built(part, circuit, names) for part in parts))
    raise AssertionError(gate)


@pytest.mark.parametrize("kind", SOLVERS)
@given(gate=gates)
def test_a_circuit_means_what_its_gates_say(kind: type[Solver], gate: object) -> None:
    circuit = Circuit()
    names = dict(zip("abcd", circuit.variables(4), strict=True))
    root = built(gate, circuit, names)
    solver = CircuitSolver(circuit, kind())
    for values in product((False, True), repeat=4):
        world = dict(zip("abcd", values, strict=True))
        true = {names[name] for name in names if world[name]}
        fixed = [variable if variable in true else -variable for variable in names.values()]
        assert circuit.value(root, true) is meaning(gate, world)
        assert solver.possible([root, *fixed]) is meaning(gate, world)
        assert solver.possible([-root, *fixed]) is not meaning(gate, world)


@pytest.mark.parametrize("count", [1, 3, 6, 7, 12])
@pytest.mark.parametrize("kind", SOLVERS)
def test_exactly_one(kind: type[Solver], count: int) -> None:
    circuit = Circuit()
    variables = circuit.variables(count)
    circuit.require_one(variables)
    solver = CircuitSolver(circuit, kind())
    assert not solver.possible([-variable for variable in variables])
    for chosen in variables:
        assert solver.possible([v if v == chosen else -v for v in variables])
        for other in variables:
            assert solver.possible([chosen, other]) is (chosen == other)


@pytest.mark.parametrize("kind", SOLVERS)
def test_a_literal_that_the_circuit_does_not_have_is_refused(kind: type[Solver]) -> None:
    circuit = Circuit()
    last = circuit.variables(3)[-1]
    solver = CircuitSolver(circuit, kind())
    assert solver.possible([last])
    for strange in (last + 1, -last - 1, 0):
        with pytest.raises(ValueError, match=f"no literal {strange}$"):
            solver.possible([last, strange])
        with pytest.raises(ValueError, match=f"no literal {strange}$"):
            solver.smallest([last], [strange])
    assert solver.possible([-last])


@given(wanted=clauses, order=st.permutations(VARIABLES), negated=st.lists(st.booleans(), min_size=5, max_size=5))
def test_the_smallest_model_is_the_same_for_every_solver(
    wanted: list[list[int]], order: list[int], negated: list[bool]
) -> None:
    preferences = [-variable if no else variable for variable, no in zip(order, negated, strict=True)]
    possible = models(wanted, [])
    for kind in SOLVERS:
        circuit = Circuit()
        circuit.variables(5)
        for clause in wanted:
            circuit.require(*clause)
        solver = CircuitSolver(circuit, kind())
        if not possible:
            assert not solver.possible([])
            continue
        first = max(possible, key=lambda world: [literal in world for literal in preferences])
        assert set(solver.smallest([], preferences)) == first

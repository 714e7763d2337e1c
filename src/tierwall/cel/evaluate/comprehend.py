"""Comprehension macros in the exact evaluator (cel-spec, "Macros"; cel-go ext.TwoVarComprehensions and sortBy).

Each macro costs what the loop it stands for costs in cel-go: reading the accumulator, testing it, extending it. A step
that would cost nothing (`filter(x, false)`) costs 1, so that the limit bounds the number of steps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from tierwall.cel.errors import EvaluationError
from tierwall.cel.library import cost
from tierwall.cel.library.lists import sort_by_keys
from tierwall.cel.syntax import ast
from tierwall.cel.values import map_key, map_keys, no_such_overload

if TYPE_CHECKING:
    from tierwall.cel.evaluate.evaluator import Planner
    from tierwall.cel.evaluate.steps import Closure, Frame

# Cost of one step besides the expressions in it; of going on to look at the next element; of the result.
_ALL_STEP, _ALL_STOP = 3, 2
_EXISTS_STEP, _EXISTS_STOP = 4, 3
_ADD_CONSTANT, _ADD = 2, 12
_KEEP = 13
_INSERT, _INSERT_ENTRY = 3, 2
_FOUND = 2
_RESULT, _RESULT_ONE, _RESULT_SORTED = 1, 2, 3


def plan(planner: Planner, node: ast.Comprehension) -> Closure:
    """The closure of a comprehension."""
    target = planner.plan(node.target)
    slots, steps = planner.within(node.variables, node.args)
    loop = _loop(target, slots)
    constant = type(node.args[-1]) is ast.Literal
    match node.macro, steps:
        case "all", [predicate]:
            return _quantifier(loop, predicate, settled=False, step=_ALL_STEP, stop=_ALL_STOP)
        case "exists", [predicate]:
            return _quantifier(loop, predicate, settled=True, step=_EXISTS_STEP, stop=_EXISTS_STOP)
        case "exists_one" | "existsOne", [predicate]:
            return _exists_one(loop, predicate)
        case "filter", [predicate]:
            return _filter(loop, predicate, slots[-1])
        case "map" | "transformList", [*tests, transform]:
            return _transform(loop, tests, transform, _ADD_CONSTANT if constant else _ADD)
        case "transformMap", [*tests, transform]:
            return _transform_map(loop, tests, transform, slots[0])
        case "transformMapEntry", [*tests, transform]:
            return _transform_entries(loop, tests, transform)
        case "sortBy", [key]:
            return _sort_by(target, slots[0], key, _ADD_CONSTANT if constant else _ADD)
    raise AssertionError(f"unknown macro {node.macro}")


Loop = Callable[["Frame"], Iterable[None]]


def iterate(value: object) -> list[object]:
    """What a comprehension with one variable goes through: the elements of a list, the keys of a map."""
    if type(value) is list:
        return value
    if type(value) is dict:
        return list(map_keys(value))
    raise no_such_overload("comprehension", value)


def iterate_pairs(value: object) -> list[tuple[object, object]]:
    """What a comprehension with two variables goes through: index and element, key and value."""
    if type(value) is list:
        return list(enumerate(value))
    if type(value) is dict:
        return list(zip(map_keys(value), value.values(), strict=True))
    raise no_such_overload("comprehension", value)


def _loop(target: Closure, slots: tuple[int, ...]) -> Loop:
    """Sets the variables to each element in turn."""
    if len(slots) == 1:
        (slot,) = slots

        def single(frame: Frame) -> Iterable[None]:
            values = frame.locals
            for item in iterate(target(frame)):
                values[slot] = item
                yield

        return single
    first, second = slots

    def double(frame: Frame) -> Iterable[None]:
        values = frame.locals
        for key, item in iterate_pairs(target(frame)):
            values[first], values[second] = key, item
            yield

    return double


def _quantifier(loop: Loop, predicate: Closure, settled: bool, step: int, stop: int) -> Closure:
    """`exists` if true settles it, `all` if false does; an error counts only where nothing settles it."""
    name = "exists" if settled else "all"

    def quantifier(frame: Frame) -> object:
        failure: EvaluationError | None = None
        decided = False
        for _ in loop(frame):
            if decided:
                frame.charge(stop)
                break
            frame.charge(step)
            try:
                value = predicate(frame)
            except EvaluationError as error:
                failure = failure or error
                continue
            if value is settled:
                decided = True
            elif type(value) is not bool and failure is None:
                failure = no_such_overload(name, value)
        frame.charge(_RESULT)
        if decided:
            return settled
        if failure is not None:
            raise failure
        return not settled

    return quantifier


def _test(value: object) -> bool:
    if type(value) is bool:
        return value
    raise no_such_overload("_?_:_", value)


def _exists_one(loop: Loop, predicate: Closure) -> Closure:
    def exists_one(frame: Frame) -> object:
        count = 0
        for _ in loop(frame):
            before = frame.cost
            if _test(predicate(frame)):
                count += 1
                frame.cost += _FOUND
            frame.charge(frame.cost == before)
        frame.charge(_RESULT_ONE)
        return count == 1

    return exists_one


def _filter(loop: Loop, predicate: Closure, slot: int) -> Closure:
    def keep(frame: Frame) -> object:
        result: list[object] = []
        for _ in loop(frame):
            before = frame.cost
            if _test(predicate(frame)):
                result.append(frame.locals[slot])
                frame.cost += _KEEP
            frame.charge(frame.cost == before)
        frame.charge(_RESULT)
        return result

    return keep


def _transform(loop: Loop, tests: list[Closure], transform: Closure, step: int) -> Closure:
    def apply(frame: Frame) -> object:
        result: list[object] = []
        for _ in loop(frame):
            before = frame.cost
            if all(_test(test(frame)) for test in tests):
                result.append(transform(frame))
                frame.cost += step
            frame.charge(frame.cost == before)
        frame.charge(_RESULT)
        return result

    return apply


def _transform_map(loop: Loop, tests: list[Closure], transform: Closure, slot: int) -> Closure:
    def apply(frame: Frame) -> object:
        result: dict[object, object] = {}
        for _ in loop(frame):
            before = frame.cost
            if all(_test(test(frame)) for test in tests):
                key = frame.locals[slot]
                result[map_key(key)] = transform(frame)
                frame.cost += _INSERT
            frame.charge(frame.cost == before)
        frame.charge(_RESULT)
        return result

    return apply


def _transform_entries(loop: Loop, tests: list[Closure], transform: Closure) -> Closure:
    def apply(frame: Frame) -> object:
        result: dict[object, object] = {}
        for _ in loop(frame):
            before = frame.cost
            if all(_test(test(frame)) for test in tests):
                entries = transform(frame)
                if type(entries) is not dict:
                    raise no_such_overload("cel.@mapInsert", result, entries)
                frame.charge(_INSERT_ENTRY + len(entries) // 10)
                for stored, value in entries.items():
                    if stored in result:
                        raise EvaluationError(f"insert failed: key {next(map_keys({stored: None}))} already exists")
                    result[stored] = value
            frame.charge(frame.cost == before)
        frame.charge(_RESULT)
        return result

    return apply


def _sort_by(target: Closure, slot: int, key: Closure, step: int) -> Closure:
    def sort(frame: Frame) -> object:
        items = target(frame)
        if type(items) is not list:
            raise no_such_overload("sortBy", items)
        keys: list[object] = []
        for item in items:
            frame.locals[slot] = item
            keys.append(key(frame))
            frame.charge(step)
        frame.charge(_RESULT_SORTED + cost.self_compare(keys))
        return sort_by_keys(items, keys)

    return sort

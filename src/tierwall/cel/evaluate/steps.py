"""The closures of operators, calls and comprehensions in the exact evaluator; see `evaluator`.

Each macro costs what the loop it stands for costs in cel-go: reading the accumulator, testing it, extending it. A step
that would cost nothing (`filter(x, false)`) costs 1, so that the limit bounds the number of steps (cel-spec, "Macros";
cel-go ext.TwoVarComprehensions and sortBy).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import NoReturn, TypeAlias, TypeVar

from tierwall.cel.errors import CostExceeded, EvaluationError
from tierwall.cel.evaluate.dispatch import Dispatcher, Meter, cost_exceeded, has_field, optional_field
from tierwall.cel.library import cost
from tierwall.cel.library.lists import sort_by_keys
from tierwall.cel.library.operators import in_list, in_map
from tierwall.cel.values import OptionalValue, equal, map_key, map_keys, no_such_overload

# Cost of one step besides the expressions in it; of going on to look at the next element; of the result.
_ALL_STEP, _ALL_STOP = 3, 2
_EXISTS_STEP, _EXISTS_STOP = 4, 3
ADD_CONSTANT, ADD = 2, 12
_KEEP = 13
_INSERT, _INSERT_ENTRY = 3, 2
_FOUND = 2
_RESULT, _RESULT_ONE, _RESULT_SORTED = 1, 2, 3


class Frame(Meter):
    """One evaluation: the variables, the values of iteration variables by slot, and the cost so far."""

    __slots__ = ("_unwound", "locals", "variables")

    def __init__(self, variables: Mapping[str, object], slots: int, limit: int) -> None:
        super().__init__(limit)
        self.variables = variables
        self.locals: list[object] = [None] * slots
        self._unwound = 0

    def absorb(self, error: EvaluationError) -> None:
        """Count the calls that an absorbed error ended. They cost time, but nothing in cel-go, so they have a limit."""
        calls = error.__traceback__
        while calls is not None:
            self._unwound += 1
            calls = calls.tb_next
        if self._unwound > self.limit:
            raise cost_exceeded(self.limit)


Closure: TypeAlias = Callable[[Frame], object]


def failing(message: str) -> Closure:
    """Return a closure that always fails."""

    def fail(frame: Frame) -> object:
        raise EvaluationError(message)

    return fail


def too_deep(frame: Frame) -> NoReturn:
    """Fail on a tree or a value that is nested deeper than Python's stack allows."""
    raise CostExceeded("operation cancelled: nested too deeply") from None


def with_extra_cost(step: Closure, amount: int) -> Closure:
    """Return the step at an extra cost."""

    def charged(frame: Frame) -> object:
        frame.cost += amount
        return step(frame)

    return charged


def select_optional(frame: Frame, value: object, field: str) -> OptionalValue:
    """`value.?field`; costs 1 if the field is present."""
    result = optional_field(value, field)
    frame.cost += result.present
    return result


def has(operand: Closure, field: str) -> Closure:
    """`has(operand.field)`, which costs nothing itself."""

    def test(frame: Frame) -> object:
        return has_field(operand(frame), field)

    return test


def logical(terms: list[Closure], absorbing: bool) -> Closure:
    """`||` if the absorbing value is true, `&&` if it is false: one term with that value settles it, errors or not."""
    name = "_||_" if absorbing else "_&&_"

    def connective(frame: Frame) -> object:
        failure: EvaluationError | None = None
        for term in terms:
            try:
                value = term(frame)
            except EvaluationError as error:
                frame.absorb(error)
                failure = failure or error
                continue
            if value is absorbing:
                return absorbing
            if type(value) is not bool and failure is None:
                failure = no_such_overload(name, value)
        if failure is not None:
            raise failure
        return not absorbing

    return connective


def conditional(test: Closure, then: Closure, otherwise: Closure) -> Closure:
    """`test ? then : otherwise`."""

    def choose(frame: Frame) -> object:
        value = test(frame)
        if value is True:
            return then(frame)
        if value is False:
            return otherwise(frame)
        raise no_such_overload("_?_:_", value)

    return choose


def equality(left: Closure, right: Closure, negated: bool) -> Closure:
    """`==`, or `!=` if negated."""

    def compare(frame: Frame) -> object:
        a, b = left(frame), right(frame)
        frame.charge(cost.scan_shorter(a, b))
        return equal(a, b) is not negated

    return compare


def membership(item: Closure, items: Closure) -> Closure:
    """`in` a literal list, which Kubernetes turns into a set: it costs nothing."""

    def member(frame: Frame) -> object:
        value, container = item(frame), items(frame)
        if type(container) is list:
            return in_list(value, container)
        return in_map(value, container)  # type: ignore[arg-type]

    return member


def value_or_default(dispatcher: Dispatcher, target: Closure, default: Closure) -> Closure:
    """`or` and `orValue`, which evaluate their argument only where the target has no value."""

    def choose(frame: Frame) -> object:
        value = target(frame)
        if type(value) is not OptionalValue:
            raise no_such_overload(dispatcher.function, value)
        if value.present:
            return value if dispatcher.function == "or" else value.value
        return default(frame)

    return choose


def fold_conversion(dispatcher: Dispatcher, value: object) -> Closure:
    """Return the closure of a conversion of a literal, which costs nothing."""

    def fold(frame: Frame) -> object:
        return dispatcher.overload((value,)).call(value)

    return fold


def call_function(dispatcher: Dispatcher, steps: list[Closure]) -> Closure:
    """Return the closure of a call through the function table."""
    invoke = dispatcher.invoke
    match steps:
        case [first]:
            return lambda frame: invoke(frame, first(frame))
        case [first, second]:
            return lambda frame: invoke(frame, first(frame), second(frame))
        case [first, second, third]:
            return lambda frame: invoke(frame, first(frame), second(frame), third(frame))

    def many(frame: Frame) -> object:
        return invoke(frame, *[step(frame) for step in steps])

    return many


Loop: TypeAlias = Callable[[Frame], Iterable[None]]


def iterate(value: object) -> list[object]:
    """Return the values of a comprehension's one variable: the elements of a list, the keys of a map."""
    if type(value) is list:
        return value
    if type(value) is dict:
        return list(map_keys(value))
    raise no_such_overload("comprehension", value)


def iterate_pairs(value: object) -> list[tuple[object, object]]:
    """Return the values of a comprehension's two variables: index and element, key and value."""
    if type(value) is list:
        return list(enumerate(value))
    if type(value) is dict:
        return list(zip(map_keys(value), value.values(), strict=True))
    raise no_such_overload("comprehension", value)


def loop_over(target: Closure, slots: tuple[int, ...]) -> Loop:
    """Set the variables to each element in turn."""
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


def quantifier(loop: Loop, predicate: Closure, settling: bool) -> Closure:
    """`exists` if true settles it, `all` if false does; an error counts only where nothing settles it."""
    name, step, stop = ("exists", _EXISTS_STEP, _EXISTS_STOP) if settling else ("all", _ALL_STEP, _ALL_STOP)

    def quantify(frame: Frame) -> object:
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
                frame.absorb(error)
                failure = failure or error
                continue
            if value is settling:
                decided = True
            elif type(value) is not bool and failure is None:
                failure = no_such_overload(name, value)
        frame.charge(_RESULT)
        if decided:
            return settling
        if failure is not None:
            raise failure
        return not settling

    return quantify


def _test(value: object) -> bool:
    if type(value) is bool:
        return value
    raise no_such_overload("_?_:_", value)


Gathered = TypeVar("Gathered")


def gather_elements(
    loop: Loop, tests: list[Closure], start: Callable[[], Gathered], take: Callable[[Frame, Gathered], None]
) -> Callable[[Frame], Gathered]:
    """Gather with `take` from the elements that pass the tests."""

    def gather(frame: Frame) -> Gathered:
        gathered = start()
        for _ in loop(frame):
            before = frame.cost
            for test in tests:
                if not _test(test(frame)):
                    break
            else:
                take(frame, gathered)
            frame.charge(frame.cost == before)
        frame.charge(_RESULT)
        return gathered

    return gather


def exists_one(loop: Loop, predicate: Closure) -> Closure:
    """`exists_one`, by either of its names."""

    def take(frame: Frame, passed: list[None]) -> None:
        passed.append(None)
        frame.cost += _FOUND

    gather = gather_elements(loop, [predicate], list, take)

    def is_one(frame: Frame) -> object:
        passed = gather(frame)
        frame.charge(_RESULT_ONE - _RESULT)
        return len(passed) == 1

    return is_one


def filter_elements(loop: Loop, predicate: Closure, slot: int) -> Closure:
    """`filter`."""

    def take(frame: Frame, kept: list[object]) -> None:
        kept.append(frame.locals[slot])
        frame.cost += _KEEP

    return gather_elements(loop, [predicate], list, take)


def transform_list(loop: Loop, tests: list[Closure], transform: Closure, step: int) -> Closure:
    """`map` and `transformList`."""

    def take(frame: Frame, results: list[object]) -> None:
        results.append(transform(frame))
        frame.cost += step

    return gather_elements(loop, tests, list, take)


def transform_map(loop: Loop, tests: list[Closure], transform: Closure, slot: int) -> Closure:
    """`transformMap`."""

    def take(frame: Frame, results: dict[object, object]) -> None:
        key = frame.locals[slot]
        results[map_key(key)] = transform(frame)
        frame.cost += _INSERT

    return gather_elements(loop, tests, dict, take)


def transform_map_entries(loop: Loop, tests: list[Closure], transform: Closure) -> Closure:
    """`transformMapEntry`."""

    def take(frame: Frame, results: dict[object, object]) -> None:
        entries = transform(frame)
        if type(entries) is not dict:
            raise no_such_overload("cel.@mapInsert", results, entries)
        frame.charge(_INSERT_ENTRY + len(entries) // 10)
        for stored, value in entries.items():
            if stored in results:
                raise EvaluationError(f"insert failed: key {next(map_keys({stored: None}))} already exists")
            results[stored] = value

    return gather_elements(loop, tests, dict, take)


def sort_by(target: Closure, slot: int, key: Closure, step: int) -> Closure:
    """`sortBy`."""

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

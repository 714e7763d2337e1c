"""The closures of operators and calls in the exact evaluator; see `evaluate`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NoReturn, TypeAlias

from tierwall.cel.errors import CostExceeded, EvaluationError
from tierwall.cel.evaluate.dispatch import Dispatcher, Meter, has_field, optional_field
from tierwall.cel.library import cost
from tierwall.cel.library.operators import in_list, in_map
from tierwall.cel.values import OptionalValue, equal, no_such_overload


class Frame(Meter):
    """One evaluation: the variables, the values of iteration variables by slot, and the cost so far."""

    __slots__ = ("locals", "variables")

    def __init__(self, variables: Mapping[str, object], slots: int, limit: int) -> None:
        super().__init__(limit)
        self.variables = variables
        self.locals: list[object] = [None] * slots


Closure: TypeAlias = Callable[[Frame], object]


def failing(message: str) -> Closure:
    """What always fails."""

    def fail(frame: Frame) -> object:
        raise EvaluationError(message)

    return fail


def too_deep(frame: Frame) -> NoReturn:
    """What comes of a tree or a value that is nested deeper than what is left of Python's stack."""
    raise CostExceeded("operation cancelled: nested too deeply") from None


def costing(step: Closure, amount: int) -> Closure:
    """The step, for so much more."""

    def charged(frame: Frame) -> object:
        frame.cost += amount
        return step(frame)

    return charged


def selected_optional(frame: Frame, value: object, field: str) -> OptionalValue:
    """`value.?field`, charged for where there is one."""
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


def lazy(found: Dispatcher, target: Closure, default: Closure) -> Closure:
    """`or` and `orValue`, which need their argument only where the target is none."""

    def choose(frame: Frame) -> object:
        value = target(frame)
        if type(value) is not OptionalValue:
            raise no_such_overload(found.function, value)
        if value.present:
            return value if found.function == "or" else value.value
        return default(frame)

    return choose


def folded(found: Dispatcher, value: object) -> Closure:
    """A conversion of a literal, which costs nothing."""

    def fold(frame: Frame) -> object:
        return found.overload((value,)).call(value)

    return fold


def invoking(found: Dispatcher, steps: list[Closure]) -> Closure:
    """A call through the function table."""
    invoke = found.invoke
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

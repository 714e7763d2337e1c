"""Operators that may not need all operands: `&&`, `||`, `!`, `?:`, `or`, `orValue` (cel-spec, "Logical Operators").

`&&` and `||` absorb errors from either side, so `residual && false` is false whatever the residual is, and the order
of operands does not matter. `residual && true` is the residual only where it is a bool or an error, or where a value
that is not a bool would be an error anyway; elsewhere the `&& true` stays. A known error stays as a constant that
always fails: beside it the whole is false or an error.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from tierwall.cel.partial_evaluation import outcomes
from tierwall.cel.partial_evaluation.constant import dyn
from tierwall.cel.partial_evaluation.outcomes import (
    FAILING_SIZE,
    CertainFailure,
    Residual,
    Result,
    as_condition,
    failing_expression,
    is_failing,
)
from tierwall.cel.partial_evaluation.signature import fits
from tierwall.cel.partial_evaluation.tree import operands, with_operands
from tierwall.cel.syntax.ast import Call, Expr, Literal
from tierwall.cel.types import BOOL
from tierwall.cel.values import OptionalValue

if TYPE_CHECKING:
    from tierwall.cel.partial_evaluation.specialiser import Frame, Run, Scope, Specialiser


class JoinedOperands:
    """The operands of one `&&` or `||` as they come in, and their joint result."""

    __slots__ = ("_absorbing", "_bit", "_check_length", "_function", "_size", "error", "parts")

    def __init__(self, function: str, check_length: Callable[[int], None]) -> None:
        self._check_length = check_length
        self._size = 0
        self._function = function
        self._absorbing = function == "_||_"
        self._bit = outcomes.TRUE if self._absorbing else outcomes.FALSE
        self.parts: list[Residual] = []
        self.error: CertainFailure | None = None

    def add(self, result: Result) -> bool:
        """Take one operand; True if it settles the whole."""
        result = as_condition(result, self._function)
        if isinstance(result, Residual):
            self.parts.append(result)
            self._size += result.size + 4
            self._check_length(self._size)
        elif isinstance(result, CertainFailure):
            self._fail(result)
        return result is self._absorbing

    def _fail(self, error: CertainFailure) -> None:
        if self.error is None:
            self.error = error
        elif error.late and not self.error.late:
            self.error = CertainFailure(self.error.message, True)

    def result(self, boolean: bool) -> Result:
        """Return the result of all operands when none of them settled it."""
        parts = self.parts
        if not parts:
            return self.error if self.error is not None else not self._absorbing
        if len(parts) == 1 and self.error is None and (boolean or not parts[0].possible & outcomes.OTHER):
            return parts[0]
        args: list[Expr] = []
        size = self._size
        for part in parts:
            expr = part.expr
            if type(expr) is Call and expr.function == self._function:
                args += expr.args
            else:
                args.append(expr)
        possibilities = [part.possible for part in parts]
        if self.error is not None:
            if not any(possible & self._bit for possible in possibilities):
                return CertainFailure(self.error.message, True)
            # One constant that always fails is enough, and an operand may have brought one along.
            if not any(map(is_failing, args)):
                args.append(failing_expression(self.error.message))
                size += FAILING_SIZE + len(self.error.message)
            possibilities.append(outcomes.ERROR)
        elif len(args) == 1:
            args.append(Literal(not self._absorbing))
            size += 5
        possible = outcomes.connective(possibilities, self._bit)
        return value_if_certain(Residual(Call(self._function, None, tuple(args)), possible, size, BOOL))


def value_if_certain(residual: Residual) -> Result:
    """Return the residual, or the only value it can have."""
    if residual.possible == outcomes.TRUE:
        return True
    return False if residual.possible == outcomes.FALSE else residual


def stage_connective(specialiser: Specialiser, node: Call, scope: Scope, boolean: bool) -> Run:
    """Return the function of `&&` or `||`. Known operands come first: they may settle the result without the others."""
    function = node.function
    absorbing = function == "_||_"
    known_args: list[Expr] = []
    unknown_runs: list[Run] = []
    for arg in node.args:
        if specialiser.is_known(arg, scope):
            known_args.append(arg)
        else:
            unknown_runs.append(specialiser.stage(arg, scope, True))
    known = known_args[0] if len(known_args) == 1 else Call(function, None, tuple(known_args))
    first = specialiser.stage(known, scope) if known_args else None
    fixed: list[Result] = [run.result for run in unknown_runs if hasattr(run, "result")]
    alone = _join(specialiser, function, fixed, boolean) if len(fixed) == len(unknown_runs) else None

    def join(frame: Frame) -> Result:
        joined = JoinedOperands(function, specialiser.check_length)
        if first is not None and joined.add(first(frame)):
            return absorbing
        for run in unknown_runs:
            if joined.add(run(frame)):
                return absorbing
        return joined.result(boolean)

    def join_fixed(frame: Frame) -> Result:
        assert first is not None
        value = first(frame)
        if value is absorbing:
            return absorbing
        if value is (not absorbing):
            return alone
        return _join(specialiser, function, (value, *fixed), boolean)

    return join if len(fixed) < len(unknown_runs) or first is None else join_fixed


def _join(specialiser: Specialiser, function: str, results: Sequence[Result], boolean: bool) -> Result:
    joined = JoinedOperands(function, specialiser.check_length)
    for result in results:
        if joined.add(result):
            return function == "_||_"
    return joined.result(boolean)


def stage_negation(specialiser: Specialiser, node: Call, scope: Scope, boolean: bool) -> Run:
    """Return the function of `!`."""
    operand = specialiser.stage(node.args[0], scope, True)

    def run(frame: Frame) -> Result:
        result = as_condition(operand(frame), "!_")
        if type(result) is bool:
            return not result
        return negated(result, node, boolean) if isinstance(result, Residual) else result

    return run


def negated(result: Residual, node: Expr, boolean: bool) -> Result:
    """`!residual`, of a residual that may be true or false."""
    expr = result.expr
    possible = outcomes.negation(result.possible)
    if type(expr) is Call and expr.function == "!_" and boolean:
        # Without its negations the operand may turn out not to be a bool.
        return value_if_certain(Residual(expr.args[0], possible | outcomes.OTHER, result.size - 1))
    return value_if_certain(Residual(Call("!_", None, (expr,), node.at), possible, result.size + 1, BOOL))


def stage_conditional(specialiser: Specialiser, node: Call, scope: Scope, boolean: bool) -> Run:
    """Return the function of `condition ? then : other`, which evaluates one branch only."""
    condition = specialiser.stage(node.args[0], scope, True)
    then = specialiser.stage(node.args[1], scope, boolean)
    other = specialiser.stage(node.args[2], scope, boolean)

    def run(frame: Frame) -> Result:
        chosen = as_condition(condition(frame), "_?_:_")
        if chosen is True:
            return then(frame)
        if chosen is False:
            return other(frame)
        if not isinstance(chosen, Residual):
            return chosen
        return _choice(specialiser, node, chosen, then(frame), other(frame), boolean)

    return run


def _choice(
    specialiser: Specialiser, node: Call, chosen: Residual, then: Result, other: Result, boolean: bool
) -> Result:
    if isinstance(then, CertainFailure) and isinstance(other, CertainFailure):
        return CertainFailure(then.message, True)
    if then is True and other is False and (boolean or not chosen.possible & outcomes.OTHER):
        return chosen
    if then is False and other is True:
        return negated(chosen, node, boolean)
    then_part, other_part = specialiser.as_residual(node.args[1], then), specialiser.as_residual(node.args[2], other)
    possible = outcomes.choice(chosen.possible, then_part.possible, other_part.possible)
    if boolean and not possible & (outcomes.TRUE | outcomes.FALSE):
        return CertainFailure("no such overload: _?_:_", True)
    size = chosen.size + then_part.size + other_part.size + 6
    specialiser.check_length(size)
    left, right = then_part.expr, other_part.expr
    kind = then_part.type if then_part.type is not None and then_part.type == other_part.type else None
    if specialiser.checked_type(node) is not None:
        kind = specialiser.certain_type(node)
    elif then_part.type is not None and other_part.type is not None and not fits((then_part.type,), (other_part.type,)):
        left, right = (dyn(left) if type(left) is not Literal or left is not node.args[1] else left), dyn(right)
        size += 10
    elif then_part.possible == outcomes.ERROR:
        kind = other_part.type
    elif other_part.possible == outcomes.ERROR:
        kind = then_part.type
    return value_if_certain(Residual(Call("_?_:_", None, (chosen.expr, left, right), node.at), possible, size, kind))


def stage_fallback(specialiser: Specialiser, node: Call, scope: Scope) -> Run:
    """Return the function of `x.or(y)` and `x.orValue(y)`, which evaluate y only where x has no value."""
    target, other = operands(node)
    optional, default = specialiser.stage(target, scope), specialiser.stage(other, scope)
    apply = specialiser.operation_of(node)

    def run(frame: Frame) -> Result:
        first = optional(frame)
        if isinstance(first, CertainFailure):
            return first
        if not isinstance(first, Residual):
            if type(first) is not OptionalValue:
                return apply((first, None))
            if first.present:
                return first if node.function == "or" else first.value
            return default(frame)
        second = default(frame)
        first, second_part = specialiser.make_as_dynamic(target, first), specialiser.as_residual(other, second)
        size = first.size + second_part.size + len(node.function) + 3
        specialiser.check_length(size)
        expr = with_operands(node, (first.expr, second_part.expr))
        return Residual(expr, outcomes.ANY, size, specialiser.certain_type(node))

    return run

"""An expression made ready for partial evaluation: once for a policy, then run for each request.

Every part of the tree becomes a function from the known values to a result. The largest parts that need no unknown are
compiled as they are; parts that name no known variable are settled here and now; what is left is the places where both
meet. A function that needs all its arguments fails when one of them does, folds when all are known, and is otherwise
written again with the known ones as constants.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import msgspec

from tierwall.cel.environment import Environment
from tierwall.cel.errors import CostExceeded, EvaluationError
from tierwall.cel.evaluate.program import Program
from tierwall.cel.library.cost import CALL_LIMIT
from tierwall.cel.library.optionals import LAZY
from tierwall.cel.partial_evaluation import outcomes, signature
from tierwall.cel.partial_evaluation.constant import (
    MAX_LENGTH,
    TOO_LONG,
    check_constant_length,
    constant,
    dyn,
    typed_constant,
    value_type,
)
from tierwall.cel.partial_evaluation.logic import stage_conditional, stage_connective, stage_fallback, stage_negation
from tierwall.cel.partial_evaluation.macros import ROUNDS, UNROLLING, stage_binding, stage_comprehension
from tierwall.cel.partial_evaluation.names import HOLED, FieldPath, NameAnalysis, Unknowns, field_path, stage_holed
from tierwall.cel.partial_evaluation.outcomes import (
    FAILING_SIZE,
    CertainFailure,
    PartialError,
    Residual,
    Result,
    failing_expression,
)
from tierwall.cel.partial_evaluation.tree import length, node_length, operands, with_names, with_operands
from tierwall.cel.partial_evaluation.writing import Apply, writer
from tierwall.cel.syntax.ast import LOGICAL, Bind, Call, Comprehension, Expr, Has, Ident, Literal, Select
from tierwall.cel.types import BOOL, Type, optional_of
from tierwall.cel.values import TypeValue

Frame: TypeAlias = dict[str, object]
Run: TypeAlias = Callable[[Frame], Result]

# Most known parts cost less.
LIGHT = 1000
_BUDGET = "@budget"


class FixedResult:
    """A part whose result does not depend on the known values."""

    __slots__ = ("result",)

    def __init__(self, result: Result) -> None:
        self.result = result

    def __call__(self, frame: Frame) -> Result:
        return self.result


class Scope(msgspec.Struct, frozen=True):
    """The iteration variables in scope: by name, the key of the value in the frame, or None while it has no value."""

    variables: Mapping[str, str | None] = {}
    depth: int = 0

    def bind(self, names: Sequence[str], known: bool) -> Scope:
        """Return the scope inside a binder."""
        depth = self.depth + 1
        # No source can spell a name with an `@` and a digit, so these never clash with a variable.
        keys = {name: f"@{depth}{name}" if known else None for name in names}
        return Scope({**self.variables, **keys}, depth)


class Specialiser:
    """Turns the parts of one expression into functions."""

    def __init__(
        self,
        unknowns: Unknowns,
        environment: Environment,
        unknown_types: Mapping[str, Type],
        checked_types: Mapping[Expr, Type],
    ) -> None:
        self.unknowns = unknowns
        self.environment = environment
        # The certain types, by the name of an unknown and by checked node.
        self.unknown_types = unknown_types
        self.checked_types = checked_types
        self.analysis = NameAnalysis(unknowns)
        self._settling = new_frame({})

    def stage(self, node: Expr, scope: Scope, boolean: bool = False) -> Run:
        """Return the function of a part. `boolean`: a condition, for which a value that is not a bool is an error."""
        uses = self.analysis.uses(node, frozenset(scope.variables))
        keys = {name: scope.variables[name] for name in uses.local}
        if not uses.unknown and None not in keys.values():
            return self.stage_known(node, {name: key for name, key in keys.items() if key is not None})
        run = self._stage_open(node, scope, boolean)
        if uses.known or (uses.binds and scope.depth) or any(key is not None for key in keys.values()):
            return run
        # Comprehensions settled in advance share one frame, and so one limit of rounds. Those inside the body of
        # another are left for its run, because the known values decide when a body is first needed.
        return FixedResult(run(self._settling if uses.binds else new_frame({})))

    def stage_lazily(self, node: Expr, scope: Scope, boolean: bool = False) -> Run:
        """Stage a part on its first run: a body may be needed with known or unknown variables, or not at all."""
        staged: Run | None = None

        def run(frame: Frame) -> Result:
            nonlocal staged
            if staged is None:  # threads that run this at the same time make equal functions
                staged = self.stage(node, scope, boolean)
            return staged(frame)

        return run

    def stage_known(self, node: Expr, keys: Mapping[str, str]) -> Run:
        """Return the function of a part that needs no unknown."""
        if type(node) is Literal:
            return FixedResult(node.value)
        program = Program(with_names(node, keys), self.environment)
        evaluate = program.evaluate

        def run(frame: Frame) -> Result:
            try:
                return evaluate(frame, LIGHT)
            except EvaluationError as error:
                return CertainFailure(str(error))
            except CostExceeded:
                return _evaluate_costly(program, frame)

        return run

    def is_known(self, node: Expr, scope: Scope) -> bool:
        """Whether a part needs no unknown."""
        uses = self.analysis.uses(node, frozenset(scope.variables))
        return not uses.unknown and all(scope.variables[name] is not None for name in uses.local)

    def _stage_open(self, node: Expr, scope: Scope, boolean: bool) -> Run:
        """Return the function of a part that needs an unknown."""
        path = field_path(node)
        if path is not None and path.root not in scope.variables:
            if self.unknowns.exact(path):
                return FixedResult(self._unknown(node, path))
            if self.unknowns.kind(path) == HOLED:
                return stage_holed(self, node, path)
        kind = type(node)
        if kind is Ident:
            static = self.certain_type(node)
            possible = signature.outcomes_of_type(static) & ~outcomes.ERROR
            return FixedResult(Residual(node, possible, node_length(node), static))
        if kind is Call:
            function = node.function  # type: ignore[union-attr]
            if function in LOGICAL:
                return stage_connective(self, node, scope, boolean)  # type: ignore[arg-type]
            if function == "_?_:_":
                return stage_conditional(self, node, scope, boolean)  # type: ignore[arg-type]
            if function == "!_":
                return stage_negation(self, node, scope, boolean)  # type: ignore[arg-type]
            if function in LAZY and len(operands(node)) == 2:
                return stage_fallback(self, node, scope)  # type: ignore[arg-type]
        if kind is Comprehension:
            return stage_comprehension(self, node, scope, boolean)  # type: ignore[arg-type]
        if kind is Bind:
            return stage_binding(self, node, scope, boolean)  # type: ignore[arg-type]
        # Not a separate method: every frame saved leaves room for the parser's 250 levels under Python's limit.
        parts = operands(node)
        runs = []
        for part in parts:
            runs.append(self.stage(part, scope))  # noqa: PERF401
        apply = self.operation_of(node)
        return stage_strict(runs, writer(self, node, parts, apply), apply)

    def _unknown(self, node: Expr, path: FieldPath) -> Residual:
        name = ".".join(path.parts)
        declared = signature.certain_type(self.unknown_types.get(name) or self.checked_types.get(node))
        if type(node) is Has:
            return Residual(node, outcomes.TRUE | outcomes.FALSE, length(node), BOOL)
        optional = (type(node) is Select and node.optional) or (type(node) is Call and node.function == "_[?_]")
        if optional and declared is not None and name in self.unknown_types:
            declared = optional_of(declared)
        if type(node) is Call and not optional:
            # A path that stands for a variable is looked up as `a.b`, not as `a["b"]`.
            node = Select(node.args[0], path.fields[-1])
        # An unknown variable is bound in every completion, so naming it cannot fail; a path may turn out to be missing,
        # unless it was declared with a type.
        is_bound = not path.fields or (name in self.unknown_types and self.unknowns.exact(path))
        possible = signature.outcomes_of_type(declared) & ~(outcomes.ERROR if is_bound else 0)
        return Residual(node, possible, length(node), declared)

    def operation_of(self, node: Expr) -> Apply:
        """Return the operation of a node, applied to the values of its operands; compiled when first needed."""
        program: Program | None = None

        def apply(values: Sequence[object]) -> Result:
            nonlocal program
            if program is None:
                named = with_operands(node, [Ident(f"@{i}") for i in range(len(values))])
                program = Program(named, self.environment)
            try:
                return program.evaluate({f"@{i}": value for i, value in enumerate(values)})
            except EvaluationError as error:
                return CertainFailure(str(error))

        return apply

    def operand_constant(self, node: Expr, value: object, any_type: bool = False) -> tuple[Expr, int]:
        """Return the constant of a known operand and its length: as it was written, if it was written as a constant.

        any_type: its type need not be that of the operand.
        """
        if type(node) is Literal or (type(node) is Ident and type(value) is TypeValue and value.name == node.name):
            return node, node_length(node)
        return self.constant(value, None if any_type else self.checked_type(node))

    def checked_type(self, node: Expr) -> Type | None:
        """Return the checked type of a node; None if it was not checked."""
        return self.checked_types.get(node)

    def certain_type(self, node: Expr) -> Type | None:
        """Return the checked type of a node; None if it was not checked, or is dyn or a type parameter."""
        return signature.certain_type(self.checked_type(node))

    def constant(self, value: object, static: Type | None) -> tuple[Expr, int]:
        """Return the constant of a value in a place of the given static type, and its length."""
        if type(value) is str and value.isascii() and (static is None or static.name == "string"):
            size = 2 + len(value)
            self.check_length(size)
            return Literal(value), size
        if type(value) is list or type(value) is dict or type(value) is str:
            check_constant_length(value)
        expr = constant(value) if static is None else typed_constant(value, static)
        size = length(expr)
        self.check_length(size)
        return expr, size

    def make_as_dynamic(self, node: Expr, residual: Residual) -> Residual:
        """Return a residual as dynamic as its node was: one branch of `?:` may have a more certain type than both."""
        static, residual_type = self.checked_type(node), residual.type
        if static is None or residual_type is None or residual_type == static or not signature.is_dynamic(static):
            return residual
        return Residual(dyn(residual.expr), residual.possible, residual.size + 5)

    def as_residual(self, node: Expr, result: Result) -> Residual:
        """Return a result as a residual: a value becomes a constant, a failure an expression that always fails."""
        if isinstance(result, Residual):
            return self.make_as_dynamic(node, result)
        if isinstance(result, CertainFailure):
            expr, static = failing_expression(result.message), self.checked_type(node)
            # The checker gives an expression that always fails any type that fits, which may allow more than before.
            if static is not None and signature.is_dynamic(static):
                expr = dyn(expr)
            return Residual(expr, outcomes.ERROR, FAILING_SIZE + len(result.message))
        expr, size = self.operand_constant(node, result)
        result_type = value_type(result) if self.checked_type(node) is None else self.certain_type(node)
        return Residual(expr, outcomes.of_value(result), size, result_type)

    def check_length(self, size: int) -> None:
        """Refuse a residual that has grown too long."""
        if size > MAX_LENGTH:
            raise PartialError(TOO_LONG)


def stage_strict(runs: Sequence[Run], written: Callable[[list[Result]], Result], apply: Apply) -> Run:
    """Return the function of a part that needs all its operands."""

    def run(frame: Frame) -> Result:
        results = []
        pending = False
        for part in runs:
            result = part(frame)
            kind = type(result)
            if kind is CertainFailure:
                return result
            if kind is Residual:
                pending = True
            results.append(result)
        return written(results) if pending else apply(results)

    return run


def _evaluate_costly(program: Program, frame: Frame) -> Result:
    """Evaluate a known part that costs more than most; all such parts of one run share one limit."""
    budget = frame[_BUDGET]
    assert isinstance(budget, int)
    try:
        value, cost = program.measure(frame, budget)
    except EvaluationError as error:
        # The cost of a failure is not known; halving the rest bounds the number of such parts.
        frame[_BUDGET] = budget // 2
        return CertainFailure(str(error))
    frame[_BUDGET] = budget - cost
    return value


def new_frame(known: Mapping[str, object]) -> Frame:
    """Return the frame of one run."""
    frame = dict(known)
    frame[_BUDGET] = CALL_LIMIT
    frame[ROUNDS] = 0
    frame[UNROLLING] = False
    return frame

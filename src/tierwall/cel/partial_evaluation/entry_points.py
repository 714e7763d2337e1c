"""The entry points: `partial` for one evaluation, `specialise` for an expression that is evaluated for many requests.

Both return a `PartialResult`: a value, an error or a residual, with all that is known about it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import cached_property, lru_cache
from typing import TypeAlias

from tierwall.cel.check.checker import CheckedExpression, check
from tierwall.cel.environment import Environment
from tierwall.cel.errors import CheckError, ParseError
from tierwall.cel.evaluate.encode import encode
from tierwall.cel.partial_evaluation import outcomes
from tierwall.cel.partial_evaluation.constant import MAX_LENGTH, constant
from tierwall.cel.partial_evaluation.names import Unknowns
from tierwall.cel.partial_evaluation.outcomes import CertainFailure, PartialError, Residual, Result, failing_expression
from tierwall.cel.partial_evaluation.specialiser import Scope, Specialiser, new_frame
from tierwall.cel.partial_evaluation.tree import depth
from tierwall.cel.syntax.ast import Expr
from tierwall.cel.syntax.parser import parse
from tierwall.cel.syntax.printer import to_text
from tierwall.cel.types import DYN, Type

# The parser accepts every residual up to these.
_SHALLOW, _SHORT = 100, MAX_LENGTH // 2
_TOO_DEEP = "expression nested too deeply"


class PartialResult:
    """The outcome of a partial evaluation: exactly one of a value (`decided`), `error` and `residual`.

    A condition (`boolean`) has the outcomes true, false and error only: a value that is not a bool is an error.
    """

    __slots__ = ("__dict__", "_unknown", "error", "fails_late", "outcomes", "residual", "value")

    def __init__(self, result: Result, unknown: Unknowns, boolean: bool) -> None:
        self._unknown = unknown
        self.value: object = None
        self.error: str | None = None
        # Whether only the operators around an unknown make it fail, not a known part.
        self.fails_late = False
        self.residual: Expr | None = None
        kind = type(result)
        if kind is Residual:
            self.residual = result.expr  # type: ignore[attr-defined]
            self.outcomes: int = result.possible  # type: ignore[attr-defined]
        elif kind is CertainFailure:
            self.error = result.message  # type: ignore[attr-defined]
            self.fails_late = result.late  # type: ignore[attr-defined]
            self.outcomes = outcomes.ERROR
        else:
            self.value = result
            self.outcomes = outcomes.of_value(result)
        if boolean:
            self.outcomes = outcomes.condition_outcomes(self.outcomes)

    @property
    def expr(self) -> Expr:
        """The value, error or residual as a tree; raises `PartialError` for a value without notation."""
        if self.residual is not None:
            return self.residual
        return failing_expression(self.error) if self.error is not None else constant(self.value)

    @property
    def decided(self) -> bool:
        """Whether there is a value: nothing unknown is needed."""
        return self.residual is None and self.error is None

    @property
    def can_be_true(self) -> bool:
        """Whether some completion may make it true."""
        return bool(self.outcomes & outcomes.TRUE)

    @property
    def can_be_false(self) -> bool:
        """Whether some completion may make it false."""
        return bool(self.outcomes & outcomes.FALSE)

    @property
    def can_fail(self) -> bool:
        """Whether some completion may make it fail."""
        return bool(self.outcomes & outcomes.ERROR)

    @cached_property
    def text(self) -> str:
        """The text of `expr`: of the residual, of the value's constant, or of a constant that always fails."""
        return to_text(self.expr)

    @cached_property
    def unknowns(self) -> frozenset[str]:
        """The unknowns that the residual still names."""
        return frozenset() if self.residual is None else self._unknown.named_in(self.residual)

    def __repr__(self) -> str:
        what = self.residual if self.residual is not None else self.error if self.error is not None else self.value
        return f"Partial({what!r}, {'|'.join(outcomes.outcome_words(self.outcomes))})"


def partial_report(result: PartialResult) -> dict[str, object]:
    """Return the whole answer as JSON."""
    answer: dict[str, object] = {
        "outcomes": list(outcomes.outcome_words(result.outcomes)),
        "unknowns": sorted(result.unknowns),
    }
    if result.residual is not None:
        return {"residual": result.text, **answer}
    return {"error": result.error, **answer} if result.error is not None else {"value": encode(result.value), **answer}


Program: TypeAlias = Expr | CheckedExpression


class SpecialisedExpression:
    """An expression prepared for one set of unknowns. Threads may share it: each run has its own frame."""

    __slots__ = ("_deep", "_run", "boolean", "unknowns")

    def __init__(self, specialiser: Specialiser, expr: Expr, boolean: bool) -> None:
        self.unknowns = specialiser.unknowns
        self.boolean = boolean
        self._deep = depth(expr) > _SHALLOW
        try:
            self._run = specialiser.stage(expr, Scope(), boolean)
        except RecursionError:
            raise PartialError(_TOO_DEEP) from None

    def __call__(self, known: Mapping[str, object]) -> PartialResult:
        """Evaluate as far as these values of the known variables allow.

        Raises `PartialError` if the residual cannot be written, and `CostExceeded` if a known part costs too much.
        """
        try:
            result = self._run(new_frame(known))
            partial_result = PartialResult(result, self.unknowns, self.boolean)
            if type(result) is Residual and (self._deep or result.size > _SHORT):
                parse(partial_result.text)
        except RecursionError:
            raise PartialError(_TOO_DEEP) from None
        except ParseError as error:
            raise PartialError(f"the residual could not be parsed again: {error.message}") from None
        return partial_result


_NO_TYPES: Mapping[Expr, Type] = {}


def specialise(
    program: Program,
    unknown: Collection[str],
    *,
    boolean: bool = False,
    types: Mapping[str, Type] | None = None,
    dotted: Collection[str] = (),
    environment: Environment | None = None,
) -> SpecialisedExpression:
    """Prepare an expression for partial evaluation.

    unknown: variables (`object`) or paths inside known ones (`request.name`).
    boolean: the result is a condition, for which a value that is not a bool is an error; residuals may be simpler then.
    types: the types of unknowns, as far as they are certain; a checked program brings them along. A path that is in
        here is never missing.
    dotted: known variables whose names have dots in them.
    environment: the functions to evaluate with; by default all.
    """
    expr, nodes = (program.expr, program.types) if isinstance(program, CheckedExpression) else (program, _NO_TYPES)
    unknowns = Unknowns(unknown, (name for name in dotted if name not in unknown))
    names = frozenset(name for name in (*unknown, *dotted) if "." in name)
    specialiser = Specialiser(unknowns, environment or _environment(names), types or {}, nodes)
    return SpecialisedExpression(specialiser, expr, boolean)


@lru_cache(maxsize=16)
def _environment(dotted: frozenset[str]) -> Environment:
    """Return the environment of an unchecked expression: every function, every variable dynamic."""
    return Environment(variables=dict.fromkeys(sorted(dotted), DYN), extensions=True)


def partial(
    program: Program,
    known: Mapping[str, object],
    unknown: Collection[str],
    *,
    boolean: bool = False,
    types: Mapping[str, Type] | None = None,
    environment: Environment | None = None,
) -> PartialResult:
    """Evaluate an expression as far as its known variables allow.

    A name that is both known and unknown is unknown; one that is neither is an error where it is needed.
    """
    dotted = frozenset(name for name in known if "." in name)
    if types is None and environment is None:
        return _plain(program, frozenset(unknown), dotted, boolean)(known)
    return specialise(program, unknown, boolean=boolean, types=types, dotted=dotted, environment=environment)(known)


@lru_cache(maxsize=256)
def _plain(program: Program, unknown: frozenset[str], dotted: frozenset[str], boolean: bool) -> SpecialisedExpression:
    return specialise(program, unknown, boolean=boolean, dotted=dotted)


def partial_well_typed(
    tree: Expr, known: Mapping[str, object], unknown: Collection[str], environment: Environment
) -> PartialResult:
    """Evaluate as `partial` does, and keep types: the residual passes the checker wherever the original does.

    All variables are dynamic. Nearly always the plain residual passes; where it does not, the original is checked and
    the residual is built again with its types.
    """
    untyped = partial(tree, known, unknown, environment=environment)
    if untyped.residual is None or _checks(untyped.residual, unknown, environment) is not None:
        return untyped
    checked = _checks(tree, (*known, *unknown), environment)
    if checked is None:
        return untyped
    dotted = [name for name in known if "." in name]
    typed = specialise(checked, unknown, dotted=dotted, environment=environment)(known)
    return untyped if typed.residual is None or _checks(typed.residual, unknown, environment) is None else typed


def _checks(tree: Expr, names: Collection[str], environment: Environment) -> CheckedExpression | None:
    declared = {variable: DYN for name in names for variable in (name, name.partition(".")[0])}
    try:
        return check(tree, Environment(environment.release, declared, environment.extensions))
    except CheckError:
        return None

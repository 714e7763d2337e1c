"""Macros: comprehensions, `cel.bind`, `optMap` and `optFlatMap` (cel-spec, "Macros"; cel-go ext/bindings.go).

Comprehensions are unrolled over a known list or map where that makes the residual shorter. `all` and `exists` are `&&`
and `||` over the elements, errors absorbed. An element may settle the result; one that does not affect it is left out.
The others are written one by one or as a comprehension over them, whichever is shorter. The other macros fail if any
element does. Over an unknown list the macro stays, with everything known folded inside its body.

A known bound value replaces its name throughout the body; an unknown one keeps the macro.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from tierwall.cel.errors import CostExceeded
from tierwall.cel.partial_evaluation import outcomes
from tierwall.cel.partial_evaluation.logic import JoinedOperands
from tierwall.cel.partial_evaluation.outcomes import CertainFailure, PartialError, Residual, Result, as_condition
from tierwall.cel.syntax.ast import Bind, Call, Comprehension, Expr, Ident, ListExpr, Literal, MapEntry, MapExpr
from tierwall.cel.types import BOOL, list_of
from tierwall.cel.values import NONE, OptionalValue, map_keys, no_such_overload

if TYPE_CHECKING:
    from tierwall.cel.partial_evaluation.specialiser import Frame, Run, Scope, Specialiser


_QUANTIFIERS = {"all": "_&&_", "exists": "_||_"}
_COUNTS = ("exists_one", "existsOne")


# The limit of rounds of all comprehensions in one run.
MAX_ROUNDS = 10_000
# Keys of the frame that no source can spell: the rounds so far, and whether a comprehension is being unrolled.
ROUNDS, UNROLLING = "@rounds", "@unrolling"


class TooManyIterations(Exception):
    """There are too many rounds to unroll."""


class Iteration(NamedTuple):
    """One round of a comprehension."""

    # The values of the variables.
    values: tuple[object, ...]
    # The value that `filter` keeps: an element of a list, a key of a map.
    element: object
    # The key of a map as it is stored, the index in a list.
    key: object


def stage_comprehension(specialiser: Specialiser, node: Comprehension, scope: Scope, boolean: bool) -> Run:
    """Return the function of a comprehension macro."""
    return _Unrolling(specialiser, node, scope, boolean).run


class _Unrolling:
    def __init__(self, specialiser: Specialiser, node: Comprehension, scope: Scope, boolean: bool) -> None:
        self.specialiser = specialiser
        self.node = node
        self.boolean = boolean
        self.type = BOOL if node.macro in (*_QUANTIFIERS, *_COUNTS) else specialiser.certain_type(node)
        self.range = specialiser.stage(node.target, scope)
        inside = scope.bind(node.variables, True)
        keys = [inside.variables[name] for name in node.variables]
        self.keys = [key for key in keys if key is not None]
        # The first argument is a predicate, except in `map(x, t)` and the transforms without a filter.
        has_predicate = node.macro in ("all", "exists", "filter", *_COUNTS) or len(node.args) == 2
        wants = [has_predicate and i == 0 for i in range(len(node.args))]
        self.known_bodies = [
            specialiser.stage_lazily(arg, inside, want) for arg, want in zip(node.args, wants, strict=True)
        ]
        outside = scope.bind(node.variables, False)
        self.open_bodies = [
            specialiser.stage_lazily(arg, outside, want) for arg, want in zip(node.args, wants, strict=True)
        ]

    def run(self, frame: Frame) -> Result:
        target = self.range(frame)
        if isinstance(target, CertainFailure):
            return target
        if isinstance(target, Residual):
            if self.node.macro == "sortBy" and type(target.expr) is MapExpr:
                # A map cannot be sorted, and the parser says so if it sees one.
                return CertainFailure(str(no_such_overload("sortBy", {})))
            target = self.specialiser.make_as_dynamic(self.node.target, target)
            return self._kept(frame, target.expr, target.size, None)
        if not isinstance(target, list | dict) or (isinstance(target, dict) and self.node.macro == "sortBy"):
            return CertainFailure(str(no_such_overload(self.node.macro, target)))
        if frame[UNROLLING]:
            return self._unrolled(frame, target)
        # If unrolling takes too long, the outermost comprehension stays as it is; those inside it then try again.
        frame[UNROLLING] = True
        try:
            return self._unrolled(frame, target)
        except (TooManyIterations, PartialError, CostExceeded):
            frame[UNROLLING] = False
            return self._kept(frame, *self.specialiser.operand_constant(self.node.target, target), None)
        finally:
            frame[UNROLLING] = False

    def _unrolled(self, frame: Frame, target: list[object] | dict[object, object]) -> Result:
        items = list(self._items(target))
        macro = self.node.macro
        if macro in _QUANTIFIERS:
            return self._quantified(frame, target, items, _QUANTIFIERS[macro])
        if macro in _COUNTS:
            return self._counted(frame, target, items)
        if macro == "filter":
            return self._filtered(frame, target, items)
        if macro == "sortBy":
            return self._sorted(frame, target, items)
        return self._transformed(frame, target, items)

    def _items(self, target: list[object] | dict[object, object]) -> Iterator[Iteration]:
        has_two_variables = len(self.keys) == 2
        if isinstance(target, list):
            for i, value in enumerate(target):
                yield Iteration((i, value) if has_two_variables else (value,), value, i)
        else:
            for key, (stored, value) in zip(map_keys(target), target.items(), strict=True):
                yield Iteration((key, value) if has_two_variables else (key,), key, stored)

    def _round(self, frame: Frame, item: Iteration) -> None:
        rounds = frame[ROUNDS]
        assert isinstance(rounds, int)
        if rounds >= MAX_ROUNDS:
            raise TooManyIterations
        frame[ROUNDS] = rounds + 1
        for key, value in zip(self.keys, item.values, strict=True):
            frame[key] = value

    def _quantified(self, frame: Frame, target: object, items: list[Iteration], function: str) -> Result:
        joined = JoinedOperands(function, self.specialiser.check_length)
        remaining = []
        for item in items:
            self._round(frame, item)
            result = self.known_bodies[0](frame)
            if joined.add(result):
                return function == "_||_"
            if type(result) is not bool:
                remaining.append(item)
        result = joined.result(self.boolean)
        if not isinstance(result, Residual) or len(joined.parts) < 2:
            return result
        kept = self._kept(frame, *self._over(target, remaining), result.possible)
        return result if result.size <= kept.size else kept

    def _counted(self, frame: Frame, target: object, items: list[Iteration]) -> Result:
        """`exists_one`: fails if any element does; elements that are false do not count."""
        passing = self._passing(frame, items)
        if isinstance(passing, CertainFailure):
            return passing
        remaining, pending = passing
        count = len(remaining) - len(pending)
        if not pending:
            return count == 1
        can_be_one = (count == 0 and any(residual.possible & outcomes.TRUE for residual in pending)) or (
            count == 1 and all(residual.possible & outcomes.FALSE for residual in pending)
        )
        possible = outcomes.FALSE | outcomes.ERROR | (outcomes.TRUE if can_be_one else 0)
        return self._kept(frame, *self._over(target, remaining), possible)

    def _filtered(self, frame: Frame, target: object, items: list[Iteration]) -> Result:
        passing = self._passing(frame, items)
        if isinstance(passing, CertainFailure):
            return passing
        remaining, pending = passing
        if not pending:
            return [item.element for item in remaining]
        return self._kept(frame, *self._over(target, remaining), outcomes.VALUE)

    def _sorted(self, frame: Frame, target: object, items: list[Iteration]) -> Result:
        keys = []
        for item in items:
            self._round(frame, item)
            result = self.known_bodies[0](frame)
            if isinstance(result, CertainFailure):
                return result
            keys.append(result)
        if any(isinstance(key, Residual) for key in keys):
            return self._kept(frame, *self.specialiser.operand_constant(self.node.target, target), outcomes.VALUE)
        # All keys are known: pair each element with its key, and let the macro itself sort the pairs.
        pairs = [[key, item.element] for key, item in zip(keys, items, strict=True)]
        node = Comprehension("sortBy", Ident("@0"), ("@v",), (Call("_[_]", None, (Ident("@v"), Literal(0))),))
        ordered = self.specialiser.operation_of(node)([pairs])
        return [pair[1] for pair in ordered] if isinstance(ordered, list) else ordered

    def _passing(self, frame: Frame, items: list[Iteration]) -> CertainFailure | tuple[list[Iteration], list[Residual]]:
        """Return the elements that the predicate does not rule out, and its residuals for those that are undecided."""
        remaining, pending = [], []
        for item in items:
            result = self._predicate(frame, item)
            if isinstance(result, CertainFailure):
                return result
            if result is not False:
                remaining.append(item)
            if isinstance(result, Residual):
                pending.append(result)
        return remaining, pending

    def _predicate(self, frame: Frame, item: Iteration) -> Result:
        self._round(frame, item)
        return as_condition(self.known_bodies[0](frame), self.node.macro)

    def _transformed(self, frame: Frame, target: object, items: list[Iteration]) -> Result:
        """`map` and the transforms, with or without a filter."""
        remaining, results, undecided = [], [], False
        for item in items:
            chosen: Result = True
            if len(self.known_bodies) == 2:
                chosen = self._predicate(frame, item)
                if isinstance(chosen, CertainFailure):
                    return chosen
                if chosen is False:
                    continue
            else:
                self._round(frame, item)
            remaining.append(item)
            if isinstance(chosen, Residual):
                undecided = True
                continue
            result = self.known_bodies[-1](frame)
            if isinstance(result, CertainFailure):
                return result
            results.append(result)
        if not undecided and not any(isinstance(result, Residual) for result in results):
            return self._collected(remaining, results)
        kept = self._kept(frame, *self._over(target, remaining), outcomes.VALUE)
        written = None if undecided else self._collected(remaining, results)
        return written if isinstance(written, Residual) and written.size <= kept.size else kept

    def _collected(self, items: list[Iteration], results: list[Result]) -> Result:
        """Return the list or map that the macro makes of the elements' results; None where only the macro can tell."""
        macro, specialiser = self.node.macro, self.specialiser
        pending = any(isinstance(result, Residual) for result in results)
        if macro == "transformMapEntry":
            return None if pending else self._merged(results)
        if not pending:
            if macro == "transformMap":
                return {item.key: result for item, result in zip(items, results, strict=True)}
            return results
        parts = [specialiser.as_residual(self.node.args[-1], result) for result in results]
        size = 2 + sum(part.size + 2 for part in parts)
        specialiser.check_length(size)
        if macro != "transformMap":
            return Residual(ListExpr(tuple(part.expr for part in parts)), outcomes.VALUE, size, self.type)
        entries = []
        for item, part in zip(items, parts, strict=True):
            key, more = specialiser.constant(item.values[0], self.type and self.type.params[0])
            entries.append(MapEntry(key, part.expr))
            size += more
        specialiser.check_length(size)
        return Residual(MapExpr(tuple(entries)), outcomes.VALUE, size, self.type)

    def _merged(self, results: list[Result]) -> Result:
        """Return the maps merged as `transformMapEntry` merges them."""
        node = Comprehension("transformMapEntry", Ident("@0"), ("@i", "@v"), (Ident("@v"),))
        return self.specialiser.operation_of(node)([results])

    def _over(self, target: object, items: list[Iteration]) -> tuple[Expr, int]:
        """Return the range of a comprehension over the elements that remain."""
        value, static = target, self.specialiser.checked_type(self.node.target)
        if len(self.keys) == 1:
            value = [item.element for item in items]
            if static is not None and static.params:
                # The keys of a map are a list of keys.
                static = list_of(static.params[0])
        elif isinstance(target, dict):
            value = {item.key: target[item.key] for item in items}
        # A list with indices keeps all its elements: leaving one out would change the index of those after it.
        return self.specialiser.constant(value, static)

    def _kept(self, frame: Frame, target: Expr, size: int, possible: int | None) -> Residual:
        """Return the macro itself, with its body folded as far as it goes without its variables."""
        node = self.node
        args = [
            self.specialiser.as_residual(arg, body(frame))
            for arg, body in zip(node.args, self.open_bodies, strict=True)
        ]
        size += len(node.macro) + 3 + sum(len(name) + 2 for name in node.variables) + sum(arg.size for arg in args)
        self.specialiser.check_length(size)
        predicate = outcomes.condition_outcomes(args[0].possible)
        if possible is None:
            if node.macro == "all":
                possible = outcomes.TRUE | outcomes.ERROR | (predicate & outcomes.FALSE)
            elif node.macro in ("exists", *_COUNTS):
                possible = outcomes.FALSE | outcomes.ERROR | (predicate & outcomes.TRUE)
            else:
                possible = outcomes.VALUE
        comprehension = Comprehension(node.macro, target, node.variables, tuple(arg.expr for arg in args), node.at)
        return Residual(comprehension, possible, size, self.type)


def stage_binding(specialiser: Specialiser, node: Bind, scope: Scope, boolean: bool) -> Run:
    """Return the function of a binding macro."""
    boolean = boolean and node.macro == "bind"
    value = specialiser.stage(node.value, scope)
    inside = scope.bind((node.variable,), True)
    known_body = specialiser.stage_lazily(node.body, inside, boolean)
    open_body = specialiser.stage_lazily(node.body, scope.bind((node.variable,), False), boolean)
    key = inside.variables[node.variable]
    assert key is not None
    static = specialiser.certain_type(node)

    def run(frame: Frame) -> Result:
        result = value(frame)
        if isinstance(result, CertainFailure):
            return result
        if isinstance(result, Residual):
            result = specialiser.make_as_dynamic(node.value, result)
            body = specialiser.as_residual(node.body, open_body(frame))
            size = result.size + body.size + len(node.variable) + len(node.macro) + 4
            specialiser.check_length(size)
            possible = outcomes.VALUE
            if node.macro == "bind":
                possible = body.possible | (result.possible & outcomes.ERROR)
            elif node.macro == "optFlatMap":
                # Unchecked, the body may be anything.
                possible |= body.possible
            return Residual(Bind(node.macro, node.variable, result.expr, body.expr, node.at), possible, size, static)
        if node.macro == "bind":
            frame[key] = result
            return known_body(frame)
        if type(result) is not OptionalValue:
            return CertainFailure(str(no_such_overload(node.macro, result)))
        if not result.present:
            return NONE
        frame[key] = result.value
        inner = known_body(frame)
        if node.macro == "optMap":
            if isinstance(inner, Residual):
                inner = specialiser.make_as_dynamic(node.body, inner)
                wrapped = Call("of", Ident("optional"), (inner.expr,))
                return Residual(wrapped, outcomes.OTHER | (inner.possible & outcomes.ERROR), inner.size + 13, static)
            return inner if isinstance(inner, CertainFailure) else OptionalValue(inner)
        return inner

    return run

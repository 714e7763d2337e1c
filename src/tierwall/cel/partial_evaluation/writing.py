"""Writes a strict node again: its unknown operands as residuals, its known operands as constants.

The residual has to pass the checker wherever the original did. A constant that came out of a dynamic variable may
stand beside a part whose type is certain, and no overload may fit the two; `dyn()` around the constant keeps the
expression as dynamic as it was. Elements of a list or map marked `?` that have no value are left out (cel-go,
OptionalTypes).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeAlias

from tierwall.cel.errors import EvaluationError
from tierwall.cel.library.regex import MATCHING
from tierwall.cel.partial_evaluation import outcomes
from tierwall.cel.partial_evaluation.constant import dyn, value_type
from tierwall.cel.partial_evaluation.names import field_path
from tierwall.cel.partial_evaluation.outcomes import CertainFailure, Residual, Result
from tierwall.cel.partial_evaluation.signature import (
    certain_type,
    fits,
    has_fixed_result_type,
    outcomes_of_type,
    overloads,
    result_of_call,
)
from tierwall.cel.partial_evaluation.tree import QUALIFIED, node_length, qualified_name, with_operands
from tierwall.cel.syntax.ast import INDEX, Call, Expr, Has, Ident, ListExpr, Literal, MapEntry, MapExpr, Select
from tierwall.cel.types import BOOL, DYN, ObjectType, Type
from tierwall.cel.values import OptionalValue, TypeValue, Uint, map_key, no_such_overload, type_name

if TYPE_CHECKING:
    from tierwall.cel.partial_evaluation.specialiser import Specialiser


Apply: TypeAlias = Callable[[Sequence[object]], Result]
Write: TypeAlias = Callable[[list[Result]], Result]

_SCALARS = frozenset(("null_type", "bool", "int", "uint", "double", "string", "bytes", "timestamp", "duration"))
# Characters that `dyn()` and `[…][0]` add.
_HIDDEN = _DISGUISED = 5
_KEYS = frozenset((str, int, Uint, float, bool))
_REMEMBERED = 64


def writer(specialiser: Specialiser, node: Expr, parts: Sequence[Expr], apply: Apply) -> Write:
    """Return the function that writes the node from its operands' results, at least one of them a residual."""
    if isinstance(node, MapExpr):
        return map_writer(specialiser, node, parts)
    if isinstance(node, ListExpr):
        return list_writer(specialiser, node, parts)
    if isinstance(node, Call):
        return _CallWriter(specialiser, node, parts, apply).write
    return _NodeWriter(specialiser, node, parts).write


class _NodeWriter:
    """Selections, presence tests and messages."""

    def __init__(self, specialiser: Specialiser, node: Expr, parts: Sequence[Expr]) -> None:
        self.specialiser = specialiser
        self.node = node
        self.parts = parts
        self.size = node_length(node)
        self.checked = specialiser.certain_type(node)
        # Whether the type of the result is the same whatever the types of the operands are.
        self.has_fixed_type = False
        self.is_index = isinstance(node, Call) and node.function in INDEX
        # Only an operand that was not a path can become one when it is written again.
        self.may_become_path = bool(parts) and isinstance(node, Select | Call) and field_path(parts[0]) is None

    def write(self, results: list[Result]) -> Result:
        exprs: list[Expr] = []
        size = self.size
        for part, result in zip(self.parts, results, strict=True):
            if type(result) is Residual:
                if not self.has_fixed_type:
                    result = self.specialiser.make_as_dynamic(part, result)
                exprs.append(result.expr)
                size += result.size
            else:
                expr, more = self.specialiser.operand_constant(part, result, self.has_fixed_type)
                exprs.append(expr)
                size += more
        for i in self.hidden(results):
            exprs[i] = dyn(exprs[i])
            size += _HIDDEN
        if self.is_index and type(results[1]) is not Residual and type(results[1]) not in _KEYS:
            # Kubernetes refuses a whole expression for a constant index of a type that no key has, while a computed
            # index of that type is an error that can be absorbed: `[…][0]` hides the constant.
            exprs[1] = Call("_[_]", None, (ListExpr((exprs[1],)), Literal(0)))
            size += _DISGUISED
        if self.may_become_path:
            exprs[0] = self.keep_apart(exprs[0])
        self.specialiser.check_length(size)
        possible, static = self.outcome(results)
        if self.checked is not None:
            static = self.checked
            possible &= outcomes_of_type(static)
        return Residual(with_operands(self.node, exprs), possible, size, static)

    def hidden(self, results: list[Result]) -> Sequence[int]:
        """Return the operands whose constants need `dyn()` around them."""
        return ()

    def outcome(self, results: list[Result]) -> tuple[int, Type | None]:
        """Return the outcomes and the type of what is written."""
        node, operand = self.node, results[0] if results else None
        if isinstance(node, Has) and isinstance(operand, Residual):
            # Only a map always answers.
            failing = operand.possible & outcomes.ERROR if operand.type is not None else outcomes.ERROR
            return outcomes.TRUE | outcomes.FALSE | failing, BOOL
        if isinstance(node, Select) and isinstance(operand, Residual) and not node.optional:
            field_type = _field(operand.type, node.field)
            return outcomes_of_type(field_type), field_type
        return outcomes.ANY, None

    def keep_apart(self, operand: Expr) -> Expr:
        """Return the operand of a selection or member call, kept from becoming part of a dotted name."""
        node, path = self.node, field_path(operand)
        if path is None or (isinstance(node, Call) and node.target is None):
            return operand
        parts = path.parts
        if isinstance(node, Call):
            return dyn(operand) if ".".join((*parts, node.function)) in QUALIFIED else operand
        assert isinstance(node, Select)
        name = ".".join((*parts, node.field))
        return dyn(operand) if any(unknown.startswith(name) for unknown in self.specialiser.unknowns.names) else operand


class _CallWriter(_NodeWriter):
    """Calls of functions and operators."""

    def __init__(self, specialiser: Specialiser, node: Call, parts: Sequence[Expr], apply: Apply) -> None:
        super().__init__(specialiser, node, parts)
        self.function = node.function
        self.apply = apply
        name = qualified_name(node) or node.function.removeprefix(".")
        self.params = [overload.params for overload in overloads(name, len(parts))]
        self.result = result_of_call(name, len(parts))
        self.has_fixed_type = has_fixed_result_type(name, len(parts))
        self.is_equality = self.function in ("_==_", "_!=_")
        self.is_dyn_or_type = self.function in ("dyn", "type") and len(parts) == 1
        self.is_match = self.function in MATCHING and len(parts) == 2
        self._seen: dict[tuple[object, ...], tuple[int, ...]] = {}

    def write(self, results: list[Result]) -> Result:
        # A known operand that fits no other makes the call fail always. Kubernetes' checker refuses some such literals,
        # so they must not be written into a residual.
        if self.function == "@in" and not isinstance(results[1], Residual | list | dict):
            return CertainFailure(str(no_such_overload("@in", "", results[1])))
        if self.is_match and type(results[1]) is not Residual:
            tried = self.apply(("", results[1]))
            if isinstance(tried, CertainFailure):
                return tried
        return super().write(results)

    def hidden(self, results: list[Result]) -> Sequence[int]:
        if self.function == "@in" and (results[1] == [] or results[1] == {}):
            # Kubernetes' optimizer takes `x in []` for false, without looking at `x`, where it sees the empty list.
            return (1,)
        key = tuple([result.type if type(result) is Residual else type(result) for result in results])
        hidden = self._seen.get(key)
        if hidden is None:
            hidden = self._hidden(results)
            # The Python type of a list or map does not tell the types of its elements.
            if list not in key and dict not in key and len(self._seen) < _REMEMBERED:
                self._seen[key] = hidden
        return hidden

    def _hidden(self, results: list[Result]) -> tuple[int, ...]:
        given = [result.type or DYN if type(result) is Residual else value_type(result) for result in results]
        if not self.params or any(fits(params, given) for params in self.params):
            return ()
        return tuple(i for i, result in enumerate(results) if self._may_hide(self.parts[i], result))

    def _may_hide(self, part: Expr, result: Result) -> bool:
        """Whether an operand's type may be hidden: a constant's, or that of something that was dynamic before."""
        if isinstance(result, Residual):
            return self.specialiser.make_as_dynamic(part, result) is not result
        # The name of a type stays as it was written.
        return not (type(result) is TypeValue and type(part) is Ident and part.name == result.name)

    def outcome(self, results: list[Result]) -> tuple[int, Type | None]:
        if self.is_equality:
            return _equality(self.function, results), BOOL
        if self.is_dyn_or_type and isinstance(results[0], Residual):
            possible = results[0].possible
            return (possible, None) if self.function == "dyn" else (outcomes.OTHER | (possible & outcomes.ERROR), None)
        if self.function == "@in" and (results[1] == [] or results[1] == {}):
            return outcomes.FALSE | outcomes.ERROR, BOOL
        return self.result


def _equality(function: str, results: Sequence[Result]) -> int:
    left = results[0]
    failing = 0
    for result in results:
        if type(result) is Residual:
            failing |= result.possible & outcomes.ERROR
    # Only an opaque value, somewhere on the left, makes a comparison fail.
    plain = left.type if type(left) is Residual else value_type(left)
    if plain is None or plain.name not in _SCALARS:
        failing = outcomes.ERROR
    left_outcomes, right_outcomes = (
        result.possible if type(result) is Residual else outcomes.of_value(result) for result in results
    )
    values = outcomes.TRUE | outcomes.FALSE
    if not (left_outcomes | right_outcomes) & outcomes.OTHER:
        # Both are bools: they can be equal only if there is a bool that both can be.
        equal = bool(left_outcomes & right_outcomes & values)
        differ = bool(
            (left_outcomes & outcomes.TRUE and right_outcomes & outcomes.FALSE)
            or (left_outcomes & outcomes.FALSE and right_outcomes & outcomes.TRUE)
        )
    else:
        equal = bool(left_outcomes & right_outcomes & (values | outcomes.OTHER))
        differ = True
    if function == "_!=_":
        equal, differ = differ, equal
    return (outcomes.TRUE if equal else 0) | (outcomes.FALSE if differ else 0) | failing


def _field(operand_type: Type | None, field: str) -> Type | None:
    if isinstance(operand_type, ObjectType):
        return certain_type(operand_type.fields.get(field))
    if operand_type is not None and operand_type.name == "map" and len(operand_type.params) == 2:
        return certain_type(operand_type.params[1])
    return None


class _LiteralParts:
    """Elements of one literal, which the checker wants to be of one type."""

    def __init__(self, specialiser: Specialiser) -> None:
        self.specialiser = specialiser
        self.exprs: list[Expr] = []
        self.size = 0
        self.possible = 0
        self._types: list[Type] = []
        # Elements that may hide their types: constants that were not written as such, and whatever was checked.
        self._hideable: list[int] = []

    def add(self, part: Expr, result: Result, optional: bool = False) -> None:
        """Take an element; `part` is how it was written."""
        constant = not isinstance(result, Residual | CertainFailure) and type(part) is not Literal
        if not optional and (constant or self.specialiser.checked_types):
            self._hideable.append(len(self.exprs))
        self._add(self.specialiser.as_residual(part, result))
        if optional:
            # The marked expression is an optional value; the element is the value inside it.
            marked = self._types[-1]
            self._types[-1] = marked.params[0] if marked.name == "optional_type" and marked.params else DYN

    def add_inside(self, part: Expr, value: object) -> None:
        """Take the value of an optional element."""
        static = self.specialiser.checked_type(part)
        inside = static.params[0] if static is not None and static.params else static
        expr, size = self.specialiser.constant(value, inside)
        self._hideable.append(len(self.exprs))
        self._add(Residual(expr, outcomes.of_value(value), size, value_type(value) if inside is None else inside))

    def _add(self, written: Residual) -> None:
        self.exprs.append(written.expr)
        self.size += written.size
        self.possible |= written.possible & outcomes.ERROR
        self._types.append(written.type or DYN)

    def hide(self) -> None:
        """Hide the types of constants if the elements are of several types; dyn counts as a type."""
        if any(element_type != self._types[0] for element_type in self._types):
            for i in self._hideable:
                if self._types[i] != DYN:
                    self.exprs[i] = dyn(self.exprs[i])
                    self.size += _HIDDEN


def list_writer(specialiser: Specialiser, node: ListExpr, parts: Sequence[Expr]) -> Write:
    """Return the function that writes a list literal."""
    marked = frozenset(node.optional)

    def write(results: list[Result]) -> Result:
        elements = _LiteralParts(specialiser)
        marks: list[int] = []
        for i, (part, result) in enumerate(zip(parts, results, strict=True)):
            if i in marked and type(result) is not Residual:
                if type(result) is not OptionalValue:
                    return CertainFailure(f"cannot initialize optional list element from {type_name(result)}")
                if result.present:
                    elements.add_inside(part, result.value)
                continue
            if i in marked:
                marks.append(len(elements.exprs))
            elements.add(part, result, i in marked)
        elements.hide()
        size = node_length(node) + elements.size
        specialiser.check_length(size)
        possible = outcomes.OTHER | elements.possible | (outcomes.ERROR if marks else 0)
        literal = ListExpr(tuple(elements.exprs), tuple(marks), node.at)
        return Residual(literal, possible, size, specialiser.certain_type(node))

    return write


def map_writer(specialiser: Specialiser, node: MapExpr, parts: Sequence[Expr]) -> Write:
    """Return the function that writes a map literal."""

    def write(results: list[Result]) -> Result:
        keys, values = _LiteralParts(specialiser), _LiteralParts(specialiser)
        marks: list[bool] = []
        possible = outcomes.OTHER
        for i, entry in enumerate(node.entries):
            key, value = results[2 * i], results[2 * i + 1]
            part, optional = parts[2 * i + 1], entry.optional
            if optional and type(value) is not Residual:
                if type(value) is not OptionalValue:
                    return CertainFailure(f"cannot initialize optional entry from {type_name(value)}")
                if not value.present and type(key) is not Residual:
                    continue
                optional = not value.present
            if type(key) is Residual or optional:
                # A key of a type that no key can have is an error only where there is a value for it.
                possible |= outcomes.ERROR
            else:
                try:
                    map_key(key)
                except EvaluationError as error:
                    return CertainFailure(str(error))
            keys.add(parts[2 * i], key)
            if entry.optional and type(value) is OptionalValue and value.present:
                values.add_inside(part, value.value)
            else:
                values.add(part, value, optional)
            marks.append(optional)
        keys.hide()
        values.hide()
        size = node_length(node) + keys.size + values.size
        specialiser.check_length(size)
        entries = tuple(map(MapEntry, keys.exprs, values.exprs, marks))
        possible |= keys.possible | values.possible
        return Residual(MapExpr(entries, node.at), possible, size, specialiser.certain_type(node))

    return write

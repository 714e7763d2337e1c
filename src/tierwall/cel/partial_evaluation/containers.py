"""List and map literals written again (cel-go, OptionalTypes: entries marked `?` that have no value are left out)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from tierwall.cel.ast import Entry, Expr, ListExpr, Literal, MapExpr
from tierwall.cel.failure import EvaluationError
from tierwall.cel.partial_evaluation import outcomes
from tierwall.cel.partial_evaluation.constant import dyn, value_type
from tierwall.cel.partial_evaluation.residual import Failed, Residual, Result
from tierwall.cel.partial_evaluation.signature import certain
from tierwall.cel.partial_evaluation.tree import own_length
from tierwall.cel.types import DYN, Type
from tierwall.cel.values import OptionalValue, map_key, type_name

if TYPE_CHECKING:
    from tierwall.cel.partial_evaluation.specialiser import Specialiser


class _Parts:
    """Elements of one literal, which the checker wants to be of one type."""

    def __init__(self, own: Specialiser) -> None:
        self.own = own
        self.exprs: list[Expr] = []
        self.size = 0
        self.can = 0
        self._types: list[Type] = []
        # Elements that may hide their types: constants that were not written as such, and whatever was checked.
        self._made: list[int] = []

    def add(self, part: Expr, result: Result, optional: bool = False) -> None:
        """Take an element; `part` is how it was written."""
        constant = not isinstance(result, Residual | Failed) and type(part) is not Literal
        if not optional and (constant or self.own.nodes):
            self._made.append(len(self.exprs))
        self._add(self.own.write(part, result))
        if optional:
            # The marked expression is an optional value; what it may add to the literal is what is inside.
            known = self._types[-1]
            self._types[-1] = known.params[0] if known.name == "optional_type" and known.params else DYN

    def add_inside(self, part: Expr, value: object) -> None:
        """Take the value of an optional element."""
        static = self.own.static(part)
        inside = static.params[0] if static is not None and static.params else static
        expr, size = self.own.constant(value, inside)
        self._made.append(len(self.exprs))
        self._add(Residual(expr, outcomes.of_value(value), size, value_type(value) if inside is None else inside))

    def _add(self, written: Residual) -> None:
        self.exprs.append(written.expr)
        self.size += written.size
        self.can |= written.can & outcomes.ERROR
        self._types.append(written.type or DYN)

    def hide(self) -> None:
        """Hide the types of constants if the elements are of more than one; dyn is one, too."""
        if any(each != self._types[0] for each in self._types):
            for i in self._made:
                if self._types[i] != DYN:
                    self.exprs[i] = dyn(self.exprs[i])
                    self.size += 5


def list_writer(own: Specialiser, node: ListExpr, parts: Sequence[Expr]) -> Callable[[list[Result]], Result]:
    """The function that writes a list literal."""
    marked = frozenset(node.optional)

    def write(results: list[Result]) -> Result:
        elements = _Parts(own)
        marks: list[int] = []
        for i, (part, result) in enumerate(zip(parts, results, strict=True)):
            if i in marked and type(result) is not Residual:
                if type(result) is not OptionalValue:
                    return Failed(f"cannot initialize optional list element from {type_name(result)}")
                if result.present:
                    elements.add_inside(part, result.value)
                continue
            if i in marked:
                marks.append(len(elements.exprs))
            elements.add(part, result, i in marked)
        elements.hide()
        size = own_length(node) + elements.size
        own.bound(size)
        can = outcomes.OTHER | elements.can | (outcomes.ERROR if marks else 0)
        made = ListExpr(tuple(elements.exprs), tuple(marks), node.at)
        return Residual(made, can, size, certain(own.static(node)))

    return write


def map_writer(own: Specialiser, node: MapExpr, parts: Sequence[Expr]) -> Callable[[list[Result]], Result]:
    """The function that writes a map literal."""

    def write(results: list[Result]) -> Result:
        keys, values = _Parts(own), _Parts(own)
        marks: list[bool] = []
        can = outcomes.OTHER
        for i, entry in enumerate(node.entries):
            key, value = results[2 * i], results[2 * i + 1]
            part, optional = parts[2 * i + 1], entry.optional
            if optional and type(value) is not Residual:
                if type(value) is not OptionalValue:
                    return Failed(f"cannot initialize optional entry from {type_name(value)}")
                if not value.present and type(key) is not Residual:
                    continue
                optional = not value.present
            if type(key) is Residual or optional:
                # A key of a type that no key can have is an error only where there is a value for it.
                can |= outcomes.ERROR
            else:
                try:
                    map_key(key)
                except EvaluationError as error:
                    return Failed(str(error))
            keys.add(parts[2 * i], key)
            if entry.optional and type(value) is OptionalValue and value.present:
                values.add_inside(part, value.value)
            else:
                values.add(part, value, optional)
            marks.append(optional)
        keys.hide()
        values.hide()
        size = own_length(node) + keys.size + values.size
        own.bound(size)
        entries = tuple(map(Entry, keys.exprs, values.exprs, marks))
        return Residual(MapExpr(entries, node.at), can | keys.can | values.can, size, certain(own.static(node)))

    return write

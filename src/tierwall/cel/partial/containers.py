"""List and map literals written again (cel-go, OptionalTypes: entries marked `?` that have no value are left out)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from tierwall.cel.ast import Entry, Expr, ListExpr, MapExpr
from tierwall.cel.failure import EvaluationError
from tierwall.cel.partial import outcomes
from tierwall.cel.partial.constant import dyn
from tierwall.cel.partial.residual import Failed, Residual, Result
from tierwall.cel.partial.tree import own_length
from tierwall.cel.values import OptionalValue, map_key, type_name

if TYPE_CHECKING:
    from tierwall.cel.partial.specialise import Specialiser


class _Parts:
    """Elements of one literal, which the checker wants to be of one type."""

    def __init__(self, own: Specialiser) -> None:
        self.own = own
        self.exprs: list[Expr] = []
        self.types: list[str] = []
        self.size = 0
        self.can = 0

    def add(self, part: Expr, result: Result) -> None:
        """Take an element; `part` is how it was written."""
        written = self.own.write(part, result)
        self.exprs.append(written.expr)
        self.size += written.size
        self.can |= written.can & outcomes.ERROR
        # What was written as a constant, or is left of something checked, is as it was when the original was checked.
        self.types.append("dyn" if written.type is None else str(written.type))

    def hide(self) -> None:
        """Hide the types of the elements if there is more than one."""
        if len(set(self.types) - {"dyn"}) > 1:
            self.exprs = [dyn(expr) for expr in self.exprs]
            self.size += 5 * len(self.exprs)


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
                    elements.add(node, result.value)
                continue
            if i in marked:
                marks.append(len(elements.exprs))
            elements.add(part, result)
        if not marks:
            elements.hide()
        size = own_length(node) + elements.size
        own.bound(size)
        can = outcomes.OTHER | elements.can | (outcomes.ERROR if marks else 0)
        return Residual(ListExpr(tuple(elements.exprs), tuple(marks), node.at), can, size)

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
                if value.present:
                    value, part, optional = value.value, node, False
            if type(key) is Residual or optional:
                # A key of a type that no key can have is an error only where there is a value for it.
                can |= outcomes.ERROR
            else:
                try:
                    map_key(key)
                except EvaluationError as error:
                    return Failed(str(error))
            keys.add(parts[2 * i], key)
            values.add(part, value)
            marks.append(optional)
        if not any(marks):
            values.hide()
        keys.hide()
        size = own_length(node) + keys.size + values.size
        own.bound(size)
        entries = tuple(map(Entry, keys.exprs, values.exprs, marks))
        return Residual(MapExpr(entries, node.at), can | keys.can | values.can, size)

    return write

"""Known maps with an unknown inside, such as `request` while `request.name` is unknown.

Used field by field they need nothing special (see `names`). Used whole, they are written out, and the unknown entry is
read from the unknown itself, if it is there: `{"verb": "create", ?"name": request.?name}`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tierwall.cel.ast import Call, Entry, Expr, Has, Ident, Literal, MapExpr, Select
from tierwall.cel.partial_evaluation import outcomes
from tierwall.cel.partial_evaluation.constant import bound_value, constant, dyn
from tierwall.cel.partial_evaluation.names import Path
from tierwall.cel.partial_evaluation.residual import Failed, Residual, Result
from tierwall.cel.partial_evaluation.tree import length
from tierwall.cel.types import BOOL

if TYPE_CHECKING:
    from tierwall.cel.partial_evaluation.specialiser import Frame, Run, Specialiser


def holed(own: Specialiser, node: Expr, path: Path) -> Run:
    """The function of a path above an unknown."""
    known = own.known(node, {})
    holes = own.unknowns.below(path)
    presence = type(node) is Has

    def run(frame: Frame) -> Result:
        value = known(frame)
        if presence:
            # What is not there yet may come with the unknown inside it.
            return value is True or Residual(node, outcomes.TRUE | outcomes.FALSE, length(node), BOOL)
        if isinstance(value, Failed):
            value = {}
        if type(value) is not dict:
            return value
        bound_value(value, own.limit)
        expr = _written(value, _chain(path), holes)
        size = length(expr)
        own.bound(size)
        return Residual(expr, outcomes.OTHER, size)

    return run


def _chain(path: Path) -> Expr:
    """The path as optional selections, which are none where something is missing on the way."""
    node: Expr = Ident(path.root)
    for field in path.fields:
        node = Select(node, field, True)
    return node


def _written(value: dict[object, object], chain: Expr, holes: Sequence[tuple[str, ...]]) -> Expr:
    """A map literal whose unknown entries are read from the unknown itself, if they are there."""
    inside: dict[str, list[tuple[str, ...]]] = {}
    for hole in holes:
        inside.setdefault(hole[0], []).append(hole[1:])
    entries: list[Entry] = []
    whole = constant({key: each for key, each in value.items() if key not in inside})
    assert isinstance(whole, MapExpr)
    entries += whole.entries
    for name, rest in sorted(inside.items()):
        inner = Select(chain, name, True)
        below = value.get(name)
        if () in rest:
            entries.append(Entry(Literal(name), inner, True))
        else:
            entries.append(Entry(Literal(name), dyn(_written(below if isinstance(below, dict) else {}, inner, rest))))
    if len(entries) > len(whole.entries):
        entries = [Entry(entry.key, _hidden_once(entry.value), entry.optional) for entry in entries]
    return MapExpr(tuple(entries))


def _hidden_once(expr: Expr) -> Expr:
    """`dyn(expr)`, but `request.?name` stays an optional value."""
    if isinstance(expr, Select) or (isinstance(expr, Call) and expr.function == "dyn"):
        return expr
    return dyn(expr)

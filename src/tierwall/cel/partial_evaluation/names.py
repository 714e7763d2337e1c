"""Unknown names: whole variables, and paths inside known ones (cel-spec, "Name Resolution").

An unknown is a variable (`object`), a variable with a dotted name (`a.b`), or a path inside a known map: then
`request.name`, `request["name"]`, `request.?name` and `has(request.name)` need it, and `request` as a whole is known
except for that hole. The longest declared name wins. An iteration variable hides a variable of the same name, unless a
leading dot asks for the latter.

A known map with a hole needs nothing special while it is used field by field. Used whole, it is written out, and the
unknown entry is read from the unknown itself, if it is there: `{"verb": "create", ?"name": request.?name}`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING

import msgspec

from tierwall.cel.partial_evaluation import outcomes
from tierwall.cel.partial_evaluation.constant import check_constant_length, constant, dyn
from tierwall.cel.partial_evaluation.outcomes import CertainFailure, Residual, Result
from tierwall.cel.partial_evaluation.tree import length, operands
from tierwall.cel.syntax.ast import INDEX, Call, Expr, Has, Ident, Literal, MapEntry, MapExpr, Select, bound_bodies
from tierwall.cel.types import BOOL

if TYPE_CHECKING:
    from tierwall.cel.partial_evaluation.specialiser import Frame, Run, Specialiser


KNOWN, UNKNOWN, HOLED = range(3)


class FieldPath(msgspec.Struct, frozen=True, gc=False):
    """A chain of field selections on a variable: `request.userInfo["uid"]`."""

    # `.request` and `request` are told apart by scope only.
    root: str
    fields: tuple[str, ...]
    # How many of the fields are plain selections at the start, which may be part of a dotted variable's name.
    plain: int

    @property
    def parts(self) -> tuple[str, ...]:
        """The names from the variable down."""
        return (self.root.removeprefix("."), *self.fields)


class UsedNames(msgspec.Struct, frozen=True, gc=False):
    """The names in a part of an expression: unknowns, known variables, and iteration variables bound outside it."""

    unknown: bool
    known: bool
    local: frozenset[str] = frozenset()
    # Whether it contains a binder.
    binds: bool = False


_NOTHING = UsedNames(False, False)
_UNKNOWN = UsedNames(True, False)
_BOTH = UsedNames(True, True)
_KNOWN = UsedNames(False, True)


def field_path(node: Expr) -> FieldPath | None:
    """Return the path of a node, or None if it is not a path."""
    fields: list[str] = []
    plain = 0
    while True:
        kind = type(node)
        if kind is Ident:
            fields.reverse()
            return FieldPath(node.name, tuple(fields), plain)  # type: ignore[union-attr]
        if kind is Select or kind is Has:
            fields.append(node.field)  # type: ignore[union-attr]
            plain = 0 if kind is Has or node.optional else plain + 1  # type: ignore[union-attr]
            node = node.operand  # type: ignore[union-attr]
        elif kind is Call and node.function in INDEX:  # type: ignore[union-attr]
            target, key = node.args  # type: ignore[union-attr]
            if type(key) is not Literal or type(key.value) is not str:
                return None
            fields.append(key.value)
            plain = 0
            node = target
        else:
            return None


class Unknowns:
    """The unknown names, and the known variables whose names have dots."""

    def __init__(self, names: Collection[str], dotted: Iterable[str] = ()) -> None:
        self.names = frozenset(names)
        self.paths = tuple(sorted(tuple(name.split(".")) for name in self.names))
        self.dotted = frozenset(dotted)

    def kind(self, path: FieldPath) -> int:
        """Whether a path is KNOWN, UNKNOWN (at or below an unknown) or HOLED (above one)."""
        parts = path.parts
        if self.dotted:
            for end in range(1 + path.plain, 1, -1):
                name = ".".join(parts[:end])
                if name in self.dotted:
                    return KNOWN
                if name in self.names:
                    break
        kind = KNOWN
        for unknown in self.paths:
            if parts[: len(unknown)] == unknown:
                return UNKNOWN
            if unknown[: len(parts)] == parts:
                kind = HOLED
        return kind

    def exact(self, path: FieldPath) -> bool:
        """Whether the path is an unknown itself, not something below one."""
        parts = path.parts
        return (
            parts in self.paths
            and self.kind(path) == UNKNOWN
            and not any(parts[: len(shorter)] == shorter for shorter in self.paths if len(shorter) < len(parts))
        )

    def below(self, path: FieldPath) -> list[tuple[str, ...]]:
        """Return the unknown paths inside a HOLED one, relative to it."""
        parts = path.parts
        return [unknown[len(parts) :] for unknown in self.paths if unknown[: len(parts)] == parts]

    def named_in(self, expr: Expr) -> frozenset[str]:
        """Return the unknowns that an expression names."""
        named: set[str] = set()
        todo: list[tuple[Expr, frozenset[str]]] = [(expr, frozenset())]
        while todo:
            node, scope = todo.pop()
            path = field_path(node)
            if path is not None:
                if path.root in scope:
                    continue
                parts = path.parts
                named.update(
                    ".".join(unknown)
                    for unknown in self.paths
                    if parts[: len(unknown)] == unknown or unknown[: len(parts)] == parts
                )
                continue
            todo.extend((part, scope) for part in operands(node))
            variables, inner = bound_bodies(node)
            if variables:
                scope = scope.union(variables)
                todo.extend((part, scope) for part in inner)
        return frozenset(named)


class NameAnalysis:
    """Finds the names that the parts of one expression use, once for each part."""

    def __init__(self, unknowns: Unknowns) -> None:
        self.unknowns = unknowns
        self._memo: dict[tuple[Expr, frozenset[str]], UsedNames] = {}

    def uses(self, node: Expr, scope: frozenset[str]) -> UsedNames:
        """Return the names that the node uses; those of `scope` are iteration variables."""
        if type(node) is Literal:
            return _NOTHING
        key = (node, scope)
        remembered = self._memo.get(key)
        if remembered is not None:
            return remembered
        result = self._path_uses(node, scope)
        if result is None:
            # Without a helper or a comprehension: trees are deep and Python's stack is not.
            variables, inner = bound_bodies(node)
            unknown, known, local, binds = False, False, frozenset[str](), bool(variables)
            for parts, names in ((operands(node), ()), (inner, variables)):
                visible = scope.union(names) if names else scope
                for part in parts:
                    use = self.uses(part, visible)
                    unknown, known, binds = unknown or use.unknown, known or use.known, binds or use.binds
                    local |= use.local.difference(names) if names else use.local
            result = UsedNames(unknown, known, local, binds)
        self._memo[key] = result
        return result

    def _path_uses(self, node: Expr, scope: frozenset[str]) -> UsedNames | None:
        path = field_path(node)
        if path is None:
            return None
        if path.root in scope:
            return UsedNames(False, False, frozenset((path.root,)))
        kind = self.unknowns.kind(path)
        return _KNOWN if kind == KNOWN else _UNKNOWN if kind == UNKNOWN else _BOTH


def stage_holed(specialiser: Specialiser, node: Expr, path: FieldPath) -> Run:
    """Return the function of a path above an unknown."""
    known = specialiser.stage_known(node, {})
    holes = specialiser.unknowns.below(path)
    presence = type(node) is Has

    def run(frame: Frame) -> Result:
        value = known(frame)
        if presence:
            # A missing field may come with the unknown inside it.
            return value is True or Residual(node, outcomes.TRUE | outcomes.FALSE, length(node), BOOL)
        if isinstance(value, CertainFailure):
            value = {}
        if type(value) is not dict:
            return value
        check_constant_length(value)
        expr = _written(value, _chain(path), holes)
        size = length(expr)
        specialiser.check_length(size)
        return Residual(expr, outcomes.OTHER, size)

    return run


def _chain(path: FieldPath) -> Expr:
    """Return the path as optional selections, which give no value where a field on the way is missing."""
    node: Expr = Ident(path.root)
    for field in path.fields:
        node = Select(node, field, True)
    return node


def _written(value: dict[object, object], chain: Expr, holes: Sequence[tuple[str, ...]]) -> Expr:
    """Return a map literal whose unknown entries are read from the unknown itself, if they are there."""
    inside: dict[str, list[tuple[str, ...]]] = {}
    for hole in holes:
        inside.setdefault(hole[0], []).append(hole[1:])
    entries: list[MapEntry] = []
    whole = constant({key: field_value for key, field_value in value.items() if key not in inside})
    assert isinstance(whole, MapExpr)
    entries += whole.entries
    for name, rest in sorted(inside.items()):
        inner = Select(chain, name, True)
        below = value.get(name)
        if () in rest:
            entries.append(MapEntry(Literal(name), inner, True))
        else:
            known_fields = below if isinstance(below, dict) else {}
            entries.append(MapEntry(Literal(name), dyn(_written(known_fields, inner, rest))))
    if len(entries) > len(whole.entries):
        entries = [MapEntry(entry.key, _hidden_once(entry.value), entry.optional) for entry in entries]
    return MapExpr(tuple(entries))


def _hidden_once(expr: Expr) -> Expr:
    """`dyn(expr)`, but `request.?name` stays an optional value."""
    if isinstance(expr, Select) or (isinstance(expr, Call) and expr.function == "dyn"):
        return expr
    return dyn(expr)

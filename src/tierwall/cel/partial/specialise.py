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

from tierwall.cel.ast import Bind, Call, Comprehension, Entry, Expr, Has, Ident, ListExpr, Literal, MapExpr, Select
from tierwall.cel.failure import CostExceeded, EvaluationError
from tierwall.cel.partial import outcomes, signature
from tierwall.cel.partial.binding import binding
from tierwall.cel.partial.constant import constant, dyn
from tierwall.cel.partial.engine import Engine, signatures
from tierwall.cel.partial.logic import conditional, connective, fallback, negation
from tierwall.cel.partial.names import HOLED, Analysis, Path, Unknowns, path_of
from tierwall.cel.partial.residual import FAILING_SIZE, Failed, PartialError, Residual, Result, failing
from tierwall.cel.partial.tree import length, operands, own_length, rebuilt, renamed
from tierwall.cel.partial.unroll import comprehension
from tierwall.cel.types import Type
from tierwall.cel.values import OptionalValue, TypeValue, map_key

Frame: TypeAlias = dict[str, object]
Run: TypeAlias = Callable[[Frame], Result]

# Characters of a residual, about; the parser takes no text beyond this.
MAX_LENGTH = 100_000
# Rounds of all comprehensions of one run together.
MAX_ROUNDS = 100_000
_ROUNDS = "@rounds"


class Fixed:
    """A part whose result does not depend on the known values."""

    __slots__ = ("result",)

    def __init__(self, result: Result) -> None:
        self.result = result

    def __call__(self, frame: Frame) -> Result:
        return self.result


class Scope(msgspec.Struct, frozen=True):
    """The iteration variables at a place: by name, the key of its value in the frame, or None if it has none yet."""

    variables: Mapping[str, str | None] = {}
    depth: int = 0

    def bind(self, names: Sequence[str], known: bool) -> Scope:
        """The scope inside a binder."""
        depth = self.depth + 1
        # No source can spell a name with an `@` and a digit, so these never meet a variable.
        keys = {name: f"@{depth}{name}" if known else None for name in names}
        return Scope({**self.variables, **keys}, depth)


class Specialiser:
    """Turns the parts of one expression into functions."""

    def __init__(
        self, unknowns: Unknowns, engine: Engine, types: Mapping[str, Type], nodes: Mapping[int, Type], limit: int
    ) -> None:
        self.unknowns = unknowns
        self.engine = engine
        # What is certain about types: by the name of an unknown, and by the `id` of a node that was checked.
        self.types = types
        self.nodes = nodes
        self.limit = limit
        self.analysis = Analysis(unknowns)

    def stage(self, node: Expr, scope: Scope, boolean: bool = False) -> Run:
        """The function of a part. `boolean`: a value that is not a bool counts as an error where the result goes."""
        uses = self.analysis.uses(node, frozenset(scope.variables))
        keys = {name: scope.variables[name] for name in uses.local}
        if not uses.unknown and None not in keys.values():
            return self.known(node, {name: key for name, key in keys.items() if key is not None})
        run = self._open(node, scope, boolean)
        if uses.known or any(key is not None for key in keys.values()):
            return run
        return Fixed(run({_ROUNDS: 0}))

    def later(self, node: Expr, scope: Scope, boolean: bool = False) -> Run:
        """As `stage`, but made when first run: a body is wanted once with its variables known and once without."""
        made: Run | None = None

        def run(frame: Frame) -> Result:
            nonlocal made
            if made is None:
                made = self.stage(node, scope, boolean)
            return made(frame)

        return run

    def known(self, node: Expr, keys: Mapping[str, str]) -> Run:
        """The function of a part that needs no unknown."""
        if type(node) is Literal:
            return Fixed(node.value)
        program = self.engine(renamed(node, keys))

        def run(frame: Frame) -> Result:
            try:
                return program(frame)
            except EvaluationError as error:
                return Failed(str(error))

        return run

    def is_known(self, node: Expr, scope: Scope) -> bool:
        """Whether a part needs no unknown."""
        uses = self.analysis.uses(node, frozenset(scope.variables))
        return not uses.unknown and all(scope.variables[name] is not None for name in uses.local)

    def _open(self, node: Expr, scope: Scope, boolean: bool) -> Run:
        """The function of a part that needs an unknown."""
        path = path_of(node)
        if path is not None and path.root not in scope.variables:
            if self.unknowns.exact(path):
                return Fixed(self._unknown(node, path))
            if self.unknowns.kind(path) == HOLED:
                return self._holed(node, path)
        kind = type(node)
        if kind is Ident:
            return Fixed(Residual(node, outcomes.ANY & ~outcomes.ERROR, own_length(node)))
        if kind is Call:
            function = node.function  # type: ignore[union-attr]
            if function == "_&&_" or function == "_||_":
                return connective(self, node, scope, boolean)  # type: ignore[arg-type]
            if function == "_?_:_":
                return conditional(self, node, scope, boolean)  # type: ignore[arg-type]
            if function == "!_":
                return negation(self, node, scope, boolean)  # type: ignore[arg-type]
            if function in ("or", "orValue") and len(operands(node)) == 2:
                return fallback(self, node, scope)  # type: ignore[arg-type]
        if kind is Comprehension:
            return comprehension(self, node, scope, boolean)  # type: ignore[arg-type]
        if kind is Bind:
            return binding(self, node, scope, boolean)  # type: ignore[arg-type]
        return self._strict(node, scope)

    def _unknown(self, node: Expr, path: Path) -> Residual:
        name = ".".join((path.root.removeprefix("."), *path.fields))
        declared = self.types.get(name) or self.nodes.get(id(node))
        if type(node) is Has:
            return Residual(node, outcomes.TRUE | outcomes.FALSE, length(node), signature.BOOL)
        if type(node) is Call and node.function == "_[_]":
            # A path that stands for a variable of its own is found as `a.b`, not as `a["b"]`.
            node = Select(node.args[0], path.fields[-1])
        # An unknown is bound in every completion, so naming it cannot fail.
        can = signature.can_be(declared) & ~outcomes.ERROR
        return Residual(node, can, length(node), declared)

    def _holed(self, node: Expr, path: Path) -> Run:
        """A known map with an unknown inside: as a whole it is a map that is written out around the hole."""
        known = self.known(node, {})
        holes = self.unknowns.below(path)
        presence = type(node) is Has

        def run(frame: Frame) -> Result:
            value = known(frame)
            if presence:
                if value is True:
                    return True
                return Residual(node, outcomes.TRUE | outcomes.FALSE, length(node), signature.BOOL)
            if isinstance(value, Failed):
                value = {}
            if type(value) is OptionalValue or type(value) is not dict:
                return value
            expr = _with_holes(value, _chain(path), holes)
            size = length(expr)
            self.bound(size)
            return Residual(expr, outcomes.OTHER, size)

        return run

    def _strict(self, node: Expr, scope: Scope) -> Run:
        """The function of a part that needs all its operands."""
        parts = operands(node)
        runs = [self.stage(part, scope) for part in parts]
        apply = self.application(node)

        def run(frame: Frame) -> Result:
            results = []
            pending = False
            for part in runs:
                result = part(frame)
                kind = type(result)
                if kind is Failed:
                    return result
                if kind is Residual:
                    pending = True
                results.append(result)
            if pending:
                return self._written(node, parts, results, apply)
            return apply(results)

        return run

    def application(self, node: Expr) -> Callable[[Sequence[object]], Result]:
        """The node's own operation on operand values; compiled when first needed."""
        program: Callable[[Frame], object] | None = None

        def apply(values: Sequence[object]) -> Result:
            nonlocal program
            if program is None:
                program = self.engine(rebuilt(node, [Ident(f"@{i}") for i in range(len(values))]))
            try:
                return program({f"@{i}": value for i, value in enumerate(values)})
            except EvaluationError as error:
                return Failed(str(error))

        return apply

    def _written(
        self, node: Expr, parts: Sequence[Expr], results: list[Result], apply: Callable[[Sequence[object]], Result]
    ) -> Result:
        """The node with its operands replaced by what is left of them."""
        kind = type(node)
        if kind is ListExpr and node.optional:  # type: ignore[union-attr]
            return self._optional_list(node, parts, results)  # type: ignore[arg-type]
        if kind is MapExpr:
            return self._map(node, parts, results)  # type: ignore[arg-type]
        always = signature.always_fails(node, results, apply)
        if always is not None:
            return always
        exprs: list[Expr] = []
        size = own_length(node)
        for part, result in zip(parts, results, strict=True):
            if type(result) is Residual:
                exprs.append(result.expr)
                size += result.size
            else:
                expr, more = self.spell(part, result)
                exprs.append(expr)
                size += more
        hidden = signature.hidden(node, parts, results)
        for i in hidden:
            exprs[i] = dyn(exprs[i])
            size += 5
        if kind is Select or (kind is Call and node.target is not None):  # type: ignore[union-attr]
            exprs[0] = self._apart(node, parts[0], exprs[0])
        self.bound(size)
        can, own = signature.result(node, results)
        if own is None:
            own = signature.certain(self.nodes.get(id(node)))
            can &= signature.can_be(own)
        return Residual(rebuilt(node, exprs), can, size, own)

    def _apart(self, node: Expr, before: Expr, after: Expr) -> Expr:
        """The operand of a selection or member call, kept from becoming part of a dotted name."""
        if path_of(before) is not None:
            return after
        path = path_of(after)
        if path is None:
            return after
        if type(node) is Select:
            name = ".".join((path.root.removeprefix("."), *path.fields, node.field))
            return dyn(after) if any(unknown.startswith(name) for unknown in self.unknowns.names) else after
        assert type(node) is Call
        name = ".".join((path.root.removeprefix("."), *path.fields, node.function))
        return dyn(after) if signatures().has(name) else after

    def _optional_list(self, node: ListExpr, parts: Sequence[Expr], results: list[Result]) -> Result:
        marked = set(node.optional)
        exprs: list[Expr] = []
        marks: list[int] = []
        size = own_length(node)
        for i, (part, result) in enumerate(zip(parts, results, strict=True)):
            if type(result) is Residual:
                if i in marked:
                    marks.append(len(exprs))
                exprs.append(result.expr)
                size += result.size
                continue
            if i in marked:
                if type(result) is not OptionalValue:
                    return Failed("cannot initialize optional list element from a value that is not optional")
                if not result.present:
                    continue
                result, part = result.value, node
            expr, more = self.spell(part, result)
            exprs.append(expr)
            size += more
        self.bound(size)
        return Residual(ListExpr(tuple(exprs), tuple(marks), node.at), outcomes.VALUE, size)

    def _map(self, node: MapExpr, parts: Sequence[Expr], results: list[Result]) -> Result:
        entries: list[Entry] = []
        size = own_length(node)
        can = outcomes.OTHER
        for i, entry in enumerate(node.entries):
            key, value = results[2 * i], results[2 * i + 1]
            if entry.optional and type(value) is OptionalValue and not value.present and type(key) is not Residual:
                continue
            if type(key) is Residual:
                can |= outcomes.ERROR
                name, more = key.expr, key.size
            else:
                try:
                    map_key(key)
                except EvaluationError as error:
                    if not entry.optional or type(value) is not Residual:
                        return Failed(str(error))
                    can |= outcomes.ERROR
                name, more = self.spell(parts[2 * i], key)
            size += more
            if type(value) is Residual:
                can |= outcomes.ERROR if entry.optional else value.can & outcomes.ERROR
                entries.append(Entry(name, value.expr, entry.optional))
                size += value.size
                continue
            part = parts[2 * i + 1]
            if entry.optional:
                if type(value) is not OptionalValue:
                    return Failed("cannot initialize optional entry from a value that is not optional")
                if not value.present:
                    entries.append(Entry(name, constant(value), True))
                    continue
                value, part = value.value, node
            expr, more = self.spell(part, value)
            entries.append(Entry(name, expr))
            size += more
        self.bound(size)
        return Residual(MapExpr(tuple(entries), node.at), can, size)

    def spell(self, node: Expr, value: object) -> tuple[Expr, int]:
        """The constant of a known operand and its length: as it was written, if it was written as a constant."""
        if type(node) is Literal or (type(node) is Ident and type(value) is TypeValue and value.name == node.name):
            return node, own_length(node)
        if type(value) is list or type(value) is dict or type(value) is str:
            signature.bound_value(value, self.limit)
        expr = constant(value)
        size = length(expr)
        self.bound(size)
        return expr, size

    def write(self, node: Expr, result: Result) -> Residual:
        """Any result as an expression: a residual as it is, a value as a constant, a failure as what always fails."""
        if isinstance(result, Residual):
            return result
        if isinstance(result, Failed):
            return Residual(failing(result.message), outcomes.ERROR, FAILING_SIZE + len(result.message))
        expr, size = self.spell(node, result)
        return Residual(expr, outcomes.of_value(result), size, signature.type_of(result))

    def bound(self, size: int) -> None:
        """Refuse a residual that has grown too long."""
        if size > self.limit:
            raise PartialError(
                f"residual too long: more than {self.limit} characters; a large known value is used whole"
            )

    def round(self, frame: Frame) -> None:
        """Count one round of an unrolled comprehension."""
        rounds = frame[_ROUNDS]
        assert isinstance(rounds, int)
        if rounds >= MAX_ROUNDS:
            raise CostExceeded(f"operation cancelled: more than {MAX_ROUNDS} rounds of comprehensions")
        frame[_ROUNDS] = rounds + 1


def start(known: Mapping[str, object]) -> Frame:
    """The frame of one run."""
    frame = dict(known)
    frame[_ROUNDS] = 0
    return frame


def _chain(path: Path) -> Expr:
    """The path as optional selections, which are none where something is missing on the way."""
    node: Expr = Ident(path.root)
    for field in path.fields:
        node = Select(node, field, True)
    return node


def _with_holes(value: dict[object, object], chain: Expr, holes: Sequence[tuple[str, ...]]) -> Expr:
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
            entries.append(
                Entry(Literal(name), dyn(_with_holes(below if isinstance(below, dict) else {}, inner, rest)))
            )
    if len(entries) > len(whole.entries):
        entries = [Entry(entry.key, _hidden_once(entry.value), entry.optional) for entry in entries]
    return MapExpr(tuple(entries))


def _hidden_once(expr: Expr) -> Expr:
    """`dyn(expr)`, but `request.?name` stays an optional value."""
    if isinstance(expr, Select) or (isinstance(expr, Call) and expr.function == "dyn"):
        return expr
    return dyn(expr)

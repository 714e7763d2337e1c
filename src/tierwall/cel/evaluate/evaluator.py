"""The exact evaluator: a tree turned into closures that do what cel-spec says, errors and cost included.

It is the reference for the code of `generate`, which gives up where this goes on. An error is raised as
`EvaluationError`; `&&`, `||`, `all` and `exists` absorb it (cel-spec, "Logical Operators" and "Macros").
A level of the tree takes at most two Python frames, so what the parser lets through stays within the recursion limit.
"""

from __future__ import annotations

from collections.abc import Mapping

from tierwall.cel.environment import Environment
from tierwall.cel.errors import EvaluationError, no_such_key
from tierwall.cel.evaluate import steps
from tierwall.cel.evaluate.dispatch import cost_exceeded, find_dispatcher
from tierwall.cel.evaluate.steps import Closure, Frame
from tierwall.cel.library import cost
from tierwall.cel.library.optionals import LAZY
from tierwall.cel.library.regex import MATCHING, literal_cost
from tierwall.cel.syntax import ast
from tierwall.cel.syntax.ast import dotted_name, is_attribute, is_constant, is_selection
from tierwall.cel.values import NONE, OptionalValue, TypeValue, no_such_overload, put_entry, type_name

_MISSING = object()
# Conversions of literals are folded when Kubernetes compiles an expression, and cost nothing.
_FOLDED = frozenset(("bool", "bytes", "double", "duration", "dyn", "int", "string", "timestamp", "type", "uint"))


class Evaluator:
    """A tree ready to be evaluated in one environment, any number of times."""

    def __init__(self, tree: ast.Expr, environment: Environment) -> None:
        self._planner = Planner(environment)
        try:
            self._closure = self._planner.plan(tree)
        except RecursionError:
            self._closure = steps.too_deep

    def evaluate(self, variables: Mapping[str, object], limit: int = cost.CALL_LIMIT) -> object:
        """Return the value; raises `EvaluationError` or `CostExceeded`."""
        return self.measure(variables, limit)[0]

    def measure(self, variables: Mapping[str, object], limit: int = cost.CALL_LIMIT) -> tuple[object, int]:
        """Return the value and what it cost."""
        frame = Frame(variables, self._planner.slots, limit)
        try:
            value = self._closure(frame)
        except RecursionError:
            steps.too_deep(frame)
        if frame.cost > limit:
            raise cost_exceeded(limit)
        return value, frame.cost


class Planner:
    """Turns nodes into closures; knows which names are iteration variables at the current place."""

    def __init__(self, environment: Environment) -> None:
        self.environment = environment
        self.slots = 0
        self._scope: dict[str, int] = {}

    def plan(self, node: ast.Expr) -> Closure:
        """Return the closure of a node."""
        match node:
            case ast.Literal():
                value = node.value
                return lambda frame: value
            case ast.Ident():
                return self._name(node.name)
            case ast.Select():
                return self._dotted(node) or self._select(node)
            case ast.Has():
                return steps.has(self._operand(node.operand), node.field)
            case ast.Call():
                return self._call(node)
            case ast.ListExpr():
                return self._list(node)
            case ast.MapExpr():
                return self._map(node)
            case ast.Comprehension():
                return self._comprehension(node)
            case ast.Bind():
                return self._bind(node)
            case ast.MessageExpr():
                return steps.failing(f"unknown type: {node.type_name}")

    def within(self, names: tuple[str, ...], nodes: tuple[ast.Expr, ...]) -> tuple[tuple[int, ...], list[Closure]]:
        """Return the slots of iteration variables, and the closures of the nodes that see them."""
        slots = tuple(range(self.slots, self.slots + len(names)))
        self.slots += len(names)
        outer = self._scope
        self._scope = outer | dict(zip(names, slots, strict=True))
        closures = list(map(self.plan, nodes))
        self._scope = outer
        return slots, closures

    def _name(self, name: str) -> Closure:
        slot = self._scope.get(name)
        if slot is not None:

            def local(frame: Frame) -> object:
                frame.cost += 1
                return frame.locals[slot]

            return local
        name = name.removeprefix(".")
        default = self._type_value(name)

        def variable(frame: Frame) -> object:
            frame.cost += 1
            value = frame.variables.get(name, default)
            if value is _MISSING:
                raise EvaluationError(f"no such attribute(s): {name}")
            return value

        return variable

    def _type_value(self, name: str) -> object:
        """Return the type with that name: the value of the name where no variable has it."""
        named = self.environment.type_names.get(name)
        return _MISSING if named is None else TypeValue(named.params[0].name)

    def _dotted(self, node: ast.Select) -> Closure | None:
        """Return the closure of a selection that may be a dotted name of a variable or type; the longest name wins."""
        path = dotted_name(node)
        if path is None:
            return None
        root = path.removeprefix(".").partition(".")[0]
        if root not in self.environment.dotted or (root in self._scope and not path.startswith(".")):
            return None
        name = path.removeprefix(".")
        default = self._type_value(name)
        selected = self._select(node)

        def qualified(frame: Frame) -> object:
            value = frame.variables.get(name, default)
            if value is _MISSING:
                return selected(frame)
            frame.cost += 1
            return value

        return qualified

    def _select(self, node: ast.Select) -> Closure:
        operand, field = self._operand(node.operand), node.field
        if node.optional:

            def optional(frame: Frame) -> object:
                return steps.select_optional(frame, operand(frame), field)

            return optional

        def select(frame: Frame) -> object:
            value = operand(frame)
            if type(value) is dict:
                frame.cost += 1
                field_value = value.get(field, _MISSING)
                if field_value is not _MISSING:
                    return field_value
            elif type(value) is OptionalValue:
                return steps.select_optional(frame, value, field)
            raise no_such_key(field)

        return select

    def _call(self, node: ast.Call) -> Closure:
        function, args = self.environment.resolve_call(node)
        if function in ast.LOGICAL:
            return steps.logical(list(map(self.plan, args)), absorbing=function == "_||_")
        if function == ast.CONDITIONAL:
            return steps.conditional(self.plan(args[0]), self._branch(args[1]), self._branch(args[2]))
        called = find_dispatcher(self.environment, function, len(args))
        if called is None:
            return steps.failing(f"unknown function: {function} of {len(args)} arguments")
        if function in MATCHING and type(args[1]) is ast.Literal:
            called = called.with_cost(literal_cost)
        if function in ast.INDEX:
            return steps.call_function(called, [self._operand(args[0]), self._branch(args[1])])
        planned = list(map(self.plan, args))
        if function in ("_==_", "_!=_"):
            return steps.equality(planned[0], planned[1], negated=function == "_!=_")
        if function == "@in" and type(args[1]) is not ast.Literal and is_constant(args[1]):
            return steps.membership(*planned)
        if function in LAZY and len(planned) == 2:
            return steps.value_or_default(called, *planned)
        if function in _FOLDED and len(args) == 1 and type(args[0]) is ast.Literal:
            return steps.fold_conversion(called, args[0].value)
        return steps.call_function(called, planned)

    def _operand(self, node: ast.Expr) -> Closure:
        """Return the closure of a selection's operand; selecting costs 1, unless that is a name or a selection."""
        planned = self.plan(node)
        return planned if is_selection(node) else steps.with_extra_cost(planned, cost.NAME)

    def _branch(self, node: ast.Expr) -> Closure:
        """Return the closure of a branch of `?:` or a key in `[…]`: cel-go does not charge for the name at its root."""
        planned = self.plan(node)
        return steps.with_extra_cost(planned, -cost.NAME) if is_attribute(node) else planned

    def _list(self, node: ast.ListExpr) -> Closure:
        marks = [place in node.optional for place in range(len(node.elements))]
        elements = list(zip(map(self.plan, node.elements), marks, strict=True))
        price = 0 if is_constant(node) else cost.LIST

        def make(frame: Frame) -> object:
            result: list[object] = []
            for step, optional in elements:
                value = step(frame)
                if not optional:
                    result.append(value)
                elif type(value) is not OptionalValue:
                    raise EvaluationError(f"cannot initialize optional list element from {type_name(value)}")
                elif value.present:
                    result.append(value.value)
            frame.cost += price
            return result

        return make

    def _map(self, node: ast.MapExpr) -> Closure:
        entries = [(self.plan(entry.key), self.plan(entry.value), entry.optional) for entry in node.entries]
        price = 0 if is_constant(node) else cost.MAP

        def make(frame: Frame) -> object:
            result: dict[object, object] = {}
            for key, step, optional in entries:
                name, value = key(frame), step(frame)
                if optional:
                    if type(value) is not OptionalValue:
                        raise EvaluationError(f"cannot initialize optional entry from {type_name(value)}")
                    if not value.present:
                        continue
                    value = value.value
                put_entry(result, name, value)
            frame.cost += price
            return result

        return make

    def _comprehension(self, node: ast.Comprehension) -> Closure:
        target = self.plan(node.target)
        slots, arguments = self.within(node.variables, node.args)
        loop = steps.loop_over(target, slots)
        price = steps.ADD_CONSTANT if type(node.args[-1]) is ast.Literal else steps.ADD
        match node.macro, arguments:
            case "all" | "exists", [predicate]:
                return steps.quantifier(loop, predicate, settling=node.macro == "exists")
            case "exists_one" | "existsOne", [predicate]:
                return steps.exists_one(loop, predicate)
            case "filter", [predicate]:
                return steps.filter_elements(loop, predicate, slots[-1])
            case "map" | "transformList", [*tests, transform]:
                return steps.transform_list(loop, tests, transform, price)
            case "transformMap", [*tests, transform]:
                return steps.transform_map(loop, tests, transform, slots[0])
            case "transformMapEntry", [*tests, transform]:
                return steps.transform_map_entries(loop, tests, transform)
            case "sortBy", [key]:
                return steps.sort_by(target, slots[0], key, price)
        raise AssertionError(f"unknown macro {node.macro}")

    def _bind(self, node: ast.Bind) -> Closure:
        bound_value = self.plan(node.value)
        (slot,), (body,) = self.within((node.variable,), (node.body,))
        if node.macro == "bind":

            def bind(frame: Frame) -> object:
                frame.locals[slot] = bound_value(frame)
                return body(frame)

            return bind
        flat = node.macro == "optFlatMap"

        def optional_map(frame: Frame) -> object:
            before = frame.cost
            value = bound_value(frame)
            if type(value) is not OptionalValue:
                raise no_such_overload(node.macro, value)
            if not value.present:
                frame.charge(2)
                return NONE
            # The macro expands to a test and a use of its target, so that is paid for twice.
            frame.charge(frame.cost - before + (2 if flat else 3))
            frame.locals[slot] = value.value
            result = body(frame)
            return result if flat else OptionalValue(result)

        return optional_map

"""The fast path: generates the source of one Python function from an expression.

The code may give up at any point by raising: the exact evaluator then starts over. So it has one duty only: whatever it
does return is what the exact evaluator returns. Where Python and CEL differ (`True == 1`, `"a" in "abc"`, `x[-1]`,
comparing a bool with an int) the code tests types, calls an exact function, or raises.

`&&`, `||`, `all` and `exists` catch what their operands raise, because one operand that settles the result settles it
whatever the others do. Only names made here and constants through `repr` enter the source; everything else is an object
in the namespace.

`cost` is an upper bound of what the exact evaluator would charge. Loops and calls whose cost depends on data keep it
up to date; all other costs are added up beforehand. Beyond the limit the code gives up, and the exact evaluator
decides.
"""

from __future__ import annotations

import math

import msgspec

from tierwall.cel.environment import Environment
from tierwall.cel.errors import EvaluationError
from tierwall.cel.evaluate.dispatch import cost_exceeded, has_field, index, optional_field
from tierwall.cel.evaluate.steps import iterate, iterate_pairs
from tierwall.cel.library import cost
from tierwall.cel.library.operators import in_list, in_map
from tierwall.cel.syntax import ast
from tierwall.cel.syntax.ast import dotted_name, is_constant, is_selection
from tierwall.cel.values import NONE, OptionalValue, TypeValue, Uint, equal, no_such_overload
from tierwall.values.pattern import pattern

# Upper bounds of what a macro costs besides its expressions: for one element, and once.
_COSTS = {
    "all": (3, 3),
    "exists": (4, 4),
    "exists_one": (2, 2),
    "existsOne": (2, 2),
    "filter": (13, 1),
    "map": (12, 1),
    "transformList": (12, 1),
}


class UnsupportedTree(Exception):
    """A tree that the exact evaluator alone handles."""


class FastPathMiss(Exception):
    """Raised by generated code that gives up."""


def _not(value: object) -> bool:
    if type(value) is bool:
        return not value
    raise FastPathMiss


def _contains(value: object, container: object) -> bool:
    if type(container) is list:
        return in_list(value, container)
    if type(container) is dict:
        return in_map(value, container)
    raise no_such_overload("@in", value, container)


# The exceptions of a failing operand of `&&` or `||`. Exceeding the cost limit is not one of them.
FAILURES = (LookupError, TypeError, AttributeError, ValueError, ArithmeticError, EvaluationError, FastPathMiss)
_FUNCTIONS = (has_field, optional_field, index, equal, iterate, iterate_pairs, cost.scan_shorter, cost.length_of_second)
NAMESPACE: dict[str, object] = {
    "__builtins__": {},
    **{called.__name__: called for called in (dict, list, str, int, len, type, OptionalValue, *_FUNCTIONS)},
    "FAILURES": FAILURES,
    "Miss": FastPathMiss,
    "exceeded": cost_exceeded,
    "contains": _contains,
    "negated": _not,
    "none": NONE,
}
_NAME = pattern(r"[citx][0-9]")
# Trees with more nodes would take long to compile and are rarely evaluated often.
_MAX_NODES = 2_000
# Integers that a double holds exactly: equality with them is the same in Python and in CEL.
_MAX_EXACT = 1 << 53


class PythonExpression(msgspec.Struct, frozen=True, gc=False):
    """The Python expression of a node. `kind` is its CEL type where certain; an `atom` may be written twice."""

    code: str
    kind: str | None = None
    atom: bool = False


class CodeGenerator:
    """Writes the function of one tree. Calls are in `generate_calls`."""

    def __init__(self, environment: Environment) -> None:
        self.environment = environment
        self.namespace: dict[str, object] = dict(NAMESPACE)
        self.lines: list[str] = []
        self.depth = 1
        self.scope: dict[str, str] = {}
        self.variables: dict[str, str] = {}
        # Cost of one run of the innermost block that does not depend on data.
        self.fixed_cost = 0
        # Whether the cost depends on data, and whether calls are made that charge for themselves.
        self.cost_depends_on_data = False
        self.metered = False
        self._names = 0
        self._nodes = 0

    def source(self, tree: ast.Expr) -> str:
        """Return the source of `def run(variables, limit, meter)`; `meter` is None unless `metered`."""
        result = self.value(tree)
        head = ["def run(variables, limit, meter):", f" cost = {self.fixed_cost}", " if cost > limit: raise Miss"]
        head += [f" {name} = {self._load(variable)}" for variable, name in self.variables.items()]
        if self.cost_depends_on_data or self.metered:
            self.emit(f"r = {result.code}")
            self.emit(f"if cost{' + meter.cost' if self.metered else ''} > limit: raise Miss")
            self.emit("return r")
        else:
            self.emit(f"return {result.code}")
        return "\n".join((*head, *self.lines, ""))

    def _load(self, variable: str) -> str:
        """Return the code that reads a variable; the name of a type is the type where no variable has that name."""
        named = self.environment.type_names.get(variable)
        if named is None:
            return f"variables[{variable!r}]"
        return f"variables.get({variable!r}, {self.constant(TypeValue(named.params[0].name))})"

    def emit(self, line: str) -> None:
        """Add a line to the current block."""
        self.lines.append(" " * self.depth + line)

    def block(self, head: str) -> CodeGenerator:
        """Add a line that begins a block; what is emitted inside `with generator.block(head):` stands in it."""
        self.emit(head)
        return self

    def __enter__(self) -> None:
        self.depth += 1

    def __exit__(self, *_: object) -> None:
        self.depth -= 1

    def name(self, prefix: str = "t") -> str:
        """Return a new, unique name."""
        self._names += 1
        return f"{prefix}{self._names}"

    def constant(self, value: object) -> str:
        """Put an object into the namespace; return its name there."""
        name = self.name("c")
        self.namespace[name] = value
        return name

    def atom(self, value: PythonExpression) -> PythonExpression:
        """Emit an assignment of the value to a new name, unless it is an atom already; return that name."""
        if value.atom:
            return value
        name = self.name()
        self.emit(f"{name} = {value.code}")
        return PythonExpression(name, value.kind, atom=True)

    def named(self, value: PythonExpression) -> str:
        """Return the value, named unless it begins with a name: Python warns about `True["a"]` and `1 is True`."""
        return value.code if _NAME.match(value.code) else self.atom(PythonExpression(value.code)).code

    def charge(self, amount: str) -> None:
        """Add a cost that depends on data."""
        self.cost_depends_on_data = True
        self.emit(f"cost += {amount}")
        self.emit("if cost > limit: raise exceeded(limit)")

    def value(self, node: ast.Expr) -> PythonExpression:
        """Emit the statements that a node needs; return the expression of its value."""
        self._nodes += 1
        if self._nodes > _MAX_NODES:
            raise UnsupportedTree
        match node:
            case ast.Literal():
                return self._literal(node.value)
            case ast.Ident():
                return self._ident(node.name)
            case ast.Select():
                return self._select(node)
            case ast.Has():
                operand = self.operand(node.operand)
                name = self.name()
                test = f"{node.field!r} in {name} if type({name} := {operand.code}) is dict"
                return PythonExpression(f"({test} else has_field({name}, {node.field!r}))", "bool")
            case ast.Call():
                return self.call(node)
            case ast.ListExpr() if not node.optional:
                self.fixed_cost += 0 if is_constant(node) else cost.LIST
                return PythonExpression(
                    "[" + ", ".join([self.value(element).code for element in node.elements]) + "]", "list"
                )
            case ast.MapExpr():
                return self._map(node)
            case ast.Comprehension():
                return _comprehension(self, node)
            case ast.Bind():
                return self._bind(node)
        raise UnsupportedTree

    def within(self, names: dict[str, str], node: ast.Expr) -> PythonExpression:
        """Return the value of a node in which variables have these Python names."""
        outer = self.scope
        self.scope = outer | names
        result = self.value(node)
        self.scope = outer
        return result

    def call(self, node: ast.Call) -> PythonExpression:
        """Return the value of a call."""
        from tierwall.cel.evaluate.generate_calls import generate

        return generate(self, node)

    def _literal(self, value: object) -> PythonExpression:
        kind = type(value)
        if kind is str:
            return PythonExpression(repr(value), "string", atom=True)
        if kind is bool or value is None or kind is bytes:
            return PythonExpression(repr(value), {bool: "bool", bytes: "bytes"}.get(kind), atom=True)
        if kind is int or (kind is float and math.isfinite(value)):  # type: ignore[arg-type]
            return PythonExpression(f"({value!r})", "int" if kind is int else "double", atom=True)
        return PythonExpression(self.constant(value), "uint" if kind is Uint else None, atom=True)

    def _ident(self, name: str) -> PythonExpression:
        self.fixed_cost += cost.NAME
        local = self.scope.get(name)
        if local is not None:
            return PythonExpression(local, atom=True)
        name = name.removeprefix(".")
        if name not in self.variables:
            self.variables[name] = self.name("x")
        return PythonExpression(self.variables[name], atom=True)

    def operand(self, node: ast.Expr) -> PythonExpression:
        """Return the operand of a selection."""
        self.fixed_cost += 0 if is_selection(node) else cost.NAME
        return self.value(node)

    def _select(self, node: ast.Select) -> PythonExpression:
        path = dotted_name(node)
        if path is not None and path.removeprefix(".").partition(".")[0] in self.environment.dotted:
            raise UnsupportedTree
        operand = self.operand(node.operand)
        self.fixed_cost += cost.NAME
        if node.optional or operand.kind == "optional_type":
            return PythonExpression(f"optional_field({operand.code}, {node.field!r})", "optional_type")
        # A list, a string or an optional refuses a string as its index, so only a map gets through.
        return PythonExpression(f"{self.named(operand)}[{node.field!r}]")

    def _bind(self, node: ast.Bind) -> PythonExpression:
        outer = self.fixed_cost
        bound = self.value(node.value)
        if node.macro == "bind":
            return self.within({node.variable: self.atom(bound).code}, node.body)
        # The macro uses its target twice; what that costs beyond data is charged twice.
        self.fixed_cost += self.fixed_cost - outer + 3
        if bound.kind != "optional_type" or self.metered or self.cost_depends_on_data:
            raise UnsupportedTree
        bound = self.atom(bound)
        result, inner = self.name(), self.name()
        self.emit(f"if not {bound.code}.present: {result} = none")
        flat = node.macro == "optFlatMap"
        with self.block("else:"):
            self.emit(f"{inner} = {bound.code}.value")
            body = self.within({node.variable: inner}, node.body)
            self.emit(f"{result} = {body.code if flat else f'OptionalValue({body.code})'}")
        return PythonExpression(result, None if flat and body.kind != "optional_type" else "optional_type", atom=True)

    def _map(self, node: ast.MapExpr) -> PythonExpression:
        self.fixed_cost += 0 if is_constant(node) else cost.MAP
        entries = []
        for entry in node.entries:
            key = entry.key
            if entry.optional or type(key) is not ast.Literal or type(key.value) is not str:
                raise UnsupportedTree
            entries.append(f"{key.value!r}: {self.value(entry.value).code}")
        return PythonExpression("{" + ", ".join(entries) + "}", "map")


def _comprehension(generator: CodeGenerator, node: ast.Comprehension) -> PythonExpression:
    """Write a loop whose cost is charged before it runs."""
    if node.macro not in _COSTS:
        raise UnsupportedTree
    items = generator.value(node.target)
    per_element, once = _COSTS[node.macro]
    generator.fixed_cost += once
    names = {variable: generator.name("i") for variable in node.variables}
    result = generator.name()
    generator.cost_depends_on_data = True
    name = generator.name()
    if len(names) == 1:
        generator.emit(f"{name} = {items.code}")
        generator.emit(f"if type({name}) is not list: {name} = iterate({name})")
    else:
        generator.emit(f"{name} = iterate_pairs({items.code})")
    charged = len(generator.lines)
    generator.emit("")
    generator.emit("if cost > limit: raise exceeded(limit)")
    outer, generator.fixed_cost = generator.fixed_cost, 0
    start = {"all": "True", "exists": "False", "exists_one": "0", "existsOne": "0"}.get(node.macro, "[]")
    generator.emit(f"{result} = {start}")
    with generator.block(f"for {', '.join(names.values())} in {name}:"):
        kind = _body(generator, node, names, result)
    generator.lines[charged] = " " * generator.depth + f"cost += len({name}) * {generator.fixed_cost + per_element}"
    generator.fixed_cost = outer
    if node.macro in ("all", "exists"):
        generator.emit(f"if {result} is None: raise Miss")
    if node.macro in ("exists_one", "existsOne"):
        return PythonExpression(f"({result} == 1)", "bool")
    return PythonExpression(result, kind, atom=True)


def _body(generator: CodeGenerator, node: ast.Comprehension, names: dict[str, str], result: str) -> str:
    outer = generator.scope
    generator.scope = outer | names
    if node.macro in ("all", "exists"):
        _quantifier(generator, node.args[0], result, settling=node.macro == "exists")
        kind = "bool"
    elif node.macro in ("exists_one", "existsOne"):
        _test(generator, node.args[0])
        generator.emit(f"{result} += 1")
        kind = "int"
    elif node.macro == "filter":
        _test(generator, node.args[0])
        generator.emit(f"{result}.append({names[node.variables[-1]]})")
        kind = "list"
    else:
        for test in node.args[:-1]:
            _test(generator, test)
        generator.emit(f"{result}.append({generator.value(node.args[-1]).code})")
        kind = "list"
    generator.scope = outer
    return kind


def _quantifier(generator: CodeGenerator, predicate: ast.Expr, result: str, settling: bool) -> None:
    name = generator.name()
    with generator.block("try:"):
        value = generator.value(predicate)
        generator.emit(f"{name} = {value.code}")
    generator.emit("except FAILURES:")
    generator.emit(f" {result} = None")
    generator.emit(" continue")
    generator.emit(f"if {name} is {settling}:")
    generator.emit(f" {result} = {settling}")
    generator.emit(" break")
    if value.kind != "bool":
        generator.emit(f"if {name} is not {not settling}: {result} = None")


def _test(generator: CodeGenerator, predicate: ast.Expr) -> None:
    value = generator.value(predicate)
    if value.kind == "bool":
        generator.emit(f"if not {value.code}: continue")
        return
    test = generator.named(generator.atom(value))
    generator.emit(f"if {test} is False: continue")
    generator.emit(f"if {test} is not True: raise Miss")

"""Names and types of an expression (cel-go 0.29, checker/checker.go, in Kubernetes' configuration).

Typing is gradual: dyn fits everywhere. The macros are checked as written, by the rules that their expansions in cel-go
would follow. The result holds the type of every node, for the partial evaluator.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from tierwall.cel import types
from tierwall.cel.check.inference import (
    Inference,
    OversizedType,
    is_oversized,
    most_general,
    no_overload,
    unknown_function,
)
from tierwall.cel.check.structural import escape, field_type
from tierwall.cel.check.validators import validate
from tierwall.cel.environment import CHECKED_LITERALS, Environment, Function
from tierwall.cel.errors import CheckError, SourceProblem, did_you_mean, problem_at
from tierwall.cel.library.table import Overload
from tierwall.cel.syntax import ast
from tierwall.cel.types import BOOL, DYN, ERROR, INT, ObjectType, Type, TypeParam, list_of, map_of, optional_of
from tierwall.cel.values import Uint

_LITERALS: dict[type, Type] = {
    str: types.STRING,
    int: INT,
    bool: BOOL,
    type(None): types.NULL,
    float: types.DOUBLE,
    bytes: types.BYTES,
    Uint: types.UINT,
}
MAX_PROBLEMS = 100


class CheckedExpression(msgspec.Struct, frozen=True, eq=False):
    """An expression whose names and types fit its environment, with the type of each node of its tree."""

    expr: ast.Expr
    type: Type
    types: Mapping[ast.Expr, Type]


UNDECLARED = "undeclared variable"


def compile_source(source: str, environment: Environment) -> CheckedExpression:
    """Parse and check; raises `ParseError` or `CheckError`."""
    return check(environment.parse(source), environment, source)


def check(tree: ast.Expr, environment: Environment, source: str = "") -> CheckedExpression:
    """Check a tree; `source` is the text it came from, for the places of problems. Raises `CheckError`."""
    checker = _Checker(environment, source)
    try:
        return checker.check_expression(tree)
    except RecursionError:
        # Happens only where the caller's stack is deep already: the parser has bounded the tree.
        raise CheckError((problem_at(source, 0, "expression nested too deeply"),)) from None
    except OversizedType:
        raise CheckError((problem_at(source, 0, "types too large: expected fewer nested maps"),)) from None


class _Checker(Inference):
    __slots__ = ("locals", "problems", "source", "types")

    def __init__(self, environment: Environment, source: str) -> None:
        super().__init__(environment)
        self.source = source
        self.problems: list[SourceProblem] = []
        self.types: dict[ast.Expr, Type] = {}
        self.locals: dict[str, Type] = {}

    def check_expression(self, tree: ast.Expr) -> CheckedExpression:
        result = self.check(tree)
        types = self.types
        if self.open:
            result = self.without_variables(result)
            types = {node: self.without_variables(given) for node, given in types.items()}
        if not self.problems:
            validate(tree, types, self.environment.release >= CHECKED_LITERALS, self.report)
        if self.problems:
            raise CheckError(self.problems)
        return CheckedExpression(tree, result, types)

    def report(self, at: int, message: str, hint: str | None = None) -> None:
        self.problems.append(problem_at(self.source, at, message, hint))
        if len(self.problems) >= MAX_PROBLEMS:
            raise CheckError(self.problems)

    def check(self, node: ast.Expr) -> Type:
        result = _RULES[type(node)](self, node)
        self.types[node] = result
        return result

    def literal(self, node: ast.Literal) -> Type:
        return _LITERALS[type(node.value)]

    def ident(self, node: ast.Ident) -> Type:
        name = node.name
        plain = name.removeprefix(".")
        # A leading dot asks for the declared variable, even where a macro's variable has the same name.
        local = None if name.startswith(".") else self.locals.get(name)
        if local is not None:
            return local
        declared = self.declared_type(plain)
        if declared is not None:
            return declared
        known = (*self.locals, *self.environment.variables)
        hint = did_you_mean(plain, known)
        if hint is None and self.environment.lookup(name) is not None:
            hint = f"`{plain}` is a function: call it as `{plain}(…)`"
        self.report(node.at, f"{UNDECLARED} `{name}`", hint)
        return ERROR

    def declared_type(self, name: str) -> Type | None:
        return self.environment.variables.get(name) or self.environment.type_names.get(name)

    def select(self, node: ast.Select) -> Type:
        """Check a chain of selections; its longest prefix that is a declared name is that variable."""
        chain: list[ast.Select] = []
        root: ast.Expr = node
        while type(root) is ast.Select and not root.optional:
            chain.append(root)
            root = root.operand
        given = None
        if type(root) is ast.Ident:
            first = root.name.removeprefix(".")
            if first in self.environment.dotted and root.name not in self.locals:
                given = self.dotted_variable(first, chain)
        if given is None:
            if not chain:
                return self.field(self.check(node.operand), node.field, node.at, True)
            given = self.check(root)
        while chain:
            selection = chain.pop()
            given = self.field(given, selection.field, selection.at, False)
            self.types[selection] = given
        return given

    def dotted_variable(self, first: str, chain: list[ast.Select]) -> Type | None:
        """Return the type of the longest declared name; takes the selections that are part of it from the chain."""
        name = ".".join([first, *(selection.field for selection in reversed(chain))])
        for place, selection in enumerate(chain):
            declared = self.declared_type(name)
            if declared is not None:
                self.types[selection] = declared
                del chain[place:]
                return declared
            name = name[: -len(selection.field) - 1]
        return None

    def field(self, operand: Type, field: str, at: int, optional: bool) -> Type:
        operand = self.with_known_variables(operand)
        if operand.name == "optional_type":
            operand = operand.params[0]
            optional = True
        result = DYN
        if operand.name == "map":
            result = operand.params[1]
        elif type(operand) is ObjectType:
            result = field_type(operand, field) or ERROR
            if result is ERROR:
                spelled = escape(field)
                is_field = spelled in operand.fields
                hint = f"write `{spelled}`" if is_field else did_you_mean(field, operand.fields)
                self.report(at, f"no field `{field}` in {operand.name}", hint)
        elif type(operand) is TypeParam:
            self.assign(DYN, operand)
        elif operand.name not in ("dyn", "error"):
            self.report(at, f"expected a map or an object to select `{field}` from, found {operand}")
        result = self.with_known_variables(result)
        return optional_of(result) if optional else result

    def has(self, node: ast.Has) -> Type:
        self.field(self.check(node.operand), node.field, node.at, False)
        return BOOL

    def call(self, node: ast.Call) -> Type:
        args = [self.check(arg) for arg in node.args]
        function = node.function
        if node.target is None:
            if function in ast.LOGICAL:
                for arg, given in zip(node.args, args, strict=True):
                    self.expect(BOOL, given, arg)
                return BOOL
            declared = self.environment.lookup(function)
            if declared is None:
                return self.report_undeclared(node)
            return self.resolve(node, declared, declared.plain, args)
        prefix = ast.dotted_name(node.target)
        if prefix is not None:
            declared = self.environment.lookup(f"{prefix}.{function}")
            if declared is not None:
                return self.resolve(node, declared, declared.plain, args)
        before = len(self.problems)
        target = self.check(node.target)
        declared = self.environment.lookup(function)
        if declared is not None:
            return self.resolve(node, declared, declared.members, [target, *args])
        if prefix is not None and len(self.problems) > before:
            # `math.greatest(…)`: the function is what is missing, not a variable `math`.
            hint = unknown_function(f"{prefix}.{function}", self.environment)
            if hint is not None:
                del self.problems[before:]
                self.report(node.at, f"undeclared function `{prefix}.{function}`", hint)
                return ERROR
        # One mistake gives one problem: the target is wrong already.
        return ERROR if target is ERROR else self.report_undeclared(node)

    def report_undeclared(self, node: ast.Call) -> Type:
        hint = unknown_function(node.function.removeprefix("."), self.environment)
        self.report(node.at, f"undeclared function `{node.function}`", hint)
        return ERROR

    def expect(self, wanted: Type, given: Type, node: ast.Expr) -> None:
        if not self.assign(given, wanted):
            self.report(node.at, f"expected {wanted}, found {self.without_variables(given)}")

    def resolve(self, node: ast.Expr, function: Function, candidates: tuple[Overload, ...], args: list[Type]) -> Type:
        result = self.apply(function, candidates, tuple(args))
        if result is None:
            message, hint = no_overload(function, candidates, tuple(map(self.without_variables, args)))
            self.report(node.at, message, hint)
            return ERROR
        return result

    def list_literal(self, node: ast.ListExpr) -> Type:
        joined: Type | None = None
        for place, element in enumerate(node.elements):
            given = self.check(element)
            if place in node.optional:
                given = self.unwrap_optional(given, element)
            joined = self.join(joined, given)
        return list_of(self.new_variable() if joined is None else joined)

    def map_literal(self, node: ast.MapExpr) -> Type:
        keys: Type | None = None
        values: Type | None = None
        for entry in node.entries:
            keys = self.join(keys, self.check(entry.key))
            given = self.check(entry.value)
            if entry.optional:
                given = self.unwrap_optional(given, entry.value)
            values = self.join(values, given)
        if keys is None or values is None:
            keys, values = self.new_variable(), self.new_variable()
        return self.check_size(map_of(keys, values), node)

    def check_size(self, given: Type, node: ast.Expr) -> Type:
        """Return `given`, or report that it is too large; only maps can double the size of a type."""
        if is_oversized(given):
            self.report(node.at, "type too large: expected fewer nested maps")
            return ERROR
        return given

    def unwrap_optional(self, given: Type, node: ast.Expr) -> Type:
        if given.name == "optional_type":
            return given.params[0]
        if given.name != "dyn":
            self.report(
                node.at,
                f"expected optional_type({self.without_variables(given)}), found {self.without_variables(given)}",
            )
        return given

    def join(self, before: Type | None, given: Type) -> Type:
        """Return the type of both; dyn where they do not fit, which `validators` refuses outside of `format`."""
        if before is None or before is given:
            return given
        return most_general(before, given) if self.assign(before, given) else DYN

    def message(self, node: ast.MessageExpr) -> Type:
        for entry in node.entries:
            self.check(entry.value)
        self.report(node.at, f"undeclared message type `{node.type_name}`")
        return ERROR

    def comprehension(self, node: ast.Comprehension) -> Type:
        target = self.check(node.target)
        first, second = self.element_types(node.target, target, len(node.variables))
        outer = self.locals
        self.locals = {**outer, node.variables[0]: first}
        if len(node.variables) == 2:
            self.locals[node.variables[1]] = second
        given = [self.check(arg) for arg in node.args]
        self.locals = outer
        macro = node.macro
        if macro in ("filter", "transformMap"):
            first = self.read_back(node.variables[0], first, node.at)
        if macro in ("all", "exists", "exists_one", "existsOne", "filter"):
            self.expect(BOOL, given[0], node.args[0])
            return list_of(self.with_known_variables(first)) if macro == "filter" else BOOL
        if macro == "sortBy":
            sort = self.environment.functions["@sortByAssociatedKeys"]
            return self.resolve(node, sort, sort.members, [target, list_of(given[0])])
        if len(given) == 2:
            self.expect(BOOL, given[0], node.args[0])
        value = given[-1]
        if macro == "transformMap":
            return self.check_size(map_of(self.with_known_variables(first), self.with_known_variables(value)), node)
        if macro == "transformMapEntry":
            entry = map_of(self.new_variable(), self.new_variable())
            if not self.assign(value, entry):
                self.report(node.args[-1].at, f"expected a map with one entry, found {self.without_variables(value)}")
            return self.with_known_variables(entry)
        return list_of(self.with_known_variables(value))

    def read_back(self, name: str, given: Type, at: int) -> Type:
        """Return the type of a macro's variable as cel-go's expansion reads it: there `.v` is a declared variable."""
        if not name.startswith("."):
            return given
        declared = self.declared_type(name[1:])
        if declared is None:
            self.report(at, f"{UNDECLARED} `{name}`")
        return declared or ERROR

    def element_types(self, target: ast.Expr, given: Type, variables: int) -> tuple[Type, Type]:
        """Return the types of the iteration variables over `target`, which has type `given`."""
        given = self.with_known_variables(given)
        if given.name == "list":
            return (given.params[0], DYN) if variables == 1 else (INT, given.params[0])
        if given.name == "map":
            return given.params[0], given.params[1]
        if type(given) is TypeParam:
            self.assign(DYN, given)
        elif given.name not in ("dyn", "error"):
            self.report(target.at, f"expected a list or a map to iterate over, found {self.without_variables(given)}")
            return ERROR, ERROR
        return DYN, DYN

    def bind(self, node: ast.Bind) -> Type:
        given = self.check(node.value)
        if node.macro != "bind":
            inner = self.new_variable()
            if not self.assign(given, optional_of(inner)):
                self.report(node.value.at, f"expected an optional value, found {self.without_variables(given)}")
            given = self.with_known_variables(inner)
        self.read_back(node.variable, given, node.at)
        outer = self.locals
        self.locals = {**outer, node.variable: given}
        body = self.check(node.body)
        self.locals = outer
        if node.macro == "bind":
            return body
        if node.macro == "optMap":
            return optional_of(self.with_known_variables(body))
        conditional = self.environment.functions["_?_:_"]
        return self.resolve(node, conditional, conditional.plain, [BOOL, body, optional_of(self.new_variable())])


_RULES: dict[type, Callable[[_Checker, Any], Type]] = {
    ast.Literal: _Checker.literal,
    ast.Ident: _Checker.ident,
    ast.Select: _Checker.select,
    ast.Has: _Checker.has,
    ast.Call: _Checker.call,
    ast.ListExpr: _Checker.list_literal,
    ast.MapExpr: _Checker.map_literal,
    ast.MessageExpr: _Checker.message,
    ast.Comprehension: _Checker.comprehension,
    ast.Bind: _Checker.bind,
}

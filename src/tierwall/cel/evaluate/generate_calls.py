"""Calls and operators on the fast path; see `generate`. All other functions are called through the table."""

from __future__ import annotations

from tierwall.cel.errors import EvaluationError
from tierwall.cel.evaluate.dispatch import Dispatcher, find_dispatcher
from tierwall.cel.evaluate.generate import _MAX_EXACT, CodeGenerator, PythonExpression, UnsupportedTree
from tierwall.cel.library.optionals import LAZY
from tierwall.cel.library.regex import pattern_size, searcher
from tierwall.cel.syntax import ast
from tierwall.cel.syntax.ast import is_constant

_ORDER = {"_<_": "<", "_<=_": "<=", "_>_": ">", "_>=_": ">="}
_PREFIXES = {"startsWith": "startswith", "endsWith": "endswith"}
# Tuples longer than this are looked up by hash.
_LONG = 8
_CERTAIN = frozenset(("bool", "int", "string", "list", "map", "double", "bytes", "optional_type"))


def generate(generator: CodeGenerator, node: ast.Call) -> PythonExpression:
    """Emit a call; return the expression of its value."""
    function, args = generator.environment.resolve_call(node)
    if function in ast.LOGICAL:
        return _logical(generator, args, settling=function == "_||_")
    if function == ast.CONDITIONAL:
        return _conditional(generator, *args)
    if function == "!_":
        operand = generator.value(args[0])
        generator.fixed_cost += 1
        return PythonExpression(
            f"(not {operand.code})" if operand.kind == "bool" else f"negated({operand.code})", "bool"
        )
    if function in ("_==_", "_!=_"):
        return _equality(generator, args[0], args[1], negated=function == "_!=_")
    if function == "@in":
        return _membership(generator, *args)
    if function == "_[_]":
        return _index(generator, *args)
    if function in _ORDER and (ordered := _order(generator, function, *args)):
        return ordered
    return _special(generator, function, args) or _through_table(generator, function, args)


def _logical(generator: CodeGenerator, terms: tuple[ast.Expr, ...], settling: bool) -> PythonExpression:
    result = generator.name()
    outer, earlier = generator.depth, []
    for term in terms[:-1]:
        name = generator.name()
        with generator.block("try:"):
            generator.emit(f"{name} = {generator.value(term).code}")
        generator.emit(f"except FAILURES: {name} = None")
        generator.emit(f"if {name} is {settling}: {result} = {settling}")
        generator.emit("else:")
        generator.depth += 1
        earlier.append(f"{name} is {not settling}")
    last = generator.value(terms[-1])
    generator.emit(f"{result} = {last.code}")
    # Nothing settled it: then every term must have the other value.
    if last.kind != "bool":
        generator.emit(f"if {result} is not True and {result} is not False: raise Miss")
    generator.emit(f"if {result} is {not settling} and not ({' and '.join(earlier)}): raise Miss")
    generator.depth = outer
    return PythonExpression(result, "bool", atom=True)


def _conditional(generator: CodeGenerator, test: ast.Expr, then: ast.Expr, otherwise: ast.Expr) -> PythonExpression:
    condition = generator.named(generator.atom(generator.value(test)))
    result, kinds = generator.name(), []
    for branch, word in ((then, "if"), (otherwise, "elif")):
        with generator.block(f"{word} {condition} is {branch is then}:"):
            value = generator.value(branch)
            kinds.append(value.kind)
            generator.emit(f"{result} = {value.code}")
    generator.emit("else: raise Miss")
    return PythonExpression(result, kinds[0] if kinds[0] == kinds[1] else None, atom=True)


def _equality(generator: CodeGenerator, left: ast.Expr, right: ast.Expr, negated: bool) -> PythonExpression:
    for literal, other in ((right, left), (left, right)):
        if type(literal) is ast.Literal and _is_plain(literal.value):
            return _equals_literal(generator, generator.value(other), literal.value, negated)
    a, b = generator.atom(generator.value(left)), generator.atom(generator.value(right))
    result = generator.name()
    generator.cost_depends_on_data = True
    # A string equals only a string, in Python as in CEL.
    generator.emit(f"if type({a.code}) is str:")
    generator.emit(f" cost += len({a.code}) // 10 + 1")
    generator.emit(f" {result} = {a.code} {'!=' if negated else '=='} {b.code}")
    generator.emit("else:")
    generator.emit(f" cost += scan_shorter({a.code}, {b.code}) + 1")
    generator.emit(" if cost > limit: raise exceeded(limit)")
    generator.emit(f" {result} = equal({a.code}, {b.code}) is {not negated}")
    generator.emit("if cost > limit: raise exceeded(limit)")
    return PythonExpression(result, "bool", atom=True)


def _is_plain(value: object) -> bool:
    """Whether equality with this literal has a short form."""
    return value is None or type(value) in (str, bool) or (type(value) is int and abs(value) < _MAX_EXACT)


def _equals_literal(
    generator: CodeGenerator, other: PythonExpression, value: object, negated: bool
) -> PythonExpression:
    kind = type(value)
    sign = "!=" if negated else "=="
    if kind is str:
        generator.fixed_cost += 1 + len(value) // 10  # type: ignore[arg-type]
        return PythonExpression(f"({other.code} {sign} {value!r})", "bool")
    generator.fixed_cost += 1
    if value is None:
        return PythonExpression(f"({other.code} {sign} None)", "bool")
    if kind is int and value not in (0, 1):
        return PythonExpression(f"({other.code} {sign} {value!r})", "bool")
    # To Python, 1 is True and 0 is False.
    name = generator.named(generator.atom(other))
    exact = f"equal({name}, {value!r})"
    text = (
        f"({name} is {value!r} or {exact})"
        if kind is bool
        else f"({name} == {value!r} if type({name}) is int else {exact})"
    )
    return PythonExpression(f"(not {text})" if negated else text, "bool")


def _membership(generator: CodeGenerator, item: ast.Expr, container: ast.Expr) -> PythonExpression:
    if type(container) is ast.ListExpr and is_constant(container):
        values = [element.value for element in container.elements if type(element) is ast.Literal]
        if len(values) == len(container.elements) and all(type(value) is str for value in values):
            choices: object = frozenset(values) if len(values) > _LONG else tuple(values)
            return PythonExpression(f"({generator.value(item).code} in {generator.constant(choices)})", "bool")
    a, b = generator.atom(generator.value(item)), generator.atom(generator.value(container))
    generator.fixed_cost += 1
    generator.charge(f"length_of_second({a.code}, {b.code})")
    return PythonExpression(f"contains({a.code}, {b.code})", "bool")


def _index(generator: CodeGenerator, container: ast.Expr, key: ast.Expr) -> PythonExpression:
    operand = generator.operand(container)
    generator.fixed_cost += 1
    if operand.kind == "optional_type":
        raise UnsupportedTree
    if type(key) is ast.Literal:
        if type(key.value) is str:
            return PythonExpression(f"{generator.named(operand)}[{key.value!r}]")
        if type(key.value) is int and key.value >= 0:
            name = generator.name()
            of_list = f"{name}[{key.value!r}] if type({name} := {operand.code}) is list"
            return PythonExpression(f"({of_list} else index({name}, {key.value!r}))")
    return PythonExpression(f"index({operand.code}, {generator.value(key).code})")


def _order(generator: CodeGenerator, function: str, left: ast.Expr, right: ast.Expr) -> PythonExpression | None:
    sign = _ORDER[function]
    if type(right) is not ast.Literal or type(left) is ast.Literal:
        return None
    limit = right.value
    if type(limit) is str:
        # Python refuses to order a string and anything else.
        generator.fixed_cost += 1 + len(limit) // 10
        return PythonExpression(f"({generator.value(left).code} {sign} {limit!r})", "bool")
    if type(limit) is not int:
        return None
    operand = generator.value(left)
    generator.fixed_cost += 1
    if operand.kind == "int":
        return PythonExpression(f"({operand.code} {sign} {limit!r})", "bool")
    exact = _dispatcher(generator, function, 2).overload
    call = generator.constant(lambda value, limit: exact((value, limit)).call(value, limit))
    name = generator.atom(operand).code
    return PythonExpression(f"({name} {sign} {limit!r} if type({name}) is int else {call}({name}, {limit!r}))", "bool")


def _special(generator: CodeGenerator, function: str, args: tuple[ast.Expr, ...]) -> PythonExpression | None:
    if function == "size" and len(args) == 1:
        generator.fixed_cost += 1
        # Python measures the same four types, and refuses all others.
        return PythonExpression(f"len({generator.value(args[0]).code})", "int")
    if len(args) == 2 and type(args[1]) is ast.Literal and type(args[1].value) is str:
        return _string_test(generator, function, args[0], args[1].value)
    if function in (*LAZY, "hasValue", "value") and generator.environment.lookup(function) is not None:
        return _optional(generator, function, args)
    return None


def _string_test(generator: CodeGenerator, function: str, target: ast.Expr, part: str) -> PythonExpression | None:
    """Tests of a string against a literal: only `str` has these methods, or the others refuse a `str` argument."""
    scanned = -(-len(part) // 10)
    if function in _PREFIXES:
        generator.fixed_cost += scanned
        return PythonExpression(f"{generator.value(target).code}.{_PREFIXES[function]}({part!r})", "bool")
    if function == "contains":
        string = generator.atom(generator.value(target))
        generator.charge(f"(len({string.code}) + 9) // 10 * {scanned}")
        return PythonExpression(f"({string.code}.find({part!r}) >= 0)", "bool")
    if function == "matches":
        try:
            search = generator.constant(searcher(part))
        except EvaluationError:
            raise UnsupportedTree from None
        string = generator.atom(generator.value(target))
        generator.charge(f"(len({string.code}) + 10) // 10 * {-(-pattern_size(part) // 4)}")
        return PythonExpression(f"({search}({string.code}.encode()) is not None)", "bool")
    return None


def _optional(generator: CodeGenerator, function: str, args: tuple[ast.Expr, ...]) -> PythonExpression | None:
    operand = generator.value(args[0])
    if operand.kind != "optional_type":
        raise UnsupportedTree
    operand = generator.atom(operand)
    generator.fixed_cost += 1
    if function == "hasValue" and len(args) == 1:
        return PythonExpression(f"{operand.code}.present", "bool")
    if function == "value" and len(args) == 1:
        generator.emit(f"if not {operand.code}.present: raise Miss")
        return PythonExpression(f"{operand.code}.value")
    if function in LAZY and len(args) == 2:
        result = generator.name()
        generator.emit(f"if {operand.code}.present: {result} = {operand.code}{'' if function == 'or' else '.value'}")
        with generator.block("else:"):
            generator.emit(f"{result} = {generator.value(args[1]).code}")
        return PythonExpression(result, atom=True)
    raise UnsupportedTree


def _through_table(generator: CodeGenerator, function: str, args: tuple[ast.Expr, ...]) -> PythonExpression:
    called = _dispatcher(generator, function, len(args))
    generator.fixed_cost += 1 if function == "_[?_]" else 0
    values = [generator.value(arg).code for arg in args]
    generator.metered = True
    kinds = {overload.result.name for overload in called.overloads}
    kind = kinds.pop() if len(kinds) == 1 else None
    call = f"{generator.constant(called.invoke)}({', '.join(('meter', *values))})"
    return PythonExpression(call, kind if kind in _CERTAIN else None)


def _dispatcher(generator: CodeGenerator, function: str, count: int) -> Dispatcher:
    called = find_dispatcher(generator.environment, function, count)
    if called is None:
        raise UnsupportedTree
    return called

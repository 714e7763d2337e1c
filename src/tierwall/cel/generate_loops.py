"""Comprehensions on the fast path: loops whose cost is charged before they run; see `generate`."""

from __future__ import annotations

from tierwall.cel import ast
from tierwall.cel.generate import Generator, Unsupported, Value

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


def generate(own: Generator, node: ast.Comprehension) -> Value:
    """The value of a comprehension."""
    if node.macro not in _COSTS:
        raise Unsupported
    items = own.value(node.target)
    step, once = _COSTS[node.macro]
    own.static += once
    names = {variable: own.name("i") for variable in node.variables}
    result = own.name()
    own.dynamic = True
    name = own.name()
    if len(names) == 1:
        own.emit(f"{name} = {items.text}")
        own.emit(f"if type({name}) is not list: {name} = iterate({name})")
    else:
        own.emit(f"{name} = iterate_pairs({items.text})")
    charged = len(own.lines)
    own.emit("")
    own.emit("if k > limit: raise exceeded(limit)")
    outer, own.static = own.static, 0
    start = {"all": "True", "exists": "False", "exists_one": "0", "existsOne": "0"}.get(node.macro, "[]")
    own.emit(f"{result} = {start}")
    own.emit(f"for {', '.join(names.values())} in {name}:")
    own.depth += 1
    kind = _body(own, node, names, result)
    own.depth -= 1
    own.lines[charged] = " " * own.depth + f"k += len({name}) * {own.static + step}"
    own.static = outer
    if node.macro in ("all", "exists"):
        own.emit(f"if {result} is None: raise Miss")
    if node.macro in ("exists_one", "existsOne"):
        return Value(f"({result} == 1)", "bool")
    return Value(result, kind, atom=True)


def _body(own: Generator, node: ast.Comprehension, names: dict[str, str], result: str) -> str:
    outer = own.scope
    own.scope = outer | names
    if node.macro in ("all", "exists"):
        _quantifier(own, node.args[0], result, settling=node.macro == "exists")
        kind = "bool"
    elif node.macro in ("exists_one", "existsOne"):
        _test(own, node.args[0])
        own.emit(f"{result} += 1")
        kind = "int"
    elif node.macro == "filter":
        _test(own, node.args[0])
        own.emit(f"{result}.append({names[node.variables[-1]]})")
        kind = "list"
    else:
        for test in node.args[:-1]:
            _test(own, test)
        own.emit(f"{result}.append({own.value(node.args[-1]).text})")
        kind = "list"
    own.scope = outer
    return kind


def _quantifier(own: Generator, predicate: ast.Expr, result: str, settling: bool) -> None:
    name = own.name()
    own.emit("try:")
    own.depth += 1
    value = own.value(predicate)
    own.emit(f"{name} = {value.text}")
    own.depth -= 1
    own.emit("except FAILURES:")
    own.emit(f" {result} = None")
    own.emit(" continue")
    own.emit(f"if {name} is {settling}:")
    own.emit(f" {result} = {settling}")
    own.emit(" break")
    if value.kind != "bool":
        own.emit(f"if {name} is not {not settling}: {result} = None")


def _test(own: Generator, predicate: ast.Expr) -> None:
    value = own.value(predicate)
    if value.kind == "bool":
        own.emit(f"if not {value.text}: continue")
        return
    test = own.named(own.atom(value))
    own.emit(f"if {test} is False: continue")
    own.emit(f"if {test} is not True: raise Miss")

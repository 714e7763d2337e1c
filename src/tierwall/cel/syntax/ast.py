"""The tree of a CEL expression, macros kept as they were written (cel-spec, "Syntax" and "Macros").

Keeping `all`, `exists`, `has` and the rest unexpanded lets the printer give back what a person wrote, the partial
evaluator unroll them, and a solver see quantifiers. Operators are calls under their CEL names (`_+_`, `_[_]`), so
the checker, the evaluators and the cost model find them in the one function table.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

import msgspec


class ExprNode(msgspec.Struct, frozen=True, eq=False, gc=False):
    """The base of all nodes. `at` is the offset of its text in the source, in code points (-1: made, not written).

    A node is equal only to itself, so that tables keyed by node distinguish nodes that look the same.
    """


class Literal(ExprNode, frozen=True, gc=False, tag=True):
    """null, bool, int, uint (`values.Uint`), double, string or bytes, as the Python value that stands for it."""

    value: object
    at: int = -1


class Ident(ExprNode, frozen=True, gc=False, tag=True):
    """A name; a leading dot (`.name`, root scope) is kept in the name."""

    name: str
    at: int = -1


class Select(ExprNode, frozen=True, gc=False, tag=True):
    """`operand.field`, or `operand.?field` if optional. `at` is the place of the field's name."""

    operand: Expr
    field: str
    optional: bool = False
    at: int = -1


class Has(ExprNode, frozen=True, gc=False, tag=True):
    """`has(operand.field)`."""

    operand: Expr
    field: str
    at: int = -1


class Call(ExprNode, frozen=True, gc=False, tag=True):
    """`function(args)`, `target.function(args)`, or an operator.

    Operator names: `!_` `-_` `_+_` `_-_` `_*_` `_/_` `_%_` `_==_` `_!=_` `_<_` `_<=_` `_>_` `_>=_` `@in` `_[_]` `_[?_]`
    `_&&_` `_||_` `_?_:_`. `&&` and `||` chains are flat: one call with two or more arguments. A qualified function
    (`ip.isCanonical(x)`, `optional.of(x)`, `math.greatest(…)`) is parsed as a member call on an identifier; the reader
    of the tree asks the function table whether the dotted name is a function.
    """

    function: str
    target: Expr | None
    args: tuple[Expr, ...]
    at: int = -1


class ListExpr(ExprNode, frozen=True, gc=False, tag=True):
    """`[a, ?b]`; `optional` holds the indices of the elements marked `?`."""

    elements: tuple[Expr, ...]
    optional: tuple[int, ...] = ()
    at: int = -1


class MapEntry(msgspec.Struct, frozen=True, eq=False, gc=False):
    """One `key: value` or `?key: value` of a map, or `field: value` of a message (the field's name as a Literal)."""

    key: Expr
    value: Expr
    optional: bool = False


class MapExpr(ExprNode, frozen=True, gc=False, tag=True):
    """`{k: v}`."""

    entries: tuple[MapEntry, ...]
    at: int = -1


class MessageExpr(ExprNode, frozen=True, gc=False, tag=True):
    """`type.name{field: value}`. Kubernetes declares no message types; kept so that an error can name it."""

    type_name: str
    entries: tuple[MapEntry, ...]
    at: int = -1


class Comprehension(ExprNode, frozen=True, gc=False, tag=True):
    """A comprehension macro: `target.macro(variables…, args…)`.

    macro: `all`, `exists`, `exists_one` (also spelt `existsOne`), `map` (1 or 2 args), `filter`, `transformList`,
    `transformMap`, `transformMapEntry`; one or two iteration variables; `args` are the predicate and transform
    expressions in source order.
    """

    macro: str
    target: Expr
    variables: tuple[str, ...]
    args: tuple[Expr, ...]
    at: int = -1


class Bind(ExprNode, frozen=True, gc=False, tag=True):
    """A scoped binding macro: `cel.bind(name, value, body)`, `target.optMap(name, body)`, `target.optFlatMap(…)`.

    macro: `bind`, `optMap`, `optFlatMap`; `value` is the bound expression (the target for the optional macros).
    """

    macro: str
    variable: str
    value: Expr
    body: Expr
    at: int = -1


Expr: TypeAlias = Literal | Ident | Select | Has | Call | ListExpr | MapExpr | MessageExpr | Comprehension | Bind


def operands(node: Expr) -> tuple[Expr, ...]:
    """Return the expressions inside a node that see its scope, in source order: all but the body of a binder."""
    match node:
        case Call(target=target, args=args):
            return args if target is None else (target, *args)
        case Select(operand=operand) | Has(operand=operand):
            return (operand,)
        case ListExpr(elements=elements):
            return elements
        case MapExpr(entries=entries) | MessageExpr(entries=entries):
            return tuple(part for entry in entries for part in (entry.key, entry.value))
        case Comprehension(target=target):
            return (target,)
        case Bind(value=value):
            return (value,)
        case _:
            return ()


def bound_bodies(node: Expr) -> tuple[tuple[str, ...], tuple[Expr, ...]]:
    """Return the variables a node binds and the expressions that see them."""
    match node:
        case Comprehension(variables=variables, args=args):
            return variables, args
        case Bind(variable=variable, body=body):
            return (variable,), (body,)
        case _:
            return (), ()


def children(node: Expr) -> tuple[Expr, ...]:
    """Return the expressions directly inside a node, in source order."""
    binds = type(node) is Comprehension or type(node) is Bind
    return (*operands(node), *bound_bodies(node)[1]) if binds else operands(node)


def names(node: Expr) -> Iterator[str]:
    """Yield every name in an expression, bound ones included; one of the root scope without its dot."""
    waiting = [node]
    while waiting:
        inner = waiting.pop()
        if isinstance(inner, Ident):
            yield inner.name.removeprefix(".")
        waiting += children(inner)


# How tightly operators bind, loosest first; `?:` alone is looser.
OR, AND, RELATION, SUM, PRODUCT = 1, 2, 3, 4, 5
BINARY = {
    "||": OR,
    "&&": AND,
    "+": SUM,
    "-": SUM,
    "*": PRODUCT,
    "/": PRODUCT,
    "%": PRODUCT,
    **dict.fromkeys(("<", "<=", ">=", ">", "==", "!=", "in"), RELATION),
}
# The functions of the binary operators.
FUNCTIONS = {text: "@in" if text == "in" else f"_{text}_" for text in BINARY}
LOGICAL = ("_&&_", "_||_")
INDEX = ("_[_]", "_[?_]")
CONDITIONAL = "_?_:_"


def dotted_name(node: Expr) -> str | None:
    """`a.b.c` if the node is nothing but names and selections."""
    fields: list[str] = []
    while type(node) is Select and not node.optional:
        fields.append(node.field)
        node = node.operand
    if type(node) is not Ident:
        return None
    return ".".join((node.name, *reversed(fields)))


def is_attribute(node: Expr) -> bool:
    """Whether cel-go resolves the node as one attribute: a name and the selections from it."""
    while True:
        match node:
            case Ident():
                return True
            case Select():
                node = node.operand
            case Call(function=function) if function in INDEX:
                node = node.args[0]
            case _:
                return False


def is_selection(node: Expr) -> bool:
    """Whether the node is a name or something selected."""
    return isinstance(node, Ident | Select) or (isinstance(node, Call) and node.function in (*INDEX, CONDITIONAL))


def is_constant(node: Expr) -> bool:
    """Whether Kubernetes folds the node into a constant: literals, and lists and maps of nothing else."""
    match node:
        case Literal():
            return True
        case ListExpr():
            return not node.optional and all(map(is_constant, node.elements))
        case MapExpr():
            return all(
                not entry.optional and is_constant(entry.key) and is_constant(entry.value) for entry in node.entries
            )
    return False


def path_of(node: Expr, optional: bool = False) -> tuple[str, ...] | None:
    """Return the names from a variable down to a value: `a.b`, `a["b"]`; None if it is anything else.

    With `optional`, parts may be optional: `a.?b`, `a[?"b"]`.
    """
    names: list[str] = []
    while True:
        if type(node) is Ident:
            return (node.name.removeprefix("."), *reversed(names))
        if type(node) is Select and (optional or not node.optional):
            names.append(node.field)
            node = node.operand
        elif type(node) is Call and node.function in (INDEX if optional else INDEX[:1]):
            key = node.args[1]
            if type(key) is not Literal or not isinstance(key.value, str):
                return None
            names.append(key.value)
            node = node.args[0]
        else:
            return None

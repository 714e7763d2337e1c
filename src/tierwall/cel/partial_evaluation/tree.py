"""Operations on trees: their parts, rebuilding, renaming, depth, and the length of their text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tierwall.cel.library import FUNCTIONS
from tierwall.cel.syntax import ast
from tierwall.cel.syntax.ast import (
    Bind,
    Call,
    Comprehension,
    Expr,
    Has,
    Ident,
    ListExpr,
    Literal,
    MapEntry,
    MapExpr,
    MessageExpr,
    Select,
    bound_bodies,
    dotted_name,
)

# Functions with a dotted name: their namespace is parsed as the target of a member call, but is not a value.
QUALIFIED = frozenset(function for function in FUNCTIONS if "." in function)


def qualified_name(node: Call) -> str | None:
    """Return the dotted name of the function that a call names in full (`optional.of`), or None."""
    path = None if node.target is None else dotted_name(node.target)
    if path is None:
        return None
    name = f"{path.removeprefix('.')}.{node.function}"
    return name if name in QUALIFIED else None


def operands(node: Expr) -> tuple[Expr, ...]:
    """Return the parts of a node that are evaluated in its own scope: not the `optional` of `optional.of(x)`."""
    if type(node) is Call and node.target is not None and qualified_name(node) is not None:
        return node.args
    return ast.operands(node)


def with_operands(node: Expr, parts: Sequence[Expr], inner: Sequence[Expr] = ()) -> Expr:
    """Return the node with other operands, and other bodies if it is a binder."""
    match node:
        case Call(function=function, target=target, args=args, at=at):
            if len(parts) == len(args):
                return Call(function, target, tuple(parts), at)
            return Call(function, parts[0], tuple(parts[1:]), at)
        case Select(field=field, optional=optional, at=at):
            return Select(parts[0], field, optional, at)
        case Has(field=field, at=at):
            return Has(parts[0], field, at)
        case ListExpr(optional=marks, at=at):
            return ListExpr(tuple(parts), marks, at)
        case MapExpr(entries=entries, at=at):
            return MapExpr(_entries(entries, parts), at)
        case MessageExpr(type_name=type_name, entries=entries, at=at):
            return MessageExpr(type_name, _entries(entries, parts), at)
        case Comprehension(macro=macro, variables=variables, args=args, at=at):
            return Comprehension(macro, parts[0], variables, tuple(inner) or args, at)
        case Bind(macro=macro, variable=variable, body=body, at=at):
            return Bind(macro, variable, parts[0], inner[0] if inner else body, at)
        case _:
            return node


def _entries(entries: tuple[MapEntry, ...], parts: Sequence[Expr]) -> tuple[MapEntry, ...]:
    return tuple(MapEntry(parts[2 * i], parts[2 * i + 1], entry.optional) for i, entry in enumerate(entries))


def with_names(node: Expr, names: Mapping[str, str]) -> Expr:
    """Return the node with its free names replaced; a name that is bound again further in is left alone there."""
    if not names:
        return node
    if type(node) is Ident:
        name = names.get(node.name)
        return node if name is None else Ident(name, node.at)
    parts = operands(node)
    if not parts:
        return node
    variables, inner = bound_bodies(node)
    # Loops instead of comprehensions: each would be one more frame for every level of the tree.
    outer: list[Expr] = []
    for part in parts:
        outer.append(with_names(part, names))  # noqa: PERF401
    if not variables:
        return with_operands(node, outer)
    narrowed = {name: new for name, new in names.items() if name not in variables}
    within: list[Expr] = []
    for part in inner:
        within.append(with_names(part, narrowed))  # noqa: PERF401
    return with_operands(node, outer, within)


def depth(node: Expr) -> int:
    """Return the number of levels of the tree."""
    deepest = 0
    todo = [(node, 1)]
    while todo:
        node, level = todo.pop()
        deepest = max(deepest, level)
        todo += [(part, level + 1) for part in (*operands(node), *bound_bodies(node)[1])]
    return deepest


# Characters that a node adds to the text of its parts; near enough to bound growth and to compare two spellings.
_NODE = 3


def node_length(node: Expr) -> int:
    """Return about how many characters the node prints as, without its parts."""
    match node:
        case Literal(value=value):
            return 2 + len(value) if isinstance(value, str | bytes) else 4
        case Ident(name=name):
            return len(name)
        case Call(function=function, args=args):
            # Operators are called `_==_`, and the like.
            return _NODE + len(function) + 2 * len(args) if function[0].isalpha() else 4 * max(1, len(args) - 1)
        case Select(field=field):
            return 1 + len(field)
        case Has(field=field):
            return 6 + len(field)
        case Comprehension(macro=macro, variables=variables):
            return _NODE + len(macro) + sum(map(len, variables))
        case Bind(macro=macro, variable=variable):
            return _NODE + len(macro) + len(variable)
        case _:
            return _NODE + 2 * len(operands(node))


def length(node: Expr) -> int:
    """Return about how many characters the tree prints as."""
    total = 0
    todo = [node]
    while todo:
        node = todo.pop()
        total += node_length(node)
        todo += operands(node)
        todo += bound_bodies(node)[1]
    return total

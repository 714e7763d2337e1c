"""Conditions of settings: expressions, split where they are about the client's address.

Envoy's expressions know no address without its port, but its matchers compare addresses with blocks. So `&&`, `||` and
`!` around such a comparison become matchers, and everything else stays an expression. A condition is true exactly where
the expression is: an expression that fails is neither true nor false, and its negation is not true either.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache, partial
from typing import NamedTuple, TypeAlias

from tierwall.cel.syntax import ast
from tierwall.engines.envoy.config.cel_expression import call
from tierwall.engines.envoy.config.settings.expressions import ItemKind, parsed, translated_item, translated_tree
from tierwall.engines.envoy.config.settings.unenforceable import Unenforceable
from tierwall.values.addresses import read_cidr, read_ip

_ADDRESSES = ("address", "rawAddress")
# Protobuf reads at most 100 levels of messages, and each of these takes three.
_DEEPEST = 16
_PREFIX = re.compile(r"(?:(?:0|[1-9][0-9]{0,2})\.){1,3}", re.ASCII)


class AddressCondition(NamedTuple):
    """A comparison of the client's address: it is in one of the blocks, or in none of them.

    `raw` is the address of the connection, whatever a PROXY header says.
    """

    blocks: tuple[tuple[str, int], ...]
    raw: bool = False
    negated: bool = False


class ConditionList(NamedTuple):
    """Conditions that all hold, or of which one holds."""

    parts: tuple[Condition, ...]
    all_hold: bool


Condition: TypeAlias = AddressCondition | ConditionList | ast.Expr
Translate: TypeAlias = Callable[[ast.Expr], ast.Expr | str]


def setting_condition(text: str, *path: str | int) -> Condition:
    """Return the condition of an expression about a request."""
    return _raised(_of_request(text), path)


def item_condition(text: str, item: ItemKind, method: str, target: str, *path: str | int) -> Condition:
    """Return the condition of an expression about a message that uses an item (`expressions.translated_item`)."""
    return _raised(_of_item(text, item, method, target), path)


def network_condition(text: str, *path: str | int) -> Condition:
    """Return the condition of an expression about a connection, which may use nothing but the client's address."""
    return _raised(_tried(text, _of_connection), path)


def entry_condition(text: str, *path: str | int) -> Condition:
    """Return the condition of an entry of a conditional list; what chooses there does not know the connection."""
    condition = setting_condition(text, *path)
    if isinstance(condition, AddressCondition | ConditionList):
        raise Unenforceable("Envoy does not know `source.address` where it chooses an entry", *path)
    return condition


def _raised(condition: Condition | str, path: tuple[str | int, ...]) -> Condition:
    if isinstance(condition, str):
        raise Unenforceable(condition, *path)
    return condition


@lru_cache(maxsize=4096)
def _of_request(text: str) -> Condition | str:
    return _tried(text, translated_tree)


@lru_cache(maxsize=4096)
def _of_item(text: str, item: ItemKind, method: str, target: str) -> Condition | str:
    return _tried(text, partial(translated_item, item, method, target))


def _tried(text: str, translate: Translate) -> Condition | str:
    try:
        return _condition(parsed(text), False, translate, 0)
    except Unenforceable as error:
        return str(error)


def _of_connection(tree: ast.Expr) -> ast.Expr | str:
    if isinstance(tree, ast.Literal) and isinstance(tree.value, bool):
        return tree
    return "Envoy knows only `source.address` and `source.rawAddress` of a connection"


def _condition(tree: ast.Expr, negated: bool, translate: Translate, depth: int) -> Condition:
    address = _address_condition(tree)
    if address is not None:
        return address._replace(negated=address.negated != negated)
    if not _reads_address(tree):
        leaf = translate(call("!_", tree) if negated and not isinstance(tree, ast.Literal) else tree)
        if isinstance(leaf, str):
            raise Unenforceable(leaf)
        if negated and isinstance(leaf, ast.Literal):
            return ast.Literal(leaf.value is False)
        return leaf
    if depth > _DEEPEST:
        raise Unenforceable(f"the expression is more than {_DEEPEST} levels deep around the client's address")
    match tree:
        case ast.Call(function="!_", args=(operand,)):
            return _condition(operand, not negated, translate, depth + 1)
        case ast.Call(function="_&&_" | "_||_" as operator, args=operands):
            parts = tuple(_condition(operand, negated, translate, depth + 1) for operand in operands)
            return ConditionList(parts, (operator == "_&&_") != negated)
    words = "Envoy compares `source.address` only with addresses, and by `cidr(…).containsIP(source.address)`"
    raise Unenforceable(words)


def _address_condition(tree: ast.Expr) -> AddressCondition | None:
    match tree:
        case ast.Call(function="_==_" | "_!=_" as operator, args=(left, right)):
            field, other = (_field(left), right) if _field(left) else (_field(right), left)
            if field and isinstance(other, ast.Literal) and isinstance(other.value, str):
                return AddressCondition(_exactly(other.value), field == "rawAddress", operator == "_!=_")
        case ast.Call(function="@in", args=(inside, ast.ListExpr(elements=elements, optional=()))) if _field(inside):
            texts = [item.value for item in elements if isinstance(item, ast.Literal) and isinstance(item.value, str)]
            if len(texts) == len(elements):
                blocks = tuple(block for text in texts for block in _exactly(text))
                return AddressCondition(blocks, _field(inside) == "rawAddress")
        case ast.Call(
            function="containsIP",
            target=ast.Call(function="cidr", target=None, args=(ast.Literal(value=str() as text),)),
            args=(inside,),
        ):
            match inside:
                case ast.Call(function="ip", target=None, args=(operand,)):
                    inside = operand
            block = read_cidr(text)
            if block is not None and (field := _field(inside)):
                return AddressCondition(((str(block[0]), block[1]),), field == "rawAddress")
        case ast.Call(function="startsWith", target=target, args=(ast.Literal(value=str() as text),)):
            field = _field(target) if target is not None else ""
            if field and _PREFIX.fullmatch(text) and all(int(part) < 256 for part in text.split(".")[:-1]):
                count = text.count(".")
                return AddressCondition(((text + ".".join("0" * (4 - count)), 8 * count),), field == "rawAddress")
    return None


def _exactly(text: str) -> tuple[tuple[str, int], ...]:
    """Return the block of one address; none if the text is not how an address is written."""
    ip = read_ip(text)
    return ((text, ip.max_prefixlen),) if ip is not None and str(ip) == text else ()


def _field(tree: ast.Expr) -> str:
    """Return the field of `source` that an expression is, if it is an address."""
    path = ast.path_of(tree)
    return path[1] if path is not None and len(path) == 2 and path[0] == "source" and path[1] in _ADDRESSES else ""


def _reads_address(tree: ast.Expr) -> bool:
    return bool(_field(tree)) or any(map(_reads_address, ast.operands(tree)))

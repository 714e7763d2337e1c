"""The meaning of an expression's string constants, and its tests on names (docs/clusters.md#redact).

Values that an expression compares belong to one class: `request.namespace == "shop"` says that `shop` is a namespace,
and `["a", "b"].exists(n, n == request.namespace)` says so of `a` and `b`. A constant of a class of names is replaced. A
constant that is compared with nothing known is replaced if it equals a name that is replaced.

Stand-ins keep equality, order, and the separators between the parts of a name. Everything else that an expression can
ask about a string looks inside: `startsWith("te")` is a `NameCheck`, which can be tried on every name, and after
`size` or `substring` nothing is known (`is_opaque`).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping
from typing import TypeAlias

from tierwall.cel.errors import ParseError
from tierwall.cel.syntax import ast
from tierwall.cel.syntax.lexer import tokenize
from tierwall.cel.syntax.parser import parse
from tierwall.redact.fields import TextType
from tierwall.redact.strings import LOWER, NAMES, NameCheck, StringClass, keeps_parts
from tierwall.redact.variables import ARGUMENTS, LABELS, LISTS, MAPS, PATHS
from tierwall.redact.words import is_separator
from tierwall.values.pattern import pattern

_Scope: TypeAlias = Mapping[str, StringClass]

_CHECKS = ("startsWith", "endsWith", "contains", "matches")
_SAME = frozenset(("string", "dyn", LOWER, "trim", "value", "of", "ofNonZeroValue", "hasValue"))
_COMPARISONS = frozenset(("_==_", "_!=_", "_<_", "_<=_", "_>_", "_>=_"))
# They give a list of the same values, or one of them.
_OF_LISTS = frozenset(("distinct", "sort", "slice", "reverse", "first", "last"))
_COMMENT = pattern(r"//[^\n]*")
_PARTS = ("/", ":", ".")
# Headers that are not as the others.
_HEADERS = {"host": TextType.HOST, "content-type": TextType.KEPT, "accept": TextType.KEPT}


class ExpressionAnalysis:
    """The classes of one expression. One that does not parse, or is nested very deeply, has none and `is_broken`."""

    def __init__(self, text: str) -> None:
        self.text = text
        self._classes: list[StringClass] = []
        # Names of labels that stand as fields: `object.metadata.labels.team`.
        self.fields: dict[int, str] = {}
        self.is_broken = False
        # Values that are parts of others, or made of them.
        self._derived: list[tuple[StringClass, StringClass]] = []
        try:
            self._visit(parse(text), {})
            self._settle()
        except (ParseError, RecursionError):
            self._classes = []
            self.is_broken = True

    @property
    def classes(self) -> Iterator[StringClass]:
        """All classes, each once."""
        return iter({id(member.root): member.root for member in self._classes}.values())

    @property
    def checks(self) -> Iterator[NameCheck]:
        """All tests that look inside names."""
        for values in self.classes:
            types = frozenset(values.types & NAMES)
            for function, constant, at in values.checks if types else ():
                yield NameCheck(function, constant, types, at)

    def rewrite(self, changes: Mapping[int, str]) -> str:
        """Return the text with other tokens at some offsets, and without comments."""
        tokens = tokenize(self.text)
        parts: list[str] = []
        end = 0
        for start, text in zip(tokens.starts, tokens.texts, strict=True):
            parts += (_COMMENT.sub("", self.text[end:start]), changes.get(start, text))
            end = start + len(text)
        return "".join((*parts, _COMMENT.sub("", self.text[end:])))

    def _settle(self) -> None:
        """Let values know what those are that they come from, and these what is done with them."""
        for _ in range(len(self._derived) + 1):
            before = [(len(member.root.types), member.root.is_opaque) for pair in self._derived for member in pair]
            for source, derived in self._derived:
                origin, result = source.root, derived.root
                result.types |= origin.types & NAMES
                if result.is_composed and any(not keeps_parts(check[0], check[1]) for check in result.checks):
                    result.is_opaque = True
                origin.is_opaque |= result.is_opaque
                # A constant is what the others are that it is joined with.
                if origin.constants and not origin.types & NAMES:
                    origin.types |= result.types & NAMES
            after = [(len(member.root.types), member.root.is_opaque) for pair in self._derived for member in pair]
            if after == before:
                break

    def _new(self, *types: TextType) -> StringClass:
        self._classes.append(StringClass(*types))
        return self._classes[-1]

    def _of(self, values: StringClass) -> StringClass:
        self._classes.append(values)
        return values

    def _visit(self, node: ast.Expr, scope: _Scope) -> StringClass:
        match node:
            case ast.Literal(value=str() as text, at=at):
                constant = self._new()
                constant.constants[at] = text
                return constant
            case ast.Ident(name=name) if name in scope:
                return scope[name]
            case ast.Select() | ast.Has():
                return self._selected(node, scope)
            case ast.Call():
                return self._call(node, scope)
            case ast.ListExpr(elements=elements):
                whole = self._new()
                for element in elements:
                    self._of(whole.inner).join(self._visit(element, scope))
                return whole
            case ast.MapExpr(entries=entries):
                whole = self._new()
                whole.is_map = True
                for entry in entries:
                    self._of(whole.keys).join(self._visit(entry.key, scope))
                    self._of(whole.inner).join(self._visit(entry.value, scope))
                return whole
            case ast.Comprehension():
                return self._comprehension(node, scope)
            case ast.Bind(variable=variable, value=value, body=body):
                return self._visit(body, {**scope, variable: self._visit(value, scope)})
        for child in ast.children(node):
            self._visit(child, scope)
        return self._new()

    def _selected(self, node: ast.Select | ast.Has, scope: _Scope) -> StringClass:
        operand = self._visit(node.operand, scope)
        if TextType.LABEL_KEY in operand.keys.types:
            self.fields[node.at if isinstance(node, ast.Select) else self._field_of_has(node.at)] = node.field
            return self._of(operand.inner) if isinstance(node, ast.Select) else self._new()
        if isinstance(node, ast.Has):
            return self._new()
        path = ast.path_of(node, optional=True)
        if path is not None and path[0] not in scope:
            return self._at_path(path)
        return self._new(*(operand.root.types & {TextType.KEPT}))

    def _field_of_has(self, at: int) -> int:
        """Return the offset of the field of a `has` at an offset: of the token before its closing parenthesis."""
        tokens = tokenize(self.text)
        first = bisect_left(tokens.starts, at) + 1
        depth = 0
        for place in range(first, len(tokens.kinds)):
            depth += {"(": 1, ")": -1}.get(tokens.kinds[place], 0)
            if depth == 0:
                return tokens.starts[place - 1]
        return -1

    def _at_path(self, path: tuple[str, ...]) -> StringClass:
        if path in LABELS:
            labels = self._new()
            labels.is_map = True
            self._of(labels.keys).types.add(TextType.LABEL_KEY)
            self._of(labels.inner).types.add(TextType.LABEL_VALUE)
            return labels
        if path in MAPS:
            values = self._new()
            values.is_map = True
            self._of(values.keys).types.add(TextType.KEPT)
            self._of(values.inner).types.add(MAPS[path])
            return values
        if path[:-1] in MAPS:
            return self._new(_HEADERS.get(path[-1], MAPS[path[:-1]]))
        if path in LISTS:
            members = self._new()
            self._of(members.inner).types.add(LISTS[path])
            return members
        for length in range(len(path), 0, -1):
            known = PATHS.get(path[:length])
            if known is not None and (length == len(path) or known is TextType.KEPT):
                return self._new(known)
        return self._new()

    def _call(self, node: ast.Call, scope: _Scope) -> StringClass:
        function, args = node.function, node.args
        if function in ast.INDEX:
            return self._index(node, scope)
        if function in _COMPARISONS and (asked := _asked_if_empty(node)) is not None:
            self._visit(asked, scope)
            return self._new()
        if function in _COMPARISONS or function == ast.CONDITIONAL:
            first, second = (self._visit(arg, scope) for arg in args[-2:])
            if function == ast.CONDITIONAL:
                self._visit(args[0], scope)
            first.join(second)
            return first.root if function == ast.CONDITIONAL else self._new()
        if function == "@in":
            item, container = (self._visit(arg, scope) for arg in args)
            self._of(container.keys if container.root.is_map else container.inner).join(item)
            return self._new()
        if function == "_+_":
            return self._sum(node, scope)
        values = [self._visit(arg, scope) for arg in ((node.target,) if node.target is not None else ()) + args]
        if function in ("_&&_", "_||_", "!_") or not values:
            return self._new()
        return self._function(node, values)

    def _function(self, node: ast.Call, values: list[StringClass]) -> StringClass:
        function, target = node.function, values[0]
        if isinstance(node.target, ast.Ident) and node.target.name == "sets" and len(values) == 3:
            self._of(values[1].inner).join(values[2].inner)
            return self._new()
        constant = _constant(node.args[0]) if len(node.args) == 1 and node.target is not None else None
        if function in _CHECKS and constant is not None:
            # The constant is only a part of a name, and has a stand-in of its own (`keeps_parts`).
            values[1].types.add(TextType.KEPT)
            target.root.checks.append((function, constant, node.args[0].at))
            return self._new()
        if function in _SAME and node.target is not None and not node.args:
            if function == LOWER:
                target.root.checks.append((LOWER, "", -1))
            return target
        if function in _SAME and node.args:
            return values[-1]
        if function == "orValue":
            target.join(values[1])
            return target.root
        if function in ARGUMENTS:
            for value, sort in zip(values[len(values) - len(node.args) :], ARGUMENTS[function], strict=False):
                value.root.types.add(sort)
            return self._new()
        if function == "split" and constant in _PARTS:
            values[1].types.add(TextType.KEPT)
            whole = self._new()
            self._derived.append((target, self._of(whole.inner)))
            return whole
        if target.is_container and function in _OF_LISTS:
            return target if function not in ("first", "last") else self._of(target.inner)
        for value in values:
            if function != "size" or not value.is_container:
                value.look_into()
        # Constants that it is compared with are not names any more.
        return self._new(TextType.KEPT)

    def _sum(self, node: ast.Call, scope: _Scope) -> StringClass:
        """Return the class of a text made of others; it is a name if they meet where parts of names do."""
        operands = list(_operands(node))
        values = [self._visit(operand, scope) for operand in operands]
        whole = self._new()
        whole.is_composed = True
        for left, right in zip(range(len(values) - 1), range(1, len(values)), strict=True):
            before, after = _constant(operands[left]), _constant(operands[right])
            if not (is_separator((before or "x")[-1]) or is_separator((after or "x")[0])):
                values[left].root.is_opaque = values[right].root.is_opaque = True
        self._derived += ((value, whole) for value in values)
        return whole

    def _index(self, node: ast.Call, scope: _Scope) -> StringClass:
        container, key = (self._visit(arg, scope) for arg in node.args)
        path = ast.path_of(node, optional=True)
        is_label = TextType.LABEL_KEY in container.keys.types
        if path is not None and path[0] not in scope and not is_label:
            if path[:-1] in MAPS:
                key.root.types.add(TextType.KEPT)
            return self._at_path(path)
        if _constant(node.args[1]) is not None or container.root.is_map:
            self._of(container.keys).join(key)
        return self._of(container.inner)

    def _comprehension(self, node: ast.Comprehension, scope: _Scope) -> StringClass:
        target = self._visit(node.target, scope)
        keys = self._of(target.keys if target.root.is_map else target.inner)
        bound = (keys,) if len(node.variables) == 1 else (self._of(target.keys), self._of(target.inner))
        inside = {**scope, **dict(zip(node.variables, bound, strict=True))}
        results = [self._visit(arg, inside) for arg in node.args]
        if node.macro == "filter":
            return target
        whole = self._new()
        if node.macro in ("map", "transformList", "transformMap"):
            self._of(whole.inner).join(results[-1])
        return whole


def _constant(node: ast.Expr) -> str | None:
    return node.value if isinstance(node, ast.Literal) and isinstance(node.value, str) else None


def _operands(node: ast.Expr) -> Iterator[ast.Expr]:
    if isinstance(node, ast.Call) and node.function == "_+_":
        for arg in node.args:
            yield from _operands(arg)
    else:
        yield node


def _asked_if_empty(node: ast.Call) -> ast.Expr | None:
    """Return `x` of `size(x) > 0` and the like: stand-ins are as empty as what they stand for."""
    sizes = [arg for arg in node.args if isinstance(arg, ast.Call) and arg.function == "size"]
    numbers = [arg.value for arg in node.args if isinstance(arg, ast.Literal) and type(arg.value) is int]
    if len(sizes) != 1 or len(numbers) != 1:
        return None
    if numbers[0] != 0 and not (numbers[0] == 1 and node.function in ("_<_", "_>=_")):
        return None
    measured = ast.operands(sizes[0])
    return measured[0] if len(measured) == 1 else None

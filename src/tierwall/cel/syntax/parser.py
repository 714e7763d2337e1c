"""Parses expressions (cel-spec, "Syntax"; cel-go 0.29, parser/gen/CEL.g4 and parser.go, as in Kubernetes).

A precedence-climbing parser over `lexer.tokenize`. It stops at the first syntax error, but reports every word that
cannot be a name, every literal out of range and every misused macro before it. cel-go's limits hold: 100,000 code
points, 250 levels. Nothing deeper gets past the parser, so code that walks a tree may recurse.
"""

from __future__ import annotations

from typing import NoReturn

from tierwall.cel.errors import ParseError, SourceProblem, problem_at
from tierwall.cel.syntax import ast, lexer
from tierwall.cel.syntax.ast import AND, BINARY, FUNCTIONS, OR, RELATION, SUM
from tierwall.cel.syntax.lexer import BAD, DOUBLE, END, ESCAPED, IDENT, INT, LITERALS, RESERVED
from tierwall.cel.syntax.macros import Syntax, expand_has, expand_member, syntax_of

MAX_SOURCE = 100_000
MAX_DEPTH = 250
# Levels of the tree, counting what cel-go's parser does not count on the way; keeps recursion under Python's limit.
MAX_TREE_DEPTH = 300
MAX_PROBLEMS = 100

# Kubernetes' syntax and `cel.bind`, for expressions that are evaluated without a check.
DEFAULT = syntax_of(37, bindings=True)

_UNARY = ("!", "-")
_CONSTANTS = {"true": True, "false": False, "null": None}
_WORD_HINTS = {"and": "write `&&`", "or": "write `||`", "not": "write `!`", "=": "write `==`"}


class _Stop(Exception):
    """The first syntax error: nothing after it can be trusted."""


def parse(source: str, syntax: Syntax = DEFAULT) -> ast.Expr:
    """Return the tree of `source`; raises `ParseError` and nothing else."""
    if len(source) > MAX_SOURCE:
        message = f"expression too long: {len(source)} code points, expected at most {MAX_SOURCE}"
        raise ParseError((problem_at(source, 0, message),))
    parser = _ExpressionParser(source, syntax)
    tree: ast.Expr | None = None
    try:
        tree = parser.parse_source()
    except _Stop:
        pass
    except RecursionError:
        parser.report(0, "expression nested too deeply")
    if parser.problems or tree is None:
        raise ParseError(parser.problems)
    return tree


class _ExpressionParser:
    __slots__ = ("calcs", "exprs", "i", "kinds", "problems", "relations", "source", "starts", "syntax", "texts")

    def __init__(self, source: str, syntax: Syntax) -> None:
        tokens = lexer.tokenize(source)
        self.kinds, self.texts, self.starts = tokens.kinds, tokens.texts, tokens.starts
        self.i = 0
        self.source = source
        self.syntax = syntax
        self.problems: list[SourceProblem] = []
        # How deep the parser stands in three rules of the grammar: cel-go counts each rule by itself.
        self.exprs = self.relations = self.calcs = 1

    def parse_source(self) -> ast.Expr:
        if not self.source.isascii() and any("\ud800" <= char <= "\udfff" for char in self.source):
            self.report(0, "expression is not valid Unicode: it holds a lone surrogate")
            raise _Stop
        tree = self.expression(0)
        if self.kinds[self.i] != END:
            self.fail("an operator or the end of input")
        # Fewer tokens than levels cannot be too deep.
        if len(self.kinds) >= MAX_DEPTH and _too_deep(tree):
            self.report(0, "expression nested too deeply")
        return tree

    def report(self, at: int, message: str, hint: str | None = None) -> None:
        self.problems.append(problem_at(self.source, at, message, hint))
        if len(self.problems) >= MAX_PROBLEMS:
            raise _Stop

    def fail(self, expected: str) -> NoReturn:
        """Report the token at hand as a syntax error, and stop."""
        kind, text, at = self.kinds[self.i], self.texts[self.i], self.starts[self.i]
        if kind == BAD:
            message, hint = lexer.describe_bad(self.source, at)
            self.report(at, message, hint)
        else:
            token = "end of input" if kind == END else f"`{text if len(text) <= 40 else text[:37] + '...'}`"
            self.report(at, f"expected {expected}, found {token}", _WORD_HINTS.get(text))
        raise _Stop

    def descend(self) -> None:
        """Enter a nested expression."""
        self.exprs += 1
        self.relations += 1
        self.calcs += 1
        if self.exprs > MAX_DEPTH or self.relations > MAX_DEPTH or self.calcs > MAX_DEPTH:
            self.too_deep()

    def ascend(self) -> None:
        self.exprs -= 1
        self.relations -= 1
        self.calcs -= 1

    def too_deep(self) -> NoReturn:
        self.report(self.starts[self.i], "expression nested too deeply")
        raise _Stop

    def expression(self, lowest: int) -> ast.Expr:
        """Parse an operand and the operators after it that bind at least as tightly as `lowest` (0: `?:` too)."""
        kinds = self.kinds
        left = self.unary() if kinds[self.i] in _UNARY else self.member()
        while True:
            operator = kinds[self.i]
            level = BINARY.get(operator, 0)
            if not level or level < lowest:
                break
            at = self.starts[self.i]
            self.i += 1
            if level <= AND:
                terms = [left, self.expression(level + 1)]
                while kinds[self.i] == operator:
                    self.i += 1
                    terms.append(self.expression(level + 1))
                left = ast.Call(FUNCTIONS[operator], None, tuple(terms), at)
                continue
            if level == RELATION:
                self.relations += 1
                if self.relations > MAX_DEPTH:
                    self.too_deep()
                right = self.expression(SUM)
                self.relations -= 1
            else:
                self.calcs += 1
                if self.calcs > MAX_DEPTH:
                    self.too_deep()
                right = self.expression(level + 1)
                self.calcs -= 1
            left = ast.Call(FUNCTIONS[operator], None, (left, right), at)
        if lowest == 0 and kinds[self.i] == "?":
            return self.conditional(left)
        return left

    def conditional(self, condition: ast.Expr) -> ast.Expr:
        at = self.starts[self.i]
        self.i += 1
        then = self.expression(OR)
        if self.kinds[self.i] != ":":
            self.fail("`:` and the other value of `?`")
        self.i += 1
        self.exprs += 1
        if self.exprs > MAX_DEPTH:
            self.too_deep()
        other = self.expression(0)
        self.exprs -= 1
        return ast.Call("_?_:_", None, (condition, then, other), at)

    def unary(self) -> ast.Expr:
        """Parse any number of `!` or `-`, and a member expression; an even number of signs cancels out."""
        operator, at = self.kinds[self.i], self.starts[self.i]
        count = 1
        while self.kinds[self.i + count] == operator:
            count += 1
        if operator == "-" and count == 1 and self.kinds[self.i + 1] in (INT, DOUBLE):
            return self.member()  # `-1` is a literal
        self.i += count
        # After `-` a further sign would have been counted; after `!` it makes a negative literal.
        inner = self.member(signed=operator == "!")
        if count % 2 == 0:
            return inner
        return ast.Call("!_" if operator == "!" else "-_", None, (inner,), at)

    def member(self, signed: bool = True) -> ast.Expr:
        """Parse a primary expression and the selections, calls and indices after it.

        Names, brackets and calls are parsed here, not in separate methods: every frame saved leaves room for
        cel-go's 250 levels under Python's limit.
        """
        kinds, texts, starts = self.kinds, self.texts, self.starts
        first = i = self.i
        kind = kinds[i]
        left: ast.Expr | None
        if kind == "." and kinds[i + 1] == IDENT:
            i += 1
            kind = IDENT
        if kind == IDENT:
            name = texts[i] if i == first else "." + texts[i]
            self.i = i + 1
            if texts[i] in RESERVED and not lexer.names_message(self.kinds, self.i):
                self.report(starts[i], f"`{texts[i]}` is a reserved word and cannot name a variable or function")
            if kinds[i + 1] == "(":
                args = self.arguments()
                left = expand_has(args, starts[first], self.report) if name == "has" else None
                if left is None:
                    left = ast.Call(name, None, args, starts[first])
            else:
                left = ast.Ident(name, starts[first])
        elif kind == "(":
            self.i = i + 1
            self.descend()
            left = self.expression(0)
            self.ascend()
            self.expect(")", "`)`")
        elif kind == "[":
            left = self.list_literal()
        elif kind == "{":
            left = self.map_or_message(starts[i])
        else:
            left = self.constant(signed)
        while True:
            i = self.i
            kind = kinds[i]
            if kind == ".":
                if kinds[i + 1] != IDENT:
                    left = self.unusual_select(left)
                elif kinds[i + 2] == "(":
                    self.i = i + 2
                    args = self.arguments()
                    macro = expand_member(self.syntax, left, texts[i + 1], args, starts[i + 1], self.report)
                    left = ast.Call(texts[i + 1], left, args, starts[i + 1]) if macro is None else macro
                else:
                    left = ast.Select(left, texts[i + 1], False, starts[i + 1])
                    self.i = i + 2
            elif kind == "[":
                left = self.index(left)
            elif kind == "{" and lexer.is_type_name(kinds, first, i):
                left = self.map_or_message(starts[first], "".join(texts[first:i]))
            else:
                return left

    def constant(self, signed: bool) -> ast.Expr:
        """Parse a literal of one token, or a number with its sign."""
        i = self.i
        kind, at = self.kinds[i], self.starts[i]
        if kind in _CONSTANTS:
            self.i += 1
            return ast.Literal(_CONSTANTS[kind], at)
        negative = kind == "-" and signed and self.kinds[i + 1] in (INT, DOUBLE)
        if negative:
            i += 1
            kind = self.kinds[i]
        if kind not in LITERALS:
            self.i += kind in (".", "-")
            self.fail("a name" if kind == "." else "an expression")
        self.i = i + 1
        try:
            return ast.Literal(lexer.literal_value(kind, self.texts[i], negative), at)
        except lexer.LiteralError as error:
            self.report(at, str(error))
            return ast.Literal(None, at)

    def arguments(self) -> tuple[ast.Expr, ...]:
        """Parse the arguments of a call; the token at hand is its `(`."""
        kinds = self.kinds
        self.i += 1
        if kinds[self.i] == ")":
            self.i += 1
            return ()
        self.descend()
        args = [self.expression(0)]
        while kinds[self.i] == ",":
            self.i += 1
            args.append(self.expression(0))
        self.ascend()
        self.expect(")", "`,` or `)`")
        return tuple(args)

    def expect(self, kind: str, expected: str) -> None:
        if self.kinds[self.i] != kind:
            self.fail(expected)
        self.i += 1

    def unusual_select(self, left: ast.Expr) -> ast.Expr:
        """Parse `.?field` or a field in backticks; the token at hand is the dot."""
        at = self.starts[self.i]
        self.i += 1
        optional = self.kinds[self.i] == "?"
        self.i += optional
        field, start = self.field_name()
        if optional:
            self.require_optionals(at)
        return ast.Select(left, field, optional, start)

    def field_name(self) -> tuple[str, int]:
        """Parse the name of a field; return it without backticks, and its offset."""
        kind, text, start = self.kinds[self.i], self.texts[self.i], self.starts[self.i]
        if kind != IDENT and kind != ESCAPED:
            self.fail("the name of a field")
        self.i += 1
        return text[1:-1] if kind == ESCAPED else text, start

    def require_optionals(self, at: int) -> None:
        if not self.syntax.optionals:
            self.report(at, "optional values (`?`) are not part of this environment: expected Kubernetes 1.28 or later")

    def index(self, left: ast.Expr) -> ast.Expr:
        at = self.starts[self.i]
        self.i += 1
        optional = self.optional_mark()
        self.descend()
        key = self.expression(0)
        self.ascend()
        self.expect("]", "`]`")
        return ast.Call("_[?_]" if optional else "_[_]", None, (left, key), at)

    def optional_mark(self) -> bool:
        if self.kinds[self.i] != "?":
            return False
        self.require_optionals(self.starts[self.i])
        self.i += 1
        return True

    def list_literal(self) -> ast.Expr:
        at = self.starts[self.i]
        self.i += 1
        elements: list[ast.Expr] = []
        optional: list[int] = []
        self.descend()
        while self.has_more(elements, "]"):
            if self.optional_mark():
                optional.append(len(elements))
            elements.append(self.expression(0))
        self.ascend()
        return ast.ListExpr(tuple(elements), tuple(optional), at)

    def map_or_message(self, at: int, message: str | None = None) -> ast.Expr:
        """Parse a map literal, or a message of the type named; the token at hand is its `{`."""
        self.i += 1
        entries: list[ast.MapEntry] = []
        self.descend()
        while self.has_more(entries, "}"):
            optional = self.optional_mark()
            key = self.expression(0) if message is None else ast.Literal(*self.field_name())
            self.expect(":", f"`:` and the {'key' if message is None else 'field'}'s value")
            entries.append(ast.MapEntry(key, self.expression(0), optional))
        self.ascend()
        return ast.MapExpr(tuple(entries), at) if message is None else ast.MessageExpr(message, tuple(entries), at)

    def has_more(self, items: list[ast.Expr] | list[ast.MapEntry], close: str) -> bool:
        """Whether another item follows in a list, map or message; a trailing comma is allowed, even alone."""
        if self.kinds[self.i] == close:
            self.i += 1
            return False
        if items or self.kinds[self.i] == ",":
            if self.kinds[self.i] != ",":
                self.fail(f"`,` or `{close}`")
            self.i += 1
            if self.kinds[self.i] == close:
                self.i += 1
                return False
            if not items:
                self.fail(f"`{close}`")
        return True


_DEEPENING = frozenset(FUNCTIONS[text] for text, level in BINARY.items() if level > AND) | {"_[_]", "_[?_]", "_?_:_"}


def _too_deep(tree: ast.Expr) -> bool:
    """cel-go counts relations, arithmetic, selections, member calls, indices and conditionals on one path."""
    stack: list[tuple[ast.Expr, int, int]] = [(tree, 0, 0)]
    while stack:
        node, counted, levels = stack.pop()
        if isinstance(node, ast.Select | ast.Has | ast.Comprehension | ast.Bind) or (
            isinstance(node, ast.Call) and (node.target is not None or node.function in _DEEPENING)
        ):
            counted += 1
        if counted > MAX_DEPTH or levels > MAX_TREE_DEPTH:
            return True
        stack.extend((child, counted, levels + 1) for child in ast.children(node))
    return False

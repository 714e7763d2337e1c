"""Random CEL expressions of the kind that policies use, random values for them, and how a value stands in a world."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tierwall.cel.environment import Environment
from tierwall.cel.errors import Failure
from tierwall.cel.evaluate.evaluator import Evaluator
from tierwall.cel.syntax.ast import Expr
from tierwall.cel.types import DYN
from tierwall.cel.values import equal
from tierwall.logic.cel.encoder import Encoder, Rails, settle
from tierwall.logic.cel.unknown import ANY, STRING, STRINGS, Shape, Unknown, UnknownWorld, ValueKind
from tierwall.logic.cel.values import Values
from tierwall.logic.solver import CircuitSolver

Choose = Callable[[int], int]

ENVIRONMENT = Environment(variables=dict.fromkeys(("object", "other", "request"), DYN), extensions=True)
REQUEST = Shape(
    (ValueKind.MAP,),
    fields={"user": STRING, "groups": STRINGS, "count": Shape((ValueKind.NUMBER,), number="int")},
    is_closed=True,
    required=frozenset(("user", "groups", "count")),
)
OBJECT = Shape(
    (ValueKind.MAP, ValueKind.NULL), fields={"labels": Shape((ValueKind.MAP,), inner=STRING), "name": STRING}
)
SHAPES = {"object": OBJECT, "other": ANY, "request": REQUEST}
WORDS = ("", "a", "b", "ab", "abc", "A", "prod", "prod-1", "x/y", "a\n")
PATTERNS = ("^a", "b$", "^[a-z]+$", "prod(-[0-9])?", "^(a|x/).*y?$", ".", "^$", "(")
KEYS = ("env", "team", "a b")
COMPARISONS = ("==", "!=", "<", "<=", ">", ">=")


class Expressions:
    """Random expressions; `names` are the variables in scope and what they mostly are."""

    def __init__(self, choose: Choose) -> None:
        self._choose = choose
        self._depth = 0

    def pick(self, options: tuple[str, ...]) -> str:
        return options[self._choose(len(options))]

    def word(self) -> str:
        return repr(self.pick(WORDS)).replace("'", '"')

    def text(self, scope: tuple[str, ...]) -> str:
        options: tuple[str, ...] = (
            "object.name",
            "other.name",
            "request.user",
            "object.labels.env",
            'object.labels["team"]',
            "object.x",
        )
        options += ("object.items[0].name", "object.?name.orValue('a')", "object.labels[?'env'].orValue('b')")
        options += tuple(name if kind == "text" else f"{name}.name" for name, kind in _pairs(scope))
        text = self.pick(options)
        return f"{text}.{self.pick(('lowerAscii', 'upperAscii'))}()" if self._choose(12) == 0 else text

    def number(self, scope: tuple[str, ...]) -> str:
        options: tuple[str, ...] = (
            "object.n",
            "request.count",
            "other.n",
            "size(object.name)",
            "size(object.items)",
            "object.items.size()",
        )
        options += ("size(object.labels)", "object.items.filter(i, i.name == 'a').size()", "object.x")
        options += tuple(f"{name}.n" for name, kind in _pairs(scope) if kind == "item")
        return self.pick(options)

    def constant(self) -> str:
        return self.pick(("0", "1", "2", "-1", "2.5", "1.0", "3u", "3"))

    def boolean(self, depth: int, scope: tuple[str, ...] = ()) -> str:
        if depth > 0 and self._choose(3) != 0:
            return self._compound(depth - 1, scope)
        text, word = self.text(scope), self.word()
        match self._choose(25):
            case 0 | 1:
                return f"{text} {self.pick(('==', '!='))} {word}"
            case 2:
                return f"{text}.{self.pick(('startsWith', 'endsWith', 'contains'))}({word})"
            case 3:
                return f'{text}.matches("{self.pick(PATTERNS)}")'
            case 4:
                return f"{text} in [{word}, {self.word()}]"
            case 5 | 6:
                return f"{self.number(scope)} {self.pick(COMPARISONS)} {self.constant()}"
            case 7:
                return f"has(object.{self.pick(('name', 'labels', 'labels.env', 'b', 'items', 'x'))})"
            case 8:
                return self.pick(
                    ("object.b", "other.b", "object.x", "!object.b", "true", "false", "object.?b.orValue(false)")
                )
            case 9:
                return f"{text} == {self.text(scope)}"
            case 10:
                left = self.pick(("object.x", "object.items", "object.n", "other.x", "object.labels"))
                return f"{left} == {self.pick(('null', '[]', '{}', '[1]', 'other.x', 'object.n', 'true'))}"
            case 11:
                return f"{self.word()} in {self.pick(('request.groups', 'object.labels', 'object.tags', 'object.x'))}"
            case 12:
                return f"{text} in {self.pick(('request.groups', 'object.tags'))}"
            case 13:
                return f"{self.pick(('env', 'team', 'zzz'))!r} in object.labels".replace("'", '"')
            case 14:
                macro = self.pick(("all", "exists", "exists_one"))
                return f"object.labels.{macro}(k, {self.boolean(0, (*scope, 'k:text'))})"
            case 15:
                return f"object.labels.all(k, object.labels[k] == {word})"
            case 16:
                uses = ("hasValue()", f"optMap(v, v == {word}).orValue(false)", f"value() == {word}")
                return f"object.?{self.pick(('name', 'x'))}.{self.pick(uses)}"
            case 17:
                return f"{word}.{self.pick(('contains', 'startsWith', 'endsWith'))}({text})"
            case 18:
                return f"object.items.map(i, i.name).exists(m, {self.boolean(0, (*scope, 'm:text'))})"
            case 19:
                return f"optional.ofNonZeroValue(object.{self.pick(('x', 'n', 'name', 'items'))}).hasValue()"
            case 20:
                return f"{{'a': true, 'b': false}}[{text}]"
            case 21:
                left, right = (
                    self.pick(("object.tags", "other.tags", "object.x", "request.groups", "[1, 'a']")) for _ in range(2)
                )
                return f"({left} + {right}).{self.pick(('all', 'exists'))}(t, {self.boolean(0, (*scope, 't:text'))})"
            case 22:
                left, right = (self.pick(("object.tags", "object.n", "object.name", "object.x")) for _ in range(2))
                uses = (
                    f"{word} in ({left} + {right})",
                    f"has(({left} + {right}).x)",
                    f"cel.bind(s, {left} + {right}, s.all(t, t == {word}))",
                )
                return self.pick(uses)
            case 23:
                whole = self.pick((text, "object.x", "object.b", "other.name"))
                value = self.pick((word, "'true'"))
                return f"string({whole}) {self.pick(('==', '!='))} {value}"
            case _:
                return f"(object.tags + [{text}]).exists(t, {self.boolean(0, (*scope, 't:text'))})"

    def _compound(self, depth: int, scope: tuple[str, ...]) -> str:
        first = self.boolean(depth, scope)
        match self._choose(9):
            case 0 | 1 | 2:
                return f"({first} && {self.boolean(depth, scope)})"
            case 3 | 4:
                return f"({first} || {self.boolean(depth, scope)})"
            case 5:
                return f"!({first})"
            case 6:
                return f"({first} ? {self.boolean(depth, scope)} : {self.boolean(depth, scope)})"
        self._depth += 1
        name = f"v{self._depth}"
        target, kind = (("object.items", "item"), ("object.tags", "text"), ("request.groups", "text"))[self._choose(3)]
        inner = self.boolean(min(depth, 1), (*scope, f"{name}:{kind}"))
        return f"{target}.{self.pick(('all', 'exists', 'exists_one'))}({name}, {inner})"


def _pairs(scope: tuple[str, ...]) -> list[tuple[str, str]]:
    return [(name, kind) for name, _, kind in (entry.partition(":") for entry in scope)]


class Worlds:
    """Random values of the variables."""

    def __init__(self, choose: Choose) -> None:
        self._choose = choose

    def variables(self) -> dict[str, Any]:
        request = {"user": self._of("text"), "groups": [self._of("text") for _ in range(self._choose(3))]}
        return {
            "object": self._known_object(),
            "other": self._object(),
            "request": request | {"count": self._choose(6) - 2},
        }

    def _known_object(self) -> Any:
        if self._choose(20) == 0:
            return None
        value = self._object()
        value = value if isinstance(value, dict) else {}
        known = {name: self._of(kind) for name, kind in (("labels", "labels"), ("name", "text")) if name in value}
        return value | known

    def _object(self) -> Any:
        if self._choose(20) == 0:
            return self._anything(1)
        kinds = {
            "name": "text",
            "n": "number",
            "b": "bool",
            "labels": "labels",
            "items": "items",
            "tags": "tags",
            "x": "any",
        }
        return {name: self._maybe(kind) for name, kind in kinds.items() if self._choose(5)}

    def _maybe(self, kind: str) -> Any:
        return self._anything(1) if self._choose(12) == 0 else self._of(kind)

    def _of(self, kind: str) -> Any:
        choose = self._choose
        match kind:
            case "text":
                return WORDS[choose(len(WORDS))]
            case "number":
                return (0, 1, 2, 3, -1, 2.5, 1.0, 7, 0.5)[choose(9)]
            case "bool":
                return choose(2) == 1
            case "labels":
                return {key: self._of("text") for key in (*KEYS, "a", "b") if choose(3) == 0}
            case "tags":
                return [self._maybe("text") for _ in range(choose(3))]
            case "items":
                return [self._item() for _ in range(choose(3))]
        return self._anything(1)

    def _item(self) -> Any:
        if self._choose(12) == 0:
            return self._anything(1)
        return {name: self._maybe(kind) for name, kind in (("name", "text"), ("n", "number")) if self._choose(4)}

    def _anything(self, depth: int) -> Any:
        match self._choose(8 if depth else 5):
            case 0:
                return None
            case 1:
                return self._of("bool")
            case 2:
                return self._of("number")
            case 3 | 4:
                return self._of("text")
            case 5:
                return [self._anything(0) for _ in range(self._choose(3))]
            case _:
                return {key: self._anything(0) for key in ("env", "name", "a") if self._choose(2)}


class Written:
    """An expression in a world."""

    def __init__(self, tree: Expr, spare: int = 0) -> None:
        self.tree = tree

        def build(world: UnknownWorld) -> tuple[dict[str, Unknown], Rails]:
            variables = {name: world.unknown(name, shape) for name, shape in SHAPES.items()}
            return variables, Encoder(world, ENVIRONMENT, variables).rails(tree)

        self.world, (self.variables, self.rails) = settle(build, spare)
        self.values = Values(self.world)
        self.solver = CircuitSolver(self.world.circuit)
        self.outcomes = {
            True: (self.rails.true, -self.rails.false),
            False: (self.rails.false, -self.rails.true),
            None: (-self.rails.true, -self.rails.false),
        }
        self._evaluator = Evaluator(tree, ENVIRONMENT)

    def evaluate(self, variables: dict[str, Any]) -> bool | None:
        """True, false, or None for an error; a value that is not a bool counts as an error."""
        try:
            value = self._evaluator.evaluate(variables)
        except Failure:
            return None
        return value if isinstance(value, bool) else None

    def model(self) -> dict[str, Any]:
        """The values of the solver's last model."""
        return {name: self.values.value(unknown, self.solver) for name, unknown in self.variables.items()}

    def literals(self, variables: dict[str, Any]) -> list[int] | None:
        """The literals that say that the variables have these values; None if the world has too few elements."""
        return placed(self.values, [(unknown, variables[name]) for name, unknown in self.variables.items()])


def placed(values: Values, pairs: list[tuple[Unknown, Any]]) -> list[int] | None:
    """The literals that say that unknowns have these values; None if the world has too few elements."""
    known: dict[int, Any] = {}
    literals: list[int] = []
    waiting = list(pairs)
    while waiting:
        unknown, value = waiting.pop()
        known[unknown.number] = value
        kind = kind_of(value)
        literals += [unknown.is_kind(other) * (1 if other is kind else -1) for other in unknown.shape.kinds]
        if kind is ValueKind.BOOL:
            literals.append(unknown.truth if value else -unknown.truth)
        elif kind in (ValueKind.STRING, ValueKind.NUMBER):
            literals += values.literals(unknown, kind, value)
        elif kind is ValueKind.LIST:
            shown, rest = value[: len(unknown.elements)], value[len(unknown.elements) :]
            if unknown.elements and any(item not in unknown.members for item in rest if isinstance(item, str)):
                return None
            if unknown.elements and not all(isinstance(item, str) for item in rest):
                return None
            # A constant that stands among the elements need not stand behind them, too.
            behind = {item for item in rest if isinstance(item, str)} - {
                item for item in shown if isinstance(item, str)
            }
            literals += [member if text in behind else -member for text, member in unknown.members.items()]
            literals += [-element.present for element in unknown.elements[len(value) :]]
            for element, item in zip(unknown.elements, value, strict=False):
                literals.append(element.present)
                waiting.append((element.value, item))
        elif kind is ValueKind.MAP:
            for name, field in unknown.fields.items():
                literals.append(field.present if name in value else -field.present)
                if name in value:
                    waiting.append((field.value, value[name]))
            rest = [name for name in value if name not in unknown.fields]
            if unknown.extras and len(rest) > len(unknown.extras):
                return None
            literals += [-extra.present for extra in unknown.extras[len(rest) :]]
            for extra, name in zip(unknown.extras, rest, strict=False):
                assert isinstance(extra.key, Unknown)
                literals.append(extra.present)
                waiting += [(extra.key, name), (extra.value, value[name])]
    for kind, equalities in pairs[0][0].world.equalities.items():
        for (first, second), literal in equalities.items():
            if first in known and second in known:
                left, right = known[first], known[second]
                if kind_of(left) is kind_of(right) is kind:
                    literals.append(literal if equal(left, right) else -literal)
    return literals


def kind_of(value: Any) -> ValueKind:
    match value:
        case None:
            return ValueKind.NULL
        case bool():
            return ValueKind.BOOL
        case int() | float():
            return ValueKind.NUMBER
        case str():
            return ValueKind.STRING
        case list():
            return ValueKind.LIST
    return ValueKind.MAP

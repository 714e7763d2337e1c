"""Random CEL expressions and values, for the properties that compare two ways of evaluating the same expression.

Everything is drawn through `choose(n)`, a number below n: hypothesis can shrink it, and a seeded `random.Random` makes
long runs cheap.
"""

from __future__ import annotations

from collections.abc import Callable

from tierwall.cel.library.addresses import CIDR, IP
from tierwall.cel.library.quantity import Quantity
from tierwall.cel.values import NONE, Duration, OptionalValue, Timestamp, TypeValue, Uint, make_map

Choose = Callable[[int], int]

# Each variable and the type that its values mostly have.
VARIABLES = {
    "b": "bool",
    "c": "bool",
    "n": "int",
    "i": "int",
    "u": "uint",
    "f": "double",
    "s": "string",
    "name": "string",
    "y": "bytes",
    "t": "timestamp",
    "d": "duration",
    "l": "list",
    "words": "list",
    "m": "map",
    "object": "map",
    "request": "map",
    "o": "optional",
    "q": "quantity",
    "x": "any",
    "v.w": "any",
}
# Fields that maps have or lack.
FIELDS = ("a", "b", "name", "items", "x", "labels", "no")
_STRINGS = ("", "a", "b", "name", "ab", "x-1", "sys:a", "10", "true", "é", '"\\')
_INTS = (0, 1, 2, -1, 7, 9223372036854775807, -9223372036854775808)
_DOUBLES = (0.0, 1.0, -1.5, 2.5, float("inf"), float("nan"), -0.0, 1e300)
_TYPES = (
    "bool",
    "int",
    "uint",
    "double",
    "string",
    "bytes",
    "timestamp",
    "duration",
    "list",
    "map",
    "optional",
    "null",
)


class Values:
    """Random values."""

    def __init__(self, choose: Choose) -> None:
        self.choose = choose

    def pick(self, options: tuple[object, ...]) -> object:
        return options[self.choose(len(options))]

    def of(self, kind: str, depth: int = 2) -> object:
        """A value, nearly always of the kind."""
        if kind == "any" or self.choose(12) == 0:
            kind = str(self.pick((*_TYPES, "quantity", "type", "map", "string", "int")))
        choose = self.choose
        match kind:
            case "bool":
                return choose(2) == 1
            case "int":
                return self.pick(_INTS)
            case "uint":
                return Uint(self.pick((0, 1, 2, 2**64 - 1)))  # type: ignore[call-overload]
            case "double":
                return self.pick(_DOUBLES)
            case "string":
                return self.pick(_STRINGS)
            case "bytes":
                return self.pick((b"", b"a", b"\xff", b"name"))
            case "timestamp":
                return Timestamp(choose(3) * 86_400_000_000_123, choose(2) * 3600)
            case "duration":
                return Duration(int(self.pick((0, 1, -1_500_000_000, 3_600_000_000_000, -(2**63)))))  # type: ignore[call-overload]
            case "optional":
                return NONE if choose(2) else OptionalValue(self.of("any", depth - 1) if depth > 0 else 1)
            case "quantity":
                return self.pick((Quantity(1), Quantity(5, -1), IP(4, 1), CIDR(IP(4, 256), 24)))
            case "type":
                return TypeValue(str(self.pick(("int", "string", "list"))))
            case "list":
                inner = str(self.pick(("string", "int", "any", "string")))
                return [self.of(inner, depth - 1) for _ in range(choose(4))] if depth > 0 else []
            case "map":
                if depth <= 0:
                    return {}
                if choose(10) == 0:
                    return make_map((self.pick((1, True, "a", Uint(2))), self.of("any", 0)) for _ in range(choose(3)))
                return {str(self.pick(FIELDS)): self.of(self._field(), depth - 1) for _ in range(choose(5))}
        return None

    def _field(self) -> str:
        return str(self.pick(("string", "int", "map", "list", "bool", "any", "map")))


class Expressions:
    """Random expressions as text. `loose` lets any kind stand anywhere."""

    def __init__(self, choose: Choose, loose: bool = False, variables: dict[str, str] | None = None) -> None:
        self.choose = choose
        self.loose = loose
        self.scope: list[tuple[str, str]] = list((variables or VARIABLES).items())

    def pick(self, options: tuple[str, ...]) -> str:
        return options[self.choose(len(options))]

    def any(self, depth: int) -> str:
        """An expression of a random kind."""
        kinds = ("bool", "bool", "bool", "int", "string", "list", "map", "double", "optional", "uint", "bytes", "time")
        return self.of(self.pick(kinds), depth)

    def of(self, kind: str, depth: int) -> str:
        """An expression that is mostly of the kind."""
        if self.loose and self.choose(4) == 3:
            return self.any(depth - 1)
        if depth <= 0:
            return self.leaf(kind)
        roll = self.choose(10)
        if roll == 0:
            return self.leaf(kind)
        if roll == 1:
            return f"({self.of('bool', depth - 1)} ? {self.of(kind, depth - 1)} : {self.of(kind, depth - 1)})"
        if roll == 2:
            return self.reached(kind, depth)
        make = getattr(self, f"make_{kind}", None)
        return make(depth - 1) if make is not None else self.leaf(kind)

    def leaf(self, kind: str) -> str:
        fitting = [name for name, variable_kind in self.scope if variable_kind in (kind, "any") or kind == "any"]
        if fitting and self.choose(3):
            # Later names are those of the innermost binders.
            index = self.choose(len(fitting))
            name = fitting[-1 - index]
            if self.choose(25) == 0 and "." not in name:
                return "." + name
            return name
        match kind:
            case "bool":
                return self.pick(("true", "false"))
            case "int":
                return self.pick(("0", "1", "2", "(-1)", "7"))
            case "uint":
                return self.pick(("0u", "1u"))
            case "double":
                return self.pick(("(0.0)", "1.5", "(-2.0)"))
            case "string":
                return self.pick(('"a"', '"name"', '""', '"sys:a"', '"("'))
            case "bytes":
                return 'b"a"'
            case "list":
                return self.pick(("[]", '["a", "b"]', "[1, 2, 3]", "[true]"))
            case "map":
                return self.pick(("{}", '{"a": 1, "b": true}', '{"name": "a"}'))
            case "optional":
                return self.pick(("optional.none()", "optional.of(1)"))
            case "time":
                return self.pick(('timestamp("2020-01-01T00:00:00Z")', 'duration("1s")', "t", "d"))
            case "quantity":
                return 'quantity("1")'
        return "null"

    def reached(self, kind: str, depth: int) -> str:
        """A value inside a map or a list."""
        source = self.of("map", depth - 1)
        match self.choose(6):
            case 0:
                return f"{source}[{self.of('string', 0)}]"
            case 1:
                return f"{self.of('list', depth - 1)}[{self.of('int', 0)}]"
            case 2:
                return f"{source}.?{self.pick(FIELDS)}.orValue({self.of(kind, depth - 1)})"
            case 3:
                return f"{self.of('optional', depth - 1)}.orValue({self.of(kind, 0)})"
        return f"{source}.{self.pick(FIELDS)}"

    def inside(self, name: str, kind: str, make: Callable[[], str]) -> str:
        self.scope.append((name, kind))
        text = make()
        self.scope.pop()
        return text

    def make_bool(self, depth: int) -> str:
        of = self.of
        match self.choose(20):
            case 0 | 1 | 2 | 3:
                return f"({' && '.join(of('bool', depth) for _ in range(2 + self.choose(3)))})"
            case 4 | 5 | 6:
                return f"({' || '.join(of('bool', depth) for _ in range(2 + self.choose(2)))})"
            case 7:
                return f"(!({of('bool', depth)}))"
            case 8 | 9:
                kind = self.pick(("string", "int", "bool", "list", "map", "optional", "time"))
                return f"({of(kind, depth)} {self.pick(('==', '!='))} {of(kind, depth)})"
            case 10:
                kind = self.pick(("string", "int", "double"))
                return f"({of(kind, depth)} {self.pick(('<', '<=', '>', '>='))} {of(kind, depth)})"
            case 11:
                return f"({of(self.pick(('string', 'int')), depth)} in {of(self.pick(('list', 'map')), depth)})"
            case 12:
                return f"has({of('map', depth)}.{self.pick(FIELDS)})"
            case 13:
                function = self.pick(("startsWith", "endsWith", "contains", "matches"))
                return f"{of('string', depth)}.{function}({of('string', depth)})"
            case 14:
                return f"{of('optional', depth)}.hasValue()"
            case 15:
                return f"(type({self.any(depth)}) == {self.pick(('int', 'string', 'list', 'bool'))})"
            case _:
                return self.quantified(depth)

    def quantified(self, depth: int) -> str:
        macro = self.pick(("all", "exists", "exists_one", "all", "exists"))
        range_kind = self.pick(("list", "list", "map"))
        source = self.of(range_kind, depth)
        # Names of unknowns, of known variables and others: all are hidden inside.
        first, second = self.pick(("e", "n", "object", "x", "v")), self.pick(("k", "s", "w"))
        if self.choose(4):
            element = self.pick(("string", "int", "any"))
            return f"{source}.{macro}({first}, {self.inside(first, element, lambda: self.of('bool', depth))})"
        body = self.inside(first, "int", lambda: self.inside(second, "any", lambda: self.of("bool", depth)))
        return f"{source}.{macro}({first}, {second}, {body})"

    def make_int(self, depth: int) -> str:
        match self.choose(4):
            case 0:
                return f"size({self.of(self.pick(('list', 'map', 'string')), depth)})"
            case 1:
                return f"int({self.of(self.pick(('string', 'double', 'uint')), depth)})"
            case 2:
                return f"(-({self.of('int', depth)}))"
        return f"({self.of('int', depth)} {self.pick(('+', '-', '*', '/', '%'))} {self.of('int', depth)})"

    def make_uint(self, depth: int) -> str:
        return f"uint({self.of('int', depth)})"

    def make_double(self, depth: int) -> str:
        if self.choose(2):
            return f"double({self.of('int', depth)})"
        return f"({self.of('double', depth)} {self.pick(('+', '-', '*', '/'))} {self.of('double', depth)})"

    def make_string(self, depth: int) -> str:
        match self.choose(3):
            case 0:
                return f"string({self.of(self.pick(('int', 'bool', 'time', 'double')), depth)})"
            case 1:
                return f"{self.of('string', depth)}.{self.pick(('lowerAscii', 'upperAscii', 'trim'))}()"
        return f"({self.of('string', depth)} + {self.of('string', depth)})"

    def make_bytes(self, depth: int) -> str:
        return f"bytes({self.of('string', depth)})"

    def make_list(self, depth: int) -> str:
        match self.choose(8):
            case 0 | 1:
                kind = self.pick(("string", "int", "bool"))
                return f"[{', '.join(self.of(kind, depth) for _ in range(self.choose(4)))}]"
            case 2:
                return f"[?{self.of('optional', depth)}, {self.of('int', depth)}]"
            case 3:
                return f"({self.of('list', depth)} + {self.of('list', depth)})"
            case 4:
                source = self.of(self.pick(("list", "map")), depth)
                return f"{source}.filter(e, {self.inside('e', 'any', lambda: self.of('bool', depth))})"
            case 5:
                source = self.of("list", depth)
                first = self.inside("e", "any", lambda: self.of("bool", depth))
                return f"{source}.map(e, {first}, {self.inside('e', 'any', lambda: self.any(depth))})"
            case 6:
                source = self.of(self.pick(("list", "map")), depth)
                body = self.inside("e", "int", lambda: self.inside("k", "any", lambda: self.any(depth)))
                return f"{source}.transformList(e, k, {body})"
        return f"{self.of('list', depth)}.map(x, {self.inside('x', 'any', lambda: self.any(depth))})"

    def make_map(self, depth: int) -> str:
        match self.choose(6):
            case 0 | 1 | 2:
                parts = [f"{self.of('string', 0)}: {self.any(depth)}" for _ in range(self.choose(3))]
                return f"{{{', '.join(parts)}}}"
            case 3:
                return f"{{?{self.of('string', 0)}: {self.of('optional', depth)}, {self.any(0)}: {self.any(depth)}}}"
            case 4:
                source = self.of(self.pick(("list", "map")), depth)
                body = self.inside("e", "any", lambda: self.inside("k", "any", lambda: self.any(depth)))
                return f"{source}.transformMap(e, k, {body})"
        return f"{self.of('map', depth)}.{self.pick(FIELDS)}"

    def make_optional(self, depth: int) -> str:
        match self.choose(6):
            case 0:
                return f"{self.of('map', depth)}.?{self.pick(FIELDS)}"
            case 1:
                return f"{self.of('map', depth)}[?{self.of('string', 0)}]"
            case 2:
                return f"optional.of({self.any(depth)})"
            case 3:
                return f"{self.of('optional', depth)}.optMap(e, {self.inside('e', 'any', lambda: self.any(depth))})"
            case 4:
                body = self.inside("e", "any", lambda: self.of("optional", depth))
                return f"{self.of('optional', depth)}.optFlatMap(e, {body})"
        return f"{self.of('optional', depth)}.or({self.of('optional', depth)})"

    def make_time(self, depth: int) -> str:
        return f"({self.of('time', depth)} {self.pick(('+', '-'))} {self.of('time', depth)})"

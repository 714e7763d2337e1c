"""The environment of an expression: the functions, macros and types of one release, and the declared variables.

Kubernetes compiles each expression in the environment of a version (apiserver pkg/cel/environment/base.go), so that
a policy accepted today still means the same after a rollback. `release` is the minor version, 37 for 1.37.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from types import MappingProxyType

import msgspec

from tierwall.cel import types
from tierwall.cel.library import FUNCTIONS, overloads
from tierwall.cel.library.table import EXTENSION, Overload
from tierwall.cel.syntax import ast
from tierwall.cel.syntax.macros import Syntax, syntax_of
from tierwall.cel.syntax.parser import parse
from tierwall.cel.types import DYN, Type, list_of, map_of, optional_of, type_of

NEWEST = 37
# Checked duration, timestamp and regex literals came with 1.29.
CHECKED_LITERALS = 29

# Names of types that are values, and the release that has them.
_TYPE_NAMES = {
    **{name: (type_of(Type(name)), 0) for name in ("bool", "bytes", "double", "int", "uint", "string", "null_type")},
    "list": (type_of(list_of(DYN)), 0),
    "map": (type_of(map_of(DYN, DYN)), 0),
    "type": (type_of(Type("type")), 0),
    "google.protobuf.Timestamp": (type_of(types.TIMESTAMP), 0),
    "google.protobuf.Duration": (type_of(types.DURATION), 0),
    "optional_type": (type_of(optional_of(DYN)), 28),
    "net.IP": (type_of(Type("net.IP")), 30),
    "net.CIDR": (type_of(Type("net.CIDR")), 30),
}


class Function(msgspec.Struct, frozen=True, gc=False):
    """The overloads of one name, in the order in which they are tried: plain functions and member functions."""

    name: str
    plain: tuple[Overload, ...]
    members: tuple[Overload, ...]


class Environment:
    """The functions of a release, with `extensions` those of CEL's extension libraries too, and the variables.

    Immutable, except that `known_calls` caches the types that the checker inferred for calls.
    """

    def __init__(
        self,
        release: int = NEWEST,
        variables: Mapping[str, Type] | None = None,
        extensions: bool = False,
        functions: Iterable[Overload] = (),
    ) -> None:
        self.release = release
        self.extensions = extensions
        self.variables: Mapping[str, Type] = MappingProxyType(dict(variables or {}))
        self.syntax: Syntax = syntax_of(release, extensions)
        extra = tuple(functions)
        self.functions = FunctionTable(release, extensions, extra) if extra else _functions(release, extensions)
        self.type_names = _type_names(release)
        self.dotted = frozenset(name.partition(".")[0] for name in (*self.variables, *self.type_names) if "." in name)
        self.known_calls: dict[object, Type] = {}

    def parse(self, source: str) -> ast.Expr:
        """Return the tree of `source` under this environment's syntax."""
        return parse(source, self.syntax)

    def resolve_call(self, node: ast.Call) -> tuple[str, tuple[ast.Expr, ...]]:
        """Return the function that a call names and its arguments, with a target that is not part of the name."""
        if node.target is None:
            return node.function, node.args
        path = ast.dotted_name(node.target)
        if path is not None and self.lookup(f"{path}.{node.function}") is not None:
            return f"{path}.{node.function}", node.args
        return node.function, (node.target, *node.args)

    def lookup(self, name: str) -> Function | None:
        """Return the function of that name (a leading dot does not count), if this environment has one."""
        name = name.removeprefix(".")
        return self.functions.get(name)


class FunctionTable:
    """The functions of an environment; most expressions name few, so each is put together when it is first named."""

    def __init__(self, release: int, extensions: bool, extra: Iterable[Overload] = ()) -> None:
        self._release = release
        self._extensions = extensions
        self._extra: dict[str, list[Overload]] = {}
        for overload in extra:
            self._extra.setdefault(overload.function, []).append(overload)
        self._known: dict[str, Function | None] = {}

    def __getitem__(self, name: str) -> Function:
        function = self.get(name)
        if function is None:
            raise KeyError(name)
        return function

    def get(self, name: str) -> Function | None:
        """Return the function of that name, or None."""
        if name not in self._known:
            if name not in FUNCTIONS and name not in self._extra:
                return None
            self._known[name] = self._function(name)
        return self._known[name]

    def names(self) -> list[str]:
        """Return the names of all functions."""
        return [name for name in (*FUNCTIONS, *self._extra) if self.get(name) is not None]

    def _function(self, name: str) -> Function | None:
        offered = [overload for overload in overloads(name) if self._offers(overload)] + self._extra.get(name, [])
        plain = tuple(overload for overload in offered if not overload.member)
        members = tuple(overload for overload in offered if overload.member)
        return Function(name, plain, members) if offered else None

    def _offers(self, overload: Overload) -> bool:
        return overload.since <= self._release or (self._extensions and overload.since == EXTENSION)


@lru_cache(maxsize=64)
def _functions(release: int, extensions: bool) -> FunctionTable:
    return FunctionTable(release, extensions)


@lru_cache(maxsize=64)
def _type_names(release: int) -> Mapping[str, Type]:
    return MappingProxyType({name: kind for name, (kind, since) in _TYPE_NAMES.items() if since <= release})


def first_releases(function: str) -> int | None:
    """Return the release that first offers a function (`EXTENSION`: none does), or None; for hints."""
    return min((overload.since for overload in overloads(function)), default=None)

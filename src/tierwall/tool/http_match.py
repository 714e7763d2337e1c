"""HTTP matchers of v1alpha1 rules (docs/tool.md#http-matchers).

Every family must match: one of its entries, or all of them for headers. A family that is missing or empty matches
everything. Paths are compared without the query string, hosts without the port and in lower case.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum
from functools import lru_cache
from typing import Any, Final, assert_never

from msgspec import Struct

from tierwall.cel.library.regex import compile_pattern
from tierwall.resources.resource import list_of_maps
from tierwall.tool.request import ToolRequest


class Comparison(StrEnum):
    """How a string is compared: exactly, by path elements, or with a pattern for the whole value."""

    EXACT = "Exact"
    PREFIX = "PathPrefix"
    REGEX = "RegularExpression"


EXACT: Final = Comparison.EXACT
PREFIX: Final = Comparison.PREFIX
REGEX: Final = Comparison.REGEX
# The prefix and suffix of a value in words.
_AFFIXES: Final = {EXACT: ("", ""), PREFIX: ("", "/*"), REGEX: ("~", "")}

# Policies are few and live long, so their patterns stay compiled.
_pattern = lru_cache(maxsize=4096)(compile_pattern)


class StringMatch(Struct, frozen=True):
    """A value and how it is compared."""

    type: Comparison
    value: str

    def matches(self, string: str) -> bool:
        """Whether a string matches; upper and lower case differ."""
        if self.type is EXACT:
            return string == self.value
        if self.type is PREFIX:
            prefix = self.value.removesuffix("/")
            return string == prefix or string.startswith(f"{prefix}/")
        if self.type is REGEX:
            try:
                return bool(_pattern(self.value).fullmatch(string.encode()))
            except UnicodeEncodeError:
                return False
        assert_never(self.type)

    def __str__(self) -> str:
        before, after = _AFFIXES[self.type]
        return f"{before}{self.value}{after}"


class HeaderMatch(Struct, frozen=True):
    """A header by its name in lower case."""

    name: str
    value: StringMatch

    def matches(self, headers: Mapping[str, str]) -> bool:
        """Whether the header is present and matches."""
        value = headers.get(self.name)
        return value is not None and self.value.matches(value)

    def __str__(self) -> str:
        return f"{self.name}: {self.value}"


class HttpMatch(Struct, frozen=True):
    """The HTTP matchers of a rule; an empty family matches everything."""

    methods: frozenset[str] = frozenset()
    paths: tuple[StringMatch, ...] = ()
    headers: tuple[HeaderMatch, ...] = ()
    # In lower case; `*.x` is every name below x.
    hosts: frozenset[str] = frozenset()
    ports: frozenset[int] = frozenset()

    def matches(self, request: ToolRequest) -> bool:
        """Whether every family matches."""
        if (
            (self.methods and request.http_method not in self.methods)
            or (self.ports and request.port not in self.ports)
            or (self.hosts and not host_matches(self.hosts, request.hostname))
        ):
            return False
        for header in self.headers:
            if not header.matches(request.headers):
                return False
        for path in self.paths:
            if path.matches(request.url_path):
                return True
        return not self.paths

    def why_not(self, request: ToolRequest) -> str:
        """Name the first family that does not match, or return an empty string."""
        if self.methods and request.http_method not in self.methods:
            return f"HTTP method {request.http_method} is not among {_join_sorted(self.methods)}"
        if self.ports and request.port not in self.ports:
            return f"port {request.port} is not among {_join_sorted(self.ports)}"
        if self.paths and not any(path.matches(request.url_path) for path in self.paths):
            return f"path `{request.url_path}` does not match {_join_sorted(self.paths)}"
        if self.hosts and not host_matches(self.hosts, request.hostname):
            host = f"host `{request.host}`" if request.host is not None else "a request without a host"
            return f"{host} does not match {_join_sorted(self.hosts)}"
        missed = next((header for header in self.headers if not header.matches(request.headers)), None)
        return "" if missed is None else f"no header matches `{missed}`"


EVERY_REQUEST = HttpMatch()


def host_matches(hosts: frozenset[str], name: str | None) -> bool:
    """Whether a host is listed, or is below a listed `*.x` at any depth."""
    if not name:
        return False
    if name in hosts:
        return True
    at = name.find(".", 1)  # at least one character before the first dot
    while at != -1:
        if f"*{name[at:]}" in hosts:
            return True
        at = name.find(".", at + 1)
    return False


def http_match(authorization: Mapping[str, Any]) -> HttpMatch:
    """Read the matchers of a rule's `authorization`, with defaults."""
    return HttpMatch(
        frozenset(authorization.get("methods") or ()),
        tuple(
            StringMatch(Comparison(path.get("type", PREFIX)), path.get("value", ""))
            for path in list_of_maps(authorization.get("paths"))
        ),
        tuple(
            HeaderMatch(header["name"].lower(), StringMatch(Comparison(header.get("type", EXACT)), header["value"]))
            for header in list_of_maps(authorization.get("headers"))
        ),
        frozenset(host.lower() for host in authorization.get("hosts") or ()),
        frozenset(authorization.get("ports") or ()),
    )


def _join_sorted(items: Iterable[object]) -> str:
    return ", ".join(sorted(map(str, items)))

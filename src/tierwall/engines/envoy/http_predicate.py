"""HTTP matchers of rules as predicates of Envoy (docs/tool.md#http-matchers)."""

from __future__ import annotations

from typing import assert_never

from tierwall.engines.envoy.cel_expression import Inexpressible
from tierwall.engines.envoy.matchers import (
    Predicate,
    all_of,
    any_of,
    contains,
    exact,
    has,
    prefix,
    present,
    regex,
    suffix,
)
from tierwall.engines.envoy.names import HEADER_PREFIX, PATH
from tierwall.engines.envoy.route_match import refused
from tierwall.tool.http_match import Comparison, HttpMatch, TextMatch
from tierwall.tool.request import SESSION_HEADER

_HOST = ":authority"
_EMPTY = "()"  # Envoy wants a pattern, and for the empty text, too


class TooLarge(Exception):
    """A pattern that Envoy refuses because its program is too large; the text says so."""


def http_predicate(match: HttpMatch, port: int, largest_pattern: int) -> Predicate | bool | None:
    """What must hold of the HTTP request: a predicate, None for nothing, False for what this listener never sees."""
    if match.ports and port not in match.ports:
        return False
    families: list[Predicate] = []
    if match.methods:
        families.append(any_of([has(":method", exact(one)) for one in sorted(match.methods)]))
    if match.paths:
        families.append(any_of([_text(PATH, one, largest_pattern) for one in match.paths]))
    if match.hosts:
        families.append(any_of([_host(one) for one in sorted(match.hosts)]))
    families += [_text(_header(one.name), one.value, largest_pattern) for one in match.headers]
    return all_of(families) if families else None


def _header(name: str) -> str:
    if name.startswith(HEADER_PREFIX):
        raise Inexpressible(f"header `{name}` is not a caller's to send")
    return _HOST if name == "host" else name


def session_predicate(path: str) -> Predicate:
    """The stream (GET) or end (DELETE that names it) of a session, at the backend's path."""
    get = has(":method", exact("GET"))
    delete = all_of([has(":method", exact("DELETE")), present(SESSION_HEADER)])
    return all_of([has(PATH, exact(path)), any_of([get, delete])])


def _text(header: str, text: TextMatch, largest_pattern: int) -> Predicate:
    match text.type:
        case Comparison.EXACT:
            return has(header, exact(text.value) if text.value else regex(_EMPTY))
        case Comparison.PREFIX:
            lead = text.value.removesuffix("/")
            below = has(header, prefix(f"{lead}/"))
            return any_of([has(header, exact(lead)), below]) if lead else below
        case Comparison.REGEX:
            return has(header, regex(_pattern(text.value, largest_pattern)))
        case _:
            assert_never(text.type)


def _pattern(pattern: str, largest_pattern: int) -> str:
    why = refused(pattern, largest_pattern)
    if why:
        raise TooLarge(f"pattern `{pattern}`, {why}")
    if not pattern.isascii():
        raise Inexpressible(f"pattern `{pattern}` has letters that are several bytes, and it matches byte by byte")
    return pattern or _EMPTY


def _host(host: str) -> Predicate:
    """A host name, or every one below `*.x`; requests may add a port, and capitals."""
    name = host.removeprefix("*")
    is_wild = name != host
    bare = has(_HOST, (suffix if is_wild else exact)(name, ignore_case=True))
    before_port = has(_HOST, (contains if is_wild else prefix)(f"{name}:", ignore_case=True))
    found = any_of([bare, all_of([has(_HOST, regex("[^:]+:[0-9]+")), before_port])])
    # At least one character before the dot.
    return all_of([found, has(_HOST, regex("[^.].*"))]) if is_wild else found

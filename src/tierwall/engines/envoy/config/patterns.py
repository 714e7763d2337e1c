"""Patterns and header names of HTTP matchers that Envoy does not take (docs/tool.md#http-matchers)."""

from __future__ import annotations

from tierwall.engines.envoy.config.cel_expression import Inexpressible
from tierwall.engines.envoy.config.names import HEADER_PREFIX
from tierwall.tool.http_match import Comparison, HttpMatch


def escaped(text: str) -> str:
    """Return a pattern that matches only this string."""
    return "".join(char if char.isalnum() or char in "/_-" else f"\\{char}" for char in text)


def pattern_problem(pattern: str, max_program_size: int) -> str:
    """Return why Envoy would refuse a pattern, or an empty string."""
    import re2  # few rules have patterns

    options = re2.Options()
    options.log_errors = False
    options.encoding = re2.Options.Encoding.LATIN1  # as Envoy reads patterns: byte by byte
    try:
        size = re2.compile(pattern.encode(), options).programsize
    except (re2.error, UnicodeEncodeError):
        return "which is not valid in Envoy"
    return f"whose program size {size} exceeds {max_program_size}" if size > max_program_size else ""


def check_http_match(match: HttpMatch, max_program_size: int) -> None:
    """Raise Inexpressible if Envoy cannot evaluate a part of an HTTP matcher."""
    for text in (*match.paths, *(header.value for header in match.headers)):
        if text.type is Comparison.REGEX:
            _check_pattern(text.value, max_program_size)
    for header in match.headers:
        if header.name.startswith(HEADER_PREFIX):
            raise Inexpressible(f"header `{header.name}` is reserved for Tierwall")


def _check_pattern(pattern: str, max_program_size: int) -> None:
    problem = pattern_problem(pattern, max_program_size)
    if problem:
        raise Inexpressible(f"pattern `{pattern}`, {problem}")
    if not pattern.isascii():
        raise Inexpressible(f"pattern `{pattern}` has characters of several bytes, and Envoy matches byte by byte")

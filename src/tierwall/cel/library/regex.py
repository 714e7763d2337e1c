"""Regular expressions in RE2's syntax (cel-spec, "Regular Expressions"; Kubernetes' regex library).

RE2 takes time linear in the string whatever the pattern, and refuses patterns whose program grows too large.
Strings are matched as UTF-8 bytes: spans of a `str` would be recounted for every match.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, lru_cache
from typing import TYPE_CHECKING

from tierwall.cel.errors import CostExceeded, EvaluationError
from tierwall.cel.library import cost
from tierwall.cel.library.table import Overload, member_overloads
from tierwall.cel.types import INT, STRING, list_of
from tierwall.values.pattern import pattern

if TYPE_CHECKING:
    import re2

# Functions whose second argument is a pattern.
MATCHING = ("matches", "find", "findAll")

# Kubernetes bounds expressions, and so their literals, well below this.
_MAX_LENGTH = 100_000
_SMALL_PROGRAM = 1000
# `\\C`, a single byte, is known to RE2 but not to Go.
_SINGLE_BYTE = pattern(r"(?<!\\)(?:\\\\)*\\C")
_TOO_LARGE = 200_000
# Bytes that one findAll may look at: each of its matches may look ahead to the end of the text.
_MAX_SEARCHED_BYTES = 200_000_000


@cache
def _options() -> re2.Options:
    """Return the options of every pattern. RE2 is imported only for expressions that have one."""
    import re2

    options = re2.Options()
    options.log_errors = False
    options.never_capture = True
    options.max_mem = 4 << 20
    return options


def compile_pattern(pattern: str) -> re2._Regexp:
    """Return the pattern, compiled once; it matches bytes."""
    program = _compiled(pattern)
    if isinstance(program, str):
        raise EvaluationError(f"invalid regular expression `{pattern[:80]}`: {program}")
    return program


@lru_cache(maxsize=128)
def _compiled(pattern: str) -> re2._Regexp | str:
    """Return the compiled pattern, or the error message. Failing takes as long as compiling, so both are remembered."""
    if len(pattern) > _MAX_LENGTH:
        return "too long"
    if _SINGLE_BYTE.search(pattern) and "\\Q" not in pattern:
        return "invalid escape sequence: \\C"
    import re2

    try:
        # `re2.compile` would keep it in a cache of its own.
        return re2._Regexp(encoded(pattern), _options())
    except re2.error as error:
        return error.args[0].decode(errors="replace") if isinstance(error.args[0], bytes) else str(error)


def program_size(pattern: str) -> int:
    """Return the length of the compiled program; if that is too long, a length that hardly any limit allows."""
    program = _compiled(pattern)
    if isinstance(program, str):
        return _TOO_LARGE if "too large" in program else 0
    return int(program.programsize)


def pattern_size(pattern: str) -> int:
    """Return the size that matching costs: the pattern's length, or the program's where that is large (`x{1000}`)."""
    size = program_size(pattern)
    return max(len(pattern), size) if size > _SMALL_PROGRAM else len(pattern)


def literal_cost(text: object, pattern: str, *_: object) -> int:
    """Return the cost of matching a pattern that is a literal, and therefore compiled beforehand."""
    return cost.regex(text, pattern_size(pattern))


def computed_cost(text: object, pattern: str, *_: object) -> int:
    """Return the cost of matching a pattern that has yet to be compiled, which Kubernetes does not charge for."""
    return literal_cost(text, pattern) + program_size(pattern) + len(pattern) // 10


def encoded(text: str) -> bytes:
    """Return the string in UTF-8."""
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise EvaluationError("invalid UTF-8 in string, cannot match") from None


@lru_cache(maxsize=128)
def searcher(pattern: str) -> Callable[[bytes], object]:
    """Return a function that gives None where the pattern matches nowhere in the string.

    A set of one pattern only says whether it matches, twice as fast as a search that also says where. But it has no
    fallback if its automaton outgrows its memory, so only small programs become sets.
    """
    regexp = compile_pattern(pattern)
    if regexp.programsize > _SMALL_PROGRAM:
        return regexp.search  # type: ignore[no-any-return]
    import re2

    only = re2.Set.SearchSet(_options())
    only.Add(pattern.encode())
    only.Compile()
    return only.Match  # type: ignore[no-any-return]


def matches(text: str, pattern: str) -> bool:
    """Whether the pattern matches anywhere in the string."""
    return searcher(pattern)(encoded(text)) is not None


def find(text: str, pattern: str) -> str:
    """Return the first match, or the empty string."""
    match = compile_pattern(pattern).search(encoded(text))
    return "" if match is None else bytes(match[0]).decode()


def find_all(text: str, pattern: str, limit: int = -1) -> list[str]:
    """Return the matches that do not overlap, at most `limit` of them; all if negative.

    As in Go, an empty match right after another match does not count.
    """
    regexp, data = compile_pattern(pattern), encoded(text)
    matches: list[str] = []
    if limit == 0:
        return matches
    last, looked_at = -1, 0
    for match in regexp.finditer(data):
        start, end = match.span()
        looked_at += len(data) - start
        if looked_at > _MAX_SEARCHED_BYTES:
            raise CostExceeded("operation cancelled: too many matches in too long a string")
        inside_character = start < len(data) and data[start] & 0xC0 == 0x80
        if start == end and (start == last or inside_character):
            continue
        last = end
        matches.append(data[start:end].decode())
        if len(matches) == limit:
            break
    return matches


_member = member_overloads(STRING)

OVERLOADS: tuple[Overload, ...] = (
    _member("find", (STRING,), STRING, find, cost=computed_cost),
    _member("findAll", (STRING,), list_of(STRING), find_all, cost=computed_cost),
    _member("findAll", (STRING, INT), list_of(STRING), find_all, cost=computed_cost),
)

"""CEL's tokens and the values of literals (cel-spec, "Syntax"; cel-go 0.29, parser/gen/CEL.g4 and parser/unescape.go).

ANTLR takes the longest token and, between equals, the rule that stands first; the order of the alternatives below gives
the same. A token's kind is its text for operators, punctuation and the words `true`, `false`, `null` and `in`, and one
of the constants below for the rest.
"""

from __future__ import annotations

import re

from tierwall.cel.values import Uint
from tierwall.values.pattern import pattern

IDENT = "identifier"
ESCAPED = "quoted identifier"
INT = "int"
UINT = "uint"
DOUBLE = "double"
STRING = "string"
BYTES = "bytes"
LITERALS = frozenset((STRING, INT, UINT, DOUBLE, BYTES))
END = "end of input"
BAD = "bad"

# Words that cannot name a variable or function; they may name fields.
RESERVED = frozenset(
    {"as", "break", "const", "continue", "else", "false", "for", "function", "if", "import", "in", "let", "loop"}
    | {"package", "namespace", "null", "return", "true", "var", "void", "while"}
)

_ESCAPE = r"""\\(?:[abfnrtv"'\\?`]|[xX][0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|[0-3][0-7]{2})"""
_STRING = (
    rf"(?:'''(?:[^\\']++|'(?!'')|{_ESCAPE})*+'''|\"\"\"(?:[^\\\"]++|\"(?!\"\")|{_ESCAPE})*+\"\"\""
    rf"|'(?:[^\\'\n\r]++|{_ESCAPE})*+'|\"(?:[^\\\"\n\r]++|{_ESCAPE})*+\""
    r"|[rR](?:'''(?:[^']++|'(?!''))*+'''|\"\"\"(?:[^\"]++|\"(?!\"\"))*+\"\"\"|'[^'\n\r]*+'|\"[^\"\n\r]*+\"))"
)

# Strings stand before identifiers because of their prefixes; numbers before operators because of `.5`.
_REST = (
    r"|([A-Za-z_][A-Za-z0-9_]*+)"  # 2
    r"|(0x[0-9a-fA-F]++[uU]|[0-9]++[uU])"  # 3
    r"|(0x[0-9a-fA-F]++)"  # 4
    r"|([0-9]++\.[0-9]++(?:[eE][+-]?[0-9]++)?|[0-9]++[eE][+-]?[0-9]++|\.[0-9]++(?:[eE][+-]?[0-9]++)?)"  # 5
    r"|([0-9]++)"  # 6
    r"|(==|!=|<=|>=|&&|\|\||[-<>\[\]{}().,!?:+*/%])"  # 7
    r"|(`[A-Za-z0-9_.\-/ ]++`)"  # 8
    r"|(.)"  # 9
    r"|(\Z))"  # 10
)
_BLANKS = r"(?:[\t \r\n\f]++|//[^\n]*+)*+"
_TOKEN = pattern(rf"{_BLANKS}(?:([bB]?{_STRING}){_REST}", re.DOTALL)
# Nearly all expressions have neither escapes nor triple quotes. This pattern for them compiles in a third of the time.
_PLAIN_TOKEN = pattern(rf"{_BLANKS}(?:([bB]?[rR]?(?:'[^'\n\r]*+'|\"[^\"\n\r]*+\")){_REST}", re.DOTALL)
_KINDS = ("", STRING, IDENT, UINT, INT, DOUBLE, INT, "", ESCAPED, BAD, END)
_HINTS = {"=": "write `==`", "&": "write `&&`", "|": "write `||`", ";": "an expression is one value"}
_WORDS = {"true": "true", "false": "false", "null": "null", "in": "in"}
_SIMPLE = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}
_ESCAPED = pattern(r"\\(?:[xX]([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|([0-3][0-7]{2})|(.))", re.DOTALL)


class Tokens:
    """The tokens of a text in three parallel lists; the last is of kind `END`, and one before it may be `BAD`."""

    __slots__ = ("kinds", "starts", "texts")

    def __init__(self) -> None:
        self.kinds: list[str] = []
        self.texts: list[str] = []
        self.starts: list[int] = []


def tokenize(source: str) -> Tokens:
    """Return the tokens of `source`, up to the first place where no token begins."""
    tokens = Tokens()
    kinds, texts, starts = tokens.kinds, tokens.texts, tokens.starts
    is_plain = "\\" not in source and "'''" not in source and '"""' not in source
    for match in (_PLAIN_TOKEN if is_plain else _TOKEN).finditer(source):
        group = match.lastindex or 0
        text = match[group]
        starts.append(match.start(group))
        texts.append(text)
        if group == 7:
            kinds.append(text)
        elif group == 2:
            kinds.append(_WORDS.get(text, IDENT))
        elif group == 1:
            kinds.append(BYTES if text[0] in "bB" else STRING)
        elif group >= 9:
            kinds.append(_KINDS[group])
            break
        else:
            kinds.append(_KINDS[group])
    if kinds[-1] == BAD:
        kinds.append(END)
        texts.append("")
        starts.append(len(source))
    return tokens


def is_type_name(kinds: list[str], first: int, end: int) -> bool:
    """Whether the tokens from `first` to before `end` are names joined by dots, as before the `{` of a message."""
    names = kinds[first + (kinds[first] == ".") : end]
    return len(names) % 2 == 1 and all(kind == (IDENT if place % 2 == 0 else ".") for place, kind in enumerate(names))


def names_message(kinds: list[str], i: int) -> bool:
    """Whether the name before token `i` begins the type of a message, where reserved words are allowed."""
    while kinds[i] == "." and kinds[i + 1] == IDENT:
        i += 2
    return kinds[i] == "{"


def describe_bad(source: str, at: int) -> tuple[str, str | None]:
    """Return the error message and a hint for the text at `at`, where no token begins."""
    char = source[at]
    if char in "'\"":
        return "string is not closed, or holds an escape that CEL does not have", None
    if char == "`":
        return "quoted name is not closed, or holds more than letters, digits and `_ . - /` and blanks", None
    return f"unexpected character `{char if char.isprintable() else ascii(char)[1:-1]}`", _HINTS.get(char)


class LiteralError(ValueError):
    """The token has the form of a literal, but no value."""


def literal_value(kind: str, text: str, negative: bool) -> object:
    """Return the value of a token of a literal's kind; `negative`: a `-` stands before the number."""
    if kind == STRING:
        return _string(text)
    if kind == INT:
        return _int(text, negative)
    if kind == DOUBLE:
        return _double(text, negative)
    return _uint(text) if kind == UINT else _bytes(text)


def _int(text: str, negative: bool) -> int:
    value = _whole(text, "int")
    value = -value if negative else value
    if not -(2**63) <= value < 2**63:
        raise LiteralError("int literal out of range: expected -9223372036854775808 to 9223372036854775807")
    return value


def _uint(text: str) -> Uint:
    value = _whole(text[:-1], "uint")
    if value >= 2**64:
        raise LiteralError("uint literal out of range: expected 0 to 18446744073709551615")
    return Uint(value)


def _whole(text: str, kind: str) -> int:
    # Python refuses very long decimals, and is slow with those it accepts.
    digits = text[2:].lstrip("0") if text.startswith("0x") else text.lstrip("0")
    if len(digits) > 20:
        raise LiteralError(f"{kind} literal out of range: {len(digits)} digits")
    return int(digits or "0", 16 if text.startswith("0x") else 10)


def _double(text: str, negative: bool) -> float:
    value = float(text)
    if value == float("inf"):
        raise LiteralError("double literal out of range")
    return -value if negative else value


def _string(text: str) -> str:
    """Return the string without its quotes and prefix, its escapes resolved and its line ends made `\\n`."""
    body, raw = _body(text)
    if raw or "\\" not in body:
        return body
    return _ESCAPED.sub(_character, body)


def _character(match: re.Match[str]) -> str:
    group = match.lastindex or 0
    text = match[group]
    if group == 5:
        return _SIMPLE.get(text, text)
    code = int(text, 8 if group == 4 else 16)
    if code > 0x10FFFF or 0xD800 <= code <= 0xDFFF:
        raise LiteralError(f"invalid Unicode code point in `{match[0]}`")
    return chr(code)


def _bytes(text: str) -> bytes:
    """Return characters as UTF-8, and octal and hex escapes as bytes."""
    body, raw = _body(text[1:])
    if raw or "\\" not in body:
        return body.encode()
    parts: list[bytes] = []
    end = 0
    for match in _ESCAPED.finditer(body):
        parts.append(body[end : match.start()].encode())
        end = match.end()
        group = match.lastindex or 0
        if group in (2, 3):
            raise LiteralError(f"`{match[0]}` is not allowed in a bytes literal: expected `\\x` and two hex digits")
        if group == 5:
            parts.append(_SIMPLE.get(match[5], match[5]).encode())
        else:
            parts.append(bytes((int(match[group], 8 if group == 4 else 16),)))
    parts.append(body[end:].encode())
    return b"".join(parts)


def _body(text: str) -> tuple[str, bool]:
    raw = text[0] in "rR"
    if raw:
        text = text[1:]
    width = 3 if len(text) >= 6 and text.startswith(("'''", '"""')) else 1
    body = text[width:-width]
    if "\r" in body:
        body = body.replace("\r\n", "\n").replace("\r", "\n")
    return body, raw

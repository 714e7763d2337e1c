"""CEL's tokens (cel-spec, "Syntax"; cel-go 0.29, parser/gen/CEL.g4, "Lexer Rules").

ANTLR takes the longest token and, between equals, the rule that stands first; the order of the alternatives below gives
the same. A token's kind is its text for operators, punctuation and the words `true`, `false`, `null` and `in`, and one
of the constants below for the rest.
"""

from __future__ import annotations

import re

IDENT = "identifier"
ESCAPED = "quoted identifier"
INT = "int"
UINT = "uint"
DOUBLE = "double"
STRING = "string"
BYTES = "bytes"
END = "end of input"
BAD = "bad"

_ESCAPE = r"""\\(?:[abfnrtv"'\\?`]|[xX][0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|[0-3][0-7]{2})"""
_STRING = (
    rf"(?:'''(?:[^\\']++|'(?!'')|{_ESCAPE})*+'''|\"\"\"(?:[^\\\"]++|\"(?!\"\")|{_ESCAPE})*+\"\"\""
    rf"|'(?:[^\\'\n\r]++|{_ESCAPE})*+'|\"(?:[^\\\"\n\r]++|{_ESCAPE})*+\""
    r"|[rR](?:'''(?:[^']++|'(?!''))*+'''|\"\"\"(?:[^\"]++|\"(?!\"\"))*+\"\"\"|'[^'\n\r]*+'|\"[^\"\n\r]*+\"))"
)

# Strings stand before identifiers because of their prefixes; numbers before operators because of `.5`.
_TOKEN = re.compile(
    r"(?:[\t \r\n\f]++|//[^\n]*+)*+(?:"
    rf"({_STRING})"  # 1
    rf"|([bB]{_STRING})"  # 2
    r"|([A-Za-z_][A-Za-z0-9_]*+)"  # 3
    r"|(0x[0-9a-fA-F]++[uU]|[0-9]++[uU])"  # 4
    r"|(0x[0-9a-fA-F]++)"  # 5
    r"|([0-9]++\.[0-9]++(?:[eE][+-]?[0-9]++)?|[0-9]++[eE][+-]?[0-9]++|\.[0-9]++(?:[eE][+-]?[0-9]++)?)"  # 6
    r"|([0-9]++)"  # 7
    r"|(==|!=|<=|>=|&&|\|\||[-<>\[\]{}().,!?:+*/%])"  # 8
    r"|(`[A-Za-z0-9_.\-/ ]++`)"  # 9
    r"|(.)"  # 10
    r"|(\Z))",  # 11
    re.DOTALL,
)
_KINDS = ("", STRING, BYTES, IDENT, UINT, INT, DOUBLE, INT, "", ESCAPED, BAD, END)
_HINTS = {"=": "write `==`", "&": "write `&&`", "|": "write `||`", ";": "an expression is one value"}
_WORDS = {"true": "true", "false": "false", "null": "null", "in": "in"}


class Tokens:
    """The tokens of a text in three parallel lists; the last is of kind `END`, and one before it may be `BAD`."""

    __slots__ = ("kinds", "starts", "texts")

    def __init__(self) -> None:
        self.kinds: list[str] = []
        self.texts: list[str] = []
        self.starts: list[int] = []


def tokenize(source: str) -> Tokens:
    """The tokens of `source`, up to the first place where there is none."""
    tokens = Tokens()
    kinds, texts, starts = tokens.kinds, tokens.texts, tokens.starts
    for match in _TOKEN.finditer(source):
        group = match.lastindex or 0
        text = match[group]
        starts.append(match.start(group))
        texts.append(text)
        if group == 8:
            kinds.append(text)
        elif group == 3:
            kinds.append(_WORDS.get(text, IDENT))
        elif group >= 10:
            kinds.append(_KINDS[group])
            break
        else:
            kinds.append(_KINDS[group])
    if kinds[-1] == BAD:
        kinds.append(END)
        texts.append("")
        starts.append(len(source))
    return tokens


def describe_bad(source: str, at: int) -> tuple[str, str | None]:
    """What is wrong with the text at `at`, where no token begins, and a hint."""
    char = source[at]
    if char in "'\"":
        return "string is not closed, or holds an escape that CEL does not have", None
    if char == "`":
        return "quoted name is not closed, or holds more than letters, digits and `_ . - /` and blanks", None
    return f"unexpected character `{char if char.isprintable() else ascii(char)[1:-1]}`", _HINTS.get(char)

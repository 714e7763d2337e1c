"""JSON text read without recursion and with exact error places: slow, for what the fast readers cannot take."""

from __future__ import annotations

import re
from json.decoder import JSONDecodeError, scanstring  # type: ignore[attr-defined]
from typing import Any, Final

_SPACE = re.compile(r"[ \t\n\r]*")
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_LITERALS: Final = {"true": True, "false": False, "null": None}

WORDS: Final = {
    "Expecting value": "expected a value",
    "Expecting property name enclosed in double quotes": "expected a key in double quotes",
    "Illegal trailing comma before end of object": "expected a key in double quotes after `,`",
    "Illegal trailing comma before end of array": "expected a value after `,`",
    "Expecting ':' delimiter": "expected `:` after a key",
    "Expecting ',' delimiter": "expected `,` or the end of the collection",
    "Unterminated string starting at": 'text is not closed: no `"` before the end',
    "Invalid control character at": "found a control character in a text",
    "Invalid \\escape": "found an unknown escape",
    "Invalid \\uXXXX escape": "expected four hexadecimal digits after `\\u`",
}


class JsonError(Exception):
    """Text that is not JSON, with the octet offset of the problem.

    `final` says that the text is JSON but its value cannot be taken, so trying it as YAML is no use.
    """

    def __init__(self, problem: str, offset: int, code: str = "TW002", final: bool = False) -> None:
        super().__init__(problem)
        self.problem = problem
        self.offset = offset
        self.code = code
        self.final = final


def space_end(text: str, at: int) -> int:
    found = _SPACE.match(text, at)
    return found.end() if found else at


def decode_deep(text: str, at: int, max_depth: int) -> tuple[Any, int]:
    """A value read without recursion; slow, for what the fast readers cannot take."""
    root: list[Any] = []
    stack: list[Any] = [root]
    keys: list[str] = []
    while True:
        at = space_end(text, at)
        char = text[at : at + 1]
        if char == "{" or char == "[":
            child: Any = {} if char == "{" else []
            _put(stack, keys, child)
            if len(stack) > max_depth:
                raise JsonError(f"nested deeper than {max_depth} levels", at, "TW003", final=True)
            stack.append(child)
            at = space_end(text, at + 1)
            if text[at : at + 1] != ("}" if char == "{" else "]"):
                if char == "{":
                    at = _key(text, at, keys)
                continue
            stack.pop()
            at += 1
        else:
            value, at = _text(text, at) if char == '"' else _word(text, at)
            _put(stack, keys, value)
        while len(stack) > 1:
            at = space_end(text, at)
            closing = "}" if isinstance(stack[-1], dict) else "]"
            char = text[at : at + 1]
            if char == ",":
                at += 1
                if closing == "}":
                    at = _key(text, space_end(text, at), keys)
                break
            if char != closing:
                raise JsonError(f"expected `,` or `{closing}`", at)
            stack.pop()
            at += 1
        else:
            return root[0], at


def _put(stack: list[Any], keys: list[str], value: Any) -> None:
    into = stack[-1]
    if isinstance(into, dict):
        into[keys.pop()] = value
    else:
        into.append(value)


def _key(text: str, at: int, keys: list[str]) -> int:
    if text[at : at + 1] != '"':
        raise JsonError("expected a key in double quotes", at)
    key, at = _text(text, at)
    keys.append(key)
    at = space_end(text, at)
    if text[at : at + 1] != ":":
        raise JsonError("expected `:` after a key", at)
    return at + 1


def _text(text: str, at: int) -> tuple[str, int]:
    try:
        found: tuple[str, int] = scanstring(text, at + 1, True)
        return found
    except JSONDecodeError as error:
        raise JsonError(WORDS.get(error.msg, error.msg.lower()), min(error.pos, len(text))) from None


def _word(text: str, at: int) -> tuple[Any, int]:
    found = _NUMBER.match(text, at)
    if found is None:
        for word, value in _LITERALS.items():
            if text.startswith(word, at):
                return value, at + len(word)
        raise JsonError("expected a value", min(at, len(text)))
    digits = found.group()
    if digits.lstrip("-").isdigit():
        return (int(digits) if len(digits) < 20 else float(digits)), found.end()
    number = float(digits)
    if number - number != 0:
        raise JsonError(f"number `{digits[:40]}` is outside the range of float64", at, final=True)
    return number, found.end()

"""The values of literal tokens, and the refusal of those that have none (cel-go 0.29, parser/unescape.go)."""

from __future__ import annotations

import re

from tierwall.cel.values import Uint

_SIMPLE = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}
_ESCAPE = re.compile(r"\\(?:[xX]([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|([0-3][0-7]{2})|(.))", re.DOTALL)


class LiteralError(ValueError):
    """A token of the right shape that stands for no value."""


def int_value(text: str, negative: bool) -> int:
    """The value of an int token, `-` before it included; refused outside int64."""
    value = _whole(text, "int")
    value = -value if negative else value
    if not -(2**63) <= value < 2**63:
        raise LiteralError("int literal out of range: expected -9223372036854775808 to 9223372036854775807")
    return value


def uint_value(text: str) -> Uint:
    """The value of a uint token; refused outside uint64."""
    value = _whole(text[:-1], "uint")
    if value >= 2**64:
        raise LiteralError("uint literal out of range: expected 0 to 18446744073709551615")
    return Uint(value)


def _whole(text: str, kind: str) -> int:
    # Python refuses to read very long decimals, and would take long over those it reads.
    digits = text[2:].lstrip("0") if text.startswith("0x") else text.lstrip("0")
    if len(digits) > 20:
        raise LiteralError(f"{kind} literal out of range: {len(digits)} digits")
    return int(digits or "0", 16 if text.startswith("0x") else 10)


def double_value(text: str, negative: bool) -> float:
    """The value of a double token; refused where it is infinite."""
    value = float(text)
    if value == float("inf"):
        raise LiteralError("double literal out of range")
    return -value if negative else value


def string_value(text: str) -> str:
    """The value of a string token, with its quotes, its prefix and its escapes taken away and line ends made `\\n`."""
    body, raw = _body(text)
    if raw or "\\" not in body:
        return body
    return _ESCAPE.sub(_character, body)


def _character(match: re.Match[str]) -> str:
    group = match.lastindex or 0
    text = match[group]
    if group == 5:
        return _SIMPLE.get(text, text)
    code = int(text, 8 if group == 4 else 16)
    if code > 0x10FFFF or 0xD800 <= code <= 0xDFFF:
        raise LiteralError(f"invalid Unicode code point in `{match[0]}`")
    return chr(code)


def bytes_value(text: str) -> bytes:
    """The value of a bytes token: characters as UTF-8, octal and hex escapes as bytes."""
    body, raw = _body(text[1:])
    if raw or "\\" not in body:
        return body.encode()
    parts: list[bytes] = []
    end = 0
    for match in _ESCAPE.finditer(body):
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

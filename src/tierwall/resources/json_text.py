"""JSON text as Kubernetes reads it: Go's encoding/json with numbers as int64 where they fit, else float64.

Ordinary text goes through msgspec. What msgspec refuses or reads otherwise (several values in a row, lone surrogates,
integers beyond int64, great depth) takes the slower ways here, so that the answer is always Go's.
"""

from __future__ import annotations

import json
import re
from json.decoder import JSONDecodeError
from typing import Any, Final

import msgspec

from tierwall.resources.json_deep import WORDS, JsonError, decode_deep, space_end

MAX_DEPTH = 10_000

# The next bracket that stands in no string.
_BRACKET = re.compile(rb'(?:[^"\[\]{}]++|"(?:[^"\\]|\\.)*+")*+([\[\]{}])', re.DOTALL)
_CONSTANT = re.compile(r"(?<=[\s:,\[])(?:NaN|-?Infinity)")
_SURROGATE = re.compile("[\ud800-\udfff]")
_NOT_BRACKET: Final = bytes(octet for octet in range(256) if octet not in b"[]{}")
_DIGITS: Final = bytes(0x30 if 0x30 <= octet <= 0x39 else 0x20 for octet in range(256))
_BLOCK: Final = 1 << 20
_PASSES = 64


class JsonStream:
    """The JSON values of one text, one after the other."""

    def __init__(self, data: bytes, max_depth: int = MAX_DEPTH) -> None:
        self._data = data
        self._max_depth = max_depth
        # Each octet as one character, made when it is first needed: offsets stay octet offsets.
        self._text = ""

    def next(self, at: int) -> tuple[Any, int, int] | None:
        """The value at or after `at` with its start and end, or None at the end of the text."""
        if at == 0:
            whole = self._whole()
            if whole is not None:
                return whole
        text = self._text = self._text or self._data.decode("latin-1")
        start = space_end(text, at)
        if start == len(text):
            return None
        end = _value_end(text, start, self._max_depth)
        octets = self._data[start:end]
        _check_depth(octets, start, self._max_depth)
        return _value(octets, start, self._max_depth), start, end

    def _whole(self) -> tuple[Any, int, int] | None:
        """The usual case: one value and nothing else."""
        data = self._data
        try:
            _check_depth(data, 0, self._max_depth)
            value = msgspec.json.decode(data)
        except (JsonError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return None
        start = len(data) - len(data.lstrip(b" \t\r\n"))
        end = len(data.rstrip(b" \t\r\n"))
        return (_tidy(value) if _has_long_number(data) else value), start, end


def _value_end(text: str, start: int, max_depth: int) -> int:
    """Where the value at `start` ends; raises if there is none."""
    try:
        end = _BOUNDS.raw_decode(text, start)[1]
    except JSONDecodeError as error:
        if error.doc is not text:
            constant = _CONSTANT.search(text, start)
            raise JsonError("expected a value", constant.start() if constant else start) from None
        raise JsonError(WORDS.get(error.msg, error.msg.lower()), min(error.pos, len(text))) from None
    except RecursionError:
        return decode_deep(text, start, max_depth)[1]
    if text[start] in "-0123456789" and text[end : end + 1] in (".", "e", "E"):
        raise JsonError("expected a digit", end + 1)
    return end


def _refuse_constant(name: str) -> Any:
    # NaN and the infinities are no JSON. Where they stand is not told here; `_value_end` looks for it.
    raise JSONDecodeError("Expecting value", name, 0)


class _Bounds(json.JSONDecoder):
    def __init__(self) -> None:
        super().__init__(parse_int=len, parse_float=len, parse_constant=_refuse_constant)


_BOUNDS: Final = _Bounds()


def _value(octets: bytes, start: int, max_depth: int) -> Any:
    try:
        value = msgspec.json.decode(octets)
    except UnicodeDecodeError as error:
        raise _not_utf8(octets, start) from error
    except (msgspec.MsgspecError, RecursionError):
        # A number outside float64, a lone surrogate, or depth.
        try:
            text = octets.decode()
        except UnicodeDecodeError:
            raise _not_utf8(octets, start) from None
        try:
            return _tidy(decode_deep(text, 0, max_depth)[0])
        except JsonError as error:
            error.offset = start + len(text[: error.offset].encode())
            raise
    return _tidy(value) if _has_long_number(octets) else value


def _not_utf8(octets: bytes, start: int) -> JsonError:
    try:
        octets.decode()
    except UnicodeDecodeError as error:
        return JsonError(f"octet 0x{octets[error.start]:02X} is not UTF-8", start + error.start, "TW005", final=True)
    return JsonError("text is not UTF-8", start, "TW005", final=True)


def _has_long_number(data: bytes) -> bool:
    """Is there a run of 19 digits, so that an integer may lie outside int64?"""
    run = b"0" * 19
    return any(run in data[at : at + _BLOCK + 18].translate(_DIGITS) for at in range(0, len(data), _BLOCK))


def _tidy(value: Any) -> Any:
    """The value with integers outside int64 as floats and lone surrogates as U+FFFD, as Go has them."""
    root = [value]
    todo: list[Any] = [root]
    while todo:
        one = todo.pop()
        for key, child in list(one.items()) if isinstance(one, dict) else list(enumerate(one)):
            if isinstance(child, dict | list):
                todo.append(child)
            elif isinstance(child, str):
                if _SURROGATE.search(child):
                    one[key] = _SURROGATE.sub("\ufffd", child)
            elif isinstance(child, int) and not -(2**63) <= child < 2**63:
                one[key] = float(child)
        if isinstance(one, dict) and any(_SURROGATE.search(key) for key in one):
            pairs = [(_SURROGATE.sub("\ufffd", key), child) for key, child in one.items()]
            one.clear()
            one.update(pairs)
    return root[0]


def _check_depth(data: bytes, start: int, max_depth: int) -> None:
    """Refuse text that is nested too deep, before anything is built from it.

    Taking out innermost pairs of brackets level by level settles it for ordinary text; brackets inside strings may be
    left over, and only if they could hide too much depth are the strings taken out too.
    """
    brackets = data.translate(None, _NOT_BRACKET)
    for level in range(1, _PASSES):
        rest = brackets.replace(b"{}", b"").replace(b"[]", b"")
        if level + len(rest) <= max_depth:
            return
        if len(rest) == len(brackets):
            break
        brackets = rest
    depth = 0
    for found in _BRACKET.finditer(data):
        depth += 1 if found.group(1) in b"[{" else -1
        if depth > max_depth:
            raise JsonError(f"nested deeper than {max_depth} levels", start + found.start(1), "TW003", final=True)


class _Repeated(Exception):
    """A key is set again."""


def _no_repeats(pairs: list[tuple[str, Any]]) -> None:
    if len(dict(pairs)) != len(pairs):
        raise _Repeated


def repeats_keys(octets: bytes) -> bool:
    """Is a key set again in some object of this JSON text?"""
    try:
        json.loads(octets.decode("utf-8", "replace"), object_pairs_hook=_no_repeats, parse_int=len, parse_float=len)
    except (_Repeated, RecursionError):
        # Text that is too deep is looked through slowly.
        return True
    return False

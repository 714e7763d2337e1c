"""Read JSON text as Kubernetes does: Go's encoding/json, with numbers as int64 where they fit, otherwise float64.

msgspec reads ordinary text. What msgspec refuses or reads differently (several values in a row, lone surrogates,
integers beyond int64, deep nesting) takes the slower functions here, so that the result is always that of Go.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from json.decoder import JSONDecodeError, scanstring  # type: ignore[attr-defined]
from typing import Any, Final

import msgspec

from tierwall.resources.json_locator import too_deep
from tierwall.values.pattern import pattern

MAX_DEPTH = 10_000

_SPACE = pattern(r"[ \t\n\r]*")
_NUMBER = pattern(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_LITERALS: Final = {"true": True, "false": False, "null": None}

_WORDS: Final = {
    "Expecting value": "expected a value",
    "Expecting property name enclosed in double quotes": "expected a key in double quotes",
    "Illegal trailing comma before end of object": "expected a key in double quotes after `,`",
    "Illegal trailing comma before end of array": "expected a value after `,`",
    "Expecting ':' delimiter": "expected `:` after a key",
    "Expecting ',' delimiter": "expected `,` or the end of the collection",
    "Unterminated string starting at": 'string is not closed: no `"` before the end',
    "Invalid control character at": "found a control character in a string",
    "Invalid \\escape": "found an unknown escape",
    "Invalid \\uXXXX escape": "expected four hexadecimal digits after `\\u`",
}
_CONSTANT = pattern(r"(?<=[\s:,\[])(?:NaN|-?Infinity)")
_SURROGATE = pattern("[\ud800-\udfff]")
_DIGITS: Final = bytes(0x30 if 0x30 <= byte <= 0x39 else 0x20 for byte in range(256))
_BLOCK: Final = 1 << 20


class JsonError(Exception):
    """The text is not JSON; `offset` is the byte offset of the problem.

    `final` means that the text is JSON but its value cannot be used, so it is useless to try YAML.
    """

    def __init__(self, problem: str, offset: int, code: str = "TW002", final: bool = False) -> None:
        super().__init__(problem)
        self.problem = problem
        self.offset = offset
        self.code = code
        self.final = final


def json_values(data: bytes, max_depth: int) -> Iterator[tuple[Any, int, int]]:
    """Yield the values of a text one after another, each with its start and end; raise `JsonError` at a mistake."""
    whole = _whole(data, max_depth)
    if whole is not None:
        yield whole
        return
    # One character per byte, so that offsets are byte offsets.
    text = data.decode("latin-1")
    end = 0
    while (start := _space_end(text, end)) < len(text):
        end = _value_end(text, start, max_depth)
        value_bytes = data[start:end]
        _check_depth(value_bytes, start, max_depth)
        yield _value(value_bytes, start, max_depth), start, end


def _whole(data: bytes, max_depth: int) -> tuple[Any, int, int] | None:
    """Read the usual case, one value and nothing else; return None for any other text."""
    try:
        _check_depth(data, 0, max_depth)
        value = msgspec.json.decode(data)
    except (JsonError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    start = len(data) - len(data.lstrip(b" \t\r\n"))
    end = len(data.rstrip(b" \t\r\n"))
    return (_normalised(value) if _has_long_number(data) else value), start, end


def _value_end(text: str, start: int, max_depth: int) -> int:
    """Return where the value at `start` ends; raise if the text has no value there."""
    try:
        end = _BOUNDS.raw_decode(text, start)[1]
    except JSONDecodeError as error:
        if error.doc is not text:
            constant = _CONSTANT.search(text, start)
            raise JsonError("expected a value", constant.start() if constant else start) from None
        raise JsonError(_WORDS.get(error.msg, error.msg.lower()), min(error.pos, len(text))) from None
    except RecursionError:
        return _decode_deep(text, start, max_depth)[1]
    if text[start] in "-0123456789" and text[end : end + 1] in (".", "e", "E"):
        raise JsonError("expected a digit", end + 1)
    return end


def _refuse_constant(name: str) -> Any:
    # NaN and the infinities are not JSON. The decoder does not pass the offset; `_value_end` searches for it.
    raise JSONDecodeError("Expecting value", name, 0)


class _Bounds(json.JSONDecoder):
    def __init__(self) -> None:
        super().__init__(parse_int=len, parse_float=len, parse_constant=_refuse_constant)


_BOUNDS: Final = _Bounds()


def _value(value_bytes: bytes, start: int, max_depth: int) -> Any:
    try:
        value = msgspec.json.decode(value_bytes)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        # A byte that is not UTF-8, a number outside float64, a lone surrogate, or deep nesting.
        try:
            text = value_bytes.decode()
        except UnicodeDecodeError as error:
            problem = f"byte 0x{value_bytes[error.start]:02X} is not UTF-8"
            raise JsonError(problem, start + error.start, "TW005", final=True) from None
        try:
            return _normalised(_decode_deep(text, 0, max_depth)[0])
        except JsonError as error:
            error.offset = start + len(text[: error.offset].encode())
            raise
    return _normalised(value) if _has_long_number(value_bytes) else value


def _has_long_number(data: bytes) -> bool:
    """Whether there is a run of 19 digits, so that an integer may be outside int64."""
    run = b"0" * 19
    return any(run in data[at : at + _BLOCK + 18].translate(_DIGITS) for at in range(0, len(data), _BLOCK))


def _normalised(value: Any) -> Any:
    """Replace integers outside int64 by floats and lone surrogates by U+FFFD, as Go does."""
    root = [value]
    todo: list[Any] = [root]
    while todo:
        collection = todo.pop()
        for key, child in list(collection.items()) if isinstance(collection, dict) else list(enumerate(collection)):
            if isinstance(child, dict | list):
                todo.append(child)
            elif isinstance(child, str):
                if _SURROGATE.search(child):
                    collection[key] = _SURROGATE.sub("\ufffd", child)
            elif isinstance(child, int) and not -(2**63) <= child < 2**63:
                collection[key] = float(child)
        if isinstance(collection, dict) and any(_SURROGATE.search(key) for key in collection):
            pairs = [(_SURROGATE.sub("\ufffd", key), child) for key, child in collection.items()]
            collection.clear()
            collection.update(pairs)
    return root[0]


def _check_depth(data: bytes, start: int, max_depth: int) -> None:
    """Refuse text that is nested too deeply before building anything from it."""
    at = too_deep(data, max_depth)
    if at is not None:
        raise JsonError(f"nested deeper than {max_depth} levels", start + at, "TW003", final=True)


def _space_end(text: str, at: int) -> int:
    match = _SPACE.match(text, at)
    return match.end() if match else at


def _decode_deep(text: str, at: int, max_depth: int) -> tuple[Any, int]:
    """Decode a value without recursion; slow, for text that the fast decoders refuse."""
    root: list[Any] = []
    stack: list[Any] = [root]
    keys: list[str] = []
    while True:
        at = _space_end(text, at)
        char = text[at : at + 1]
        if char == "{" or char == "[":
            child: Any = {} if char == "{" else []
            _put(stack, keys, child)
            if len(stack) > max_depth:
                raise JsonError(f"nested deeper than {max_depth} levels", at, "TW003", final=True)
            stack.append(child)
            at = _space_end(text, at + 1)
            if text[at : at + 1] != ("}" if char == "{" else "]"):
                if char == "{":
                    at = _key(text, at, keys)
                continue
            stack.pop()
            at += 1
        else:
            value, at = _string(text, at) if char == '"' else _literal(text, at)
            _put(stack, keys, value)
        while len(stack) > 1:
            at = _space_end(text, at)
            closing = "}" if isinstance(stack[-1], dict) else "]"
            char = text[at : at + 1]
            if char == ",":
                at += 1
                if closing == "}":
                    at = _key(text, _space_end(text, at), keys)
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
    key, at = _string(text, at)
    keys.append(key)
    at = _space_end(text, at)
    if text[at : at + 1] != ":":
        raise JsonError("expected `:` after a key", at)
    return at + 1


def _string(text: str, at: int) -> tuple[str, int]:
    try:
        string: tuple[str, int] = scanstring(text, at + 1, True)
        return string
    except JSONDecodeError as error:
        raise JsonError(_WORDS.get(error.msg, error.msg.lower()), min(error.pos, len(text))) from None


def _literal(text: str, at: int) -> tuple[Any, int]:
    match = _NUMBER.match(text, at)
    if match is None:
        for word, value in _LITERALS.items():
            if text.startswith(word, at):
                return value, at + len(word)
        raise JsonError("expected a value", min(at, len(text)))
    digits = match.group()
    if digits.lstrip("-").isdigit():
        return (int(digits) if len(digits) < 20 else float(digits)), match.end()
    number = float(digits)
    if number - number != 0:
        raise JsonError(f"number `{digits[:40]}` is outside the range of float64", at, final=True)
    return number, match.end()


def json_line(value: Any) -> str:
    """Write a value as one line of JSON, however deeply it is nested."""
    try:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    except RecursionError:
        return "".join(_pieces(value))


def _pieces(value: Any) -> Iterator[str]:
    """Yield JSON piece by piece, from a stack of what is still to be written."""
    todo: list[tuple[bool, Any]] = [(False, value)]
    while todo:
        is_text, item = todo.pop()
        if is_text:
            yield item
        elif isinstance(item, dict | list):
            opening, closing = ("{", "}") if isinstance(item, dict) else ("[", "]")
            yield opening
            inner: list[tuple[bool, Any]] = []
            for key, child in item.items() if isinstance(item, dict) else enumerate(item):
                if inner:
                    inner.append((True, ","))
                if isinstance(item, dict):
                    inner.append((True, json.dumps(key, ensure_ascii=False) + ":"))
                inner.append((False, child))
            todo.append((True, closing))
            todo += reversed(inner)
        else:
            yield json.dumps(item, ensure_ascii=False)

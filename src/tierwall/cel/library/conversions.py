"""Conversions between types (cel-spec, "List of Standard Definitions"; string forms as in cel-go), and base64.

Base64 is cel-go's ext.Encoders, which no Kubernetes environment offers.
"""

from __future__ import annotations

import base64
import binascii
import math
import re
from decimal import Decimal

from tierwall.cel.errors import EvaluationError
from tierwall.cel.library import cost
from tierwall.cel.library.table import EXTENSION, Overload
from tierwall.cel.library.time import format_duration, format_timestamp, parse_duration, parse_timestamp
from tierwall.cel.types import BOOL, BYTES, DOUBLE, DURATION, DYN, INT, STRING, TIMESTAMP, UINT, A, type_of
from tierwall.cel.values import (
    NANOS,
    TIMESTAMP_MAX,
    TIMESTAMP_MIN,
    Timestamp,
    TypeValue,
    Uint,
    int64,
    type_name,
    uint64,
)
from tierwall.values.pattern import pattern

_INTEGER = pattern(r"[+-]?[0-9]+", re.ASCII)
_UNSIGNED = pattern(r"[0-9]+", re.ASCII)
_DECIMAL = pattern(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?", re.ASCII)
_HEXADECIMAL = pattern(r"[+-]?0[xX]([0-9a-fA-F]+\.?[0-9a-fA-F]*|\.[0-9a-fA-F]+)[pP][+-]?[0-9]+", re.ASCII)
_SPECIAL = pattern(r"[+-]?(inf|infinity)|nan", re.ASCII | re.IGNORECASE)
_MISPLACED = pattern(r"(?<![0-9a-fA-FxX])_|_(?![0-9a-fA-F])|^_|_$", re.ASCII)
_BOOLS = {
    **dict.fromkeys(("1", "t", "T", "TRUE", "true", "True"), True),
    **dict.fromkeys(("0", "f", "F", "FALSE", "false", "False"), False),
}
# Longer digit runs overflow in any case, and Python refuses to convert very long ones.
_MAX_NUMBER_LENGTH = 400
_MAX_DOUBLE_LENGTH = 2_000


def _failed(value: object, to: str) -> EvaluationError:
    return EvaluationError(f"type conversion error from '{type_name(value)}' to '{to}'")


def string_to_int(text: str) -> int:
    """Parse decimal digits with an optional sign."""
    if len(text) <= _MAX_NUMBER_LENGTH and _INTEGER.fullmatch(text):
        return int64(int(text))
    raise _failed(text, "int")


def string_to_uint(text: str) -> Uint:
    """Parse decimal digits."""
    if len(text) <= _MAX_NUMBER_LENGTH and _UNSIGNED.fullmatch(text):
        return uint64(int(text))
    raise _failed(text, "uint")


def string_to_double(text: str) -> float:
    """Parse a Go floating-point literal, `Inf` or `NaN`."""
    if _SPECIAL.fullmatch(text):
        return float(text)
    if len(text) > _MAX_DOUBLE_LENGTH:
        raise _failed(text, "double")
    if "_" in text and not _MISPLACED.search(text):
        text = text.replace("_", "")
    try:
        if _DECIMAL.fullmatch(text):
            value = float(text)
        elif _HEXADECIMAL.fullmatch(text):
            value = float.fromhex(text)
        else:
            raise _failed(text, "double")
    except OverflowError:
        raise _failed(text, "double") from None
    if math.isinf(value):
        raise _failed(text, "double")
    return value


def string_to_bool(text: str) -> bool:
    """Parse the words that Go's strconv.ParseBool accepts."""
    if text in _BOOLS:
        return _BOOLS[text]
    raise _failed(text, "bool")


def string_to_bytes(text: str) -> bytes:
    """Return the string in UTF-8."""
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise _failed(text, "bytes") from None


def bytes_to_string(data: bytes) -> str:
    """Decode UTF-8; anything else is an error."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise EvaluationError("invalid UTF-8 in bytes, cannot convert to string") from None


def double_to_int(value: float) -> int:
    """Round towards zero; the two ends of the range are errors, as a double cannot tell them from values beyond."""
    if math.isfinite(value) and -(2.0**63) < value < 2.0**63:
        return int(value)
    raise EvaluationError("integer overflow")


def double_to_uint(value: float) -> Uint:
    """Round towards zero."""
    if math.isfinite(value) and 0 <= value < 2.0**64:
        return Uint(int(value))
    raise EvaluationError("unsigned integer overflow")


def double_to_string(value: float) -> str:
    """Format as Go's `%g`: the shortest digits that give the number back, with an exponent below -4 and from 6 on."""
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    sign, digits, exponent = Decimal(repr(value)).as_tuple()
    assert isinstance(exponent, int)
    stripped = "".join(map(str, digits)).rstrip("0") or "0"
    # The power of ten of the first digit.
    power = exponent + len(digits) - 1 if stripped != "0" else 0
    mark = "-" if sign else ""
    if -4 <= power < 6:
        if power < 0:
            return f"{mark}0.{'0' * (-power - 1)}{stripped}"
        whole = stripped[: power + 1].ljust(power + 1, "0")
        fraction = stripped[power + 1 :]
        return f"{mark}{whole}.{fraction}" if fraction else mark + whole
    mantissa = f"{stripped[0]}.{stripped[1:]}" if len(stripped) > 1 else stripped
    return f"{mark}{mantissa}e{'-' if power < 0 else '+'}{abs(power):02d}"


def int_to_timestamp(seconds: int) -> Timestamp:
    """Return the timestamp of a number of seconds since the epoch."""
    if TIMESTAMP_MIN <= seconds * NANOS <= TIMESTAMP_MAX:
        return Timestamp(seconds * NANOS)
    raise EvaluationError("timestamp overflow")


def _same(value: object) -> object:
    return value


def encode(data: bytes) -> str:
    """`base64.encode(bytes)`."""
    return base64.b64encode(data).decode()


def decode(text: str) -> bytes:
    """`base64.decode(text)`; padding may be missing."""
    try:
        return base64.b64decode(text + "=" * (-len(text) % 4), validate=True)
    except (binascii.Error, ValueError):
        raise EvaluationError("illegal base64 data") from None


OVERLOADS: tuple[Overload, ...] = (
    Overload("type", (A,), type_of(A), lambda value: TypeValue(type_name(value))),
    Overload("dyn", (A,), DYN, _same),
    Overload("bool", (BOOL,), BOOL, _same),
    Overload("bool", (STRING,), BOOL, string_to_bool),
    Overload("bytes", (BYTES,), BYTES, _same),
    Overload("bytes", (STRING,), BYTES, string_to_bytes, cost=cost.scan),
    Overload("double", (DOUBLE,), DOUBLE, _same),
    Overload("double", (INT,), DOUBLE, float),
    Overload("double", (STRING,), DOUBLE, string_to_double),
    Overload("double", (UINT,), DOUBLE, float),
    Overload("duration", (DURATION,), DURATION, _same),
    Overload("duration", (STRING,), DURATION, parse_duration),
    Overload("int", (INT,), INT, _same),
    Overload("int", (DOUBLE,), INT, double_to_int),
    Overload("int", (DURATION,), INT, lambda d: d.ns),
    Overload("int", (STRING,), INT, string_to_int),
    Overload("int", (TIMESTAMP,), INT, lambda t: t.ns // NANOS),
    Overload("int", (UINT,), INT, lambda u: int64(int(u))),
    Overload("string", (STRING,), STRING, _same),
    Overload("string", (BOOL,), STRING, lambda b: "true" if b else "false"),
    Overload("string", (BYTES,), STRING, bytes_to_string, cost=cost.scan),
    Overload("string", (DOUBLE,), STRING, double_to_string),
    Overload("string", (DURATION,), STRING, format_duration),
    Overload("string", (INT,), STRING, str),
    Overload("string", (TIMESTAMP,), STRING, format_timestamp),
    Overload("string", (UINT,), STRING, str),
    Overload("timestamp", (TIMESTAMP,), TIMESTAMP, _same),
    Overload("timestamp", (INT,), TIMESTAMP, int_to_timestamp),
    Overload("timestamp", (STRING,), TIMESTAMP, parse_timestamp),
    Overload("uint", (UINT,), UINT, _same),
    Overload("uint", (DOUBLE,), UINT, double_to_uint),
    Overload("uint", (INT,), UINT, uint64),
    Overload("uint", (STRING,), UINT, string_to_uint),
    Overload("base64.encode", (BYTES,), STRING, encode, cost=cost.scan_first_twice, since=EXTENSION),
    Overload("base64.decode", (STRING,), BYTES, decode, cost=cost.scan_first_twice, since=EXTENSION),
)

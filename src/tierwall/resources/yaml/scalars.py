"""Find the type and value of a scalar by the rules of go.yaml.in/yaml/v2 (`resolve.go`) and sigs.k8s.io/yaml.

Kubernetes converts YAML to JSON and reads that. So a float with a whole value becomes an integer, and an integer
outside int64 becomes a float: every `int` here is an int64.
"""

from __future__ import annotations

import re
import struct
from decimal import Decimal
from typing import TypeAlias

from tierwall.resources.yaml.errors import UnsupportedKeyError, YamlError
from tierwall.values.pattern import pattern

Scalar: TypeAlias = str | int | float | bool | None

_PREFIX = "tag:yaml.org,2002:"
STR_TAG, BOOL_TAG, INT_TAG, FLOAT_TAG = _PREFIX + "str", _PREFIX + "bool", _PREFIX + "int", _PREFIX + "float"
NULL_TAG, TIMESTAMP_TAG, BINARY_TAG = _PREFIX + "null", _PREFIX + "timestamp", _PREFIX + "binary"
MERGE_TAG = _PREFIX + "merge"

_INT64_MIN, _INT64_MAX, _UINT64_MAX = -(2**63), 2**63 - 1, 2**64 - 1

_WORDS: dict[str, Scalar] = {
    **dict.fromkeys(("y", "Y", "yes", "Yes", "YES", "true", "True", "TRUE", "on", "On", "ON"), True),
    **dict.fromkeys(("n", "N", "no", "No", "NO", "false", "False", "FALSE", "off", "Off", "OFF"), False),
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys((".nan", ".NaN", ".NAN"), float("nan")),
    **dict.fromkeys((".inf", ".Inf", ".INF", "+.inf", "+.Inf", "+.INF"), float("inf")),
    **dict.fromkeys(("-.inf", "-.Inf", "-.INF"), float("-inf")),
}
_INTEGER = pattern(r"([+-]?)(?:0[xX]([0-9A-Fa-f]+)|0[bB]([01]+)|0[oO]?([0-7]+)|(0|[1-9][0-9]*))")
_FLOAT = pattern(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")
_DOT_FLOAT = pattern(r"\.[0-9]+(?:_[0-9]+)*(?:[eE][-+]?[0-9]+(?:_[0-9]+)*)?")
# The Go code passes the digits after `0b` to ParseInt, which accepts a sign.
_SIGNED_BINARY = pattern(r"0b([+-][01]+)")
_TIMESTAMP = pattern(
    r"(\d{4})-(\d{1,2})-(\d{1,2})"
    r"(?:[Tt](\d{1,2}):(\d{1,2}):(\d{1,2})(?:[.,]\d+)?(?:Z|[+-](\d\d):(\d\d))"
    r"| +(\d{1,2}):(\d{1,2}):(\d{1,2})(?:[.,]\d+)?)?",
    re.ASCII,
)
_BASE64 = pattern(r"(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?")


def plain_scalar(text: str) -> tuple[str, Scalar]:
    """Return tag and value of a scalar without quotes or tag. Integers may be as large as uint64 here."""
    first = text[:1]
    if not first or first in "yYnNtTfFoO~":
        if text in _WORDS:
            value = _WORDS[text]
            return (NULL_TAG if value is None else BOOL_TAG), value
    elif first == ".":
        if text in _WORDS:
            return FLOAT_TAG, _WORDS[text]
        if _DOT_FLOAT.fullmatch(text):
            number = float(text)
            if number not in (float("inf"), float("-inf")):
                return FLOAT_TAG, number
    elif first in "0123456789+-":
        return _number(text)
    return STR_TAG, text


def _number(text: str) -> tuple[str, Scalar]:
    if text in _WORDS:
        return FLOAT_TAG, _WORDS[text]
    digits = text.replace("_", "")
    if match := _INTEGER.fullmatch(digits):
        sign, hexadecimal, binary, octal, decimal = match.groups()
        significant = (hexadecimal or binary or octal or decimal).lstrip("0")
        if len(significant) <= 64:
            base = 16 if hexadecimal else 2 if binary else 8 if octal else 10
            number = int(significant or "0", base)
            if sign == "-":
                number = -number
            # A number with a sign is never read as uint64.
            if _INT64_MIN <= number <= (_INT64_MAX if sign else _UINT64_MAX):
                return INT_TAG, number
    if _FLOAT.fullmatch(digits):
        value = float(digits)
        if value not in (float("inf"), float("-inf")):
            return FLOAT_TAG, value
    elif match := _SIGNED_BINARY.fullmatch(digits):
        number = int(match.group(1)[:70], 2)
        if len(match.group(1).lstrip("+-0")) <= 64 and _INT64_MIN <= number <= _INT64_MAX:
            return INT_TAG, number
    return STR_TAG, text


def tagged_scalar(tag: str, text: str, offset: int) -> Scalar:
    """Return the value of a scalar with a tag. An unknown tag is ignored: the value is a string."""
    if tag == BINARY_TAG:
        return _binary(text, offset)
    if tag not in (BOOL_TAG, INT_TAG, FLOAT_TAG, NULL_TAG, TIMESTAMP_TAG):
        return text
    if tag == TIMESTAMP_TAG and _is_timestamp(text):
        return text
    actual, value = plain_scalar(text)
    if actual == tag:
        return value
    if tag == FLOAT_TAG and actual == INT_TAG and isinstance(value, int) and value <= _INT64_MAX:
        return float(value)
    wanted, got = tag.removeprefix(_PREFIX), actual.removeprefix(_PREFIX)
    raise YamlError(f"cannot read `{text[:40]}` ({got}) as `!!{wanted}`", offset)


def _binary(text: str, offset: int) -> str:
    from base64 import b64decode

    packed = text.replace("\n", "").replace("\r", "")
    if not _BASE64.fullmatch(packed):
        raise YamlError("expected base64 as `!!binary`", offset)
    return go_string(b64decode(packed))


def go_string(data: bytes) -> str:
    """Decode bytes as the Go JSON encoder does: each byte that is not UTF-8 becomes U+FFFD."""
    return re.sub("[\udc80-\udcff]", "\ufffd", data.decode("utf-8", "surrogateescape"))


def _is_timestamp(text: str) -> bool:
    """Whether the text has one of the forms that Go tries with `time.Parse`."""
    from calendar import monthrange

    match = _TIMESTAMP.fullmatch(text)
    if not match:
        return False
    numbers = [int(group or 0) for group in match.groups()]
    year, month, day, hour, minute, second, zone_hour, zone_minute, *other = numbers
    if not (1 <= month <= 12 and 1 <= day <= monthrange(year or 4, month)[1]):
        return False
    return max(hour, other[0]) < 24 and max(minute, second, *other[1:]) < 60 and zone_hour <= 24 and zone_minute <= 60


def json_number(value: int | float) -> int | float:
    """Return the number that is left after the conversion to JSON and back (see the module docstring)."""
    if isinstance(value, int):
        return value if value <= _INT64_MAX else float(value)
    if not value.is_integer():
        return value
    if abs(value) <= 2**53:
        return int(value)
    # Beyond 2**53 the JSON has the shortest digits that give the same float, padded with zeros.
    whole = int(Decimal(repr(value)))
    return whole if _INT64_MIN <= whole <= _INT64_MAX else value


def plain_value(text: str) -> Scalar:
    """Return the JSON value of a scalar without quotes or tag; raise for a number that is not finite."""
    value = plain_scalar(text)[1]
    if isinstance(value, bool) or not isinstance(value, int | float):
        return value
    if value - value != 0:
        raise YamlError("a number that is not finite cannot be written as JSON", 0)
    return json_number(value)


def key_string(value: Scalar, offset: int) -> str:
    """Convert a key to a string as sigs.k8s.io/yaml does."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        if value > _INT64_MAX:
            raise UnsupportedKeyError(f"key `{value}` is larger than the largest integer, {_INT64_MAX}", offset)
        return str(value)
    if isinstance(value, float):
        return _shortest_float32(value)
    raise UnsupportedKeyError("a key may not be null", offset, hint='write `""` for the empty key, or `"null"`')


def _shortest_float32(value: float) -> str:
    """Format like `strconv.FormatFloat(value, 'g', -1, 32)`, with YAML's words for numbers that are not finite."""
    if value != value:
        return ".nan"
    try:
        packed = struct.pack("<f", value)
    except OverflowError:
        return ".inf" if value > 0 else "-.inf"
    single: float = struct.unpack("<f", packed)[0]
    if single in (float("inf"), float("-inf")):
        return ".inf" if single > 0 else "-.inf"
    digits = _shortest(single, packed)
    if -4 <= digits.adjusted() < 6:
        return f"{digits:f}"
    mantissa, _, exponent = f"{digits:e}".partition("e")
    return f"{mantissa}e{exponent[0]}{exponent[1:]:0>2}"


def _shortest(single: float, packed: bytes) -> Decimal:
    """Return the number with the fewest digits that rounds to this float32.

    Near a power of two the nearest number with so few digits may round to another float32 while its neighbour does not.
    """
    exact = Decimal(single)
    for precision in range(9):
        nearest = Decimal(f"{single:.{precision}e}")
        step = Decimal(1).scaleb(nearest.adjusted() - precision)
        for near in sorted((nearest, nearest - step, nearest + step), key=lambda near: abs(near - exact)):
            if _float32(near) == packed:
                return near.normalize()
    return Decimal(f"{single:.8e}")


def _float32(number: Decimal) -> bytes | None:
    try:
        return struct.pack("<f", float(number))
    except OverflowError:
        return None

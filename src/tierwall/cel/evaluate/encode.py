"""Values as JSON and back (docs/cel.md#values-that-json-lacks).

null, bool, string, int, list and string-keyed maps are themselves; everything else is `{"$type": …, "$value": …}`.
A JSON number without a fraction is an int.
"""

from __future__ import annotations

import base64
import math

from tierwall.cel.errors import EvaluationError
from tierwall.cel.library.cost import count_nodes
from tierwall.cel.library.time import format_timestamp, parse_duration, parse_timestamp
from tierwall.cel.values import (
    INT_MAX,
    INT_MIN,
    LONG_NAMES,
    NONE,
    UINT_MAX,
    Duration,
    OpaqueValue,
    OptionalValue,
    Timestamp,
    TypeValue,
    Uint,
    make_map,
    map_keys,
)

_DOUBLES = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_TYPES = ("int", "uint", "double", "bytes", "timestamp", "duration", "map", "type", "optional")
_MAX_DEPTH = 200
_MAX_NODES = 1_000_000
_SHORT_NAMES = {long: short for short, long in LONG_NAMES.items()}


class EncodingError(ValueError):
    """The JSON does not stand for a CEL value, or the value has no JSON form."""


def decode(json: object, depth: int = 0) -> object:
    """Return the CEL value that JSON stands for."""
    if depth > _MAX_DEPTH:
        raise EncodingError(f"expected at most {_MAX_DEPTH} levels of nesting")
    if isinstance(json, bool) or json is None or isinstance(json, str | float):
        return json
    if isinstance(json, int):
        if INT_MIN <= json <= INT_MAX:
            return json
        raise EncodingError(f"expected an int of 64 bits, found `{str(json)[:40]}`")
    if isinstance(json, list):
        return [decode(item, depth + 1) for item in json]
    if isinstance(json, dict):
        if "$type" in json:
            return _typed(json, depth)
        return {key: decode(value, depth + 1) for key, value in json.items()}
    raise EncodingError(f"expected JSON, found {type(json).__name__}")


def _typed(json: dict[str, object], depth: int) -> object:
    name, value = json["$type"], json.get("$value")
    if name not in _TYPES:
        raise EncodingError(f"expected one of {', '.join(_TYPES)} as `$type`, found `{name}`")
    if name == "optional":
        return OptionalValue(decode(value, depth + 1)) if "$value" in json else NONE
    try:
        match name, value:
            case "int", int() if type(value) is int and INT_MIN <= value <= INT_MAX:
                return value
            case "uint", int() if type(value) is int and 0 <= value <= UINT_MAX:
                return Uint(value)
            case "double", int() | float() if type(value) is not bool:
                return float(value)
            case "double", str() if value in _DOUBLES:
                return _DOUBLES[value]
            case "bytes", str():
                return base64.b64decode(value, validate=True)
            case "timestamp", str():
                return parse_timestamp(value)
            case "duration", str():
                return parse_duration(value)
            case "map", list():
                return make_map((decode(key, depth + 1), decode(item, depth + 1)) for key, item in value)
            case "type", str():
                return TypeValue(_SHORT_NAMES.get(value, value))
    except (EvaluationError, TypeError, ValueError, OverflowError):
        pass
    raise EncodingError(f"expected a value of type {name} as `$value`, found `{str(value)[:80]}`")


def encode(value: object, depth: int = 0) -> object:
    """Return the JSON that stands for a CEL value."""
    if depth == 0 and isinstance(value, list | dict | OptionalValue) and count_nodes(value) >= _MAX_NODES:
        raise EncodingError(f"a value of more than {_MAX_NODES} parts cannot be printed")
    if depth > _MAX_DEPTH:
        raise EncodingError(f"a value nested deeper than {_MAX_DEPTH} levels cannot be printed")
    match value:
        case None | bool() | str():
            return value
        case Uint():
            return {"$type": "uint", "$value": int(value)}
        case int():
            return value
        case float():
            finite = math.isfinite(value)
            text = "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
            return {"$type": "double", "$value": value if finite else text}
        case bytes():
            return {"$type": "bytes", "$value": base64.b64encode(value).decode()}
        case list():
            return [encode(item, depth + 1) for item in value]
        case dict():
            return _encode_map(value, depth)
        case Timestamp():
            return {"$type": "timestamp", "$value": format_timestamp(Timestamp(value.ns))}
        case Duration():
            return {"$type": "duration", "$value": value.notation()}
        case TypeValue():
            return {"$type": "type", "$value": LONG_NAMES.get(value.name, value.name)}
        case OptionalValue():
            if not value.present:
                return {"$type": "optional"}
            return {"$type": "optional", "$value": encode(value.value, depth + 1)}
        case OpaqueValue():
            return {"$type": value.cel_type, "$value": value.notation()}
    raise EncodingError(f"a {type(value).__name__} has no JSON form")


def _encode_map(value: dict[object, object], depth: int) -> object:
    # A map that itself has the key `$type` would read back as something else.
    if all(type(key) is str for key in value) and "$type" not in value:
        return {key: encode(item, depth + 1) for key, item in value.items()}
    pairs = zip(map_keys(value), value.values(), strict=True)
    return {"$type": "map", "$value": [[encode(key, depth + 1), encode(item, depth + 1)] for key, item in pairs]}

"""Checks of single values (type, enum, length, pattern, format, bounds: kube-openapi) and of repeated list items.

The items of a list of type set, and the keys of one of type map, must differ (apiextensions `listtype`). Formats that
begin with `k8s-` are those of Go validation.
"""

from collections.abc import Callable, Iterator, Sequence
from decimal import Decimal
from functools import cache
from typing import Any

from tierwall.core.diagnostics import near_miss
from tierwall.resources.admission import wording
from tierwall.resources.admission.problem import (
    COUNT,
    DUPLICATE,
    INVALID,
    UNSUPPORTED,
    AdmissionProblem,
    AdmissionProblems,
    Trail,
    ValueCheck,
    path_of_trail,
)
from tierwall.resources.schema import Schema
from tierwall.values import formats, names
from tierwall.values.addresses import read_cidr

# A misspelled value is compared with so many values of an enum.
_MAX_COMPARED = 100
FormatCheck = Callable[[Any], list[str]]

_FLOAT32_OVERFLOW = 2.0**128 - 2.0**103  # the least number that rounds to more than the greatest float32


def value_checks(schema: Schema, *, native: bool) -> Iterator[ValueCheck]:
    """Yield the checks of `schema` for scalars; each accepts values of other types.

    In custom resources, rules do not run on a value outside its enum; Go validation of native kinds goes on.
    """
    if schema.enum:
        yield _enum(schema, sound=native)
    if schema.type in ("string", ""):
        yield from _strings(schema)
    if schema.type in ("integer", "number", ""):
        yield from _numbers(schema)


def _is_integer(value: Any) -> bool:
    """Whether a number is an integer to Go, which reads one of more than 64 bits as a float."""
    if type(value) is int:
        return -(2**63) <= value < 2**63
    return type(value) is float and value.is_integer() and abs(value) < 2**53


TYPES: dict[str, Callable[[Any], bool]] = {
    "": lambda value: True,
    "object": lambda value: type(value) is dict,
    "array": lambda value: type(value) is list,
    "string": lambda value: type(value) is str,
    "string,array": lambda value: type(value) in (str, list),
    "boolean": lambda value: type(value) is bool,
    "integer": _is_integer,
    "number": lambda value: type(value) in (int, float),
    "integer,string": lambda value: type(value) is str or _is_integer(value),
}


def _enum(schema: Schema, *, sound: bool) -> ValueCheck:
    values = schema.enum
    strings_allowed = frozenset(value for value in values if type(value) is str)
    others_allowed = frozenset(hashable_json(value) for value in values if type(value) is not str)
    is_listed_number = _listed_numbers(values)
    choices = [choice if isinstance(choice, str) else wording.go_value(choice) for choice in values]
    expected = wording.shortened(" or ".join(f"`{choice}`" for choice in choices))

    def check(value: Any, trail: Trail, problems: AdmissionProblems) -> bool:
        if type(value) is str:
            listed = value in strings_allowed
        elif type(value) in (int, float):
            listed = is_listed_number(value)
        else:  # null is never accepted, even if the enum lists it
            listed = value is not None and hashable_json(value) in others_allowed
        if listed:
            return True
        path = path_of_trail(trail)
        hint = near_miss(value[:100], choices[:_MAX_COMPARED]) if isinstance(value, str) else ""
        message = wording.unsupported(path, value, choices)
        problems.append(AdmissionProblem(UNSUPPORTED, path, message, expected, f"`{value}`"[:80], hint))
        return sound

    return check


def _listed_numbers(values: Sequence[Any]) -> Callable[[float], bool]:
    """Return whether a number equals a value of an enum after Go converts it to the type of that value.

    Sets, because an enum and a list may both have 100,000 entries.
    """
    strings = frozenset(value for value in values if type(value) is str)
    integers = frozenset(value for value in values if type(value) is int and _is_integer(value))
    floats = frozenset(
        float(value) for value in values if type(value) is float or (type(value) is int and not _is_integer(value))
    )

    def is_listed(value: float) -> bool:
        number = float(value) if type(value) is int and not _is_integer(value) else value
        if strings and type(number) is int and (chr(number) if 0 <= number < 0x110000 else "\ufffd") in strings:
            return True
        if integers and (_int64(number) if type(number) is float else number) in integers:
            return True
        return bool(floats) and float(number) in floats

    return is_listed


def _strings(schema: Schema) -> Iterator[ValueCheck]:
    pattern, longest, shortest = schema.pattern, schema.max_length, schema.min_length
    if pattern or longest is not None or shortest is not None:

        def check(value: Any, trail: Trail, problems: AdmissionProblems) -> bool:
            if type(value) is not str:
                return True
            if longest is not None and len(value) > longest:
                path = path_of_trail(trail)
                problems.append(AdmissionProblem(COUNT, path, wording.too_long(path, longest)))
                return False
            if shortest is not None and len(value) < shortest:
                path = path_of_trail(trail)
                detail = f"{wording.in_body(path)} should be at least {shortest} chars long"
                problems.append(AdmissionProblem(COUNT, path, wording.invalid(path, value, detail)))
            elif pattern and not _search(pattern)(_utf8(value)):
                path = path_of_trail(trail)
                detail = f"{wording.in_body(path)} should match '{wording.shortened(pattern)}'"
                problems.append(AdmissionProblem(INVALID, path, wording.invalid(path, value, detail)))
            return True

        yield check
    if schema.format in _KUBERNETES:
        yield _check_kubernetes_format(_KUBERNETES[schema.format], (str, int) if schema.int_or_string else (str,))
    elif (matches := openapi_format(schema.format)) is not None:
        yield _check_openapi_format(schema.format, matches)


@cache
def _search(pattern: str) -> Callable[[str], object]:
    """Return RE2's search. RE2 is imported only when a value has to match a pattern."""
    import re2

    search: Callable[[str], object] = re2.compile(pattern).search
    return search


def _check_kubernetes_format(reasons: FormatCheck, types: tuple[type, ...]) -> ValueCheck:
    def check(value: Any, trail: Trail, problems: AdmissionProblems) -> bool:
        for reason in reasons(value) if type(value) in types else ():
            path = path_of_trail(trail)
            problems.append(AdmissionProblem(INVALID, path, wording.invalid(path, value, reason)))
        return True

    return check


def _check_openapi_format(name: str, matches: Callable[[str], bool]) -> ValueCheck:
    def check(value: Any, trail: Trail, problems: AdmissionProblems) -> bool:
        if type(value) is not str or matches(value):
            return True
        path = path_of_trail(trail)
        detail = f"{wording.in_body(path)} must be of type {name}: {wording.go_quote(value)}"
        problems.append(AdmissionProblem(INVALID, path, wording.invalid(path, value, detail), expected=name))
        return False

    return check


def _port(value: int | str) -> list[str]:
    """Check a port number or the name of a port."""
    if isinstance(value, str):
        return names.port_name(value)
    return [] if 1 <= value <= 65535 else ["must be between 1 and 65535, inclusive"]


def _cidr(text: str) -> list[str]:
    """Check a CIDR as fields older than strict validation do: host bits and leading zeros are allowed."""
    if read_cidr(text) is None:
        return ["must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)"]
    return []


def _is_uri(text: str) -> bool:
    from tierwall.cel.library.url import request_uri_problem  # few kinds have such a field

    return request_uri_problem(text) is None


def _named(reasons: names.Reasons) -> FormatCheck:
    """Skip an empty name: it counts as missing, which a rule reports."""
    return lambda text: reasons(text) if text else []


# apimachinery's checks, which return every reason at once.
_KUBERNETES: dict[str, FormatCheck] = {
    "k8s-long-name": _named(names.dns_subdomain),
    "k8s-short-name": _named(names.dns_label),
    "k8s-service-name": _named(names.dns_label_1035),
    "k8s-path-segment-name": names.path_segment,
    "k8s-long-name-prefix": _named(names.prefix_of(names.dns_subdomain)),
    "k8s-short-name-prefix": _named(names.prefix_of(names.dns_label)),
    "k8s-service-name-prefix": _named(names.prefix_of(names.dns_label_1035)),
    "k8s-path-segment-name-prefix": names.path_segment_prefix,
    "k8s-label-key": names.label_key,
    "k8s-annotation-key": names.annotation_key,
    "k8s-label-value": names.label_value,
    "k8s-port-name": names.port_name,
    "k8s-port": _port,
    "k8s-cidr": _cidr,
}

# OpenAPI's formats. Their only reason is their name.
_OPENAPI: dict[str, Callable[[str], bool]] = {
    **formats.FORMATS,
    "uri": _is_uri,
}


def openapi_format(name: str) -> Callable[[str], bool] | None:
    """Return the check of an OpenAPI format, or None if the format is unknown. Dashes in the name have no meaning."""
    return _OPENAPI.get(name.replace("-", ""))


def _numbers(schema: Schema) -> Iterator[ValueCheck]:
    """Yield the check of bounds. They are floats to Go, which converts them to the type of the value, even lossily."""
    fits, named = _in_range(schema)
    bounds = (schema.multiple_of, schema.minimum, schema.maximum)
    if fits is None and bounds == (None, None, None):
        return
    words = ("MultipleOf", "Minimum boundary", "Maximum boundary")
    unfit = [
        word
        for word, bound in zip(words, bounds, strict=True)
        if fits is not None and bound is not None and not fits(float(bound))
    ]

    # Fast path: almost every number is a valid integer.
    least, most = _right_integers(schema) if not unfit and schema.multiple_of is None else (0, -1)

    def check(value: Any, trail: Trail, problems: AdmissionProblems) -> bool:
        if type(value) not in (int, float) or (type(value) is int and least <= value <= most):
            return True
        number = value if type(value) is int and _is_integer(value) else float(value)
        wrong = [*(("Checked",) if fits is not None and not fits(number) else ()), *unfit]
        outside = list(_outside(schema, number, unfit))
        if wrong or outside:
            path = path_of_trail(trail)
            for word in wrong:
                detail = f"{word} value must be of type {named} in {wording.field_path(path)}"
                problems.append(AdmissionProblem(INVALID, path, f'<nil>: Invalid value: "": {detail}'))
            for words in outside:
                detail = words.format(path=wording.field_path(path), in_body=wording.in_body(path))
                problems.append(AdmissionProblem(INVALID, path, wording.invalid(path, value, detail)))
        return True

    yield check


def _right_integers(schema: Schema) -> tuple[int, int]:
    """Return the least and the greatest integer that a schema without multipleOf accepts."""
    most = 2 ** (31 if schema.type == "integer" and schema.format == "int32" else 63)
    low = -most if schema.minimum is None else _int64(float(schema.minimum)) + schema.exclusive_minimum
    high = most - 1 if schema.maximum is None else _int64(float(schema.maximum)) - schema.exclusive_maximum
    return max(low, -most), min(high, most - 1)


def _in_range(schema: Schema) -> tuple[Callable[[float], bool] | None, str]:
    """Return whether a number fits the type and format of a schema, as a function, and upstream's name for the two.

    Go checks the number as it prints it: -(2**63) is printed as -9223372036854776000, which does not fit.
    """
    if schema.int_or_string:
        return None, ""
    if schema.type == "integer":
        most = 2 ** (31 if schema.format == "int32" else 63)
        named = f"with format {schema.format}" if schema.format in ("int32", "int64") else "(default format)"
        return (lambda value: value == value // 1 and -most <= int(Decimal(repr(value))) < most), f"integer {named}"
    if schema.type == "number" and schema.format == "float":
        return (lambda value: abs(value) < _FLOAT32_OVERFLOW), "number with format float"
    return None, ""


def _outside(schema: Schema, value: float, unfit: list[str]) -> Iterator[str]:
    """Yield a message for each limit that a number violates."""

    def native(bound: float, what: str) -> float:
        return _int64(float(bound)) if type(value) is int and what not in unfit else float(bound)

    if schema.multiple_of is not None:
        factor = native(schema.multiple_of, "MultipleOf")
        if factor <= 0:
            yield f"factor MultipleOf declared for {{path}} must be positive: {wording.go_number(factor)}"
        elif not (value % factor == 0 if type(factor) is int else _is_multiple(float(value), factor)):
            yield f"{{in_body}} should be a multiple of {wording.go_number(factor)}"
    if schema.minimum is not None:
        low, over = native(schema.minimum, "Minimum boundary"), schema.exclusive_minimum
        if value < low or (over and value == low):
            yield f"{{in_body}} should be greater than {'' if over else 'or equal to '}{wording.go_number(low)}"
    if schema.maximum is not None:
        high, under = native(schema.maximum, "Maximum boundary"), schema.exclusive_maximum
        if value > high or (under and value == high):
            yield f"{{in_body}} should be less than {'' if under else 'or equal to '}{wording.go_number(high)}"


def _is_multiple(value: float, factor: float) -> bool:
    """Whether a float is a multiple of another, apart from rounding errors (swag.IsFloat64AJSONInteger)."""
    quotient = 1 / factor * value if factor < 1 else value / factor
    if abs(quotient) >= 2**53:
        return False
    if quotient < 0 or quotient.is_integer():
        return quotient.is_integer()
    whole = float(int(quotient))
    return whole != 0 and (quotient - whole) / (quotient + whole) < 1e-9


def _int64(value: float) -> int:
    """Convert a float to an integer as Go does on amd64: one that does not fit becomes the least integer."""
    return int(value) if -(2.0**63) <= value < 2.0**63 else -(2**63)


def _utf8(text: str) -> str:
    """Replace lone surrogates, which RE2 does not accept and Go's JSON reader never produces."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def unique_items(schema: Schema) -> Callable[[list[Any], Trail, AdmissionProblems], None]:
    """Check `x-kubernetes-list-type`: items of a set and keys of a map must differ. Each value is reported once."""
    keys = schema.list_map_keys
    key_of = hashable_json if schema.list_type == "map" else _identity

    def check(value: list[Any], trail: Trail, problems: AdmissionProblems) -> None:
        seen: dict[Any, int] = {}
        for index, item in enumerate(value):
            if schema.list_type == "map":
                if type(item) is not dict:
                    continue
                item = {name: item[name] for name in keys if name in item}
            key = key_of(item)
            seen[key] = seen.get(key, 0) + 1
            if seen[key] == 2:
                path = (*path_of_trail(trail), index)
                problems.append(AdmissionProblem(DUPLICATE, path, wording.duplicate(path, item)))

    return check


def _identity(item: Any) -> Any:
    """Return the key by which Go compares items of a set: 1 and 1.0 differ, except inside an object or list."""
    if isinstance(item, dict | list):
        return hashable_json(_as_go_writes(item))
    return type(item) if _is_integer(item) else None, item


def _as_go_writes(item: Any) -> Any:
    """Return a value with floats as Go writes them to JSON: without a point if they are whole."""
    if isinstance(item, dict):
        return {name: _as_go_writes(part) for name, part in item.items()}
    if isinstance(item, list):
        return [_as_go_writes(part) for part in item]
    return int(item) if type(item) is float and item.is_integer() and abs(item) < 1e21 else item


def hashable_json(item: Any) -> Any:
    """Return a hashable key that is equal only for equal JSON values."""
    if type(item) is dict and all(type(value) is str for value in item.values()):
        return tuple(sorted(item.items()))
    if isinstance(item, dict | list):
        # Not msgspec: a string may hold a lone surrogate, which UTF-8 cannot encode.
        import json

        return json.dumps(item, sort_keys=True)
    return type(item) is bool, item

"""Checks of values by themselves: type, enum, length, pattern, format, bounds (kube-openapi), and repeated items.

Items of a list that is a set, and the keys of one that is a map, must differ (apiextensions `listtype`).
"""

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

from tierwall.core.diagnostics import near_miss
from tierwall.resources.admission import formats, wording
from tierwall.resources.admission.problem import (
    COUNT,
    DUPLICATE,
    INVALID,
    UNSUPPORTED,
    Check,
    Problem,
    Problems,
    Trail,
    steps,
)
from tierwall.resources.schema import Schema


def value_checks(schema: Schema, *, native: bool) -> Iterator[Check]:
    """The checks of `schema` that look at one scalar; each lets values of other types pass.

    For custom resources a value outside its enum keeps rules from running; Go validation of native kinds goes on.
    """
    if schema.enum:
        yield _enum(schema, sound=native)
    if schema.type in ("string", ""):
        yield from _text(schema)
    if schema.type in ("integer", "number", ""):
        yield from _numbers(schema)


def _is_integer(value: Any) -> bool:
    kind = type(value)
    return kind is int or (kind is float and value.is_integer())


TYPES: dict[str, Callable[[Any], bool]] = {
    "": lambda value: True,
    "object": lambda value: type(value) is dict,
    "array": lambda value: type(value) is list,
    "string": lambda value: type(value) is str,
    "boolean": lambda value: type(value) is bool,
    "integer": _is_integer,
    "number": lambda value: type(value) in (int, float),
    "integer,string": lambda value: type(value) is str or _is_integer(value),
}


def _enum(schema: Schema, *, sound: bool) -> Check:
    values = schema.enum
    texts_allowed = frozenset(value for value in values if type(value) is str)
    others_allowed = frozenset(token(value) for value in values if type(value) is not str)

    def check(value: Any, trail: Trail, problems: Problems) -> bool:
        if value in texts_allowed if type(value) is str else token(value) in others_allowed:
            return True
        path = steps(trail)
        texts = [value if isinstance(value, str) else wording.shown(value) for value in values]
        hint = near_miss(value[:100], texts) if isinstance(value, str) else ""
        message = wording.unsupported(path, value, values)
        expected = " or ".join(f"`{text}`" for text in texts)
        problems.append(Problem(UNSUPPORTED, path, message, expected, f"`{value}`"[:80], hint))
        return sound

    return check


@cache
def _search(pattern: str) -> Callable[[str], object]:
    """RE2's search; it is imported only where a value is held against a pattern."""
    import re2

    search: Callable[[str], object] = re2.compile(pattern).search
    return search


def _text(schema: Schema) -> Iterator[Check]:
    pattern, longest, shortest = schema.pattern, schema.max_length, schema.min_length
    if pattern or longest is not None or shortest is not None:

        def check(value: Any, trail: Trail, problems: Problems) -> bool:
            if type(value) is not str:
                return True
            if longest is not None and len(value) > longest:
                path = steps(trail)
                problems.append(Problem(COUNT, path, wording.too_long(path, longest)))
                return False
            if shortest is not None and len(value) < shortest:
                path = steps(trail)
                detail = f"{wording.in_body(path)} should be at least {shortest} chars long"
                problems.append(Problem(COUNT, path, wording.invalid(path, value, detail)))
            elif pattern and not _search(pattern)(_utf8(value)):
                path = steps(trail)
                detail = f"{wording.in_body(path)} should match '{pattern}'"
                problems.append(Problem(INVALID, path, wording.invalid(path, value, detail)))
            return True

        yield check
    if schema.format in formats.KUBERNETES:
        yield _reasons(formats.KUBERNETES[schema.format], (str, int) if schema.int_or_string else (str,))
    elif schema.format in formats.OPENAPI:
        yield _format(schema.format)


def _reasons(reasons: formats.Reasons, types: tuple[type, ...]) -> Check:
    def check(value: Any, trail: Trail, problems: Problems) -> bool:
        for reason in reasons(value) if type(value) in types else ():
            path = steps(trail)
            problems.append(Problem(INVALID, path, wording.invalid(path, value, reason)))
        return True

    return check


def _format(name: str) -> Check:
    matches = formats.OPENAPI[name]

    def check(value: Any, trail: Trail, problems: Problems) -> bool:
        if type(value) is not str or matches(value):
            return True
        path = steps(trail)
        detail = f"{wording.in_body(path)} must be of type {name}: {wording.quote(value)}"
        problems.append(Problem(INVALID, path, wording.invalid(path, value, detail), expected=name))
        return False

    return check


def _numbers(schema: Schema) -> Iterator[Check]:
    low, high, factor = schema.minimum, schema.maximum, schema.multiple_of
    lowest, highest = formats.NUMBER_RANGES.get(schema.format, (None, None))
    if low is None and high is None and lowest is None and factor is None:
        return

    def check(value: Any, trail: Trail, problems: Problems) -> bool:
        if type(value) not in (int, float):
            return True
        detail = ""
        if low is not None and (value < low or (schema.exclusive_minimum and value == low)):
            detail = f"greater than {'' if schema.exclusive_minimum else 'or equal to '}{wording.number(low)}"
        elif high is not None and (value > high or (schema.exclusive_maximum and value == high)):
            detail = f"less than {'' if schema.exclusive_maximum else 'or equal to '}{wording.number(high)}"
        elif factor is not None and not (value / factor).is_integer():
            detail = f"a multiple of {wording.number(factor)}"
        if lowest is not None and highest is not None and not lowest <= value <= highest:
            path = steps(trail)
            words = f"Checked value must be of type {schema.type} with format {schema.format} in {wording.field(path)}"
            problems.append(Problem(INVALID, path, f'<nil>: Invalid value: "": {words}'))
        if detail:
            path = steps(trail)
            problems.append(
                Problem(INVALID, path, wording.invalid(path, value, f"{wording.in_body(path)} should be {detail}"))
            )
        return True

    yield check


def _utf8(text: str) -> str:
    """RE2 cannot be given half a surrogate pair; Go's JSON reader never makes one."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def unique_items(schema: Schema) -> Callable[[list[Any], Trail, Problems], None]:
    """`x-kubernetes-list-type`: items of a set, or the keys of a map's items, must differ. Each value is named once."""
    names = schema.list_map_keys

    def check(value: list[Any], trail: Trail, problems: Problems) -> None:
        seen: dict[Any, int] = {}
        for index, item in enumerate(value):
            if schema.list_type == "map":
                if type(item) is not dict:
                    continue
                item = {name: item[name] for name in names if name in item}
            key = token(item)
            seen[key] = seen.get(key, 0) + 1
            if seen[key] == 2:
                path = (*steps(trail), index)
                problems.append(Problem(DUPLICATE, path, wording.duplicate(path, item)))

    return check


def token(item: Any) -> Any:
    """Something hashable that is equal for equal JSON values only."""
    if isinstance(item, dict | list):
        # Not msgspec: a string may hold a lone surrogate, which has no UTF-8.
        import json

        return json.dumps(item, sort_keys=True)
    return type(item) is bool, item

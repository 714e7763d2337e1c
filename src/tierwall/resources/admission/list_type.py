"""`x-kubernetes-list-type`: no equal items in a set, no equal keys in a map (apiextensions `listtype`)."""

import json
from collections.abc import Callable
from typing import Any

from tierwall.resources.admission import wording
from tierwall.resources.admission.problem import DUPLICATE, Problem, Problems, Trail, steps
from tierwall.resources.schema import Schema


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
            token = _token(item)
            seen[token] = seen.get(token, 0) + 1
            if seen[token] == 2:
                path = (*steps(trail), index)
                problems.append(Problem(DUPLICATE, path, wording.duplicate(path, item)))

    return check


def _token(item: Any) -> Any:
    """Something hashable that is equal for equal JSON values only."""
    if isinstance(item, dict | list):
        # Not msgspec: a string may hold a lone surrogate, which has no UTF-8.
        return json.dumps(item, sort_keys=True)
    return type(item) is bool, item

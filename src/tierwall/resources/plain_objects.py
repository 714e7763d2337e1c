"""Plain maps as objects, which a Python program puts over what it has read (docs/python-api.md)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from tierwall.core.diagnostics import Diagnostic, InputError
from tierwall.resources.load import read_objects
from tierwall.resources.overlay import overlay
from tierwall.resources.resource import Resource
from tierwall.resources.snapshot import Snapshot


def objects_over(snapshot: Snapshot, objects: Iterable[Any], namespace: str) -> Snapshot:
    """Put plain objects over a snapshot. They are copied: what the caller does with them later changes nothing."""
    if isinstance(objects, Mapping | str):
        raise InputError([Diagnostic("TW006", "expected a list of maps as `objects`, found a single value")])
    resources: list[Resource] = []
    problems: list[Diagnostic] = []
    for index, value in enumerate(objects):
        try:
            copied = msgspec.to_builtins(dict(value) if isinstance(value, Mapping) else value, str_keys=True)
        except (TypeError, ValueError, RecursionError) as error:
            problems.append(Diagnostic("TW006", f"expected JSON as `objects[{index}]`: {error}"))
            continue
        for item in read_objects(copied, namespace):
            if isinstance(item, Diagnostic):
                problems.append(msgspec.structs.replace(item, message=f"`objects[{index}]`: {item.message}"))
            else:
                resources.append(item)
    if problems:
        raise InputError(problems)
    return overlay(snapshot, resources)

"""Keys of JSON Patch paths (apiserver pkg/cel/library/jsonpatch.go). Offered to mutations only."""

from __future__ import annotations

from tierwall.cel import cost
from tierwall.cel.table import EXTENSION, Overload
from tierwall.cel.types import STRING

_ESCAPES = str.maketrans({"/": "~1", "~": "~0"})


def escape_key(key: str) -> str:
    """The key with `~` and `/` escaped as RFC 6901 asks."""
    return key.translate(_ESCAPES)


OVERLOADS: tuple[Overload, ...] = (
    Overload(
        "jsonpatch.escapeKey",
        "string_jsonpatch_escapeKey_string",
        (STRING,),
        STRING,
        escape_key,
        cost=cost.scan_first,
        since=EXTENSION,
    ),
)

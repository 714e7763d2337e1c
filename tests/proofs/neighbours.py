"""The strings that policies and a region tell apart, and their neighbours: of these, samples against a proof are made.

A wrong proof overlooks something beside what is named: one letter more, one less, another case, nothing at all.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

_QUOTED = re.compile(r"'([^']*)'|\"([^\"]*)\"")


def neighbourhood(*values: Any) -> list[str]:
    """Return every string of some documents, what is quoted inside, and the neighbours of each."""
    strings = {""}
    for text in _texts(values):
        quoted = (single or double for single, double in _QUOTED.findall(text))
        for atom in (text, *quoted):
            strings |= {atom, f"{atom}x", f"x{atom}", atom[:-1], atom.swapcase()}
    return sorted(strings)


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        yield from _texts(list(value))
        yield from _texts(list(value.values()))
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _texts(inner)

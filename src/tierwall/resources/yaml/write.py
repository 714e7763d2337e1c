"""Write objects as YAML that every reader reads alike, YAML 1.1 and 1.2 (docs/clusters.md#snapshots).

Keys are sorted, and a string without quotes is a word that no reader takes for anything else: `y`, `no`, `012`, `1e3`,
`1:30`, `~`, `=`, dates and empty strings are quoted. Characters that are invisible or change the
direction of a text are escaped. The same value always gives the same text. PyYAML's dumper takes ten times as long.

INVARIANT: `resources.yaml.read` reads the value that was written. Random tests check it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import msgspec

from tierwall.values.pattern import pattern

# Words that Go, PyYAML and YAML 1.2 all read as strings.
_PLAIN = pattern(
    r"(?!(?:y|n|yes|no|on|off|true|false|null|nan|inf)\Z)[a-z][a-z0-9_]*(?:[-./][a-z0-9_]+)*", re.ASCII | re.IGNORECASE
)
_SURROGATE = pattern(r"[\ud800-\udfff]")
# A key that is longer needs a mark of its own; a plain key ends here for every reader.
_MAX_KEY = 512
# Levels. Reading gives up at 256, and admission refuses what has more than 200.
_MAX_DEPTH = 230


def yaml_text(value: Mapping[str, Any]) -> str:
    """Return a document, which begins with `---`."""
    lines = ["---\n"]
    if value:
        _put_map(value, "", "", lines)
    else:
        lines.append("{}\n")
    return "".join(lines)


def _put_map(value: Mapping[str, Any], indent: str, lead: str, lines: list[str]) -> None:
    """Write the fields of a map that is not empty; `lead` stands before the first of them."""
    for key in sorted(value):
        name, item = _string(key), value[key]
        head = f"{lead}{name}:" if len(name) <= _MAX_KEY else f"{lead}? {name}\n{indent}:"
        lead = indent
        if type(item) is str:
            lines.append(f"{head} {_string(item)}\n")
        elif isinstance(item, dict) and item and len(indent) < 2 * _MAX_DEPTH:
            lines.append(f"{head}\n")
            _put_map(item, f"{indent}  ", f"{indent}  ", lines)
        elif isinstance(item, list) and item and len(indent) < 2 * _MAX_DEPTH:
            lines.append(f"{head}\n")
            _put_list(item, indent, indent, lines)
        else:
            lines.append(f"{head} {_scalar(item)}\n")


def _put_list(items: Sequence[Any], indent: str, lead: str, lines: list[str]) -> None:
    """Write the items of a list that is not empty; `lead` stands before the first of them."""
    for item in items:
        if isinstance(item, dict) and item and len(indent) < 2 * _MAX_DEPTH:
            _put_map(item, f"{indent}  ", f"{lead}- ", lines)
        elif isinstance(item, list) and item and len(indent) < 2 * _MAX_DEPTH:
            _put_list(item, f"{indent}  ", f"{lead}- ", lines)
        else:
            lines.append(f"{lead}- {_scalar(item)}\n")
        lead = indent


def _scalar(value: Any) -> str:
    if type(value) is str:
        return _string(value)
    if value is None or value is True or value is False:
        return "null" if value is None else str(value).lower()
    if isinstance(value, float):
        text = repr(value)
        # YAML 1.1 takes a number without a point for a string.
        return text.replace("e", ".0e") if "e" in text and "." not in text else text
    if isinstance(value, dict | list):
        # Empty, or nested too deep to be read again.
        return ("{}" if isinstance(value, dict) else "[]") if not value else "null"
    return str(value)


@lru_cache(maxsize=1 << 16)
def _string(text: str) -> str:
    if _PLAIN.fullmatch(text) is not None:
        return text
    if _SURROGATE.search(text) is not None:
        text = _SURROGATE.sub("\ufffd", text)  # as Go reads it
    quoted = msgspec.json.encode(text).decode()
    if quoted.isprintable():
        return quoted
    return "".join(character if character.isprintable() else _escape(character) for character in quoted)


def _escape(character: str) -> str:
    """Escape what JSON writes as it is: invisible characters, and those that change the direction of a text."""
    number = ord(character)
    return f"\\u{number:04x}" if number < 0x10000 else f"\\U{number:08x}"

"""The fast way for ordinary documents: libyaml's events straight into plain values.

libyaml differs from the Go scanner in a few places (`scan` says which). Nothing that could fall into one of them is
read here: the reader gives up, and the exact one takes over. It gives up as well on everything that needs more than
one look: tags, anchors, aliases, merge keys, and every error.

INVARIANT: where this module returns a value it is the value that `exact.read_exactly` returns. Random tests hold the
two equal.
"""

from __future__ import annotations

import re
from typing import Any, Final

from yaml.cyaml import CParser  # type: ignore[attr-defined]
from yaml.error import MarkedYAMLError, YAMLError
from yaml.events import (
    DocumentEndEvent,
    MappingEndEvent,
    MappingStartEvent,
    ScalarEvent,
    SequenceEndEvent,
    SequenceStartEvent,
    StreamEndEvent,
)

from tierwall.resources.yaml.errors import YamlError
from tierwall.resources.yaml.scalars import json_number, key_text, plain_scalar

# Octets that need no second look. The others are control characters, the escape and key indicators, `%`, and the lead
# octets of the line breaks and byte order marks beyond ASCII.
_SUSPICIOUS: Final = bytes([*range(0x0A), *range(0x0B, 0x20), 0x7F]) + b"?\\%\xc2\xe2\xef"
_ORDINARY: Final = bytes(octet for octet in range(256) if octet not in _SUSPICIOUS)
_DIFFERS = re.compile(
    rb"[\x00-\x08\x0b-\x1f\x7f]"  # control characters, lone carriage returns among them
    rb"|\xc2[\x80-\x9f]|\xe2\x80[\xa8\xa9]|\xef[\xbb\xbf]"
    rb"|\\['/]"  # escapes that only one of the two knows
    rb"|(?m:^%)"
)
# In flow context the two part over `?`.
_FLOW_START = re.compile(rb"(?m:^|[ ,\[{])[\[{](?![\]}])")

# Errors of libyaml for text that Go reads: a `:` before a flow indicator, and flow indicators in tags.
_DOUBTFUL: Final = frozenset(
    ("found unexpected ':'", "did not find expected whitespace or line break", "did not find expected tag URI")
)

_MISSING: Final = object()
_NO_KEY: Final = object()
_DEEP = 1000
_MEMO_SIZE = 1 << 16

_GIVE_UP: Final = None


class FastReader:
    """Reads documents, remembering scalars: manifests repeat the same few thousand words."""

    def __init__(self, max_depth: int) -> None:
        self._max_depth = max_depth
        self._values: dict[str, Any] = {}
        self._keys: dict[str, Any] = {}

    def value(self, octets: bytes) -> tuple[Any, bool] | None:
        """The document's value and whether a key is repeated in it, or None if the exact reader has to say."""
        if not _is_ordinary(octets):
            return _GIVE_UP
        if len(self._values) > _MEMO_SIZE:
            self._values.clear()
        if len(self._keys) > _MEMO_SIZE:
            self._keys.clear()
        try:
            return self._build(CParser(octets).get_event)
        except (YAMLError, YamlError, UnicodeDecodeError):
            return _GIVE_UP

    @staticmethod
    def refuse(octets: bytes) -> None:
        """Raise libyaml's error for an ordinary document, if it has one that Go has too."""
        if not _is_ordinary(octets):
            return
        next_event = CParser(octets).get_event
        depth = 0
        try:
            # libyaml's time grows with the square of the depth, so the exact reader gets what is deep.
            while (kind := next_event().__class__) is not StreamEndEvent and depth < _DEEP:
                if kind is MappingStartEvent or kind is SequenceStartEvent:
                    depth += 1
                elif kind is MappingEndEvent or kind is SequenceEndEvent:
                    depth -= 1
        except MarkedYAMLError as error:
            if error.problem not in _DOUBTFUL and error.problem_mark is not None:
                raise YamlError(str(error.problem), error.problem_mark.index) from None
        except YAMLError:
            return

    def _build(self, next_event: Any) -> tuple[Any, bool] | None:
        # One loop without calls, because this is where loading spends its time.
        values, keys = self._values, self._keys
        stack: list[tuple[Any, Any]] = []
        push, pop = stack.append, stack.pop
        room = self._max_depth
        repeated = False
        root: list[Any] = []
        into: Any = root
        into_map = False
        key: Any = _NO_KEY
        next_event()
        if next_event().__class__ is StreamEndEvent:
            return None, False
        while True:
            event = next_event()
            kind = event.__class__
            if kind is ScalarEvent:
                if event.anchor is not None or event.tag is not None:
                    return _GIVE_UP
                value = event.value
                if into_map and key is _NO_KEY:
                    if event.style:
                        key = value
                    else:
                        key = keys.get(value, _MISSING)
                        if key is _MISSING:
                            if value == "<<":
                                return _GIVE_UP
                            key = keys[value] = key_text(plain_scalar(value)[1], 0)
                    if key in into:
                        repeated = True
                    continue
                if not event.style:
                    text = value
                    value = values.get(text, _MISSING)
                    if value is _MISSING:
                        value = values[text] = _plain_value(text)
            elif kind is MappingStartEvent or kind is SequenceStartEvent:
                if event.anchor is not None or event.tag is not None or len(stack) >= room:
                    return _GIVE_UP
                if into_map and key is _NO_KEY:
                    return _GIVE_UP
                push((into, key))
                into_map = kind is MappingStartEvent
                into = {} if into_map else []
                key = _NO_KEY
                continue
            elif kind is MappingEndEvent or kind is SequenceEndEvent:
                value = into
                into, key = pop()
                into_map = key is not _NO_KEY
            elif kind is DocumentEndEvent:
                # What follows the end of a document is dropped, but how far it is still scanned differs.
                return (root[0], repeated) if next_event().__class__ is StreamEndEvent else _GIVE_UP
            else:
                return _GIVE_UP
            if into_map:
                into[key] = value
                key = _NO_KEY
            else:
                into.append(value)


def _plain_value(text: str) -> Any:
    value = plain_scalar(text)[1]
    if isinstance(value, float) and value - value != 0:
        raise YamlError("not finite", 0)
    if isinstance(value, int | float) and not isinstance(value, bool):
        return json_number(value)
    return value


def _is_ordinary(octets: bytes) -> bool:
    rest = octets.translate(None, _ORDINARY)
    if not rest:
        return True
    if _DIFFERS.search(octets):
        return False
    return b"?" not in rest or not _FLOW_START.search(octets)

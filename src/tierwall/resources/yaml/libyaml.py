"""Read ordinary documents fast: turn libyaml's events straight into plain values.

libyaml differs from the Go scanner in a few points, which `scan` lists. Where one of them could matter, this reader
gives up and the exact one takes over. It also gives up on tags, anchors, aliases, merge keys and every error.

INVARIANT: where this module returns a value, `decode.read_exactly` returns the same value. Random tests check it.
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
from tierwall.resources.yaml.lines import is_regular
from tierwall.resources.yaml.scalars import key_string, plain_scalar, plain_value

# Escapes that only one of the two scanners knows.
_ESCAPE = re.compile(rb"\\['/]")
# The two scanners disagree on `?` inside flow collections.
_FLOW_START = re.compile(rb"(?m:^|[ ,\[{])[\[{](?![\]}])")
# Errors of libyaml for texts that Go accepts: a `:` before a flow indicator, and flow indicators in tags.
_DOUBTFUL: Final = frozenset(
    ("found unexpected ':'", "did not find expected whitespace or line break", "did not find expected tag URI")
)

_MEMO_SIZE = 1 << 16

_GIVE_UP: Final = None


class LibyamlReader:
    """Reads documents and remembers scalars: manifests repeat the same few thousand words."""

    def __init__(self, max_depth: int) -> None:
        self._max_depth = max_depth
        self._values: dict[str, Any] = {}
        self._keys: dict[str, Any] = {}
        # The error of libyaml in the last document, if Go reports the same one.
        self.problem: YamlError | None = None

    def value(self, data: bytes) -> tuple[Any, bool] | None:
        """Return the value and whether a key is repeated in it; None if the exact reader has to read the document."""
        self.problem = None
        if not (is_regular(data) and _is_ordinary(data)):
            return _GIVE_UP
        if len(self._values) > _MEMO_SIZE:
            self._values.clear()
        if len(self._keys) > _MEMO_SIZE:
            self._keys.clear()
        try:
            return self._build(CParser(data).get_event, b"&" not in data and b"!" not in data)
        except MarkedYAMLError as error:
            if error.problem not in _DOUBTFUL and error.problem_mark is not None:
                self.problem = YamlError(str(error.problem), error.problem_mark.index)
            return _GIVE_UP
        except (YAMLError, YamlError, UnicodeDecodeError):
            return _GIVE_UP

    def _build(self, next_event: Any, plain_only: bool) -> tuple[Any, bool] | None:
        # One loop without calls, because loading spends most of its time here. With `plain_only` the text has neither
        # `&` nor `!`, so no event has an anchor or a tag.
        values, keys = self._values, self._keys
        scalar, map_start, list_start, map_end = ScalarEvent, MappingStartEvent, SequenceStartEvent, MappingEndEvent
        room = self._max_depth
        repeated = False
        root: list[Any] = []
        into: Any = root
        into_map = False
        # The collections that contain `into`, outermost first.
        stack: list[Any] = []
        next_event()
        if next_event().__class__ is StreamEndEvent:
            return None, False
        while True:
            event = next_event()
            kind = event.__class__
            if into_map:
                if kind is map_end:
                    into = stack.pop()
                    into_map = into.__class__ is dict
                    continue
                if kind is not scalar or not (plain_only or (event.anchor is None and event.tag is None)):
                    return _GIVE_UP
                key = text = event.value
                if not event.style:
                    try:
                        key = keys[text]
                    except KeyError:
                        if text == "<<":
                            return _GIVE_UP
                        keys[text] = key = key_string(plain_scalar(text)[1], 0)
                if key in into:
                    repeated = True
                event = next_event()
                kind = event.__class__
            if kind is scalar:
                if not (plain_only or (event.anchor is None and event.tag is None)):
                    return _GIVE_UP
                value = text = event.value
                if not event.style:
                    try:
                        value = values[text]
                    except KeyError:
                        values[text] = value = plain_value(text)
                if into_map:
                    into[key] = value
                else:
                    into.append(value)
            elif kind is map_start or kind is list_start:
                if len(stack) >= room or not (plain_only or (event.anchor is None and event.tag is None)):
                    return _GIVE_UP
                stack.append(into)
                child: Any = {} if kind is map_start else []
                if into_map:
                    into[key] = child
                else:
                    into.append(child)
                into = child
                into_map = kind is map_start
            elif kind is SequenceEndEvent:
                into = stack.pop()
                into_map = into.__class__ is dict
            elif kind is DocumentEndEvent:
                # Both scanners drop what follows the end of a document, but they scan different lengths of it.
                return (root[0], repeated) if next_event().__class__ is StreamEndEvent else _GIVE_UP
            else:
                return _GIVE_UP


def _is_ordinary(data: bytes) -> bool:
    """Whether libyaml reads the document as Go does."""
    if b"\\" in data and _ESCAPE.search(data):
        return False
    return b"?" not in data or not _FLOW_START.search(data)

"""The tokens of YAML, between the scanner and the parser."""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple


class T(IntEnum):
    """Kinds of token."""

    STREAM_START = 0
    STREAM_END = 1
    VERSION_DIRECTIVE = 2
    TAG_DIRECTIVE = 3
    DOCUMENT_START = 4
    DOCUMENT_END = 5
    BLOCK_SEQUENCE_START = 6
    BLOCK_MAPPING_START = 7
    BLOCK_END = 8
    FLOW_SEQUENCE_START = 9
    FLOW_SEQUENCE_END = 10
    FLOW_MAPPING_START = 11
    FLOW_MAPPING_END = 12
    BLOCK_ENTRY = 13
    FLOW_ENTRY = 14
    KEY = 15
    VALUE = 16
    ALIAS = 17
    ANCHOR = 18
    TAG = 19
    SCALAR = 20


class Token(NamedTuple):
    """A token; `plain` is for scalars, `suffix` is a tag's suffix or a tag directive's prefix."""

    kind: T
    start: int
    end: int
    value: str = ""
    plain: bool = False
    suffix: str = ""

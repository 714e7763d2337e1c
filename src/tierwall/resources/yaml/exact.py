"""One YAML document read exactly as Go reads it: text to value, and text to tree."""

from __future__ import annotations

import re

from tierwall.resources.yaml.compose import Tree, compose
from tierwall.resources.yaml.decode import MAX_DEPTH, Decoded, decode
from tierwall.resources.yaml.parse import Parser

# `readerc.go`: everything else is a control character or no character.
_FORBIDDEN = re.compile("[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def tree_of(text: str) -> Tree:
    """The nodes of a document's text, without its byte order mark."""
    bad = _FORBIDDEN.search(text)
    return compose(text, bad.start() if bad else -1)


def root_offset(text: str) -> int:
    """Where the value of a document begins."""
    parser = Parser(text)
    parser.next()
    return parser.next().start


def read_exactly(text: str, max_depth: int = MAX_DEPTH) -> Decoded:
    """The value of a document's text; raises `YamlError`."""
    return decode(tree_of(text), max_depth)

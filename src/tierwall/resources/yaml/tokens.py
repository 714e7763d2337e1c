"""The tokens that the scanner passes to the parser, and the characters that end them."""

from __future__ import annotations

from typing import Final, NamedTuple

BREAKS: Final = "\r\n\x85\u2028\u2029"
# The scanner appends NULs to a text.
BLANKZ: Final = f" \t{BREAKS}\0"

# The kinds of token. Each is the phrase for the token in messages.
STREAM_END: Final = "the end of the document"
# `%YAML`, whose value is a version, or `%TAG`, whose value is a handle.
DIRECTIVE: Final = "a directive"
DOCUMENT_START: Final = "`---`"
DOCUMENT_END: Final = "`...`"
BLOCK_SEQUENCE_START: Final = "a list"
BLOCK_MAPPING_START: Final = "a map"
BLOCK_END: Final = "the end of the block"
FLOW_SEQUENCE_START: Final = "`[`"
FLOW_SEQUENCE_END: Final = "`]`"
FLOW_MAPPING_START: Final = "`{`"
FLOW_MAPPING_END: Final = "`}`"
BLOCK_ENTRY: Final = "`-`"
FLOW_ENTRY: Final = "`,`"
KEY: Final = "a key"
VALUE: Final = "`:`"
ALIAS: Final = "an alias"
ANCHOR: Final = "an anchor"
TAG: Final = "a tag"
SCALAR: Final = "a scalar"


class Token(NamedTuple):
    """A token. `plain` is for scalars; `suffix` is the suffix of a tag or the prefix of a `%TAG` directive."""

    kind: str
    start: int
    end: int
    value: str = ""
    plain: bool = False
    suffix: str = ""

    def __str__(self) -> str:
        if self.kind != SCALAR:
            return self.kind
        text = self.value if len(self.value) <= 24 else self.value[:24] + "…"
        return f"`{text}`".replace("\n", " ")

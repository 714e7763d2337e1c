"""Find comments in YAML documents: only the exact scanner knows where a `#` begins one.

A `#` in a quoted string, in a block scalar or inside of a word does not begin a comment. The scanner is slow, so only
documents with the words that somebody looks for are scanned.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from typing import NamedTuple

from tierwall.resources.yaml.errors import YamlError
from tierwall.resources.yaml.scan import COMMENT, Scanner
from tierwall.resources.yaml.tokens import STREAM_END


class CommentText(NamedTuple):
    """A comment in a text: what follows `#`, its line and column from 0, and the text before it on its line.

    `next_line` is the next line that has more than a comment, or -1.
    """

    text: str
    line: int
    column: int
    before: str
    next_line: int


class CommentScanner(Scanner):
    """A scanner that keeps the offsets of comments with some words."""

    def __init__(self, text: str, wanted: re.Pattern[str]) -> None:
        super().__init__(text)
        self.offsets: list[int] = []
        self._wanted = wanted

    def take(self, run: re.Pattern[str]) -> str:
        """Consume what a pattern matches here, and keep its offset if it is a comment with the words."""
        start, text = self.at, super().take(run)
        if run is COMMENT and self._wanted.match(text):
            self.offsets.append(start)
        return text


def comments(text: str, wanted: re.Pattern[str]) -> Iterator[CommentText]:
    """Yield the comments of a document that begin with what a pattern matches."""
    scanner = CommentScanner(text, wanted)
    # Kubernetes does not read what follows the first node of a document, and so does not notice a mistake there.
    with suppress(YamlError):
        while scanner.peek().kind != STREAM_END:
            scanner.skip()
    line = counted = 0
    content: int | None = 0
    for offset in scanner.offsets:
        line += text.count("\n", counted, offset)
        counted = offset
        start, end = text.rfind("\n", 0, offset) + 1, text.find("\n", offset)
        # Comments in a row share the next line with content, which is searched once.
        if content is not None and content <= line:
            content = _next_content(text, end, line)
        body = text[offset + 1 : end if end >= 0 else None]
        yield CommentText(body, line, offset - start, text[start:offset], -1 if content is None else content)


def _next_content(text: str, end: int, line: int) -> int | None:
    """Return the next line after the one that ends at `end` with more than a comment; None if there is no such line."""
    while end >= 0:
        start, line = end + 1, line + 1
        end = text.find("\n", start)
        content = text[start : end if end >= 0 else None].strip()
        if content and not content.startswith("#"):
            return line
    return None

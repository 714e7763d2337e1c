"""Read a stream of YAML or JSON documents as kubectl reads it, with everything that is wrong with it.

A stream that begins with a brace is tried as JSON. If its first or second value is not JSON, the rest is read as YAML.
After `---`, a document that begins with a brace is tried as JSON again. Empty and null documents are left out.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

from tierwall.core.diagnostics import MAX_OF_FILE, Diagnostic
from tierwall.core.source import Position
from tierwall.resources.document import Document, SourceText
from tierwall.resources.yaml.errors import YamlError
from tierwall.resources.yaml.lines import FLOW_DEPTH, LineReader, is_regular
from tierwall.resources.yaml.split import (
    Chunk,
    after_separator,
    document_bytes,
    looks_like_json,
    split,
    yaml_start_after_json,
)
from tierwall.values.pattern import pattern

if TYPE_CHECKING:
    from tierwall.resources.json_text import JsonError
    from tierwall.resources.yaml.libyaml import LibyamlReader

# Small commands start faster because the readers of JSON and exact YAML, and libyaml, are imported on first use.

# A process reads this many bytes of YAML exactly (where the line reader gives up) before it turns to libyaml: importing
# the binding of libyaml takes longer than that.
_EXACT_BUDGET = 6 << 10
_LIBYAML_MODULE = "tierwall.resources.yaml.libyaml"
_MEANT_AS_JSON = pattern(rb"\s*\{\s*\"")
_BOM = b"\xef\xbb\xbf"
# Text that begins like JSON but is not JSON is not tried as YAML beyond this size: failing again would take long.
_LARGE_JSON = 8 << 20
# A document that libyaml refuses is not read again exactly beyond this size: failing again would take long.
_LARGE_YAML = 256 << 10
_MAX_SKIPS = 63
_JSON_PROBE = 256


class StreamReader:
    """Reads one stream after another and remembers scalars across them."""

    # How many bytes of YAML this process has read so far without the line reader.
    bytes_read: ClassVar[int] = 0

    def __init__(self, max_depth: int) -> None:
        self._max_depth = max_depth
        self._lines = LineReader(max_depth, self._flow_value)
        self._uses_libyaml = False
        # How many more documents skip the line reader, and how many skipped it last time: where it gives up on one
        # document, it usually gives up on the next.
        self._skips_left = 0
        self._last_skips = 0
        self._known: dict[bytes, Document] = {}

    @cached_property
    def _libyaml(self) -> LibyamlReader:
        from tierwall.resources.yaml.libyaml import LibyamlReader

        return LibyamlReader(self._max_depth)

    @cached_property
    def _flow_reader(self) -> LibyamlReader:
        from tierwall.resources.yaml.libyaml import LibyamlReader

        return LibyamlReader(FLOW_DEPTH)

    def _flow_value(self, data: bytes) -> tuple[Any, bool] | None:
        """Read a quoted scalar or flow collection that the line reader leaves to other readers."""
        if self._uses_libyaml or self._turns_to_libyaml(data):
            return self._flow_reader.value(data)
        from tierwall.resources.yaml.decode import read_value_exactly

        try:
            value, repeats = read_value_exactly(data.decode(), FLOW_DEPTH)
        except YamlError:
            return None
        return value, bool(repeats)

    def read(self, source: SourceText, known: Sequence[Document] = ()) -> tuple[list[Document], list[Diagnostic]]:
        """Return every document of a source, and every problem.

        A YAML document with the same text as a known document reuses its value. Each value is reused at most once, so
        that no two documents share one.
        """
        self._known = {
            _document_bytes(document.source, document.start, document.end): document
            for document in known
            if not document.is_json
        }
        documents: list[Document] = []
        problems: list[Diagnostic] = []
        start = 0
        json_problem: JsonError | None = None
        has_json = looks_like_json(source.data)
        if has_json:
            first = next(split(source.data))
            start, json_problem = self._read_json(source, first, documents)
            if start < 0:
                assert json_problem is not None
                return documents, [_json_diagnostic(source, json_problem)]
        chunks = split(source.data, start)
        for index, chunk in enumerate(chunks):
            if len(problems) == MAX_OF_FILE:
                # The file cannot be used anyway, and the rest would take long.
                unread = 1 + sum(left.end > left.start for left in chunks)
                message = f"{unread:,} more documents of this file are not read"
                problems.append(Diagnostic("TW002", message, source.position(chunk.start), count=unread))
                break
            if chunk.problem:
                problems.append(_bad_separator(source, chunk))
                continue
            if has_json and self._read_json_chunk(source, chunk, documents):
                continue
            problem = self._read_yaml(source, chunk, documents)
            if problem is not None and index == 0 and json_problem is not None and _MEANT_AS_JSON.match(source.data):
                problem = _json_diagnostic(source, json_problem)
            if problem is not None:
                problems.append(problem)
        return documents, problems

    def _read_json(self, source: SourceText, chunk: Chunk, documents: list[Document]) -> tuple[int, JsonError | None]:
        """Read the JSON values before the first `---`.

        Return where YAML takes over (-1: nowhere) and the error that ended the JSON.
        """
        from tierwall.resources.json_text import JsonError, json_values

        data = source.data
        end = count = 0
        try:
            for value, start, end in json_values(data[: chunk.end], self._max_depth):
                count += 1
                if value is not None:
                    documents.append(Document(value, source, start, end, True))
        except JsonError as error:
            yaml_start = yaml_start_after_json(data, end)
            if yaml_start is None or count > 1 or error.final or chunk.end > _LARGE_JSON:
                return -1, error
            return yaml_start, error
        return after_separator(data, chunk.end), None

    def _read_json_chunk(self, source: SourceText, chunk: Chunk, documents: list[Document]) -> bool:
        """Read a later document of a stream that begins with JSON; tell whether it is JSON, or several in a row."""
        data = source.data
        if not looks_like_json(data[chunk.start : chunk.start + _JSON_PROBE]):
            return False
        from tierwall.resources.json_text import JsonError, json_values

        values: list[Document] = []
        try:
            for value, start, end in json_values(data[chunk.start : chunk.end], self._max_depth):
                if value is not None:
                    values.append(Document(value, source, chunk.start + start, chunk.start + end, True))
        except JsonError:
            return False  # What is wrong with it, the reader of YAML says.
        documents += values
        return True

    def _read_yaml(self, source: SourceText, chunk: Chunk, documents: list[Document]) -> Diagnostic | None:
        data = _document_bytes(source, chunk.start, chunk.end)
        same = self._known.pop(data, None)
        if same is not None:
            documents.append(same.moved_to(source, chunk.start, chunk.end))
            return None
        try:
            text = _decoded(data)
            result = self._by_lines(data, text)
            if result is None and (self._uses_libyaml or self._turns_to_libyaml(data)):
                result = self._libyaml.value(data)
                if result is None and len(data) > _LARGE_YAML and self._libyaml.problem is not None:
                    raise self._libyaml.problem
            if result is None:
                from tierwall.resources.yaml.decode import read_exactly

                value, repeats = read_exactly(text, self._max_depth)
                result = value, bool(repeats)
        except YamlError as error:
            position = text_position(source, chunk.start, chunk.end, error.offset)
            return Diagnostic(error.code, error.problem, position, hint=error.hint)
        if result[0] is not None:
            documents.append(Document(result[0], source, chunk.start, chunk.end, False, result[1]))
        return None

    def _turns_to_libyaml(self, data: bytes) -> bool:
        """Whether this process has read enough YAML for libyaml to pay off; called until it has."""
        StreamReader.bytes_read += len(data)
        self._uses_libyaml = StreamReader.bytes_read > _EXACT_BUDGET or _LIBYAML_MODULE in sys.modules
        return self._uses_libyaml

    def _by_lines(self, data: bytes, text: str) -> tuple[Any, bool] | None:
        if self._skips_left:
            self._skips_left -= 1
            return None
        if not is_regular(data):
            return None
        result = self._lines.value(text)
        if result is not None:
            self._last_skips = 0
        else:
            self._skips_left = self._last_skips = min(2 * self._last_skips + 1, _MAX_SKIPS)
        return result


def _document_bytes(source: SourceText, start: int, end: int) -> bytes:
    return document_bytes(source.data, Chunk(start, end)).removeprefix(_BOM)


def _decoded(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        offset = len(data[: error.start].decode("utf-8", "replace"))
        problem = f"byte 0x{data[error.start]:02X} is not UTF-8"
        raise YamlError(problem, offset, "TW005", "save the file as UTF-8") from None


def document_text(data: bytes, start: int, end: int) -> str:
    """Return the text that a document is read from, without its byte order mark."""
    return document_bytes(data, Chunk(start, end)).removeprefix(_BOM).decode()


def text_position(source: SourceText, start: int, end: int, offset: int) -> Position:
    """Return the position of a character of a document's text; never beyond the end of the document."""
    data = document_bytes(source.data, Chunk(start, end))
    text = data.removeprefix(_BOM).decode("utf-8", "replace")
    offset = min(offset, len(text.rstrip("\r\n")))
    line_start = text.rfind("\n", 0, offset) + 1
    line = source.line_at(start) + 1 + text.count("\n", 0, offset)
    column = offset - line_start + 1
    if not line_start:
        column += source.position(start).column - 1 + (1 if start and data.startswith(_BOM) else 0)
    return Position(source.name, line, column)


def _bad_separator(source: SourceText, chunk: Chunk) -> Diagnostic:
    shown = chunk.problem if len(chunk.problem) <= 40 else chunk.problem[:40] + "…"
    return Diagnostic(
        "TW002",
        f"expected nothing but a comment after `---`, found `{shown}`",
        source.position(chunk.start),
        hint="start the document on the next line",
    )


def _json_diagnostic(source: SourceText, error: JsonError) -> Diagnostic:
    return Diagnostic(error.code, error.problem, source.position(error.offset))

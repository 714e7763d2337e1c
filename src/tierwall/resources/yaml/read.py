"""A stream of documents, YAML or JSON, read as kubectl reads it: all documents, and everything that is wrong with it.

The first brace decides: a stream that begins with one is tried as JSON, and goes over to YAML if its first or second
value is none. Documents that are empty or null are left out.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

from tierwall.core.diagnostics import Diagnostic
from tierwall.core.source import Position
from tierwall.resources.document import Document, SourceText
from tierwall.resources.yaml.errors import YamlError
from tierwall.resources.yaml.lines import FLOW_DEPTH, LineReader, is_regular
from tierwall.resources.yaml.split import Chunk, document_bytes, looks_like_json, split, yaml_start_after_json
from tierwall.values.pattern import pattern

if TYPE_CHECKING:
    from tierwall.resources.json_text import JsonError
    from tierwall.resources.yaml.fast import LibyamlReader

# What reads JSON, exact YAML and much YAML is imported only when there is any, so that small commands start at once.

# The first octets of YAML that a process reads and that are not for the line reader are read exactly: importing
# libyaml's binding takes longer than that.
_LITTLE = 6 << 10
_FAST = "tierwall.resources.yaml.fast"
_MEANT_AS_JSON = pattern(rb"\s*\{\s*\"")
_BOM = b"\xef\xbb\xbf"
# Text beyond this size that begins as JSON and is none is not tried as YAML: it would take long to fail again.
_LARGE_JSON = 8 << 20
# A document beyond this size that libyaml refuses is not read again exactly, which would take long to fail again.
_LARGE_YAML = 256 << 10
_LONGEST_PASS = 63


class StreamReader:
    """Reads streams one after the other, remembering scalars across them."""

    # How much YAML that was not for the line reader this process has read so far.
    octets_read: ClassVar[int] = 0

    def __init__(self, max_depth: int) -> None:
        self._max_depth = max_depth
        self._lines = LineReader(max_depth, self._flow_value)
        self._is_much = False
        # How many documents still to pass by the line reader, and for how many it was passed by last time: where one
        # document is not for it, the next ones seldom are.
        self._pass_by = 0
        self._passed_by = 0
        self._known: dict[bytes, Document] = {}

    @cached_property
    def _fast(self) -> LibyamlReader:
        from tierwall.resources.yaml.fast import LibyamlReader

        return LibyamlReader(self._max_depth)

    @cached_property
    def _flow(self) -> LibyamlReader:
        from tierwall.resources.yaml.fast import LibyamlReader

        return LibyamlReader(FLOW_DEPTH)

    def _flow_value(self, octets: bytes) -> tuple[Any, bool] | None:
        """The value of what the line reader leaves to others."""
        if self._is_much or self._becomes_much(octets):
            return self._flow.value(octets)
        try:
            return _exactly(octets.decode(), FLOW_DEPTH)
        except YamlError:
            return None

    def read(self, source: SourceText, known: Sequence[Document] = ()) -> tuple[list[Document], list[Diagnostic]]:
        """Every document of a source, and every problem.

        A YAML document that has the text of a known one gets its value, each at most once: no two documents share one.
        """
        self._known = {
            _octets(document.source, document.start, document.end): document
            for document in known
            if not document.is_json
        }
        documents: list[Document] = []
        problems: list[Diagnostic] = []
        start = 0
        json_problem: JsonError | None = None
        if looks_like_json(source.data):
            start, json_problem = self._read_json(source, documents)
            if start < 0:
                assert json_problem is not None
                return documents, [_json_diagnostic(source, json_problem)]
        for index, chunk in enumerate(split(source.data, start)):
            if chunk.problem:
                problems.append(_bad_separator(source, chunk))
                continue
            problem = self._read_yaml(source, chunk, documents)
            if problem is not None and index == 0 and json_problem is not None and _MEANT_AS_JSON.match(source.data):
                problem = _json_diagnostic(source, json_problem)
            if problem is not None:
                problems.append(problem)
        return documents, problems

    def _read_json(self, source: SourceText, documents: list[Document]) -> tuple[int, JsonError | None]:
        """Read JSON values; where YAML takes over and why, with -1 if it does not."""
        from tierwall.resources.json_text import JsonError, json_values

        data = source.data
        end = count = 0
        try:
            for value, start, end in json_values(data, self._max_depth):
                count += 1
                if value is not None:
                    documents.append(Document(value, source, start, end, True))
        except JsonError as error:
            yaml_start = yaml_start_after_json(data, end)
            if yaml_start is None or count > 1 or error.final or len(data) > _LARGE_JSON:
                return -1, error
            return yaml_start, error
        return len(data), None

    def _read_yaml(self, source: SourceText, chunk: Chunk, documents: list[Document]) -> Diagnostic | None:
        octets = _octets(source, chunk.start, chunk.end)
        same = self._known.pop(octets, None)
        if same is not None:
            documents.append(same.moved_to(source, chunk.start, chunk.end))
            return None
        try:
            text = _decoded(octets)
            result = self._by_lines(octets, text)
            if result is None and (self._is_much or self._becomes_much(octets)):
                result = self._fast.value(octets)
                if result is None and len(octets) > _LARGE_YAML and self._fast.problem is not None:
                    raise self._fast.problem
            if result is None:
                result = _exactly(text, self._max_depth)
        except YamlError as error:
            position = text_position(source, chunk.start, chunk.end, error.offset)
            return Diagnostic(error.code, error.problem, position, hint=error.hint)
        if result[0] is not None:
            documents.append(Document(result[0], source, chunk.start, chunk.end, False, result[1]))
        return None

    def _becomes_much(self, octets: bytes) -> bool:
        """Whether enough YAML has come by to read it with libyaml; asked until it has."""
        StreamReader.octets_read += len(octets)
        self._is_much = StreamReader.octets_read > _LITTLE or _FAST in sys.modules
        return self._is_much

    def _by_lines(self, octets: bytes, text: str) -> tuple[Any, bool] | None:
        if self._pass_by:
            self._pass_by -= 1
            return None
        if not is_regular(octets):
            return None
        result = self._lines.value(text)
        if result is not None:
            self._passed_by = 0
        else:
            self._pass_by = self._passed_by = min(2 * self._passed_by + 1, _LONGEST_PASS)
        return result


def _exactly(text: str, max_depth: int) -> tuple[Any, bool]:
    from tierwall.resources.yaml.decode import read_exactly

    value, repeats = read_exactly(text, max_depth)
    return value, bool(repeats)


def _octets(source: SourceText, start: int, end: int) -> bytes:
    return document_bytes(source.data, Chunk(start, end)).removeprefix(_BOM)


def _decoded(octets: bytes) -> str:
    try:
        return octets.decode()
    except UnicodeDecodeError as error:
        offset = len(octets[: error.start].decode("utf-8", "replace"))
        problem = f"octet 0x{octets[error.start]:02X} is not UTF-8"
        raise YamlError(problem, offset, "TW005", "save the file as UTF-8") from None


def document_text(data: bytes, start: int, end: int) -> str:
    """The text that a document is read from, without a byte order mark."""
    return document_bytes(data, Chunk(start, end)).removeprefix(_BOM).decode()


def text_position(source: SourceText, start: int, end: int, offset: int) -> Position:
    """The place of a code point of a document's text; never behind the end of the document."""
    octets = document_bytes(source.data, Chunk(start, end))
    text = octets.removeprefix(_BOM).decode("utf-8", "replace")
    offset = min(offset, len(text.rstrip("\r\n")))
    line_start = text.rfind("\n", 0, offset) + 1
    line = source.line_at(start) + 1 + text.count("\n", 0, offset)
    column = offset - line_start + 1
    if not line_start:
        column += source.position(start).column - 1 + (1 if start and octets.startswith(_BOM) else 0)
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

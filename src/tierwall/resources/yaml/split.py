"""Split a stream into documents as Kubernetes' `YAMLOrJSONDecoder` does (apimachinery, `pkg/util/yaml`).

A line that starts with `---` separates documents; only blanks or a comment may follow it. A separator with nothing
before it belongs to the document after it. Every line ends in a line feed: a carriage return before it is dropped, and
a last line without a line feed gets one.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct

# kubectl makes `NewYAMLOrJSONDecoder` look this far for the brace that makes a stream JSON.
_GUESS_SIZE = 4096
# The characters for which Go's unicode.IsSpace is true.
_SPACES = "\t\n\v\f\r \x85\xa0\u1680" + "".join(map(chr, range(0x2000, 0x200B))) + "\u2028\u2029\u202f\u205f\u3000"


class Chunk(Struct, frozen=True):
    """The byte range of one document, or of an invalid separator (`problem` is then the text that follows it)."""

    start: int
    end: int
    problem: str = ""


def looks_like_json(data: bytes) -> bool:
    """Whether the first character of the stream that is not a space is an opening brace."""
    return data[:_GUESS_SIZE].decode("utf-8", "replace").lstrip(_SPACES).startswith("{")


def yaml_start_after_json(data: bytes, at: int) -> int | None:
    """Return where the YAML decoder begins after JSON ended at `at`: after blanks, up to and including one line feed.

    None if fewer than four bytes are left at any step: the Go code reads four and takes the end for a failure.
    """
    while len(data) - at >= 4:
        char = data[at : at + 4].decode("utf-8", "replace")[0]
        if char == "\ufffd":
            return None
        if char not in _SPACES:
            return at
        at += len(char.encode())
        if char == "\n":
            return at
    return None


def split(data: bytes, start: int = 0) -> Iterator[Chunk]:
    """Yield the documents of a YAML stream that begins at `start`."""
    begin = start
    separator = start if data.startswith(b"---", start) else _next_separator(data, start)
    while separator >= 0:
        line_end = data.find(b"\n", separator)
        if line_end < 0:
            line_end = len(data)
        after = data[separator + 3 : line_end].decode("utf-8", "replace").strip(_SPACES)
        if after and not after.startswith("#"):
            if separator > begin:
                yield Chunk(begin, separator)
            yield Chunk(separator, line_end, after)
            begin = min(line_end + 1, len(data))
        elif separator > begin:
            yield Chunk(begin, separator)
            begin = min(line_end + 1, len(data))
        separator = _next_separator(data, line_end)
    if begin < len(data):
        yield Chunk(begin, len(data))


def after_separator(data: bytes, at: int) -> int:
    """Return where the document after a separator at `at` begins; `at` itself if something follows on its line."""
    line_end = data.find(b"\n", at)
    after = data[at + 3 : line_end if line_end >= 0 else len(data)].decode("utf-8", "replace").strip(_SPACES)
    if after and not after.startswith("#"):
        return at
    return line_end + 1 if line_end >= 0 else len(data)


def _next_separator(data: bytes, at: int) -> int:
    line_feed = data.find(b"\n---", at)
    return line_feed + 1 if line_feed >= 0 else -1


def document_bytes(data: bytes, chunk: Chunk) -> bytes:
    """Return the bytes that the YAML reader is given for a chunk."""
    chunk_data = data[chunk.start : chunk.end]
    if b"\r" in chunk_data:
        chunk_data = chunk_data.replace(b"\r\n", b"\n")
    return chunk_data if chunk_data.endswith(b"\n") else chunk_data + b"\n"

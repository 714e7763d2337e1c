"""Escape characters that could fake lines of output or move a terminal.

Names, file names, messages and expressions come from input. Line breaks, control characters, ANSI escapes, and
characters that are invisible or change the direction of text never reach an output as they are
(docs/semantics.md#output-cannot-be-forged). Every line is escaped where it is printed, so no other code needs to.
"""

from __future__ import annotations


def escape_unprintable(text: str) -> str:
    """Escape the unprintable characters of a text as Python does: `\\n`, `\\x1b`, `\\u202e`."""
    return text if text.isprintable() else "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


# The workflow commands of GitHub, which it obeys in any output: `::error file=…::…`.
_COMMANDS = (
    "error",
    "warning",
    "notice",
    "debug",
    "group",
    "endgroup",
    "echo",
    "add-mask",
    "add-matcher",
    "add-path",
    "remove-matcher",
    "save-state",
    "set-env",
    "set-output",
    "stop-commands",
)


def printable_line(text: str) -> str:
    """Return one line of output. No workflow takes it for a command either."""
    text = escape_unprintable(text)
    start = text.lstrip()
    if start[:2] == "::" and start[2:].lower().startswith(_COMMANDS):
        return text.replace("::", "\\x3a:", 1)
    return text


def printable_json(text: str) -> str:
    """Escape the unprintable characters in the strings of JSON text; its own line breaks stay."""
    if text.isprintable() or text.replace("\n", "").isprintable():
        return text
    return "".join(c if c == "\n" or c.isprintable() else _json_escape(c) for c in text)


def printable_json_bytes(text: bytes) -> bytes:
    """Escape the unprintable characters in the strings of JSON text; nearly all text is ASCII and needs no look."""
    if text.isascii() and b"\x7f" not in text:
        return text
    return printable_json(text.decode(errors="replace")).encode()


def _json_escape(character: str) -> str:
    units = character.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[place]:02x}{units[place + 1]:02x}" for place in range(0, len(units), 2))


class PrintableLine(str):
    """A line whose parts from input are escaped already: it may hold the colours of a terminal."""

    __slots__ = ()

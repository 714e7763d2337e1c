"""Literal and folded block scalars (`yaml_parser_scan_block_scalar`)."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from tierwall.resources.yaml.errors import YamlError

if TYPE_CHECKING:
    from tierwall.resources.yaml.scan import Scanner

_BREAKS = "\r\n\x85\u2028\u2029"
_HEADER = re.compile("([+-]?)([0-9]?)([+-]?)")
_LINE = re.compile(f"[^{_BREAKS}\0]*")


def scan_block_scalar(scanner: Scanner, literal: bool) -> tuple[str, int]:
    """A block scalar: its text and where it ends."""
    text = scanner.text
    start = scanner.at
    chomping, increment = _header(scanner)
    scanner.skip_blanks_and_comment()
    if text[scanner.at] not in _BREAKS + "\0":
        what = f"`{text[start]}`"
        hint = f"put the text that starts with {what} in quotes, or start it on the next line"
        raise YamlError(f"expected a comment or the end of the line after {what}", scanner.at, hint=hint)
    if text[scanner.at] in _BREAKS:
        scanner.skip_line()

    indent = (max(scanner.indent, 0) + increment) if increment else 0
    indent, trailing, end = _breaks(scanner, indent)
    parts: list[str] = []
    leading = ""
    leading_blank = False
    while scanner.at - scanner.line_start == indent and text[scanner.at] != "\0":
        blank = text[scanner.at] in " \t"
        if not literal and not leading_blank and not blank and leading == "\n":
            if not trailing:
                parts.append(" ")
        else:
            parts.append(leading)
        parts += trailing
        leading_blank = blank
        line = _LINE.match(text, scanner.at)
        assert line is not None
        parts.append(line.group())
        scanner.at = line.end()
        leading = scanner.read_line() if text[scanner.at] in _BREAKS else ""
        indent, trailing, end = _breaks(scanner, indent)
    if chomping != "-":
        parts.append(leading)
    if chomping == "+":
        parts += trailing
    return "".join(parts), end


def _header(scanner: Scanner) -> tuple[str, int]:
    """The chomping and indentation indicators, in either order."""
    found = _HEADER.match(scanner.text, scanner.at + 1)
    assert found is not None
    before, digit, after = found.groups()
    if before and after:
        # Only one chomping indicator is read; the second is then in the way.
        after = ""
    if digit == "0":
        raise YamlError("found an indentation indicator equal to 0", found.start(2))
    scanner.at += 1 + len(before) + len(digit) + (len(after) if digit else 0)
    return before or (after if digit else ""), int(digit or 0)


def _breaks(scanner: Scanner, indent: int) -> tuple[int, list[str], int]:
    """Step over indentation and empty lines; settles the indentation if it is not known (0)."""
    text = scanner.text
    breaks: list[str] = []
    end = scanner.at
    widest = 0
    while True:
        while (not indent or scanner.at - scanner.line_start < indent) and text[scanner.at] == " ":
            scanner.at += 1
        column = scanner.at - scanner.line_start
        widest = max(widest, column)
        if (not indent or column < indent) and text[scanner.at] == "\t":
            raise YamlError("found a tab character where an indentation space is expected", scanner.at)
        if text[scanner.at] not in _BREAKS:
            break
        breaks.append(scanner.read_line())
        end = scanner.at
    return indent or max(widest, scanner.indent + 1, 1), breaks, end

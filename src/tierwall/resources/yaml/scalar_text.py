"""Scan scalars: plain, quoted, and literal and folded blocks.

Ports of `yaml_parser_scan_plain_scalar`, `yaml_parser_scan_flow_scalar` and `yaml_parser_scan_block_scalar`
in Go's scannerc.go.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tierwall.resources.yaml.errors import YamlError
from tierwall.resources.yaml.tokens import BLANKZ, BREAKS
from tierwall.values.pattern import pattern

if TYPE_CHECKING:
    from tierwall.resources.yaml.scan import Scanner

_PLAIN_BLOCK = pattern(f"(?:[^{BLANKZ}:]+|:(?![{BLANKZ}]))+")
_PLAIN_FLOW = pattern(rf"(?:[^{BLANKZ}:,?\[\]{{}}]+|:(?![{BLANKZ}]))+")
_WHITE = f" \t{BREAKS}"
_BLANKS = pattern("[ \t]*")
_SINGLE = pattern(f"[^{BLANKZ}']+")
_DOUBLE = pattern(rf'[^{BLANKZ}"\\]+')
_HEX = pattern("[0-9A-Fa-f]*")
_BLOCK_HEADER = pattern("([+-]?)([0-9]?)([+-]?)")
_LINE = pattern(f"[^{BREAKS}\0]*")

_ESCAPES = {
    "0": "\0", "a": "\a", "b": "\b", "t": "\t", "\t": "\t", "n": "\n", "v": "\v", "f": "\f", "r": "\r", "e": "\x1b",
    " ": " ", '"': '"', "'": "'", "\\": "\\", "N": "\x85", "_": "\xa0", "L": "\u2028", "P": "\u2029",
}  # fmt: skip
_CODE_LENGTH = {"x": 2, "u": 4, "U": 8}


def scan_plain_scalar(scanner: Scanner) -> tuple[str, int, bool]:
    """Scan a plain scalar: return its text, where it ends, and whether a line break follows."""
    text = scanner.text
    in_flow = scanner.flow_level > 0
    run = _PLAIN_FLOW if in_flow else _PLAIN_BLOCK
    indent = scanner.indent + 1
    parts: list[str] = []
    blanks = ""
    breaks: list[str] = []
    end = scanner.at
    while not scanner.at_document_indicator() and text[scanner.at] != "#":
        if word := scanner.take(run):
            parts += (_folded(blanks, breaks), word)
            breaks = []
            end = scanner.at
        if text[scanner.at] not in _WHITE:
            break
        blanks, breaks = _white_space(scanner, indent)
        if not in_flow and scanner.at - scanner.line_start < indent:
            break
    return "".join(parts), end, bool(breaks)


def _white_space(scanner: Scanner, indent: int = 0) -> tuple[str, list[str]]:
    """Consume blanks and line breaks; return the blanks before the first break, and the breaks. No tab may indent."""
    blanks = scanner.take(_BLANKS)
    breaks: list[str] = []
    while scanner.text[scanner.at] in BREAKS:
        breaks.append(scanner.read_line())
        tab = scanner.take(_BLANKS).find("\t")
        if 0 <= tab < indent:
            problem = "found a tab character that violates indentation"
            raise YamlError(problem, scanner.line_start + tab, hint="use spaces")
    return blanks, breaks


def _folded(blanks: str, breaks: list[str]) -> str:
    """Return the text that blanks, or line breaks, stand for inside a scalar."""
    if not breaks:
        return blanks
    if breaks[0] != "\n":
        return "".join(breaks)
    return "".join(breaks[1:]) or " "


def scan_quoted_scalar(scanner: Scanner, quote: str) -> str:
    """Scan a quoted scalar, and return its text without the quotes."""
    text = scanner.text
    start = scanner.at
    run = _SINGLE if quote == "'" else _DOUBLE
    scanner.at += 1
    parts: list[str] = []
    while True:
        if scanner.at_document_indicator():
            raise YamlError(
                "found a document separator inside a quoted string", scanner.at, hint=_began(scanner, start)
            )
        if text[scanner.at] == "\0":
            raise YamlError(
                f"quoted string is not closed: no `{quote}` before the end", start, hint=f"add the closing `{quote}`"
            )
        escaped_break = False
        while (char := text[scanner.at]) not in BLANKZ:
            if word := scanner.take(run):
                parts.append(word)
            elif char == "'" and text[scanner.at + 1] == "'":
                parts.append("'")
                scanner.at += 2
            elif char == quote:
                break
            elif text[scanner.at + 1] in BREAKS:
                scanner.at += 1
                scanner.skip_line()
                escaped_break = True
                break
            else:
                parts.append(_escape(scanner))
        if text[scanner.at] == quote:
            break
        blanks, breaks = _white_space(scanner)
        # An escaped break comes first and is dropped; the breaks after it are kept.
        parts.append("".join(breaks) if escaped_break else _folded(blanks, breaks))
    scanner.at += 1
    return "".join(parts)


def _began(scanner: Scanner, start: int) -> str:
    return f"close the string that began with `{scanner.text[start : start + 24].split(chr(10), 1)[0]}`"


def _escape(scanner: Scanner) -> str:
    """Return the character of an escape sequence. `\\/` is refused here, although JSON allows it."""
    text, at = scanner.text, scanner.at
    letter = text[at + 1]
    if letter in _ESCAPES:
        scanner.at += 2
        return _ESCAPES[letter]
    length = _CODE_LENGTH.get(letter)
    if length is None:
        shown = f"`\\{letter}`" if letter != "\0" else "`\\` at the end"
        raise YamlError(f"found unknown escape {shown}", at, hint="write `\\\\` for a backslash, or use single quotes")
    digits = text[at + 2 : at + 2 + length]
    if len(_HEX.match(digits).group()) != length:  # type: ignore[union-attr]
        raise YamlError(f"expected {length} hexadecimal digits after `\\{letter}`", at)
    value = int(digits, 16)
    if 0xD800 <= value <= 0xDFFF or value > 0x10FFFF:
        raise YamlError(f"`\\{letter}{digits}` is not a Unicode character", at, hint="write the character itself")
    scanner.at += 2 + length
    return chr(value)


def scan_block_scalar(scanner: Scanner, literal: bool) -> tuple[str, int]:
    """Scan a block scalar: return its text and where it ends."""
    text = scanner.text
    start = scanner.at
    chomping, increment = _header(scanner)
    scanner.skip_blanks_and_comment()
    if text[scanner.at] not in BREAKS + "\0":
        what = f"`{text[start]}`"
        hint = f"quote the value that starts with {what}, or start it on the next line"
        raise YamlError(f"expected a comment or the end of the line after {what}", scanner.at, hint=hint)
    if text[scanner.at] in BREAKS:
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
        parts.append(scanner.take(_LINE))
        leading = scanner.read_line() if text[scanner.at] in BREAKS else ""
        indent, trailing, end = _breaks(scanner, indent)
    if chomping != "-":
        parts.append(leading)
    if chomping == "+":
        parts += trailing
    return "".join(parts), end


def _header(scanner: Scanner) -> tuple[str, int]:
    """Scan the chomping and indentation indicators, in either order."""
    header = _BLOCK_HEADER.match(scanner.text, scanner.at + 1)
    assert header is not None
    before, digit, after = header.groups()
    if before and after:
        # Only one chomping indicator is read; a second one is an error later.
        after = ""
    if digit == "0":
        raise YamlError("found an indentation indicator equal to 0", header.start(2))
    scanner.at += 1 + len(before) + len(digit) + (len(after) if digit else 0)
    return before or (after if digit else ""), int(digit or 0)


def _breaks(scanner: Scanner, indent: int) -> tuple[int, list[str], int]:
    """Consume indentation and empty lines; determine the indentation if it is not known yet (0)."""
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
        if text[scanner.at] not in BREAKS:
            break
        breaks.append(scanner.read_line())
        end = scanner.at
    return indent or max(widest, scanner.indent + 1, 1), breaks, end

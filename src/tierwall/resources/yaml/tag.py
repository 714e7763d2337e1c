"""Scan tags and directives (`yaml_parser_scan_tag`, `yaml_parser_scan_directive` in Go's scannerc.go)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tierwall.resources.yaml.errors import YamlError
from tierwall.resources.yaml.tokens import BLANKZ, BREAKS
from tierwall.values.pattern import pattern

if TYPE_CHECKING:
    from tierwall.resources.yaml.scan import Scanner

_HANDLE = pattern("![0-9A-Za-z_-]*!?")
_URI_CHARS = pattern(r"[0-9A-Za-z_\-;/?:@&=+$,.!~*'()\[\]]+")
_BYTE = pattern("%([0-9A-Fa-f]{2})")
_NAME = pattern("[0-9A-Za-z_-]*")
_VERSION = pattern(r"[ \t]*([0-9]{1,2})\.([0-9]{1,2})(?![0-9])")
_BLANKS = pattern("[ \t]*")


def scan_tag(scanner: Scanner) -> tuple[str, str]:
    """Scan a tag: return its handle (empty for `!<uri>` and for `!`) and its suffix."""
    text = scanner.text
    start = scanner.at
    if text[start + 1] == "<":
        scanner.at += 2
        handle, suffix = "", _scan_uri(scanner, "", start)
        if text[scanner.at] != ">":
            raise YamlError("expected `>` at the end of a tag", scanner.at)
        scanner.at += 1
    else:
        handle = _scan_handle(scanner, False)
        if len(handle) > 1 and handle.endswith("!"):
            suffix = _scan_uri(scanner, "", start)
        else:
            suffix = _scan_uri(scanner, handle, start)
            handle = "!"
            if not suffix:
                handle, suffix = "", "!"
    if text[scanner.at] not in BLANKZ:
        hint = "quote the value that starts with `!`"
        raise YamlError("expected a space or the end of the line after a tag", scanner.at, hint=hint)
    return handle, suffix


def _scan_handle(scanner: Scanner, directive: bool) -> str:
    match = _HANDLE.match(scanner.text, scanner.at)
    if match is None:
        raise YamlError("expected `!` at the start of a tag handle", scanner.at)
    handle = match.group()
    if directive and not handle.endswith("!"):
        raise YamlError("expected `!` at the end of a tag handle", match.end())
    scanner.at = match.end()
    return handle


def _scan_uri(scanner: Scanner, head: str, start: int) -> str:
    """Scan the URI of a tag and decode its %-escapes; `head` is the beginning that was scanned as a handle."""
    parts = [head[1:].encode()]
    begin = scanner.at
    while True:
        if characters := scanner.take(_URI_CHARS):
            parts.append(characters.encode())
        elif scanner.text[scanner.at] == "%":
            parts.append(_escaped_character(scanner))
        else:
            break
    if not head and scanner.at == begin:
        raise YamlError("expected a tag after `!`", start)
    return b"".join(parts).decode("utf-8", "replace")


def _escaped_character(scanner: Scanner) -> bytes:
    """Return the bytes of one UTF-8 character that is written as %-escapes."""
    encoded = bytearray()
    width = 1
    while len(encoded) < width:
        match = _BYTE.match(scanner.text, scanner.at)
        if match is None:
            raise YamlError("expected two hexadecimal digits after `%` in a tag", scanner.at)
        byte = int(match.group(1), 16)
        if not encoded:
            width = 1 if byte < 0x80 else 2 if byte & 0xE0 == 0xC0 else 3 if byte & 0xF0 == 0xE0 else 4
            if (byte >= 0x80 and byte & 0xC0 != 0xC0) or byte & 0xF8 == 0xF8:
                raise YamlError("a tag has a byte that is not UTF-8", scanner.at)
        elif byte & 0xC0 != 0x80:
            raise YamlError("a tag has a byte that is not UTF-8", scanner.at)
        encoded.append(byte)
        scanner.at = match.end()
    return bytes(encoded)


def scan_directive(scanner: Scanner) -> tuple[str, str]:
    """Scan a `%YAML` or `%TAG` line: return the version, or the handle and the prefix."""
    text = scanner.text
    start = scanner.at
    scanner.at += 1
    name = scanner.take(_NAME)
    if name not in ("YAML", "TAG") or text[scanner.at] not in BLANKZ:
        hint = "quote the value that starts with `%`"
        raise YamlError(f"expected a `%YAML` or `%TAG` directive, found `%{name}`", start, hint=hint)
    value = prefix = ""
    if name == "YAML":
        version = _VERSION.match(text, scanner.at)
        if version is None:
            raise YamlError("expected a version as `1.1` after `%YAML`", scanner.at)
        scanner.at = version.end()
        value = f"{int(version.group(1))}.{int(version.group(2))}"
    else:
        scanner.take(_BLANKS)
        value = _scan_handle(scanner, True)
        if text[scanner.at] not in " \t":
            raise YamlError("expected a space after a tag handle", scanner.at)
        scanner.take(_BLANKS)
        prefix = _scan_uri(scanner, "", start)
        if text[scanner.at] not in BLANKZ:
            raise YamlError("expected a space or the end of the line after a tag prefix", scanner.at)
    scanner.skip_blanks_and_comment()
    if text[scanner.at] not in BREAKS + "\0":
        raise YamlError("expected a comment or the end of the line after a directive", scanner.at)
    if text[scanner.at] != "\0":
        scanner.skip_line()
    return value, prefix

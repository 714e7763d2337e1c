"""The answer to `tools/list`, cut down to some tools: as JSON, or as server-sent events (MCP, "Streamable HTTP").

Whatever is not recognised is replaced by an error, so that a list in a form we do not know is not shown uncut.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import msgspec

May = Callable[[str], bool]
INTERNAL_ERROR = -32603


def filtered(body: bytes, content_type: str, may: May | None) -> bytes | None:
    """The body with only the tools that a caller may call; None if it may stay as it is."""
    media_type = content_type.partition(";")[0].strip().lower()
    if media_type == "application/json":
        return _message(body, may)
    if media_type == "text/event-stream":
        return b"".join(_events(body, may))
    if not body:
        return None
    return _refusal(None)


def _message(text: bytes, may: May | None) -> bytes:
    try:
        value = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return _refusal(None)
    if not isinstance(value, dict):
        return _refusal(None)
    result = value.get("result")
    if "result" not in value:
        # An error, a request or a notification of the server: nothing to cut.
        return text
    tools = result.get("tools") if isinstance(result, dict) else None
    if may is None or not isinstance(result, dict) or not isinstance(tools, list):
        return _refusal(value.get("id"))
    kept = [one for one in tools if isinstance(one, dict) and isinstance(one.get("name"), str) and may(one["name"])]
    if len(kept) == len(tools):
        return text
    return msgspec.json.encode({**value, "result": {**result, "tools": kept}})


def _refusal(identity: Any) -> bytes:
    error = {"code": INTERNAL_ERROR, "message": "the list of tools cannot be read, so it is not shown"}
    return msgspec.json.encode({"jsonrpc": "2.0", "id": identity, "error": error})


def _events(body: bytes, may: May | None) -> Iterator[bytes]:
    """Every event with its data cut; fields other than `data` stay as they are."""
    kept: list[bytes] = []
    data: list[bytes] = []
    for line in [*body.removeprefix(b"\xef\xbb\xbf").splitlines(), b""]:
        if line:
            name, _, rest = line.partition(b":")
            if name == b"data":
                data.append(rest.removeprefix(b" "))
            else:
                kept.append(line)
            continue
        if data and b"".join(data).strip():
            kept += (b"data: " + part for part in _message(b"\n".join(data), may).split(b"\n"))
        elif data:
            kept.append(b"data: ")
        if kept:
            yield b"\n".join(kept) + b"\n\n"
        kept, data = [], []

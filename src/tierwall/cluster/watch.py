"""One watch of an API server: a stream of events, one JSON object a line (docs/clusters.md#following).

A status of 200 says nothing: failures come as an event. Lines end with a newline and nothing else; names may hold
characters that `str.splitlines` takes for the end of a line. An unfinished last line counts as not sent.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct

from tierwall.cluster.connection import Connection
from tierwall.cluster.decoding import AnswerError, json_object
from tierwall.cluster.failures import ApiServerError, ApiStatus

if TYPE_CHECKING:
    import httpx

# The largest object that an API server takes has 3 MiB.
MAX_LINE = 8 << 20
# After an event that had to be waited for, those of so many seconds are collected: reading each for itself would cost
# three times as much. Where much comes at once, nothing waits.
_PAUSE, _WAITED = 0.05, 0.001
# The first event of every stream, made here: the server has accepted the watch.
OPENED = "OPENED"


class WatchEvent(Struct, frozen=True):
    """ADDED, MODIFIED, DELETED or BOOKMARK, and its object, not decoded yet: a bookmark's object is mostly empty."""

    type: str
    # Text, or a map if it is nested too deeply to be skipped.
    object: msgspec.Raw | dict[str, Any] = msgspec.Raw(b"null")


class _LineEvent(Struct, frozen=True):
    type: str
    object: msgspec.Raw = msgspec.Raw(b"null")


_DECODER = msgspec.json.Decoder(_LineEvent)
_OPENED = WatchEvent(OPENED)


async def watch(
    connection: Connection, path: str, query: dict[str, str], silence: float
) -> AsyncGenerator[WatchEvent, None]:
    """Yield OPENED, then the events of a watch until the server ends it.

    ApiServerError if the server says that the watch failed, AnswerError if it sends something other than events.
    """
    async with (
        connection.stream(path, {**query, "watch": "true"}, silence) as response,
        aclosing(_lines(response)) as lines,
    ):
        yield _OPENED
        async for line in lines:
            event = _event(line)
            if event.type == "ERROR":
                raise _failure(event)
            yield event


def _event(line: bytes) -> WatchEvent:
    try:
        event = _DECODER.decode(line)
    except RecursionError:
        value = json_object(line)
        return WatchEvent(str(value.get("type")), value.get("object") or {})
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise AnswerError(f"expected an event: {error}") from None
    return WatchEvent(event.type, event.object)


def _failure(event: WatchEvent) -> ApiServerError:
    try:
        status = msgspec.json.decode(event.object, type=ApiStatus)  # type: ignore[arg-type]
    except (msgspec.DecodeError, UnicodeDecodeError, TypeError):
        status = ApiStatus(message="the watch failed for no known reason")
    return ApiServerError(status.code or 0, status.reason or "", status.message or "")


async def _lines(response: httpx.Response) -> AsyncGenerator[bytes, None]:
    """Split a stream at newlines, as soon as they arrive."""
    parts: list[bytes] = []
    size = 0
    clock = asyncio.get_running_loop().time
    asked = clock()
    # Without a size of chunks: with one, the last events would wait for more.
    async for chunk in response.aiter_bytes():
        waited = clock() - asked
        *complete, rest = chunk.split(b"\n")
        for end in complete:
            line = b"".join((*parts, end))
            parts, size = [], 0
            if line.strip():
                yield line
        if rest:
            parts.append(rest)
            size += len(rest)
            if size > MAX_LINE:
                raise AnswerError(f"a line is longer than {MAX_LINE >> 20} MiB")
        if waited > _WAITED and not parts:
            await asyncio.sleep(_PAUSE)
        asked = clock()

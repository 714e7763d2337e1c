"""One watch of an API server: a stream of events, one JSON object a line (docs/clusters.md#following).

A status of 200 says nothing: failures come as an event. Lines end with a newline and nothing else; names may hold
characters that `str.splitlines` takes for the end of a line. An unfinished last line counts as not sent.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct

from tierwall.cluster.connection import ApiServerError, ApiStatus, Connection
from tierwall.errors import TierwallError

if TYPE_CHECKING:
    import httpx

# The largest object that an API server takes has 3 MiB.
MAX_LINE = 8 << 20


class WatchEvent(Struct, frozen=True):
    """ADDED, MODIFIED, DELETED or BOOKMARK, and its object, not decoded yet: a bookmark's object is mostly empty."""

    type: str
    object: msgspec.Raw = msgspec.Raw(b"null")


_DECODER = msgspec.json.Decoder(WatchEvent)


class WatchLineError(TierwallError):
    """The stream holds something other than events."""


async def watch(
    connection: Connection, path: str, query: dict[str, str], silence: float
) -> AsyncGenerator[WatchEvent, None]:
    """Yield the events of a watch until the server ends it; ApiServerError if the server says that it failed."""
    async with (
        connection.stream(path, {**query, "watch": "true"}, silence) as response,
        aclosing(_lines(response)) as lines,
    ):
        async for line in lines:
            try:
                event = _DECODER.decode(line)
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                raise WatchLineError(str(error)) from None
            if event.type == "ERROR":
                status = msgspec.json.decode(event.object, type=ApiStatus)
                raise ApiServerError(status.code, status.reason, status.message)
            yield event


async def _lines(response: httpx.Response) -> AsyncGenerator[bytes, None]:
    """Split a stream at newlines, as soon as they arrive."""
    parts: list[bytes] = []
    size = 0
    # Without a size of chunks: with one, the last events would wait for more.
    async for chunk in response.aiter_bytes():
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
                raise WatchLineError(f"a line is longer than {MAX_LINE >> 20} MiB")

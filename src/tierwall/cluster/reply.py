"""The answer of an API server: bounded, unpacked, and decoded, or said to be something else."""

from __future__ import annotations

import zlib
from typing import Protocol, TypeVar

import httpx
import msgspec
from msgspec import Struct

from tierwall.cluster.failures import UnreachableError, not_kubernetes

T_co = TypeVar("T_co", covariant=True)

# All pods of the largest clusters come to half of this. A larger answer, packed or not, is refused.
MAX_BODY = 1 << 30
_MAX_ERROR = 64 << 10
# So much is unpacked at a time.
_STEP = 1 << 20


class ReplyReader(Protocol[T_co]):
    """Decodes the body of an answer, as the decoders of msgspec do."""

    def decode(self, buf: bytes, /) -> T_co:
        """Return the value; DecodeError of msgspec if the body is something else."""


class ServerReply(Struct, frozen=True):
    """The answer to a request that has succeeded."""

    server: str
    content: bytes
    content_type: str = ""

    def decode(self, reader: ReplyReader[T_co]) -> T_co:
        """Decode the body; UnreachableError if no API server would answer so."""
        try:
            return reader.decode(self.content)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            kind = self.content_type.partition(";")[0].strip()[:100]
            actual = "JSON of another form" if "json" in kind else f"`{kind}`" if kind else "an answer without a type"
            raise not_kubernetes(self.server, f"expected the JSON of Kubernetes, found {actual}") from None


async def read_body(response: httpx.Response, server: str, limit: int = MAX_BODY) -> bytes:
    """Read the body of an answer; UnreachableError if it is too large, cut short, or packed in an unknown way."""
    body = await _read(response, server, limit)
    if len(body) > limit:
        raise not_kubernetes(server, f"its answer is larger than {limit >> 20} MiB")
    return bytes(body)


async def read_failure(response: httpx.Response, server: str) -> bytes:
    """Read the body of a failure, or its beginning."""
    return bytes((await _read(response, server, _MAX_ERROR))[:_MAX_ERROR])


async def _read(response: httpx.Response, server: str, limit: int) -> bytearray:
    """Read a body until it ends or is longer than a limit.

    httpx would unpack as often as a server asks for: a few bytes could become terabytes.
    """
    encoding = response.headers.get("content-encoding", "identity").strip().lower()
    if encoding not in ("identity", "gzip"):
        raise not_kubernetes(server, f"expected gzip, found the encoding `{encoding[:50]}`")
    body = bytearray()
    unpack = zlib.decompressobj(31) if encoding == "gzip" else None
    async for chunk in response.aiter_raw():
        if unpack is None:
            body += chunk
        else:
            _unpack(unpack, chunk, body, server, limit)
        if len(body) > limit:
            return body
    if unpack is not None and body and not unpack.eof:
        raise UnreachableError(server, "its answer was cut short")
    return body


def _unpack(unpack: zlib._Decompress, chunk: bytes, body: bytearray, server: str, limit: int) -> None:
    while len(body) <= limit:
        try:
            part = unpack.decompress(chunk, _STEP)
        except zlib.error:
            raise not_kubernetes(server, "expected gzip, found something else") from None
        body += part
        chunk = unpack.unconsumed_tail
        if not chunk and len(part) < _STEP:
            return

"""CEL texts over 1,024 bytes, made to fit: deflated and written in base 85 (type `PACKED_CEL_TYPE`).

The text comes back unchanged, so packing needs no state and any replica can unpack; what it unpacks to is bounded.
"""

from __future__ import annotations

import base64
import zlib

MAX_UNPACKED_BYTES = 64 * 1024


def pack(text: str) -> str:
    """The packed text."""
    return base64.b85encode(zlib.compress(text.encode(), 9)).decode()


def unpack(packed: str) -> str:
    """The text again; ValueError if `packed` is nothing that `pack` gave."""
    try:
        stream = zlib.decompressobj()
        raw = stream.decompress(base64.b85decode(packed), MAX_UNPACKED_BYTES)
        if not stream.eof or stream.unused_data:
            raise ValueError("packed condition is cut short, too long or has something behind it")
        return raw.decode()
    except (zlib.error, UnicodeDecodeError) as why:
        raise ValueError(f"not a packed condition: {why}") from None

"""Base64 (cel-go ext.Encoders). No Kubernetes environment offers it."""

from __future__ import annotations

import base64
import binascii

from tierwall.cel import cost
from tierwall.cel.failure import EvaluationError
from tierwall.cel.table import EXTENSION, Overload
from tierwall.cel.types import BYTES, STRING


def encode(data: bytes) -> str:
    """`base64.encode(bytes)`."""
    return base64.b64encode(data).decode()


def decode(text: str) -> bytes:
    """`base64.decode(text)`; padding may be missing."""
    try:
        return base64.b64decode(text + "=" * (-len(text) % 4), validate=True)
    except (binascii.Error, ValueError):
        raise EvaluationError("illegal base64 data") from None


OVERLOADS: tuple[Overload, ...] = (
    Overload(
        "base64.encode", "base64_encode_bytes", (BYTES,), STRING, encode, cost=cost.scan_first_twice, since=EXTENSION
    ),
    Overload(
        "base64.decode", "base64_decode_string", (STRING,), BYTES, decode, cost=cost.scan_first_twice, since=EXTENSION
    ),
)

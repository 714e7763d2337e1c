"""What only an answer of the tool plane has (docs/reference/decision-document.md#keys-of-one-plane)."""

from __future__ import annotations

from msgspec import Struct

from tierwall.core.reference import Reference
from tierwall.tool.model import PolicyLevel


class RequestDetail(Struct, frozen=True, kw_only=True):
    """The request that was judged, defaults filled in."""

    gateway: Reference
    listener: str | None
    backend: Reference
    caller: str | None
    method: str | None
    tool: str | None
    uri: str | None
    http_method: str
    path: str


class ToolDetail(Struct, frozen=True, kw_only=True):
    """What only a tool answer has: who was evaluated, in order, and the level of the last of them."""

    evaluated: tuple[Reference, ...]
    level: PolicyLevel
    request: RequestDetail
    # The HTTP status with which a real proxy answered, where one was asked.
    status: int | None = None

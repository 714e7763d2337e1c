"""The detail of a tool answer (docs/reference/decision-document.md#keys-of-one-plane)."""

from __future__ import annotations

from msgspec import Struct

from tierwall.core.reference import Reference
from tierwall.tool.model import PolicyLevel


class RequestDetail(Struct, frozen=True, kw_only=True):
    """The request that was decided, with defaults."""

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
    """The detail of a tool answer: the policies that were evaluated, in order, and the level of the last one."""

    evaluated: tuple[Reference, ...]
    level: PolicyLevel
    request: RequestDetail
    # The HTTP status of a real proxy's answer, if one was asked.
    status: int | None = None

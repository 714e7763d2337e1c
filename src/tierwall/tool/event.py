"""What an engine reports of requests to tools: who asked for what, where, and what became of it."""

from __future__ import annotations

from msgspec import Struct


class RequestSeen(Struct, frozen=True, kw_only=True):
    """A request as an engine saw it; what it does not know is None. `Event.detail` on the tool plane."""

    # What the request claims is what it is about: `method`, `tool`, `uri` and `http`. All else the engine knows itself.
    caller: str | None = None
    gateway: str | None = None
    listener: str | None = None
    backend: str | None = None
    method: str | None = None
    tool: str | None = None
    uri: str | None = None
    http: str
    status: int
    # The level of the policy that decided.
    level: str | None = None
    # What the engine has to say about the reply, in its own words.
    said: str
    # Refused before every policy was asked: what cannot be read, or leads nowhere, is never let through.
    refused: bool = False
    seconds: float

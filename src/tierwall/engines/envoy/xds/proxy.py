"""A proxy as it presents itself, and the `Programmed` condition of all of them (Gateway API, GatewayConditionType)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple


class Proxy(NamedTuple):
    """Who is on the other end of a stream."""

    id: str
    version: str

    @classmethod
    def of(cls, node: Any) -> Proxy:
        """A proxy from the node of its first request."""
        number = node.user_agent_build_version.version
        return cls(node.id, f"{number.major_number}.{number.minor_number}.{number.patch}")


class Standing(NamedTuple):
    """How one proxy stands to what is in force."""

    proxy: Proxy
    is_current: bool
    refusals: tuple[str, ...]


class Condition(NamedTuple):
    """A condition of the Gateway API."""

    status: str
    reason: str
    message: str


def programmed(standings: Sequence[Standing], is_published: bool) -> Condition:
    """Whether every proxy obeys what is in force; a refusal is told in the proxy's own words."""
    if not is_published:
        return Condition("False", "Pending", "no configuration is in force yet")
    refusing = [one for one in standings if one.refusals]
    if refusing:
        words = "; ".join(f"{one.proxy.id} refuses {text}" for one in refusing for text in one.refusals)
        return Condition("False", "Invalid", words)
    if not standings:
        return Condition("False", "Pending", "no proxy is connected")
    waiting = [one.proxy.id for one in standings if not one.is_current]
    if waiting:
        return Condition("False", "Pending", f"not acknowledged yet by {', '.join(waiting)}")
    return Condition("True", "Programmed", f"acknowledged by {', '.join(one.proxy.id for one in standings)}")

"""What an engine reports of connections: those it judged, and how often each rule was hit."""

from __future__ import annotations

from msgspec import Struct

from tierwall.core.answer import Decider
from tierwall.network.model.rules import Action, Direction


class Seen(Struct, frozen=True):
    """One end of a connection as a packet shows it, and whose address it is; `port` is 0 where there is none."""

    ip: str
    port: int = 0
    namespace: str = ""
    pod: str = ""
    node: str = ""


class ConnectionSeen(Struct, frozen=True):
    """The connection of an event: which direction was judged, and its ends. `Event.detail` on the network plane."""

    direction: Direction
    protocol: str
    source: Seen
    destination: Seen


class Hits(Struct, frozen=True, kw_only=True):
    """A rule and how many packets hit it; isolation is hit for all isolating policies together."""

    decided_by: tuple[Decider, ...]
    direction: Direction
    action: Action
    shadow: bool
    packets: int
    bytes: int

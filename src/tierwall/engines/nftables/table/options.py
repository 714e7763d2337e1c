"""What a table is compiled for: one node or all, what is logged and where, and whether a node's own traffic counts."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from msgspec import Struct

from tierwall.network.model.endpoints import Endpoint
from tierwall.values.addresses import Address


class LogScope(StrEnum):
    """Which verdicts are logged to the NFLOG group."""

    NONE = "none"
    DROP = "drop"
    ALL = "all"


GROUP = 7
RATE = 10


class TableOptions(Struct, frozen=True):
    """How to compile.

    `node`: only pods on that node are judged; None: every pod. `rate`: log lines a second for each rule, 0 for all.
    `exempt_own_node`: traffic between the node itself and its pods is not judged, as Kubernetes exempts it.
    """

    node: str | None = None
    log: LogScope = LogScope.DROP
    group: int = GROUP
    rate: int = RATE
    exempt_own_node: bool = False


class WireAddresses:
    """The addresses that ends have in packets: their own, and stand-ins for those who have none of a family.

    A stand-in belongs to its end like any other address, but no CIDR holds it by itself.
    """

    def __init__(self, stand_ins: Mapping[Endpoint, tuple[Address, ...]] | None = None) -> None:
        self._stand_ins = dict(stand_ins or {})
        self.unlisted = frozenset(address for addresses in self._stand_ins.values() for address in addresses)

    def addresses(self, endpoint: Endpoint) -> tuple[Address, ...]:
        """All addresses of an end."""
        return (*endpoint.addresses, *self._stand_ins.get(endpoint, ()))

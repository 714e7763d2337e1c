"""Options of a compilation: for one node or all, what is logged and where, and whether a node's own traffic counts."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from msgspec import Struct

from tierwall.network.model.endpoints import Endpoint
from tierwall.values.addresses import Address


class LogScope(StrEnum):
    """The verdicts that are logged to the NFLOG group."""

    NONE = "none"
    DROP = "drop"
    ALL = "all"


class UnknownPods(StrEnum):
    """The treatment of a pod interface whose pod is not known (docs/enforce-network.md#interfaces)."""

    CLOSED = "closed"
    OPEN = "open"


GROUP = 7
RATE = 10


class TableOptions(Struct, frozen=True):
    """How to compile a table.

    `node`: judge only pods on that node; None: judge every pod. `rate`: log lines per second and rule, 0 for no limit.
    `exempt_own_node`: do not judge traffic between the node itself and its pods, as Kubernetes exempts it.
    `exempt_probes`: do not judge what the node sends to its own pods; what they send to the node is judged.
    `pod_interfaces`: the names of pod interfaces, each of which may end in `*`; without any, the kernel is asked.
    """

    node: str | None = None
    log: LogScope = LogScope.DROP
    group: int = GROUP
    rate: int = RATE
    exempt_own_node: bool = False
    unknown_pods: UnknownPods = UnknownPods.CLOSED
    pod_interfaces: tuple[str, ...] = ()
    exempt_probes: bool = False


class WireAddresses:
    """The addresses of endpoints in packets: their own, and stand-ins where they have none of a family.

    A stand-in belongs to its endpoint like any other address, but a CIDR never contains it.
    """

    def __init__(self, stand_ins: Mapping[Endpoint, tuple[Address, ...]] | None = None) -> None:
        self._stand_ins = dict(stand_ins or {})
        self.unlisted = frozenset(address for addresses in self._stand_ins.values() for address in addresses)

    def addresses(self, endpoint: Endpoint) -> tuple[Address, ...]:
        """Return all addresses of an endpoint."""
        return (*endpoint.addresses, *self._stand_ins.get(endpoint, ()))

"""Where each end of a question stands on the wire: its addresses, or a stand-in where it has none that fits.

A pod without an address is matched by no CIDR (docs/semantics.md#a-pod-without-an-address-matches-no-block), yet
packets need one; so does a pair of ends that share no address family. A stand-in is an address that nobody has and that
the table keeps out of every block.
Ends that share an address share a namespace; the table sees them as one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from tierwall.engines.nftables.table.options import WireAddresses
from tierwall.engines.nftables.table.sets import family_of
from tierwall.network.model.endpoints import Endpoint
from tierwall.network.model.model import NetworkModel
from tierwall.values.addresses import Address, parse_address

_MOST_ENDS = 64


class Placement:
    """Addresses for the ends of some questions."""

    def __init__(self, model: NetworkModel, pairs: Iterable[tuple[Endpoint, Endpoint]]) -> None:
        self.model = model
        self._known = dict.fromkeys((*model.pods, *model.nodes))
        self._stand_ins: dict[Endpoint, tuple[Address, ...]] = {}
        asked = list(pairs)
        self._endpoints = dict.fromkeys(endpoint for pair in asked for endpoint in pair)
        if len(self._known) <= _MOST_ENDS:
            self._endpoints |= self._known
        self._taken = {address for endpoint in (*self._known, *self._endpoints) for address in endpoint.addresses}
        self._free = {4: _addresses("100.64.0.1"), 6: _addresses("fd74:6965:7277::1")}
        for pair in asked:
            self._meet(*pair)
        self.wire = WireAddresses(self._stand_ins)
        self._at: dict[Address, list[Endpoint]] = {}
        for endpoint in self._known:
            for address in self.wire.addresses(endpoint):
                self._at.setdefault(address, []).append(endpoint)

    def pairs(self, source: Endpoint, destination: Endpoint) -> list[tuple[Address, Address]]:
        """One pair of addresses for each family that both ends have."""
        out = []
        for family in (4, 6):
            mine, theirs = (
                [address for address in self.wire.addresses(endpoint) if family_of(address) == family]
                for endpoint in (source, destination)
            )
            if mine and theirs:
                out.append((mine[0], theirs[0]))
        return out

    def seen(self, endpoint: Endpoint) -> Endpoint | None:
        """The end that the table sees behind an end's addresses: everybody who has one of them, as one.

        None if a pod under policy shares an address with somebody else: then it depends on the address.
        """
        others = dict.fromkeys(
            other for address in self.wire.addresses(endpoint) for other in self._at.get(address, ())
        )
        others.pop(endpoint, None)
        if not others:
            return endpoint
        if endpoint.under_policy or any(other.under_policy for other in others):
            return None
        together = (endpoint, *others)
        ports: dict[str, set[tuple[str, int]]] = {}
        for sharer in together:
            for name, numbers in sharer.named_ports.items():
                ports.setdefault(name, set()).update(numbers)
        return Endpoint(
            "address",
            endpoint.name,
            addresses=tuple(sorted({address for sharer in together for address in sharer.addresses})),
            named_ports={name: tuple(sorted(numbers)) for name, numbers in ports.items()},
        )

    def places(self) -> list[tuple[Address, ...]]:
        """Groups of addresses that belong into one namespace, in order."""
        groups: list[set[Address]] = []
        for endpoint in self._endpoints:
            group = set(self.wire.addresses(endpoint))
            if not group:
                continue
            apart = []
            for other in groups:
                if other.isdisjoint(group):
                    apart.append(other)
                else:
                    group |= other
            groups = [*apart, group]
        return sorted(tuple(sorted(group)) for group in groups)

    def _meet(self, source: Endpoint, destination: Endpoint) -> None:
        mine, theirs = self._families(source), self._families(destination)
        if mine & theirs:
            return
        if not mine and not theirs:
            self._add(source, 4)
            if destination is not source:
                self._add(destination, 4)
        elif source in self._known and theirs:
            self._add(source, min(theirs))
        elif destination in self._known and mine:
            self._add(destination, min(mine))

    def _families(self, endpoint: Endpoint) -> set[int]:
        return {family_of(address) for address in (*endpoint.addresses, *self._stand_ins.get(endpoint, ()))}

    def _add(self, endpoint: Endpoint, family: int) -> None:
        address = next(free for free in self._free[family] if free not in self._taken)
        self._stand_ins[endpoint] = (*self._stand_ins.get(endpoint, ()), address)


def _addresses(first: str) -> Iterator[Address]:
    value = parse_address(first)
    assert value is not None
    while True:
        yield value
        value += 1

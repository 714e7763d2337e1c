"""Placement of the endpoints of questions: their addresses, or a stand-in where no address fits.

No CIDR matches a pod without an address (docs/semantics.md#a-pod-without-an-address-matches-no-block), yet packets need
one. Two endpoints without a common address family need one, too. A stand-in is an address that nobody has and that the
table keeps out of every block. Endpoints that share an address share a namespace; to the table they are one endpoint.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from tierwall.engines.nftables.table.options import WireAddresses
from tierwall.engines.nftables.table.sets import family_of
from tierwall.network.model.endpoints import Endpoint
from tierwall.network.model.model import NetworkModel
from tierwall.values.addresses import Address, parse_address

_MAX_ENDPOINTS = 64


class Placement:
    """The addresses of the endpoints of some questions."""

    def __init__(self, model: NetworkModel, pairs: Iterable[tuple[Endpoint, Endpoint]]) -> None:
        self.model = model
        self._known = dict.fromkeys((*model.pods, *model.nodes))
        self._stand_ins: dict[Endpoint, tuple[Address, ...]] = {}
        asked_pairs = list(pairs)
        self._endpoints = dict.fromkeys(endpoint for pair in asked_pairs for endpoint in pair)
        if len(self._known) <= _MAX_ENDPOINTS:
            self._endpoints |= self._known
        self._taken = {address for endpoint in (*self._known, *self._endpoints) for address in endpoint.addresses}
        self._free = {4: _addresses("100.64.0.1"), 6: _addresses("fd74:6965:7277::1")}
        for pair in asked_pairs:
            self._give_common_family(*pair)
        self.wire = WireAddresses(self._stand_ins)
        self._at: dict[Address, list[Endpoint]] = {}
        for endpoint in self._known:
            for address in self.wire.addresses(endpoint):
                self._at.setdefault(address, []).append(endpoint)

    def pairs(self, source: Endpoint, destination: Endpoint) -> list[tuple[Address, Address]]:
        """Return one pair of addresses per family that both endpoints have."""
        address_pairs = []
        for family in (4, 6):
            sources, destinations = (
                [address for address in self.wire.addresses(endpoint) if family_of(address) == family]
                for endpoint in (source, destination)
            )
            if sources and destinations:
                address_pairs.append((sources[0], destinations[0]))
        return address_pairs

    def merged(self, endpoint: Endpoint) -> Endpoint | None:
        """Return the endpoint that the table sees behind an endpoint's addresses: everyone who has one of them, as one.

        None if a pod under policy shares an address with another endpoint: the answer then depends on the address.
        """
        others = dict.fromkeys(
            other for address in self.wire.addresses(endpoint) for other in self._at.get(address, ())
        )
        others.pop(endpoint, None)
        if not others:
            return endpoint
        if endpoint.under_policy or any(other.under_policy for other in others):
            return None
        sharers = (endpoint, *others)
        ports: dict[str, set[tuple[str, int]]] = {}
        for sharer in sharers:
            for name, numbers in sharer.named_ports.items():
                ports.setdefault(name, set()).update(numbers)
        return Endpoint(
            "address",
            endpoint.name,
            addresses=tuple(sorted({address for sharer in sharers for address in sharer.addresses})),
            named_ports={name: tuple(sorted(numbers)) for name, numbers in ports.items()},
        )

    def places(self) -> list[tuple[Address, ...]]:
        """Return groups of addresses that share a namespace, sorted."""
        groups: list[set[Address]] = []
        for endpoint in self._endpoints:
            group = set(self.wire.addresses(endpoint))
            if not group:
                continue
            disjoint = []
            for other in groups:
                if other.isdisjoint(group):
                    disjoint.append(other)
                else:
                    group |= other
            groups = [*disjoint, group]
        return sorted(tuple(sorted(group)) for group in groups)

    def _give_common_family(self, source: Endpoint, destination: Endpoint) -> None:
        """Add stand-ins until two endpoints have an address family in common."""
        source_families, destination_families = self._families(source), self._families(destination)
        if source_families & destination_families:
            return
        if not source_families and not destination_families:
            self._add_stand_in(source, 4)
            if destination is not source:
                self._add_stand_in(destination, 4)
        elif source in self._known and destination_families:
            self._add_stand_in(source, min(destination_families))
        elif destination in self._known and source_families:
            self._add_stand_in(destination, min(source_families))

    def _families(self, endpoint: Endpoint) -> set[int]:
        return {family_of(address) for address in (*endpoint.addresses, *self._stand_ins.get(endpoint, ()))}

    def _add_stand_in(self, endpoint: Endpoint, family: int) -> None:
        address = next(free for free in self._free[family] if free not in self._taken)
        self._stand_ins[endpoint] = (*self._stand_ins.get(endpoint, ()), address)


def _addresses(first: str) -> Iterator[Address]:
    value = parse_address(first)
    assert value is not None
    while True:
        yield value
        value += 1

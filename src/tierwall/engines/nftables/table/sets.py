"""Peers and ports as named sets: one set per meaning, shared by all rules with that meaning.

A set that depends on pods is defined by what it selects, not by the addresses in it. So an added or removed pod changes
elements and nothing else. Blocks of addresses are sets of ranges that no pod changes. Each address of an endpoint
counts for all of them (docs/semantics.md#any-address-of-an-end-counts): an endpoint with one address in a block is in
the set with every address it has.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple, TypeAlias, assert_never

from tierwall.core.labels import Selector
from tierwall.engines.nftables.table.names import UniqueNames
from tierwall.engines.nftables.table.options import WireAddresses
from tierwall.engines.nftables.table.table import FAMILIES, Attached, ChainVerdict, Element, NamedSet, SetKind
from tierwall.network.model.endpoints import Endpoint
from tierwall.network.model.matching import PeerMatch, peer_matches
from tierwall.network.model.model import NetworkModel
from tierwall.network.model.rules import (
    AddressPeer,
    DomainPeer,
    NamedPort,
    NodePeer,
    Peer,
    PodPeer,
    PortRange,
    peers_by_kind,
)
from tierwall.values.addresses import IPV6, Address, Block, Span, merge_ranges

_NOBODY = Endpoint("address", "")
# Looked up once, because every endpoint is compared with it for every set.
_YES = PeerMatch.YES
# Yields what an endpoint adds to a set.
Adding: TypeAlias = Callable[[Endpoint], Iterator[Element]]


class PeerEnds(NamedTuple):
    """The addresses of all endpoints that one of these peers matches, unless a block contains them anyway."""

    peers: tuple[Peer, ...]

    def adding(self, model: NetworkModel, wire: WireAddresses) -> Adding:
        """Return the function that yields what an endpoint adds to the set."""
        _pods, networks, _nodes, _domains = peers_by_kind(self.peers)
        blocks = [block for peer in networks for block in peer.blocks]

        def added(endpoint: Endpoint) -> Iterator[Element]:
            if not any(peer_matches(peer, _NOBODY, endpoint, model.node_addresses) is _YES for peer in self.peers):
                return
            for address in wire.addresses(endpoint):
                if address in wire.unlisted or not any(block.contains(address) for block in blocks):
                    yield address

        return added


class NamedPortEnds(NamedTuple):
    """Address, protocol and number of a named container port, for every pod that has one of that name."""

    port: NamedPort

    def adding(self, model: NetworkModel, wire: WireAddresses) -> Adding:
        """Return the function that yields what an endpoint adds to the set."""

        def added(endpoint: Endpoint) -> Iterator[Element]:
            for protocol, number in endpoint.named_ports.get(self.port.name, ()):
                if self.port.protocol in ("", protocol):
                    for address in wire.addresses(endpoint):
                        yield address, protocol.lower(), number

        return added


# INVARIANT: a set is named by a digest of its definition's repr, so these classes and fields keep their names. Other
# names would turn every set into a new one when Tierwall is upgraded while a table is in force.
Definition = PeerEnds | NamedPortEnds


class SetBuilder:
    """Builds the sets of a table, each when a rule first needs it."""

    def __init__(self, model: NetworkModel, wire: WireAddresses, names: UniqueNames) -> None:
        self.model, self.wire, self._names = model, wire, names
        self.built: dict[str, NamedSet] = {}
        # The names by family of the sets that pods change, by definition.
        self._families: dict[Definition, tuple[tuple[int, str], ...]] = {}
        self._addressed = [endpoint for endpoint in (*model.pods, *model.nodes) if wire.addresses(endpoint)]
        self.families = {family_of(address) for endpoint in self._addressed for address in wire.addresses(endpoint)}
        self.several = [endpoint for endpoint in self._addressed if len(wire.addresses(endpoint)) > 1]
        self._by_namespace: dict[str, list[Endpoint]] = {}
        for pod in model.pods:
            if pod.under_policy:
                self._by_namespace.setdefault(pod.namespace, []).append(pod)

    @property
    def definitions(self) -> Iterable[tuple[Definition, tuple[tuple[int, str], ...]]]:
        """The definitions of the sets that pods change, each with its names by family."""
        return self._families.items()

    def of_peers(self, peers: tuple[Peer, ...]) -> Iterator[tuple[int, str]]:
        """Yield the sets (family and name) that together hold every address of these peers."""
        pods, networks, nodes, domains = peers_by_kind(peers)
        blocks = tuple(sorted({block for peer in networks for block in peer.blocks}))
        if pods or nodes or domains or (blocks and self.several):
            yield from self._names_of(PeerEnds(peers), "ends")
        if blocks:
            yield from self._of_blocks(blocks)

    def of_named_port(self, port: NamedPort) -> tuple[tuple[int, str], ...]:
        """Return the sets (family and name) of a named port."""
        return self._names_of(NamedPortEnds(port), "port")

    def of_ports(self, ranges: tuple[PortRange, ...]) -> str:
        """Return the set of port numbers, whatever their protocol."""
        elements: dict[Element, Attached] = {(span.first, span.last): "" for span in ranges}
        name = self._names.name("ports", repr(sorted(elements)))
        self.built[name] = NamedSet(SetKind.PORTS, 0, elements)
        return name

    def of_index(self, verdicts: Mapping[int, ChainVerdict]) -> str:
        """Return the map from port numbers to verdicts."""
        name = self._names.name("index", repr([(port, str(verdict)) for port, verdict in sorted(verdicts.items())]))
        elements: dict[Element, Attached] = {port: verdicts[port] for port in verdicts}
        self.built[name] = NamedSet(SetKind.PORT_VERDICTS, 0, elements)
        return name

    def _names_of(self, definition: Definition, word: str) -> tuple[tuple[int, str], ...]:
        names = self._families.get(definition)
        if names is None:
            kind = SetKind.ADDRESSES if isinstance(definition, PeerEnds) else SetKind.NAMED
            by_family: dict[int, dict[Element, Attached]] = {family: {} for family in sorted(self.families)}
            added = definition.adding(self.model, self.wire)
            for endpoint in self._candidates(definition):
                for element in added(endpoint):
                    by_family[family_of(element)][element] = ""
            names = tuple(
                (family, self._names.name(f"{word}{family}", f"{family} {definition}")) for family in by_family
            )
            for family, name in names:
                self.built[name] = NamedSet(kind, family, by_family[family])
            self._families[definition] = names
        return names

    def _candidates(self, definition: Definition) -> Iterable[Endpoint]:
        """Return at least the endpoints that add something. Peers by label are looked up by namespace."""
        if isinstance(definition, NamedPortEnds):
            return self.model.pods
        candidates: dict[Endpoint, None] = {}
        for peer in definition.peers:
            match peer:
                case PodPeer():
                    assert isinstance(peer.namespaces, Selector)
                    for namespace in self.model.namespaces_selected(peer.namespaces):
                        candidates.update(dict.fromkeys(self._by_namespace.get(namespace, ())))
                case AddressPeer():
                    candidates.update(dict.fromkeys(self.several))
                case NodePeer() | DomainPeer():
                    candidates.update(dict.fromkeys(self._addressed))
                case _:
                    assert_never(peer)
        return candidates

    def _of_blocks(self, blocks: tuple[Block, ...]) -> Iterator[tuple[int, str]]:
        spans = spans_of(blocks, self.wire.unlisted)
        for family in FAMILIES:
            of_family = [span for span in spans if (span.low >= IPV6) is (family == 6)]
            if of_family:
                elements: dict[Element, Attached] = {(span.low, span.high): "" for span in of_family}
                name = self._names.name(f"blocks{family}", repr(of_family))
                self.built[name] = NamedSet(SetKind.RANGES, family, elements)
                yield family, name


def family_of(element: Element) -> int:
    """Return 4 or 6."""
    first = element if isinstance(element, int) else element[0]
    assert isinstance(first, int), "names of interfaces belong to no family"
    return 6 if first >= IPV6 else 4


def spans_of(blocks: Iterable[Block], unlisted: Iterable[Address]) -> list[Span]:
    """Return the addresses of blocks, without some, as the spans that the kernel wants: no two overlap or touch."""
    holes = tuple(Span(address, address) for address in unlisted)
    whole = merge_ranges(part for block in blocks for part in block.ranges())
    return [part for span in whole for part in Block(span, holes).ranges()]

"""The guard of pod interfaces: an address counts only on the interface of its pod (docs/enforce-network.md#interfaces).

A pod may give itself another address or forge one, and policies know pods by address. So, where the interfaces of pods
are known, three things are dropped, even if they belong to an open connection:

* what comes from the interface of a pod under an address that is not the pod's; only what finds
  neighbours on the link may have other sources;
* what comes under the address of such a pod from any other interface;
* everything from and to a pod interface without a known pod, as long as some policy could be about its pod.

The first two are dropped before connection tracking, so forged packets cannot disturb a connection of somebody else.
The third is decided in the hooks of policies, with the same generation of the table.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from tierwall.core.answer import Decider
from tierwall.engines.nftables.table.builder import TableBuilder
from tierwall.engines.nftables.table.compile import CompiledTable, TableCompiler
from tierwall.engines.nftables.table.hooks import HookLines, base_chains, plainly_named
from tierwall.engines.nftables.table.names import ISOLATES, Label, comment
from tierwall.engines.nftables.table.options import UnknownPods
from tierwall.engines.nftables.table.sets import family_of
from tierwall.engines.nftables.table.table import (
    DROP,
    FAMILIES,
    Attached,
    ChainVerdict,
    Element,
    ElementChange,
    NamedSet,
    RuleChain,
    SetKind,
    Table,
    VerdictWord,
)
from tierwall.network.model.matching import may_select_an_unknown_pod
from tierwall.network.model.policies import is_shadow
from tierwall.network.model.rules import Direction, RuleAction
from tierwall.values.addresses import Address

# Names of sets: interfaces of known pods, and interfaces that lead to something else. Then stems, followed by the
# family: the addresses of each interface, and all of these addresses.
INTERFACES, LINKS = "interfaces", "links"
SOURCES, BOUND = "sources", "bound"
# The devices that lead into another network namespace, as the kernel calls their kind.
KINDS = ("veth", "netkit")
# What these drops have in place of a policy in the audit.
DECIDER = "Interface"
FOREIGN = "source address does not belong to this interface"
NOT_KNOWN = "no pod is known on this interface"

# Neighbour discovery and reports about multicast groups, on the link: the kernel forwards nothing with such a source. A
# pod has no reason to advertise itself as a router.
_ON_LINK = (
    "ip6 saddr { ::, fe80::/10 } icmpv6 type { nd-router-solicit, nd-neighbor-solicit, nd-neighbor-advert,"
    " mld-listener-report, mld-listener-done, mld2-listener-report } accept"
)


class PodBinding(NamedTuple):
    """An address of a pod, and an interface on which it counts."""

    interface: str
    address: Address
    pod: str


class KnownInterfaces(NamedTuple):
    """The interfaces of pods as far as they are known, and those that lead to no pod."""

    bindings: frozenset[PodBinding] = frozenset()
    links: frozenset[str] = frozenset()


class InterfaceCompiler:
    """Compiles the guard for one compiled table."""

    def __init__(self, compiler: TableCompiler) -> None:
        options, model = compiler.options, compiler.model
        # Whether pod interfaces without a known pod are closed.
        self.closed = options.unknown_pods is UnknownPods.CLOSED and any(
            may_select_an_unknown_pod(policy, model.namespaces)
            for policy in model.policies
            if not is_shadow(policy.resource)
        )
        # The names are shared with the table, so that no chain of a policy can ever have the name of one of the guard.
        self._builder = TableBuilder(compiler.sets, compiler.names, options)
        self._options = options
        first = HookLines()
        if self.closed:
            egress, ingress = (self._closed(direction) for direction in Direction)
            first = HookLines((*egress, *ingress), egress, ingress)
        self._chains = self._source_chains() | base_chains(options, first)

    def table(self, table: Table, known: KnownInterfaces) -> Table:
        """Return a table with the guard."""
        return Table(
            {**table.counters, **self._builder.counters},
            {**table.sets, **guard_sets(known)},
            {**table.chains, **self._builder.chains, **self._chains},
        )

    def _source_chains(self) -> dict[str, RuleChain]:
        foreign = self._ending(Direction.EGRESS, FOREIGN)
        bound = [f"iifname . {ip} saddr @{SOURCES}{family} accept" for family, ip in ((4, "ip"), (6, "ip6"))]
        elsewhere = [f"{ip} saddr @{BOUND}{family} {foreign}" for family, ip in ((4, "ip"), (6, "ip6"))]
        hook = "type filter hook prerouting priority raw; policy accept;"
        # What the node sends to itself is its own affair, whatever the source.
        lines = (f"iifname @{INTERFACES} goto source", 'iifname "lo" accept', *elsewhere)
        return {
            "source": plainly_named((*bound, _ON_LINK, foreign), "what comes from the interface of a pod"),
            "prerouting": plainly_named(lines, "addresses count only on the interfaces of their pods", hook),
        }

    def _closed(self, direction: Direction) -> tuple[str, ...]:
        """Return the lines that drop what comes from, or goes to, a pod interface without a known pod."""
        side = "iif" if direction is Direction.EGRESS else "oif"
        chain = self._builder.chain("guard", [_ON_LINK, self._ending(direction, NOT_KNOWN)], str(direction))
        goto = ChainVerdict(VerdictWord.GOTO, chain)
        if patterns := self._options.pod_interfaces:
            return tuple(f'{side}name "{pattern}" {side}name != @{INTERFACES} {goto}' for pattern in patterns)
        kinds = ", ".join(f'"{kind}"' for kind in KINDS)
        return (f"meta {side}kind {{ {kinds} }} {side}name != @{INTERFACES} {side}name != @{LINKS} {goto}",)

    def _ending(self, direction: Direction, reason: str) -> str:
        return self._builder.rule_ending(Label(RuleAction.DENY, direction, (Decider(DECIDER, ISOLATES, reason),)), DROP)


def guarded(compiled: CompiledTable, known: KnownInterfaces | None) -> Table:
    """Return a compiled table with the guard; without it if there is nothing to guard."""
    return InterfaceCompiler(compiled.compiler).table(compiled.table, known) if known is not None else compiled.table


def guard_sets(known: KnownInterfaces) -> dict[str, NamedSet]:
    """Return the sets of the guard."""
    sources: dict[int, dict[Element, Attached]] = {family: {} for family in FAMILIES}
    bound: dict[int, dict[Element, Attached]] = {family: {} for family in FAMILIES}
    for interface, address, pod in sorted(known.bindings):
        family = family_of(address)
        sources[family].setdefault((interface, address), comment(pod))
        bound[family][address] = ""
    interfaces: dict[Element, Attached] = dict.fromkeys(sorted({binding.interface for binding in known.bindings}), "")
    links: dict[Element, Attached] = dict.fromkeys(sorted(known.links), "")
    out = {
        INTERFACES: NamedSet(SetKind.INTERFACES, 0, interfaces),
        LINKS: NamedSet(SetKind.INTERFACES, 0, links),
    }
    for family in FAMILIES:
        out[f"{SOURCES}{family}"] = NamedSet(SetKind.SOURCES, family, sources[family])
        out[f"{BOUND}{family}"] = NamedSet(SetKind.ADDRESSES, family, bound[family])
    return out


def guard_changes(old: KnownInterfaces, new: KnownInterfaces) -> Iterator[tuple[str, ElementChange]]:
    """Yield the changes of elements from one state of the guard to another."""
    if old == new:
        return
    before: Mapping[str, NamedSet] = guard_sets(old)
    for name, part in guard_sets(new).items():
        change = ElementChange.between(before[name].elements, part.elements)
        if change.removed or change.added:
            yield name, change

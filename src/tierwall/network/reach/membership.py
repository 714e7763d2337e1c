"""Which classes a peer of a rule stands for, as bits, from indexes by label and by address block."""

from __future__ import annotations

from collections.abc import Iterable
from typing import assert_never

from tierwall.core.labels import Requirement, Selector
from tierwall.network.model.ends import NAMESPACE_NAME, End
from tierwall.network.model.rules import AddressPeer, DomainPeer, NodePeer, Peer, PodPeer, Related, Relation
from tierwall.network.reach.classes import Classes, EndClass, mask_of


class _LabelIndex:
    """The classes by label; a selector becomes unions, complements and intersections of sets."""

    def __init__(self, base: int, entries: Iterable[tuple[int, Iterable[tuple[str, str | None]]]]) -> None:
        self._base = base
        self._numbers: dict[tuple[str, str | None], list[int]] = {}
        self._keyed: dict[str, list[int]] = {}
        for number, seen in entries:
            for key, value in seen:
                self._numbers.setdefault((key, value), []).append(number)
                self._keyed.setdefault(key, []).append(number)
        self._masks: dict[tuple[str, str | None], int] = {}
        self._having: dict[str, int] = {}
        self._selected: dict[Selector, int] = {}

    def labelled(self, key: str, value: str | None) -> int:
        """The classes with a label."""
        found = self._masks.get((key, value))
        if found is None:
            found = self._masks[key, value] = mask_of(self._numbers.get((key, value), ()))
        return found

    def having(self, key: str) -> int:
        """The classes with a key, whatever its value."""
        found = self._having.get(key)
        if found is None:
            found = self._having[key] = mask_of(self._keyed.get(key, ()))
        return found

    def selected(self, selector: Selector) -> int:
        """The classes that a selector selects."""
        found = self._selected.get(selector)
        if found is None:
            found = self._base
            for requirement in selector.requirements:
                found &= self._meeting(requirement)
            self._selected[selector] = found
        return found

    def _meeting(self, requirement: Requirement) -> int:
        if requirement.operator in ("Exists", "DoesNotExist"):
            found = self.having(requirement.key)
        else:
            found = 0
            for value in requirement.values:
                found |= self.labelled(requirement.key, value)
        return found if requirement.operator in ("In", "Exists") else self._base & ~found


class Membership:
    """The classes that each peer matches, and those it may match."""

    def __init__(self, classes: Classes) -> None:
        self.classes = classes
        pods = [one for one in classes.all if one.one.under_policy]
        base = classes.under_policy
        self._namespaces = _LabelIndex(base, ((one.bit, one.key[0]) for one in pods))
        self._pods = _LabelIndex(base, ((one.bit, one.key[1]) for one in pods))
        by_signature: dict[int, set[int]] = {}
        by_address: dict[int, set[int]] = {}
        nodes = {address for node in classes.model.nodes for address in node.addresses}
        for one in classes.all:
            for address in one.one.addresses:
                by_signature.setdefault(classes.space.signature(address), set()).add(one.bit)
                if address in nodes and not one.spans:
                    by_address.setdefault(address, set()).add(one.bit)
        self._by_signature = {signature: mask_of(sorted(found)) for signature, found in by_signature.items()}
        self._by_address = {address: mask_of(sorted(found)) for address, found in by_address.items()}
        self._peers: dict[Peer, int] = {}

    def matching(self, peer: Peer, subject: End) -> int:
        """The classes a peer of a rule about `subject` surely matches; none for domain names."""
        if isinstance(peer, PodPeer) and isinstance(peer.namespaces, Related):
            return self._pods.selected(peer.pods) & self._related(peer.namespaces, subject)
        found = self._peers.get(peer)
        if found is None:
            found = self._peers[peer] = self._unrelated(peer)
        return found

    def pods(self, selector: Selector) -> int:
        """The classes of pods that a pod selector selects, in any namespace."""
        return self._pods.selected(selector)

    def subjects(self, namespaces: Selector, pods: Selector) -> int:
        """The classes of pods that a policy is about."""
        return self._namespaces.selected(namespaces) & self._pods.selected(pods)

    def _unrelated(self, peer: Peer) -> int:
        """The classes that a peer matches whoever the rule is about."""
        out = 0
        match peer:
            case PodPeer():
                assert isinstance(peer.namespaces, Selector)
                out = self._namespaces.selected(peer.namespaces) & self._pods.selected(peer.pods)
            case AddressPeer():
                wanted = 0
                for block in peer.blocks:
                    wanted |= self.classes.space.blocks[block]
                for signature, mask in self._by_signature.items():
                    if signature & wanted:
                        out |= mask
            case NodePeer():
                for address in self.classes.model.node_addresses.addresses(peer.nodes):
                    out |= self._by_address.get(address, 0)
            case DomainPeer():
                pass
            case _:
                assert_never(peer)
        return out

    def _related(self, wanted: Related, subject: End) -> int:
        match wanted.relation:
            case Relation.SELF:
                return self._namespaces.labelled(NAMESPACE_NAME, subject.namespace)
            case Relation.NOT_SELF:
                return self.classes.under_policy & ~self._namespaces.labelled(NAMESPACE_NAME, subject.namespace)
            case Relation.SAME_LABELS:
                same, _ = self._compared(wanted.keys, subject)
                return same
            case Relation.NOT_SAME_LABELS:
                same, having = self._compared(wanted.keys, subject)
                return having & ~same
            case _:
                assert_never(wanted.relation)

    def _compared(self, keys: tuple[str, ...], subject: End) -> tuple[int, int]:
        """The classes whose namespaces have the subject's values of these keys, and those that have the keys.

        Nobody where the subject's own namespace lacks a key, and where there is none.
        """
        if not keys or any(key not in subject.namespace_labels for key in keys):
            return 0, 0
        same = having = self.classes.under_policy
        for key in keys:
            same &= self._namespaces.labelled(key, subject.namespace_labels[key])
            having &= self._namespaces.having(key)
        return same, having

    def named_ports(self, name: str) -> dict[tuple[tuple[str, int], ...], int]:
        """What a port name stands for, and on which classes."""
        found: dict[tuple[tuple[str, int], ...], list[EndClass]] = {}
        for one in self.classes.all:
            pairs = one.one.named_ports.get(name)
            if pairs:
                found.setdefault(pairs, []).append(one)
        return {pairs: mask_of(one.bit for one in those) for pairs, those in found.items()}

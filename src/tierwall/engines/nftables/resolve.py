"""Rules about one subject namespace: peers that are related to the subject's namespace become plain selectors.

A rule whose peers do not mention the subject is the same for every subject, and so is everything compiled from it.
Self, NotSelf, sameLabels and notSameLabels (docs/semantics.md#same-labels-need-every-key) are selectors once the
subject's namespace is known.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import assert_never

from tierwall.core.labels import Requirement, Selector
from tierwall.network.model.ends import NAMESPACE_NAME
from tierwall.network.model.rules import AddressPeer, DomainPeer, NodePeer, Peer, PodPeer, Related, Relation, Rule


def resolved(rule: Rule, namespace: str, labels: Mapping[str, str]) -> tuple[Peer, ...] | None:
    """The peers of a rule for subjects of one namespace, domain names left out; None is everybody."""
    if rule.peers is None:
        return None
    found: dict[Peer, None] = {}
    for peer in rule.peers:
        match peer:
            case PodPeer(Related() as wanted, pods):
                found.update((PodPeer(selector, pods), None) for selector in _selectors(wanted, namespace, labels))
            case PodPeer() | AddressPeer() | NodePeer():
                found[peer] = None
            case DomainPeer():
                pass
            case _:
                assert_never(peer)
    return tuple(sorted(found, key=repr))


def _selectors(related: Related, namespace: str, labels: Mapping[str, str]) -> Iterator[Selector]:
    comparable = bool(related.keys) and all(key in labels for key in related.keys)
    match related.relation:
        case Relation.SELF:
            yield Selector((Requirement(NAMESPACE_NAME, "In", (namespace,)),))
        case Relation.NOT_SELF:
            yield Selector((Requirement(NAMESPACE_NAME, "NotIn", (namespace,)),))
        case Relation.SAME_LABELS:
            if comparable:
                yield _selector(Requirement(key, "In", (labels[key],)) for key in related.keys)
        case Relation.NOT_SAME_LABELS:
            having = [Requirement(key, "Exists") for key in related.keys]
            for key in related.keys if comparable else ():
                yield _selector((*having, Requirement(key, "NotIn", (labels[key],))))
        case _:
            assert_never(related.relation)


def _selector(requirements: Iterator[Requirement] | tuple[Requirement, ...]) -> Selector:
    return Selector(tuple(sorted(set(requirements))))

"""Rules about one subject namespace: peers that are related to the subject's namespace become plain selectors.

A rule whose peers do not mention the subject is the same for every subject, and so is everything compiled from it.
Self, NotSelf, sameLabels and notSameLabels (docs/semantics.md#same-labels-need-every-key) are selectors once the
subject's namespace is known.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from tierwall.core.labels import Requirement, Selector
from tierwall.network.model.ends import NAMESPACE_NAME
from tierwall.network.model.rules import DomainPeer, Peer, PodPeer, Related, Relation, Rule


def resolved(rule: Rule, namespace: str, labels: Mapping[str, str]) -> tuple[Peer, ...] | None:
    """The peers of a rule for subjects of one namespace, domain names left out; None is everybody."""
    if rule.peers is None:
        return None
    found: dict[Peer, None] = {}
    for peer in rule.peers:
        if isinstance(peer, PodPeer) and isinstance(peer.namespaces, Related):
            found.update((PodPeer(one, peer.pods), None) for one in _selectors(peer.namespaces, namespace, labels))
        elif not isinstance(peer, DomainPeer):
            found[peer] = None
    return tuple(sorted(found, key=repr))


def _selectors(related: Related, namespace: str, labels: Mapping[str, str]) -> Iterator[Selector]:
    if related.relation in (Relation.SELF, Relation.NOT_SELF):
        operator = "In" if related.relation is Relation.SELF else "NotIn"
        yield Selector((Requirement(NAMESPACE_NAME, operator, (namespace,)),))
        return
    if not related.keys or any(key not in labels for key in related.keys):
        return
    if related.relation is Relation.SAME_LABELS:
        yield _selector(Requirement(key, "In", (labels[key],)) for key in related.keys)
        return
    having = [Requirement(key, "Exists") for key in related.keys]
    for key in related.keys:
        yield _selector((*having, Requirement(key, "NotIn", (labels[key],))))


def _selector(requirements: Iterator[Requirement] | tuple[Requirement, ...]) -> Selector:
    return Selector(tuple(sorted(set(requirements))))

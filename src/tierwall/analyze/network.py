"""What is wrong with network policies, as KEP-2091 asks tools to say ("Risks and Mitigation").

Subjects and peers that select nothing, namespaces outside every domain of trust; and, walked through in
`network_walk`, policies that disagree, override or shadow each other.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import assert_never

from tierwall.analyze.network_walk import MOST_NAMED, Walk
from tierwall.core.diagnostics import Diagnostic
from tierwall.core.words import listed
from tierwall.network.hypothetical import with_stand_ins
from tierwall.network.model.model import Model, model
from tierwall.network.model.rules import (
    AddressPeer,
    DomainPeer,
    NodePeer,
    Peer,
    PodPeer,
    Related,
    Relation,
    TierName,
)
from tierwall.network.model.shadow import notes
from tierwall.network.reach.classes import Classes
from tierwall.network.reach.rows import Rows
from tierwall.resources.snapshot import Snapshot
from tierwall.resources.validity import is_valid


def network(snapshot: Snapshot) -> Iterator[Diagnostic]:
    """All findings of the network plane."""
    yield from notes(snapshot)
    this = model(snapshot)
    if not this.policies:
        return
    # What admission refuses never comes to count, so nothing more is said about it.
    refused = {one.reference for one in this.policies if not is_valid(snapshot, one.resource)}
    walk = Walk(with_stand_ins(snapshot, named_ports=True))
    findings = chain(_selecting_nothing(this), _without_tenancy_label(this), walk.findings())
    yield from (one for one in findings if one.reference not in refused)


def _selecting_nothing(this: Model) -> Iterator[Diagnostic]:
    rows = Rows(Classes(this), False)
    for policy in this.policies:
        selected = rows.membership.subjects(policy.namespaces, policy.pods)
        if not selected:
            place = policy.resource.position(
                ("spec", "podSelector" if policy.tier is TierName.NAMESPACE else "subject")
            )
            words = f"{policy.reference} selects no pod that exists"
            yield Diagnostic("TW204", words, place, reference=policy.reference)
            continue
        subjects = [one.one for one in rows.classes.members(selected)]
        for rule in (*(policy.egress or ()), *(policy.ingress or ())):
            for number, peer in enumerate(rule.peers or ()):
                if _names_ends(peer) and not any(rows.membership.matching(peer, subject) for subject in subjects):
                    side = rule.direction.peers_key
                    place = rule.resource.position((*rule.path, side, number))
                    words = f"{side}[{number}] of {rule} selects no pod or node that exists"
                    yield Diagnostic("TW205", words, place, reference=policy.reference)


def _names_ends(peer: Peer) -> bool:
    """Whether a peer is about pods or nodes; addresses and domain names may well be outside the cluster."""
    match peer:
        case PodPeer() | NodePeer():
            return True
        case AddressPeer() | DomainPeer():
            return False
        case _:
            assert_never(peer)


def _compared_keys(peer: Peer) -> tuple[str, ...]:
    """The labels that `notSameLabels` of a peer compares; none for other peers."""
    match peer:
        case PodPeer(Related() as wanted):
            return _differing_keys(wanted)
        case PodPeer() | NodePeer() | AddressPeer() | DomainPeer():
            return ()
        case _:
            assert_never(peer)


def _differing_keys(wanted: Related) -> tuple[str, ...]:
    match wanted.relation:
        case Relation.NOT_SAME_LABELS:
            return wanted.keys
        case Relation.SELF | Relation.NOT_SELF | Relation.SAME_LABELS:
            return ()
        case _:
            assert_never(wanted.relation)


def _without_tenancy_label(this: Model) -> Iterator[Diagnostic]:
    """Domains of trust: whom `notSameLabels` says nothing about, and where the KEP's other wording would differ."""
    for policy in this.policies:
        for rule in (*(policy.egress or ()), *(policy.ingress or ())):
            for number, peer in enumerate(rule.peers or ()):
                keys = _compared_keys(peer)
                lacking = sorted(
                    name for name, labels in this.namespaces.items() if any(key not in labels for key in keys)
                )
                bare = [name for name in lacking if not any(key in this.namespaces[name] for key in keys)]
                if lacking:
                    side = rule.direction.peers_key
                    shown = ", ".join(f"`{key}`" for key in keys)
                    named = listed(lacking, MOST_NAMED)
                    yield Diagnostic(
                        "TW206",
                        f"notSameLabels of {rule} never selects namespaces without {shown}: {named}",
                        rule.resource.position((*rule.path, side, number)),
                        hint=f"label every namespace with {shown}, or add a rule for those that lack it"
                        + _otherwise(bare),
                        reference=policy.reference,
                    )


def _otherwise(bare: list[str]) -> str:
    """Where the KEP's other wording, the peer has none of the labels, says something else."""
    if not bare:
        return ""
    return f"; by the KEP's other wording (none of the labels) it would select {listed(bare, MOST_NAMED)}"

"""The network plane as text and as JSON: what `explain network` prints.

The keys of its documents: docs/reference/decision-document.md#keys-of-one-plane.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from tierwall.core.answer import Answer, Reason
from tierwall.core.verdict import StepVerdict
from tierwall.network.detail import ConsultedPart, DirectionDecision, EndpointGroup, NetworkDetail, ObservedPacket
from tierwall.network.sentence import named_ends
from tierwall.render.formats import LineLookup
from tierwall.render.json import decider_documents, non_empty
from tierwall.render.text import phrase, quoted_rule

# The walk of a group names this many of its ends, and counts the rest.
MAX_ENDS = 5


def explanation(answer: Answer, source: LineLookup) -> Iterator[str]:
    """Explain an answer: the sentence, the walk of each direction, then each rule as it is written."""
    detail: NetworkDetail = answer.detail
    yield answer.sentence
    if detail.shadow is not None:
        yield detail.shadow.sentence
    for number, group in enumerate(detail.ends):
        if not number or detail.several:
            yield ""
        if detail.several:
            yield f"{named_ends(group.sources, MAX_ENDS)} → {named_ends(group.destinations, MAX_ENDS)}: {group.verdict}"
        for decision in (group.decision.egress, group.decision.ingress):
            yield f"{decision.direction:8} {decision.verdict:14} {_walk(decision)}"
    notes = dict.fromkeys((*detail.notes, *(step.note for step in answer.steps if step.note)))
    if notes:
        yield ""
        yield from (f"note: {note}" for note in notes)
    written = [(step, at) for step in answer.steps if (at := step.at) is not None]
    if written:
        yield ""
    for step, at in written:
        yield f"{at.file if at.is_in_cluster else at}: {step} {phrase(step.verdict, step.reason)}"
        yield from (f"    {line}" for line in quoted_rule(step, source))


def _walk(decision: DirectionDecision) -> str:
    """`admin: AdminNetworkPolicy/deny-all egress[0] passed → namespace: NetworkPolicy/shop/web allowed`."""
    if decision.verdict is StepVerdict.NOT_APPLICABLE:
        return "not under policy"
    return " → ".join(_stations(decision.consulted))


def _stations(looked: Sequence[ConsultedPart]) -> Iterator[str]:
    silent = 0
    for settler, verdict, reason in looked:
        word = phrase(verdict, reason)
        if verdict is StepVerdict.NO_MATCH and reason is Reason.NO_RULE_MATCHED:
            silent += 1
            continue
        if silent:
            yield _without_match(silent)
            silent = 0
        yield f"default: {word}" if settler is None else f"{settler.tier.lower()}: {settler.decider.short} {word}"
    if silent:
        yield _without_match(silent)


def _without_match(number: int) -> str:
    return f"{number} {'policy' if number == 1 else 'policies'} without a rule for it"


def detail_document(detail: NetworkDetail) -> dict[str, Any]:
    """Return both directions, the connection, and the domain names and shadow policies that matter to it."""
    shadow = detail.shadow
    return non_empty(
        egress=_direction(detail.egress),
        ingress=_direction(detail.ingress),
        connection=non_empty(
            **{"from": detail.source, "to": detail.destination},
            protocol=detail.protocol,
            port=detail.port,
            targetPorts=list(detail.target_ports) or None,
        ),
        ends=[_group(group) for group in detail.ends] if detail.several else None,
        notes=list(detail.notes) or None,
        domains=list(detail.domains) or None,
        shadow={
            "sentence": shadow.sentence,
            "policies": list(shadow.policies),
            "verdict": str(shadow.detail.verdict),
            "decidedBy": decider_documents(shadow.detail.decided_by),
        }
        if shadow is not None
        else None,
        packets=[_packet(packet) for packet in detail.packets] or None,
    )


def _group(group: EndpointGroup) -> dict[str, Any]:
    return {
        "from": list(group.sources),
        "to": list(group.destinations),
        "verdict": str(group.verdict),
        "decidedBy": decider_documents(group.decided_by),
    }


def _direction(decision: DirectionDecision) -> dict[str, Any]:
    return non_empty(
        verdict=str(decision.verdict),
        tier=decision.tier,
        decidedBy=decider_documents(decision.decided_by),
        walk=_walk(decision),
    )


def _packet(packet: ObservedPacket) -> dict[str, Any]:
    document = {"from": packet.source, "to": packet.destination}
    if not packet.dropped_by:
        return document | {"fate": "arrived"}
    return document | {"fate": "dropped", "by": ", ".join(map(str, packet.dropped_by))}

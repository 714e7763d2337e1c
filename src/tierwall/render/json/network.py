"""What only the network plane has, as JSON."""

from __future__ import annotations

from typing import Any

from tierwall.network.detail import Judgement, NetworkDetail, Packet, Shadow
from tierwall.render.json import decider_document
from tierwall.render.network_text import walk


def detail_document(detail: NetworkDetail) -> dict[str, Any]:
    """Both directions, the connection, and the domain names and shadow policies that matter to it."""
    document: dict[str, Any] = {
        "egress": _direction(detail.egress),
        "ingress": _direction(detail.ingress),
        "connection": {
            "from": str(detail.source),
            "to": str(detail.destination),
            "protocol": detail.protocol,
            "port": detail.port,
        },
    }
    if detail.domains:
        document["domains"] = list(detail.domains)
    if detail.shadow is not None:
        document["shadow"] = _shadow(detail.shadow)
    if detail.packets:
        document["packets"] = [_packet(packet) for packet in detail.packets]
    return document


def _packet(packet: Packet) -> dict[str, Any]:
    document: dict[str, Any] = {"from": packet.source, "to": packet.destination}
    if not packet.dropped_by:
        return document | {"fate": "arrived"}
    return document | {"fate": "dropped", "by": ", ".join(map(str, packet.dropped_by))}


def _direction(judgement: Judgement) -> dict[str, Any]:
    document: dict[str, Any] = {"verdict": str(judgement.verdict)}
    if judgement.tier is not None:
        document["tier"] = judgement.tier
    deciders = [decider_document(decider) for decider in judgement.decided_by]
    return document | {"decidedBy": deciders, "walk": walk(judgement)}


def _shadow(shadow: Shadow) -> dict[str, Any]:
    return {
        "sentence": shadow.sentence,
        "policies": list(shadow.policies),
        "verdict": str(shadow.detail.verdict),
        "decidedBy": [decider_document(decider) for decider in shadow.detail.decided_by],
    }

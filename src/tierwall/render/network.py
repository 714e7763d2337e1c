"""What only the network plane has, as JSON."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from tierwall.network.detail import Judgement, NetworkDetail, Packet, Shadow
from tierwall.network.reach.compare import ChangedFlow
from tierwall.network.reach.listing import Entry, Flow
from tierwall.network.reach.naming import Named
from tierwall.render.formats import View
from tierwall.render.json import decider_document, omission_documents
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


def connections(entries: Iterable[Entry], view: View) -> Iterator[str]:
    """What `list` and `diff` print, one entry a line, so that a large matrix is never held as text."""
    yield '{"connections": ['
    before = ""
    for entry in entries:
        if before:
            yield f"{before},"
        before = f"  {msgspec.json.encode(entry_document(entry)).decode()}"
    if before:
        yield before
    yield f'], "notConsidered": {msgspec.json.encode(omission_documents(view.not_considered)).decode()}}}'


def entry_document(entry: Entry) -> dict[str, Any]:
    """Sources, destinations and what passes between them; of a comparison, how it changes."""
    change = {"change": entry.change} if entry.change else {}
    flows = [flow_document(flow) for flow in entry.flows]
    return {**change, "from": _named(entry.sources), "to": _named(entry.destinations), "flows": flows}


def flow_document(flow: Flow) -> dict[str, Any]:
    """Ports that fare alike; `was` is what held before a change."""
    ports = [{"protocol": ports.protocol, "first": ports.first, "last": ports.last} for ports in flow.ranges]
    document: dict[str, Any] = {"verdict": str(flow.verdict), "ports": ports}
    if flow.domains:
        document["domains"] = list(flow.domains)
    if flow.egress is not None and flow.ingress is not None:
        document["egress"] = [decider_document(decider) for decider in flow.egress]
        document["ingress"] = [decider_document(decider) for decider in flow.ingress]
    if isinstance(flow, ChangedFlow) and flow.was is not None:
        document["was"] = flow_document(flow.was)
    return document


def _named(named: Named) -> dict[str, list[str]]:
    parts = (("all", named.all), ("except", named.excepts), ("ends", named.ends))
    return {key: list(names) for key, names in parts if names}

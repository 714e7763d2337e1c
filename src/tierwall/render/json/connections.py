"""Connections as one JSON document, written entry by entry so that a large matrix is never held as text."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from tierwall.core.answer import Omission
from tierwall.network.reach.compare import ChangedFlow
from tierwall.network.reach.listing import Entry, Flow
from tierwall.network.reach.naming import Named
from tierwall.render.json import decider_document, omission_documents


def lines(entries: Iterable[Entry], not_considered: Iterable[Omission] = ()) -> Iterator[str]:
    """`{"connections": […], "notConsidered": […]}` with one entry a line."""
    yield '{"connections": ['
    before = ""
    for entry in entries:
        if before:
            yield f"{before},"
        before = f"  {msgspec.json.encode(entry_document(entry)).decode()}"
    if before:
        yield before
    yield f'], "notConsidered": {msgspec.json.encode(omission_documents(not_considered)).decode()}}}'


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

"""The audit trail: logged packets and counters of the table, with the names of pods, policies and rules.

Names of pods come from the table itself, so they fit what is enforced. They are read again when an address is unknown,
but at most once per second.
"""

from __future__ import annotations

import selectors
import time
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime
from typing import Any

from tierwall.core.protocols import DecisionEvent
from tierwall.engines.nftables.kernel.apply import list_json, read_counters, table_exists
from tierwall.engines.nftables.kernel.nflog import LoggedPacket, LogReader
from tierwall.engines.nftables.table.names import MAX_PREFIX_BYTES, Label, may_be_shortened
from tierwall.engines.nftables.table.table import FAMILIES, FAMILY, NODES, PODS, TABLE
from tierwall.network.detail import ObservedConnection, ObservedEndpoint, RuleHits
from tierwall.network.model.rules import action_verdict
from tierwall.values.addresses import Address, format_address

_REREAD_SECONDS = 1.0


class AuditNames:
    """The names that the table gives: of endpoints by address, and of rules by shortened log prefix."""

    def __init__(self) -> None:
        self._endpoints: dict[str, str] = {}
        # The policies and the name that a log prefix had no room for; absent where it had.
        self._owners: dict[str, tuple[str, ...]] = {}
        self._read_at = float("-inf")

    def endpoint(self, address: Address, port: int) -> ObservedEndpoint:
        """Return the endpoint that has an address, by name if the table knows it."""
        ip = format_address(address)
        if ip not in self._endpoints:
            self._read()
        name = self._endpoints.get(ip, "")
        if name.startswith(_NODE):
            return ObservedEndpoint(ip, port, node=name.removeprefix(_NODE))
        namespace, _, pod = name.partition("/")
        return ObservedEndpoint(ip, port, namespace, pod)

    def label(self, logged: LoggedPacket) -> Label:
        """Return the label of a logged packet, completed if the kernel's limit cut its prefix."""
        prefix = logged.prefix
        if not may_be_shortened(prefix, MAX_PREFIX_BYTES):
            return logged.label
        if prefix not in self._owners and self._read():
            self._owners.setdefault(prefix, ())
        owners = self._owners.get(prefix)
        return logged.label.owned_by(owners) if owners else logged.label

    def _read(self) -> bool:
        """Read the table, unless it was read a moment ago. Return whether it was read."""
        if time.monotonic() - self._read_at < _REREAD_SECONDS or not table_exists():
            return False
        self._read_at = time.monotonic()
        entries = list_json("table", FAMILY, TABLE)
        known = {f"{word}{family}" for word in (NODES, PODS) for family in FAMILIES}
        self._endpoints = {
            element["elem"]["val"]: element["elem"].get("comment", "")
            for entry in entries
            if (part := entry.get("set")) and part["name"] in known
            for element in part.get("elem", ())
            if isinstance(element, dict) and "elem" in element
        }
        rules: dict[str, list[dict[str, Any]]] = {}
        for entry in entries:
            if "rule" in entry:
                rules.setdefault(entry["rule"]["chain"], []).append(entry["rule"])
        for chain in rules.values():
            owners = tuple(rule["comment"] for rule in chain if rule["expr"] == [{"continue": None}])
            for rule in chain if owners else ():
                for part in rule["expr"]:
                    if "log" in part:
                        self._owners[part["log"].get("prefix", "")] = owners
        return True


# The prefix of a node's name in the sets that map addresses to names.
_NODE = "node:"


def events(group: int, seconds: float | None = None) -> Iterator[DecisionEvent]:
    """Yield what is logged from now on, for so many seconds or without end.

    InputError says why the log cannot be read.
    """
    with closing(LogReader(group)) as log, selectors.DefaultSelector() as selector:
        names = AuditNames()
        until = None if seconds is None else time.monotonic() + seconds
        selector.register(log, selectors.EVENT_READ)
        while until is None or time.monotonic() < until:
            selector.select(None if until is None else max(0.0, until - time.monotonic()))
            for logged in log.read():
                yield event(logged, names)


def event(logged: LoggedPacket, names: AuditNames) -> DecisionEvent:
    """Return the event of a logged packet."""
    label, flow = names.label(logged), logged.flow
    return DecisionEvent(
        plane="network",
        time=datetime.now(UTC),
        verdict=action_verdict(label.action),
        decided_by=label.decided_by,
        shadow=label.shadow,
        detail=ObservedConnection(
            label.direction,
            flow.protocol,
            names.endpoint(flow.source, flow.source_port),
            names.endpoint(flow.destination, flow.port),
        ),
    )


def hits() -> list[RuleHits]:
    """Return the counters of the table in this network namespace, sorted by policy."""
    counted = [
        RuleHits(
            decided_by=label.decided_by,
            direction=label.direction,
            action=label.action,
            shadow=label.shadow,
            packets=packets,
            bytes=byte_count,
        )
        for comment, packets, byte_count in read_counters()
        if (label := Label.parse(comment)) is not None
    ]
    return sorted(counted, key=lambda hit: ([str(decider) for decider in hit.decided_by], hit.direction, hit.action))

"""The audit trail: what the table logs, in the names of pods, policies and rules.

Names of pods come from the table itself, so what is read fits what is enforced; they are read again when an address
is not known, though not more often than once a second.
"""

from __future__ import annotations

import selectors
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import msgspec

from tierwall.engines.nftables.held import exists
from tierwall.engines.nftables.hits import told
from tierwall.engines.nftables.nflog import Log, Logged
from tierwall.engines.nftables.parts import MARK
from tierwall.engines.nftables.programs import run
from tierwall.engines.nftables.table import FAMILIES, FAMILY, NODES, PODS, TABLE
from tierwall.engines.nftables.table import address as show
from tierwall.network.model.addresses import Address

_AGAIN = 1.0


class Names:
    """Who has which address, and which policies a shortened log prefix stands for, as the table says."""

    def __init__(self) -> None:
        self._ends: dict[str, str] = {}
        self._policies: dict[str, tuple[str, ...]] = {}
        self._read_at = float("-inf")

    def end(self, address: Address) -> str:
        """`namespace/pod` or `node:name`; empty if nobody of the table has the address."""
        text = show(address)
        if text not in self._ends:
            self._read()
        return self._ends.get(text, "")

    def policies(self, logged: Logged) -> tuple[str, ...]:
        """The policies of a log line, also where the kernel's limit cut their names short."""
        prefix = f"{MARK} {logged.what} {logged.place} {logged.policies}"
        if "+" in logged.policies and prefix not in self._policies:
            self._read()
        return self._policies.get(prefix) or told(logged.what, logged.place, logged.policies).policies

    def _read(self) -> None:
        if time.monotonic() - self._read_at < _AGAIN or not exists():
            return
        self._read_at = time.monotonic()
        listed = msgspec.json.decode(run("nft", "-j", "list", "table", FAMILY, TABLE))["nftables"]
        known = {f"{word}{family}" for word in (NODES, PODS) for family in FAMILIES}
        self._ends = {
            one["elem"]["val"]: one["elem"].get("comment", "")
            for entry in listed
            if (found := entry.get("set")) and found["name"] in known
            for one in found.get("elem", ())
            if isinstance(one, dict) and "elem" in one
        }
        rules: dict[str, list[dict[str, Any]]] = {}
        for entry in listed:
            if "rule" in entry:
                rules.setdefault(entry["rule"]["chain"], []).append(entry["rule"])
        for found_rules in rules.values():
            names = tuple(one["comment"] for one in found_rules if one["expr"] == [{"continue": None}])
            for rule in found_rules if names else ():
                for part in rule["expr"]:
                    if "log" in part:
                        self._policies[part["log"].get("prefix", "")] = names


def events(group: int, seconds: float | None = None) -> Iterator[dict[str, Any]]:
    """What is logged from now on, one document each; for so many seconds, or without end.

    InputError says why the log cannot be read.
    """
    log = Log(group)
    names = Names()
    until = None if seconds is None else time.monotonic() + seconds
    selector = selectors.DefaultSelector()
    selector.register(log, selectors.EVENT_READ)
    try:
        while until is None or time.monotonic() < until:
            selector.select(None if until is None else max(0.0, until - time.monotonic()))
            for logged in log.read():
                yield document(logged, names)
    finally:
        selector.close()
        log.close()


def document(logged: Logged, names: Names) -> dict[str, Any]:
    """One logged packet as JSON output shows it."""
    words = told(logged.what, logged.place, logged.policies)
    flow = logged.flow
    out: dict[str, Any] = {
        "time": datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        "verdict": words.action,
    }
    if words.shadow:
        out["mode"] = "shadow"
    policies = [{"policy": policy, "rule": words.rule} for policy in names.policies(logged)]
    return out | {
        "direction": words.direction,
        "decidedBy": policies,
        "from": _end(names, flow.source, flow.source_port),
        "to": _end(names, flow.destination, flow.port),
        "protocol": flow.protocol,
    }


def line(event: dict[str, Any]) -> str:
    """One logged packet as a line of text."""
    by = ", ".join(f"{one['policy']} {one['rule']}" for one in event["decidedBy"])
    what = f"would {event['verdict'].lower()}" if event.get("mode") == "shadow" else event["verdict"]
    source, destination = (_shown(event[key]) for key in ("from", "to"))
    return f"{event['time']} {what} {event['direction']} {event['protocol']} {source} -> {destination} by {by}"


def _end(names: Names, address: Address, port: int) -> dict[str, Any]:
    out: dict[str, Any] = {}
    name = names.end(address)
    if name.startswith("node:"):
        out["node"] = name.removeprefix("node:")
    elif name:
        out["namespace"], _, out["pod"] = name.partition("/")
    out["ip"] = show(address)
    return out | ({"port": port} if port else {})


def _shown(end: dict[str, Any]) -> str:
    place = f"[{end['ip']}]" if ":" in end["ip"] else end["ip"]
    where = f"{place}:{end['port']}" if "port" in end else place
    if "pod" in end:
        return f"{end['namespace']}/{end['pod']} ({where})"
    return f"node:{end['node']} ({where})" if "node" in end else where

"""The table in the kernel of this network namespace: checked first, then put there in one transaction, or not at all.

It is read back as far as the next transaction needs it: chains named by their content need no look at their rules; of
those with plain names the mark is read.
"""

from __future__ import annotations

import difflib
from contextlib import closing
from typing import Any, cast

import msgspec

from tierwall.core.diagnostics import InputError
from tierwall.engines.nftables.kernel.elements import send
from tierwall.engines.nftables.kernel.namespaces import NetworkNamespace
from tierwall.engines.nftables.kernel.netlink import NetlinkError
from tierwall.engines.nftables.kernel.programs import run
from tierwall.engines.nftables.table.compile import Compiled
from tierwall.engines.nftables.table.pods import FollowedTable, PodChange, Step
from tierwall.engines.nftables.table.table import (
    EVERY_OTHER,
    FAMILY,
    MAPS,
    TABLE,
    Attached,
    Chain,
    Element,
    Kind,
    Set,
    Table,
    Verdict,
    Word,
    text,
    transaction,
)
from tierwall.values.addresses import parse_address

# Declaring the table first makes deleting it right whether it was there or not.
_GONE = f"table {FAMILY} {TABLE}\ndelete table {FAMILY} {TABLE}\n"


def check(script: str) -> None:
    """Have nft check a script without doing it; InputError says what it refuses."""
    run("nft", "-c", "-f", "-", given=script)


def execute(script: str) -> None:
    """One transaction: all of the script holds, or InputError and nothing has changed."""
    run("nft", "-f", "-", given=script)


def replace(table: Table) -> None:
    """Whatever table there was is gone and this one is there, in one transaction."""
    execute(_GONE + text(table))


def remove() -> None:
    """Leave nothing behind."""
    execute(_GONE)


def script_to(table: Table) -> str:
    """The checked script that brings the kernel from what it holds to a table; empty if nothing changes."""
    now = held()
    if now is None:
        script = text(table)
        check(script)
        return script
    script = transaction(now, table)
    try:
        if script:
            check(script)
    except InputError:
        # Somebody else changed the table in a way the step cannot build on: begin afresh, still in one transaction.
        script = _GONE + text(table)
        check(script)
    return script


def apply(table: Table) -> bool:
    """Bring the kernel to a table; False if it held it already. InputError leaves the last good table in force."""
    script = script_to(table)
    if script:
        execute(script)
    return bool(script)


def difference(table: Table) -> str:
    """What would change, line by line, in nft's own words; empty if nothing."""
    if not script_to(table):
        return ""  # Parts that came one after another are listed in the order in which they came.
    before = listing()
    with closing(NetworkNamespace()) as scratch, scratch.entered():
        execute(text(table))
        after = listing()
    lines = difflib.unified_diff(
        before.splitlines(), after.splitlines(), "in the kernel", "from the policies", lineterm=""
    )
    return "\n".join(lines)


class Enforcer:
    """Keeps the kernel up with policies and pods; remembers what it put there."""

    def __init__(self) -> None:
        self._table: FollowedTable | None = None

    def put(self, compiled: Compiled) -> bool:
        """Enforce a compiled table; False if the kernel held it already."""
        changed = apply(compiled.table)
        self._table = FollowedTable(compiled)
        return changed

    def step(self, pods: list[PodChange]) -> Step | None:
        """What changes of pods do to the table that was put; None if it must be compiled anew. Changes nothing."""
        return self._table.step(pods) if self._table is not None else None

    def take(self, step: Step) -> None:
        """Follow changes of pods by elements alone; InputError leaves the last good table in force."""
        assert self._table is not None, "there is no step without a table"
        try:
            send(step.elements)
        except NetlinkError:
            # The kernel does not hold what was put there: to read it back and put all that differs sets it right.
            apply(step.table)
        self._table.take(step)


_KINDS = {
    "ends": Kind.ADDRESSES,
    "pods": Kind.ADDRESSES,
    "nodes": Kind.ADDRESSES,
    "port": Kind.NAMED,
    "blocks": Kind.RANGES,
    "ports": Kind.PORTS,
    "egress": Kind.VERDICTS,
    "ingress": Kind.VERDICTS,
    "index": Kind.PORT_VERDICTS,
    "cut": Kind.FLOWS,
}
_WORDS = frozenset(Word)


def listed(*what: str) -> list[dict[str, Any]]:
    """What nft lists, as it writes it in JSON."""
    document = msgspec.json.decode(run("nft", "-j", "list", *what))
    return cast(list[dict[str, Any]], document["nftables"])


def exists() -> bool:
    """Whether the kernel holds a table of ours."""
    return any(entry["table"]["name"] == TABLE for entry in listed("tables", FAMILY) if "table" in entry)


def held() -> Table | None:
    """The table in the kernel, or None."""
    if not exists():
        return None
    counters: dict[str, str] = {}
    sets: dict[str, Set] = {}
    chains: dict[str, Chain] = {}
    rules: dict[str, list[str]] = {}
    for entry in listed("table", FAMILY, TABLE):
        ((kind, value),) = entry.items()
        if kind == "counter":
            counters[value["name"]] = value.get("comment", "")
        elif kind == "chain":
            chains[value["name"]] = Chain(())
        elif kind == "rule":
            rules.setdefault(value["chain"], []).append(value.get("comment", ""))
        elif kind in ("set", "map"):
            sets[value["name"]] = _set(kind, value)
    for name, comments in rules.items():
        if "_" not in name:
            chains[name] = Chain((), mark=f"{comments[0]} {len(comments)}")
    return Table(counters, sets, chains)


def listing() -> str:
    """The table as nft prints it, without counts; empty if there is none."""
    return run("nft", "-s", "list", "table", FAMILY, TABLE) if exists() else ""


def counts() -> list[tuple[str, int, int]]:
    """The comment, packets and bytes of every counter; empty if there is no table."""
    try:
        counters = [entry["counter"] for entry in listed("counters", "table", FAMILY, TABLE) if "counter" in entry]
    except InputError:
        if exists():
            raise
        return []
    return sorted((counter.get("comment", ""), counter["packets"], counter["bytes"]) for counter in counters)


def _set(word: str, value: dict[str, Any]) -> Set:
    stem = value["name"].partition("_")[0].rstrip("46")
    kind = _KINDS.get(stem, Kind.RANGES)
    if word == "map" and kind not in MAPS:
        kind = Kind.VERDICTS
    elements: dict[Element, Attached] = {}
    if kind in (Kind.ADDRESSES, Kind.NAMED, Kind.VERDICTS):
        for element in value.get("elem", ()):
            key, attached = _element(element)
            elements[key] = attached
    return Set(kind, 6 if "ipv6_addr" in str(value["type"]) else 4, elements)


def _element(value: Any) -> tuple[Element, Attached]:
    if isinstance(value, list):
        key, verdict = value
        ((word, target),) = verdict.items()
        # A verdict that this engine never gives is a stranger's; it stays a text, and is replaced.
        return _key(key), Verdict(Word(word), target["target"] if target else "") if word in _WORDS else str(word)
    if isinstance(value, dict) and "elem" in value:
        return _key(value["elem"]["val"]), value["elem"].get("comment", "")
    return _key(value), ""


def _key(value: Any) -> Element:
    if isinstance(value, dict) and "elem" in value:
        return _key(value["elem"]["val"])
    if isinstance(value, dict) and "concat" in value:
        address, protocol, port = value["concat"]
        return _address(address), str(protocol), int(port)
    return EVERY_OTHER if value == EVERY_OTHER else _address(value)


def _address(value: Any) -> int:
    address = parse_address(value)
    return -1 if address is None else address  # a stranger's element: it is not in any table of ours, so it is deleted

"""The table that the kernel holds, read back as far as the next transaction needs it.

Chains named by their content need no look at their rules; of those with plain names the mark is read.
"""

from __future__ import annotations

from typing import Any

import msgspec

from tierwall.core.diagnostics import InputError
from tierwall.engines.nftables.programs import run
from tierwall.engines.nftables.table import (
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
)
from tierwall.network.model.addresses import parse_address

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


def exists() -> bool:
    """Whether the kernel holds a table of ours."""
    listed = msgspec.json.decode(run("nft", "-j", "list", "tables", FAMILY))["nftables"]
    return any(one["table"]["name"] == TABLE for one in listed if "table" in one)


def held() -> Table | None:
    """The table in the kernel, or None."""
    if not exists():
        return None
    counters: dict[str, str] = {}
    sets: dict[str, Set] = {}
    chains: dict[str, Chain] = {}
    rules: dict[str, list[str]] = {}
    for entry in msgspec.json.decode(run("nft", "-j", "list", "table", FAMILY, TABLE))["nftables"]:
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
        listed = msgspec.json.decode(run("nft", "-j", "list", "counters", "table", FAMILY, TABLE))["nftables"]
    except InputError:
        if exists():
            raise
        return []
    found = [one["counter"] for one in listed if "counter" in one]
    return sorted((one.get("comment", ""), one["packets"], one["bytes"]) for one in found)


def _set(word: str, value: dict[str, Any]) -> Set:
    stem = value["name"].partition("_")[0].rstrip("46")
    kind = _KINDS.get(stem, Kind.RANGES)
    if word == "map" and kind not in MAPS:
        kind = Kind.VERDICTS
    elements: dict[Element, Attached] = {}
    if kind in (Kind.ADDRESSES, Kind.NAMED, Kind.VERDICTS):
        for one in value.get("elem", ()):
            key, attached = _element(one)
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
    found = parse_address(value)
    return -1 if found is None else found  # a stranger's element: it is not in any table of ours, so it is deleted

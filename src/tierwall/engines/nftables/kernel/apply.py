"""The table in the kernel of this network namespace, applied in one transaction or not at all.

The table is read back only as far as the next transaction needs it. In chains and sets that are named by their content,
rules and elements are counted: whoever flushed a chain, or inserted a rule, while nobody of ours was watching must be
undone. Of chains with plain names, the mark is read.
"""

from __future__ import annotations

import difflib
from contextlib import closing
from typing import Any, cast

import msgspec

from tierwall.core.diagnostics import InputError
from tierwall.engines.nftables.kernel.namespaces import NetworkNamespace
from tierwall.engines.nftables.kernel.programs import run
from tierwall.engines.nftables.table.table import (
    EVERY_OTHER,
    FAMILY,
    MAPS,
    TABLE,
    Attached,
    ChainVerdict,
    Element,
    NamedSet,
    RuleChain,
    SetKind,
    Table,
    VerdictWord,
    table_script,
    transaction,
)
from tierwall.values.addresses import parse_address

# Declaring the table first makes deleting it correct, whether it existed or not.
_GONE = f"table {FAMILY} {TABLE}\ndelete table {FAMILY} {TABLE}\n"


def check(script: str) -> None:
    """Let nft check a script without running it; InputError says what it refuses."""
    run("nft", "-c", "-f", "-", stdin=script)


def execute(script: str) -> None:
    """Run a script as one transaction; after an InputError nothing has changed."""
    run("nft", "-f", "-", stdin=script)


def replace(table: Table) -> None:
    """Replace the table, if there is one, in one transaction."""
    execute(_GONE + table_script(table))


def remove() -> None:
    """Remove the table and leave nothing behind."""
    execute(_GONE)


def script_to(table: Table) -> str:
    """Return a checked script that brings the kernel to a table; empty if the kernel holds it already."""
    now = read_table()
    if now is None:
        script = table_script(table)
        check(script)
        return script
    script = _script(now, table)
    try:
        if script:
            check(script)
    except InputError:
        # Someone else changed the table so that the script does not fit. Start over, still in one transaction.
        script = _GONE + table_script(table)
        check(script)
    return script


def apply(table: Table, held: Table | None = None) -> bool:
    """Bring the kernel to a table; False if it held it already. After an InputError, the last good one is in force.

    `held` is what the kernel holds, if that is known; otherwise it is read.
    """
    # Nothing is checked first: the kernel takes a transaction as a whole or not at all, and each run of nft costs time
    # in which the old table is in force.
    now = held if held is not None else read_table()
    script = table_script(table) if now is None else _script(now, table)
    if not script:
        return False
    try:
        execute(script)
    except InputError:
        if now is None:
            raise
        execute(_GONE + table_script(table))
    return True


def _script(now: Table, table: Table) -> str:
    """Return the script from one table to another; empty if they are equal."""
    is_off = now.has_flags or any(
        name in now.chains and bool(now.chains[name].hook) is not bool(chain.hook)
        for name, chain in table.chains.items()
    )
    # Whether a table or a base chain sees packets at all cannot be changed in place.
    return _GONE + table_script(table) if is_off else transaction(now, table)


def difference(table: Table) -> str:
    """Return what would change, line by line, in nft's own words; empty if nothing would."""
    if not script_to(table):
        return ""  # nft lists parts in the order in which they were added, so equal tables may be listed differently.
    before = list_text()
    with closing(NetworkNamespace()) as scratch, scratch.entered():
        execute(table_script(table))
        after = list_text()
    lines = difflib.unified_diff(
        before.splitlines(), after.splitlines(), "in the kernel", "from the policies", lineterm=""
    )
    return "\n".join(lines)


_KINDS = {
    "ends": SetKind.ADDRESSES,
    "pods": SetKind.ADDRESSES,
    "nodes": SetKind.ADDRESSES,
    "port": SetKind.NAMED,
    "blocks": SetKind.RANGES,
    "ports": SetKind.PORTS,
    "egress": SetKind.VERDICTS,
    "ingress": SetKind.VERDICTS,
    "index": SetKind.PORT_VERDICTS,
    "cut": SetKind.FLOWS,
    "interfaces": SetKind.INTERFACES,
    "links": SetKind.INTERFACES,
    "sources": SetKind.SOURCES,
    "bound": SetKind.ADDRESSES,
}
# The kinds of sets whose elements are compared one by one.
_COMPARED = (SetKind.ADDRESSES, SetKind.NAMED, SetKind.VERDICTS, SetKind.INTERFACES, SetKind.SOURCES)
_WORDS = frozenset(VerdictWord)


def list_json(*what: str) -> list[dict[str, Any]]:
    """Return what nft lists, from its JSON output."""
    document = msgspec.json.decode(run("nft", "-j", "list", *what))
    return cast(list[dict[str, Any]], document["nftables"])


def table_exists() -> bool:
    """Whether the kernel holds Tierwall's table."""
    return any(entry["table"]["name"] == TABLE for entry in list_json("tables", FAMILY) if "table" in entry)


def read_table() -> Table | None:
    """Read the table in the kernel; None if it does not exist. Of each rule only its comment is read."""
    try:
        entries = list_json("table", FAMILY, TABLE)
    except InputError:
        if table_exists():
            raise
        return None
    counters: dict[str, str] = {}
    sets: dict[str, NamedSet] = {}
    chains: dict[str, RuleChain] = {}
    rules: dict[str, list[str]] = {}
    hooks: dict[str, str] = {}
    has_flags = False
    for entry in entries:
        ((kind, value),) = entry.items()
        if kind == "table":
            # Which flags they are, some releases of nft do not say.
            has_flags = "flags" in value
        elif kind == "counter":
            counters[value["name"]] = value.get("comment", "")
        elif kind == "chain":
            hooks[value["name"]] = value.get("hook", "")
        elif kind == "rule":
            rules.setdefault(value["chain"], []).append(value.get("comment", ""))
        elif kind in ("set", "map"):
            sets[value["name"]] = _set(kind, value)
    for name, hook in hooks.items():
        comments = rules.get(name, [])
        mark = f"{comments[0]} {len(comments)}" if comments and "_" not in name else ""
        chains[name] = RuleChain(tuple(comments), hook=hook, mark=mark)
    return Table(counters, sets, chains, has_flags)


def list_text() -> str:
    """Return the table as nft prints it, without counts; empty if it does not exist."""
    return run("nft", "-s", "list", "table", FAMILY, TABLE) if table_exists() else ""


def read_counters() -> list[tuple[str, int, int]]:
    """Return the comment, packets and bytes of every counter; empty if there is no table."""
    try:
        counters = [entry["counter"] for entry in list_json("counters", "table", FAMILY, TABLE) if "counter" in entry]
    except InputError:
        if table_exists():
            raise
        return []
    return sorted((counter.get("comment", ""), counter["packets"], counter["bytes"]) for counter in counters)


def _set(word: str, value: dict[str, Any]) -> NamedSet:
    stem = value["name"].partition("_")[0].rstrip("46")
    kind = _KINDS.get(stem, SetKind.RANGES)
    if word == "map" and kind not in MAPS:
        kind = SetKind.VERDICTS
    elements: dict[Element, Attached] = {}
    if kind in _COMPARED:
        for element in value.get("elem", ()):
            key, attached = (str(element), "") if kind is SetKind.INTERFACES else _element(element)
            elements[key] = attached
    elif kind is not SetKind.FLOWS:
        elements = dict.fromkeys(range(len(value.get("elem", ()))), "")
    return NamedSet(kind, 6 if "ipv6_addr" in str(value["type"]) else 4, elements)


def _element(value: Any) -> tuple[Element, Attached]:
    if isinstance(value, list):
        key, verdict = value
        ((word, target),) = verdict.items()
        # Tierwall never writes such a verdict: someone else did. It stays a string, so it differs and is replaced.
        return _key(key), ChainVerdict(
            VerdictWord(word), target["target"] if target else ""
        ) if word in _WORDS else str(word)
    if isinstance(value, dict) and "elem" in value:
        return _key(value["elem"]["val"]), value["elem"].get("comment", "")
    return _key(value), ""


def _key(value: Any) -> Element:
    if isinstance(value, dict) and "elem" in value:
        return _key(value["elem"]["val"])
    if isinstance(value, dict) and "concat" in value:
        if len(value["concat"]) == 2:
            interface, bound = value["concat"]
            return str(interface), _address(bound)
        address, protocol, port = value["concat"]
        return _address(address), str(protocol), int(port)
    return EVERY_OTHER if value == EVERY_OTHER else _address(value)


def _address(value: Any) -> int:
    address = parse_address(value)
    return -1 if address is None else address  # someone else's element: no table of ours has it, so it is deleted

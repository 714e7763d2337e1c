"""The table in the kernel of this network namespace, applied in one transaction or not at all.

The table is read back only as far as the next transaction needs it. Chains that are named by their content need no look
at their rules; of chains with plain names, the mark is read.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from contextlib import closing
from typing import Any, cast

import msgspec

from tierwall.core.diagnostics import InputError
from tierwall.engines.nftables.kernel.elements import send
from tierwall.engines.nftables.kernel.namespaces import NetworkNamespace
from tierwall.engines.nftables.kernel.netlink import NetlinkError
from tierwall.engines.nftables.kernel.programs import run
from tierwall.engines.nftables.table.compile import CompiledTable
from tierwall.engines.nftables.table.interfaces import InterfaceCompiler, KnownInterfaces, guard_changes
from tierwall.engines.nftables.table.pods import FollowedTable, PodChange, PodStep
from tierwall.engines.nftables.table.table import (
    EVERY_OTHER,
    FAMILY,
    MAPS,
    TABLE,
    Attached,
    ChainVerdict,
    Element,
    ElementChange,
    NamedSet,
    RuleChain,
    SetKind,
    Table,
    VerdictWord,
    table_script,
    transaction,
)
from tierwall.network.model.endpoints import Endpoint
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
    script = transaction(now, table)
    try:
        if script:
            check(script)
    except InputError:
        # Someone else changed the table so that the script does not fit. Start over, still in one transaction.
        script = _GONE + table_script(table)
        check(script)
    return script


def apply(table: Table) -> bool:
    """Bring the kernel to a table; False if it held it already. After an InputError, the last good one is in force."""
    # Nothing is checked first: the kernel takes a transaction as a whole or not at all, and each run of nft costs time
    # in which the old table is in force.
    now = read_table()
    script = table_script(table) if now is None else transaction(now, table)
    if not script:
        return False
    try:
        execute(script)
    except InputError:
        if now is None:
            raise
        execute(_GONE + table_script(table))
    return True


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


class Enforcer:
    """Keeps the kernel in step with policies, pods and their interfaces, and remembers the table it applied."""

    def __init__(self) -> None:
        self._table: FollowedTable | None = None
        self._guard: InterfaceCompiler | None = None
        # The interfaces that the table in the kernel knows; None if it has no guard.
        self._known: KnownInterfaces | None = None

    def judged_pods(self, step: PodStep | None = None) -> Iterable[Endpoint]:
        """Return the pods that the table judges, after a step of it if one is given."""
        return self._table.judged_pods(step) if self._table is not None else ()

    @property
    def closes_unknown_pods(self) -> bool:
        """Whether pod interfaces without a known pod are closed."""
        return self._known is not None and self._guard is not None and self._guard.closed

    def put(self, compiled: CompiledTable, known: KnownInterfaces | None = None) -> bool:
        """Enforce a compiled table; False if the kernel held it already. With `known`, interfaces are guarded."""
        guard = InterfaceCompiler(compiled.compiler) if known is not None else None
        changed = apply(_whole(compiled.table, guard, known))
        self._table, self._guard, self._known = FollowedTable(compiled), guard, known
        return changed

    def step(self, pods: list[PodChange]) -> PodStep | None:
        """Work out the effect of changed pods, without applying it; None if the table must be compiled anew."""
        return self._table.step(pods) if self._table is not None else None

    def take(self, step: PodStep, known: KnownInterfaces | None = None) -> None:
        """Follow changed pods by elements alone. After an InputError, the last good table is in force."""
        assert self._table is not None, "there is no step without a table"
        self._change(step.elements, step.table, known)
        self._table.take(step)

    def bind(self, known: KnownInterfaces | None) -> bool:
        """Follow changed interfaces; False if they are the same. After an InputError, nothing has changed."""
        assert self._table is not None, "interfaces are followed only after a first table"
        if known == self._known:
            return False
        self._change([], self._table.table, known)
        return True

    def _change(self, elements: list[tuple[str, ElementChange]], table: Table, known: KnownInterfaces | None) -> None:
        """Change elements of policies and of the guard in one transaction."""
        assert self._table is not None
        guard = self._guard
        if known is not None and guard is None:
            guard = InterfaceCompiler(self._table.compiler)
        try:
            if known is not None and self._known is not None:
                send([*elements, *guard_changes(self._known, known)])
            elif known is self._known:
                send(elements)
            else:
                apply(_whole(table, guard, known))
        except NetlinkError:
            # The kernel does not hold the table that was applied. Reading it back and applying every difference repairs
            # it.
            apply(_whole(table, guard, known))
        self._guard, self._known = guard, known


def _whole(table: Table, guard: InterfaceCompiler | None, known: KnownInterfaces | None) -> Table:
    return guard.table(table, known) if guard is not None and known is not None else table


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
    """Read the table in the kernel; None if it does not exist."""
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
    for entry in entries:
        ((kind, value),) = entry.items()
        if kind == "counter":
            counters[value["name"]] = value.get("comment", "")
        elif kind == "chain":
            chains[value["name"]] = RuleChain(())
        elif kind == "rule":
            rules.setdefault(value["chain"], []).append(value.get("comment", ""))
        elif kind in ("set", "map"):
            sets[value["name"]] = _set(kind, value)
    for name, comments in rules.items():
        if "_" not in name:
            chains[name] = RuleChain((), mark=f"{comments[0]} {len(comments)}")
    return Table(counters, sets, chains)


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

"""Putting a table into the kernel of this network namespace: checked first, then one transaction, or nothing at all."""

from __future__ import annotations

import difflib

from tierwall.core.diagnostics import InputError
from tierwall.engines.nftables.compile import Compiled
from tierwall.engines.nftables.elements import send
from tierwall.engines.nftables.follow import FollowedTable, PodChange
from tierwall.engines.nftables.held import held, listing
from tierwall.engines.nftables.namespaces import NetworkNamespace
from tierwall.engines.nftables.netlink import NetlinkError
from tierwall.engines.nftables.programs import run
from tierwall.engines.nftables.table import FAMILY, TABLE, Table, text
from tierwall.engines.nftables.transaction import transaction

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
    scratch = NetworkNamespace()
    try:
        with scratch.entered():
            execute(text(table))
            after = listing()
    finally:
        scratch.close()
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

    def follow(self, pods: list[PodChange]) -> bool:
        """Follow changes of pods by elements alone; False if the table must be compiled anew."""
        changes = self._table.changes(pods) if self._table is not None else None
        if changes is None:
            return False
        try:
            send(changes)
        except NetlinkError:
            # The kernel does not hold what was put there: compiling and reading it back sets it right.
            self._table = None
            return False
        return True

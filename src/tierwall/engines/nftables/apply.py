"""Putting a table into the kernel of this network namespace: checked first, then one transaction, or nothing at all."""

from __future__ import annotations

from tierwall.engines.nftables.programs import run
from tierwall.engines.nftables.table import FAMILY, TABLE, Table, text

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

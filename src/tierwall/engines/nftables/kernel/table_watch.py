"""Hears of every transaction on the table, whoever made it (docs/enforce-network.md#changes-by-others).

The kernel tells of a transaction when it is in force: first of each part that it changed, then of a new generation.
It tells before it answers whoever made the change. So after a write of our own, its messages are here, and exactly one
generation among them is ours. Names of processes do not help: the kernel tells their numbers outside of containers.
"""

from __future__ import annotations

import errno
from typing import NamedTuple

from tierwall.engines.nftables.kernel.netlink import NFPROTO_INET, Netlink, attribute, string_attribute
from tierwall.engines.nftables.table.table import CUT, FAMILIES, TABLE

_GROUP = 1 << 6
_NEW_ELEMENTS, _DELETE_ELEMENTS, _NEW_GENERATION = 12, 14, 15
# Messages about a large table of our own must fit.
_BUFFER = 32 << 20
# Every message about a part of a table begins with the table's name.
_OURS = string_attribute(1, TABLE)
# The sets of cut connections are filled while the table is in force (`conntrack`).
_CUT_SETS = tuple(_OURS + attribute(2, f"{CUT}{family}\0".encode()) for family in FAMILIES)


class TableChanges(NamedTuple):
    """How many transactions have changed the table, and whether the kernel lost messages, so that more may have."""

    number: int = 0
    is_uncertain: bool = False


class TableWatch(Netlink):
    """A socket that hears of the transactions of the network namespace in which it is made."""

    def __init__(self) -> None:
        super().__init__(receive_buffer=_BUFFER, groups=_GROUP, tells_losses=True)
        # Whether the transaction whose messages are arriving changes the table.
        self._is_ours = False

    def changes(self) -> TableChanges:
        """Return what has happened to the table since the last call, without waiting."""
        number, is_uncertain = 0, False
        while True:
            try:
                for message in self.messages():
                    if message.kind == _NEW_GENERATION:
                        number += self._is_ours
                        self._is_ours = False
                    elif message.family == NFPROTO_INET and message.attributes.startswith(_OURS):
                        is_cut = message.kind in (_NEW_ELEMENTS, _DELETE_ELEMENTS)
                        self._is_ours |= not (is_cut and message.attributes.startswith(_CUT_SETS))
                return TableChanges(number, is_uncertain)
            except OSError as error:
                if error.errno != errno.ENOBUFS:
                    raise
                is_uncertain, self._is_ours = True, False

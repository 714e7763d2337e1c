"""How often each rule of each policy was hit: the table's counters in the words of the policies."""

from __future__ import annotations

from tierwall.engines.nftables.held import counts
from tierwall.engines.nftables.label import Label
from tierwall.network.event import Hits


def hits() -> list[Hits]:
    """The counters of the table in this network namespace, in the order of their policies."""
    found = [
        Hits(
            decided_by=label.decided_by,
            direction=label.direction,
            action=label.action,
            shadow=label.shadow,
            packets=packets,
            bytes=octets,
        )
        for comment, packets, octets in counts()
        if (label := Label.parse(comment)) is not None
    ]
    return sorted(found, key=lambda hit: ([str(decider) for decider in hit.decided_by], hit.direction, hit.action))

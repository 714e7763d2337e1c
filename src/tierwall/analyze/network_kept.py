"""The findings of the network plane, kept with a snapshot: edits of other planes bring none of them."""

from __future__ import annotations

from collections.abc import Iterator

from tierwall.analyze.network_checks import network_findings
from tierwall.core.diagnostics import Diagnostic
from tierwall.network.reach.changed_objects import changed_objects
from tierwall.resources.once import per_snapshot
from tierwall.resources.snapshot import Snapshot


@per_snapshot
def _kept(snapshot: Snapshot) -> list[tuple[Diagnostic, ...]]:
    """Return the findings once they are known. Nobody else waits for the snapshot while they are looked for."""
    return []


def kept_network_findings(snapshot: Snapshot, alone: str | None = None) -> Iterator[Diagnostic]:
    """Yield what `network_findings` finds; without `alone`, it looks once."""
    if alone is not None:
        yield from network_findings(snapshot, alone)
        return
    kept = _kept(snapshot)
    if not kept:
        kept.append(tuple(network_findings(snapshot)))
    yield from kept[0]


def provide_network_findings(before: Snapshot, after: Snapshot) -> None:
    """Take the findings over from an earlier snapshot if nothing differs that connections depend on."""
    known = _kept(before)
    if known and not changed_objects(before, after):
        _kept(after).append(known[0])

"""The findings of a world, once per snapshot: pages ask for them again and again."""

from __future__ import annotations

from threading import Lock

from tierwall.explore.page import ExploredWorld
from tierwall.render.findings import CheckResult
from tierwall.resources.once import per_snapshot
from tierwall.resources.snapshot import Snapshot


class _Kept:
    """The findings once they are known. One thread looks for them while others wait."""

    def __init__(self) -> None:
        self.lock = Lock()
        self.result: CheckResult | None = None


@per_snapshot
def _kept(snapshot: Snapshot) -> _Kept:
    return _Kept()


def checked(explored: ExploredWorld) -> CheckResult:
    """Return what `tierwall check` finds."""
    kept = _kept(explored.world.snapshot)
    # INVARIANT: no function of a snapshot calls this, so nobody waits here with the lock of the snapshot.
    with kept.lock:
        if kept.result is None:
            world = explored.world
            omissions = (*world.not_considered, *world.unread)
            kept.result = CheckResult(world.review(), explored.loaded, not_considered=omissions)
        return kept.result

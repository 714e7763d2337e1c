"""The findings of a world, once per snapshot: pages ask for them again and again."""

from __future__ import annotations

from tierwall.explore.page import ExploredWorld
from tierwall.render.findings import CheckResult
from tierwall.resources.once import per_snapshot
from tierwall.resources.snapshot import Snapshot


@per_snapshot
def _kept(snapshot: Snapshot) -> list[CheckResult]:
    return []


def checked(explored: ExploredWorld) -> CheckResult:
    """Return what `tierwall check` finds."""
    kept = _kept(explored.world.snapshot)
    if not kept:
        world = explored.world
        kept.append(CheckResult(world.review(), explored.loaded, not_considered=(*world.not_considered, *world.unread)))
    return kept[0]

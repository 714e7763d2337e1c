"""How the controller keeps in step with a cluster: every load is accepted, and what has not changed is shared."""

from __future__ import annotations

from typing import Any

from tierwall.resources.resource import Resource
from tierwall.resources.snapshot import Snapshot
from tierwall.serve.controller.kinds import JUDGED_BY_STATUS, NOT_JUDGED
from tierwall.serve.controller.state import ControllerState
from tierwall.serve.follower import Follower, Load, PreparedState


class ControllerFollower(Follower[ControllerState]):
    """Makes a state of each load."""

    def __init__(self) -> None:
        super().__init__()
        # The objects of the last load as they are, and as answers depend on them.
        self._live = self._judged = Snapshot({})
        self._revision = 0

    def prepare(self, snapshot: Snapshot) -> PreparedState[ControllerState]:
        """Make the next state; objects in which only controllers have written stay the same in `judged`."""
        put: list[Resource] = []
        dropped: list[Resource] = []
        for before, after in snapshot.changes(self._live):
            either = after or before
            assert either is not None
            if (either.group, either.kind) in NOT_JUDGED:
                continue
            known = self._judged.get(*either.identity)
            if after is None:
                dropped += [known] if known is not None else []
            elif known is None or known.version != after.version:
                dropped += [known] if known is not None else []
                put.append(after)
            elif not _is_judged_alike(known, after):
                put.append(after)
        self._live = snapshot
        if put or dropped:
            self._judged = self._judged.with_changes(put, dropped)
        self._revision += 1
        return PreparedState(ControllerState(snapshot, self._judged, self._revision))

    def enforce(self, load: Load[ControllerState]) -> bool:
        """Take a load: parts are told afterwards, so nothing can fail here."""
        return True


def _is_judged_alike(before: Resource, after: Resource) -> bool:
    """Whether two states of an object differ at most in what controllers write."""
    if (before.group, before.kind) in JUDGED_BY_STATUS:
        return False
    return _judged_parts(before) == _judged_parts(after)


def _judged_parts(resource: Resource) -> dict[str, Any]:
    return {key: value for key, value in resource.value.items() if key != "status"}

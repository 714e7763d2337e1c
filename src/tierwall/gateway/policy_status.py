"""What merging means for a policy as a whole, for its status: conflicts, and settings that are always replaced."""

from __future__ import annotations

from tierwall.attach.status import Standing
from tierwall.gateway.standing import standings
from tierwall.resources.resource import Resource
from tierwall.resources.snapshot import Snapshot

# How many others a message names before it counts the rest.
_NAMED = 5


def standing(snapshot: Snapshot, policy: Resource) -> Standing:
    """The standing of one policy over all places that requests can reach (profile docs)."""
    fates = standings(snapshot).of(policy)
    conflicts, overridden = {}, {}
    for path in sorted(fates):
        fate = fates[path]
        if fate.rivals:
            others = sorted(fate.rivals)
            before = [name for name in others if not fate.rivals[name][1]]
            if before:
                conflicts[path] = f"{named(before)} comes first"
            else:
                conflicts[path] = f"this policy comes before {named(others)}"
        if not fate.effective and fate.beaten_by:
            overridden[path] = "; ".join(
                f"{winner} ({level}) {why}" for winner, (_, level, why) in sorted(fate.beaten_by.items())[:_NAMED]
            )
    return Standing(conflicts, overridden, bool(fates) and len(overridden) == len(fates))


def named(references: list[str]) -> str:
    """A few references, and how many more."""
    more = f" and {len(references) - _NAMED} more" if len(references) > _NAMED else ""
    return ", ".join(references[:_NAMED]) + more

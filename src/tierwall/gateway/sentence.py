"""The words of a gateway answer: what is in force, and why something else is not."""

from __future__ import annotations

from tierwall.core.answer import Reason
from tierwall.core.reference import Reference
from tierwall.core.words import listed
from tierwall.gateway.decide import Candidate
from tierwall.gateway.detail import GatewayDetail
from tierwall.gateway.model.profile import Profile
from tierwall.resources.resource import Resource

# A list that sets nothing, so that the next level counts; and one that has won the field already.
SELECTS_NOTHING = "no entry of its conditional list is selected"
WINS_AND_SELECTS_NOTHING = "its conditional list wins and selects no entry: the field is not set"

# What the object that beats another one does, by the reason why the other does not count.
BEATS = {
    Reason.LESS_SPECIFIC: "is more specific",
    Reason.LOCKED_BY_OVERRIDE: "has Override",
    Reason.LOSES_TIE: "comes first at the same level",
}


def sentence(detail: GatewayDetail) -> str:
    """Which settings are in force at the place, and who set them."""
    fields: dict[Reference, list[str]] = {}
    for path, setting in detail.effective.items():
        for source in setting.sources:
            fields.setdefault(source, []).append(path)
    words = f"At {detail.place}, {_in_force(detail)}"
    if fields:
        words += ": " + "; ".join(f"{source} sets {listed(paths, None)}" for source, paths in fields.items())
    if detail.conflicts:
        words += f"; two policies of equal precedence set {listed(detail.conflicts, None)}"
    return words


def summary(detail: GatewayDetail) -> str:
    """How many settings are in force at the place; a headline for those who show the settings below it."""
    return f"At {detail.place}: {_in_force(detail)}."


def _in_force(detail: GatewayDetail) -> str:
    count = len(detail.effective)
    settings = "1 setting is" if count == 1 else f"{count or 'no'} settings are"
    return f"{settings} in force (profile {detail.profile}, {detail.phase})"


def in_force(candidate: Candidate, *, locks: bool) -> str | None:
    """What is worth saying about an object that is in force."""
    if not candidate.sets:
        return WINS_AND_SELECTS_NOTHING
    words = []
    if candidate.entry is not None:
        words.append(f"entry {candidate.entry} of its conditional list is selected")
    if locks:
        words.append("has Override, so nothing more specific counts")
    return "; ".join(words) or None


def locked(locking: Candidate, level: str) -> str:
    """Why a more specific level is not looked at."""
    return f"{locking.source} ({level}) has Override"


def least_specific_kept(profile: Profile) -> str:
    """Why a more specific level does not count for a field that keeps the least specific value."""
    return f"{profile} keeps the least specific value of this field"


def less_specific(level: str) -> str:
    """Why a less specific level does not count."""
    return f"{level} is more specific"


def loses_tie(winner: Candidate, loser: Candidate) -> str:
    """Why another object of the same level counts."""
    return f"{winner.source} {seniority(winner.resource, loser.resource)}"


def seniority(winner: Resource, loser: Resource) -> str:
    """What puts one object before another."""
    older = winner.seniority[:2] != loser.seniority[:2]
    return "is older" if older else "is as old and comes first by name"

"""The words of a gateway answer: what is in force, and why something else is not."""

from __future__ import annotations

from tierwall.core.answer import Reason
from tierwall.core.reference import Reference
from tierwall.core.words import listed
from tierwall.gateway.decide import Beaten, Candidate
from tierwall.gateway.detail import GatewayDetail
from tierwall.gateway.model.fields import Profile
from tierwall.resources.resource import Resource

# A list that sets nothing, so that the next level counts; and one that has won the field already.
SELECTS_NOTHING = "no entry of its conditional list is selected"
WINS_AND_SELECTS_NOTHING = "its conditional list wins and selects no entry: the field is not set"

# What the object that beats another one does, by the reason why the other does not count.
_LESS_SPECIFIC, _LOCKED_BY_OVERRIDE, _LOSES_TIE = Reason.LESS_SPECIFIC, Reason.LOCKED_BY_OVERRIDE, Reason.LOSES_TIE
BEATS = {
    _LESS_SPECIFIC: "is more specific",
    _LOCKED_BY_OVERRIDE: "has Override",
    _LOSES_TIE: "comes first at the same level",
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


def beaten(lost: Beaten, profile: Profile) -> str:
    """Why another object counts instead."""
    if lost.reason is _LESS_SPECIFIC:
        return f"{lost.winner_level} is more specific"
    if lost.reason is _LOCKED_BY_OVERRIDE:
        return f"{lost.winner.source} ({lost.winner_level}) has Override"
    if lost.reason is _LOSES_TIE:
        return f"{lost.winner.source} {seniority(lost.winner.resource, lost.candidate.resource)}"
    return f"{profile} keeps the least specific value of this field"


def seniority(winner: Resource, loser: Resource) -> str:
    """What puts one object before another."""
    older = winner.seniority[:2] != loser.seniority[:2]
    return "is older" if older else "is as old and comes first by name"

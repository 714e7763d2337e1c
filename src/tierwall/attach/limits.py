"""How many AccessPolicies a target bears: five, and one of them with action ExternalAuth (settled semantics, tool 16).

Seniority decides who stays: the older policy, then the smaller `namespace/name`. Every policy that names the target
counts, refused ones too, and listener sections are not told apart. A policy that is over a limit on one target is
rejected on all of its targets.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from tierwall.attach.index import ACCESS_POLICIES, attachments
from tierwall.attach.place import Place
from tierwall.resources.resource import Resource
from tierwall.resources.snapshot import Snapshot

MOST_POLICIES = 5
MOST_EXTERNAL_AUTH = 1


class Excess(NamedTuple):
    """A target that had its fill before this policy came: the limit, and the policies that hold its places."""

    place: Place
    limit: int
    holders: tuple[Resource, ...]
    external_auth: bool

    def __str__(self) -> str:
        what = "policies with action ExternalAuth" if self.external_auth else "policies"
        held = ", ".join(str(one.reference) for one in self.holders)
        return f"{self.place} bears at most {self.limit} {what}, and more senior are {held}"


def excesses(snapshot: Snapshot, policy: Resource) -> tuple[Excess, ...]:
    """Each limit that a policy goes beyond, by target; none if it is within all of them."""
    return snapshot.once(excesses, _excesses).get(id(policy), ())


def is_rejected(snapshot: Snapshot, policy: Resource) -> bool:
    """Whether a policy is over a limit somewhere, and so counts nowhere."""
    return bool(excesses(snapshot, policy))


def _excesses(snapshot: Snapshot) -> Mapping[int, tuple[Excess, ...]]:
    index = attachments(snapshot, ACCESS_POLICIES, admitted=False)
    seniors: dict[Place, list[Resource]] = {}
    authorizers: dict[Place, list[Resource]] = {}
    found: dict[int, tuple[Excess, ...]] = {}
    for policy in index.policies:  # the most senior first
        asks = policy.spec.get("action") == "ExternalAuth"
        over: list[Excess] = []
        for place in dict.fromkeys(target.place.whole for target in index.of(policy)):
            before = seniors.setdefault(place, [])
            if len(before) >= MOST_POLICIES:
                over.append(Excess(place, MOST_POLICIES, tuple(before[:MOST_POLICIES]), False))
            before.append(policy)
            if asks:
                before = authorizers.setdefault(place, [])
                if len(before) >= MOST_EXTERNAL_AUTH:
                    over.append(Excess(place, MOST_EXTERNAL_AUTH, tuple(before[:MOST_EXTERNAL_AUTH]), True))
                before.append(policy)
        if over:
            # INVARIANT: the snapshot keeps the policy alive, so its id stays its own
            found[id(policy)] = tuple(over)
    return found

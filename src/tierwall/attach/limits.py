"""How many AccessPolicies a target bears: five, and one of them with action ExternalAuth.

docs/semantics.md#five-policies-per-target.

Seniority decides who stays: the older policy, then the smaller `namespace/name`. Every policy that names the target
counts, refused ones too, and listener sections are not told apart. A policy that is over a limit on one target is
rejected on all of its targets.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import NamedTuple

from tierwall.attach.index import ACCESS_POLICIES, attachments, wholes
from tierwall.attach.place import Place
from tierwall.resources.once import per_snapshot
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


@per_snapshot
def excesses(snapshot: Snapshot, policy: Resource) -> tuple[Excess, ...]:
    """Each limit that a policy goes beyond, by target; none if it is within all of them."""
    return tuple(_excesses(snapshot, policy))


def is_rejected(snapshot: Snapshot, policy: Resource) -> bool:
    """Whether a policy is over a limit somewhere, and so counts nowhere."""
    return bool(excesses(snapshot, policy))


def _excesses(snapshot: Snapshot, policy: Resource) -> Iterator[Excess]:
    index = attachments(snapshot, ACCESS_POLICIES, admitted=False)
    for place in wholes(index.of(policy)):
        standing = index.on(place)  # the most senior first
        if all(one is not policy for one in standing[:MOST_POLICIES]):
            yield Excess(place, MOST_POLICIES, standing[:MOST_POLICIES], False)
        if _asks(policy):
            askers = tuple(islice(filter(_asks, standing), MOST_EXTERNAL_AUTH))
            if all(one is not policy for one in askers):
                yield Excess(place, MOST_EXTERNAL_AUTH, askers, True)


def _asks(policy: Resource) -> bool:
    return policy.spec.get("action") == "ExternalAuth"

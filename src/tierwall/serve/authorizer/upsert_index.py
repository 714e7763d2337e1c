"""Creates by update and patch, which admission cannot tell from others (KEP-5681, "Compound Authorization").

An update or patch of an object that does not exist creates it. Both the conditions of the update and those of the
create must hold. The API server asks about the create as well, and unlike a create in a collection that question has
the name of the object. Admission then sees a plain CREATE, so the question is remembered: the object of that name is
judged as an update and a patch, too.

The memory is that of one process. Where several replicas share the work (`--settle`, or canaries that another process
refuses), or too many users do this at once, such a create is denied if the conditions of update or patch differ from
its own.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from math import inf
from threading import Lock
from typing import TypeAlias

from msgspec.structs import replace

from tierwall.api.algebra.chain import ask_the_rest
from tierwall.api.algebra.request import Attributes, ConditionsMode
from tierwall.serve.authorizer.policies import PolicySet

MAX_NAMES = 10_000
# A question is asked right before admission, unless the API server keeps answers.
MIN_SECONDS = 60.0
_Key: TypeAlias = tuple[str, str, str, str]


def is_upsert(attributes: Attributes) -> bool:
    """Whether a create is an update or a patch: one in a collection has no name."""
    return attributes.verb == "create" and bool(attributes.name) and not attributes.subresource


def has_other_conditions(policies: PolicySet, attributes: Attributes) -> bool:
    """Whether update or patch depend on other conditions than the create."""
    asked = replace(attributes, conditions_mode=ConditionsMode.HUMAN_READABLE)
    create = policies.chain.authorize(asked)
    entries = ask_the_rest(create).entries if create.is_conditional else ()
    for verb in ("update", "patch"):
        decision = policies.chain.authorize(replace(asked, verb=verb))
        if decision.is_conditional and ask_the_rest(decision).entries != entries:
            return True
    return False


class UpsertIndex:
    """The objects that somebody is about to create by update or patch, each for so many seconds.

    If there are too many, the user with the most of them pays for it: everything that this user creates is taken for an
    update or patch until the last of them would have been forgotten. So nobody can crowd out others.
    """

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic, limit: int = MAX_NAMES) -> None:
        self._seconds, self._clock, self._limit = max(seconds, MIN_SECONDS), clock, limit
        # By user; the second holds those users of whom every create counts.
        self._expiry: dict[str, dict[_Key, float]] = {}
        self._crowding: dict[str, float] = {}
        self._size = 0
        self._lock = Lock()

    def remember(self, attributes: Attributes) -> bool:
        """Remember an object; False if the index is full."""
        user = attributes.user
        key = _key(attributes.group, attributes.resource, attributes.namespace, attributes.name)
        with self._lock:
            now = self._clock()
            expiry = now + self._seconds
            if self._crowding.get(user, inf) <= now:
                del self._crowding[user]
            if user not in self._crowding and key not in self._expiry.get(user, ()) and not self._make_room(user):
                return False
            if user in self._crowding:
                self._crowding[user] = expiry
                return True
            known = self._expiry.setdefault(user, {})
            self._size += key not in known
            known[key] = expiry
            return True

    def knows(self, user: str, group: str, resource: str, namespace: str, name: str) -> bool:
        """Whether somebody may create this object by update or patch."""
        with self._lock:
            known = self._expiry.get(user, {}).get(_key(group, resource, namespace, name), 0.0)
            return max(known, self._crowding.get(user, 0.0)) > self._clock()

    def _make_room(self, user: str) -> bool:
        """Make room for one more object of a user; False if no user has more than one."""
        if self._size + len(self._crowding) < self._limit:
            return True
        now = self._clock()
        live = {
            who: {key: expiry for key, expiry in known.items() if expiry > now} for who, known in self._expiry.items()
        }
        self._expiry = {who: known for who, known in live.items() if known}
        self._crowding = {who: expiry for who, expiry in self._crowding.items() if expiry > now}
        self._size = sum(map(len, self._expiry.values()))
        if self._size + len(self._crowding) < self._limit:
            return True
        crowding = max(self._expiry, key=lambda who: len(self._expiry[who]), default=user)
        known = self._expiry.get(crowding, {})
        if len(known) < 2:
            return False
        self._crowding[crowding] = max(known.values())
        del self._expiry[crowding]
        self._size -= len(known)
        return True


def _key(group: str, resource: str, namespace: str, name: str) -> _Key:
    # To some requests, a Namespace is in itself.
    return group, resource, "" if (group, resource) == ("", "namespaces") else namespace, name

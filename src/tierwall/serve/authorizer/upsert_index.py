"""Creates by update and patch, which admission cannot tell from others (KEP-5681, "Compound Authorization").

An update or patch of an object that does not exist creates it. Both the conditions of the update and those of the
create must hold. The API server asks about the create as well, and unlike a create in a collection that question has
the name of the object. Admission then sees a plain CREATE, so the question is remembered: the object of that name is
judged as an update and a patch, too.

The memory is that of one process. Where several replicas share the work (`--settle`), or too many names are remembered,
such a create is denied if the conditions of update or patch differ from its own.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from threading import Lock
from typing import TypeAlias

from msgspec.structs import replace

from tierwall.api.algebra.chain import ask_the_rest
from tierwall.api.algebra.request import Attributes, ConditionsMode
from tierwall.serve.authorizer.policies import PolicySet

MAX_NAMES = 10_000
# A question is asked right before admission, unless the API server keeps answers.
MIN_SECONDS = 60.0
_Key: TypeAlias = tuple[str, str, str, str, str]


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
    """The objects that somebody is about to create by update or patch, each for so many seconds."""

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic, limit: int = MAX_NAMES) -> None:
        self._seconds, self._clock, self._limit = max(seconds, MIN_SECONDS), clock, limit
        self._expiry: dict[_Key, float] = {}
        self._lock = Lock()

    def remember(self, attributes: Attributes) -> bool:
        """Remember an object; False if there is no place for it."""
        key = _key(attributes.user, attributes.group, attributes.resource, attributes.namespace, attributes.name)
        with self._lock:
            if key not in self._expiry and len(self._expiry) >= self._limit:
                now = self._clock()
                self._expiry = {known: expiry for known, expiry in self._expiry.items() if expiry > now}
                if len(self._expiry) >= self._limit:
                    return False
            self._expiry[key] = self._clock() + self._seconds
            return True

    def knows(self, user: str, group: str, resource: str, namespace: str, name: str) -> bool:
        """Whether somebody may create this object by update or patch."""
        return self._expiry.get(_key(user, group, resource, namespace, name), 0.0) > self._clock()


def _key(user: str, group: str, resource: str, namespace: str, name: str) -> _Key:
    # To some requests, a Namespace is in itself.
    return user, group, resource, "" if (group, resource) == ("", "namespaces") else namespace, name

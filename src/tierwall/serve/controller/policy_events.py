"""Find the Events that changes of statuses make, and hold back those that come too often (docs/controller.md#events).

An Event tells a change: of acceptance, of programming, or that policies conflict. What was so before is what the object
says before a write, so that a restart tells nothing again.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from tierwall.attach.status import bounded_message
from tierwall.resources.resource import Identity, list_of_maps
from tierwall.serve.controller.desired import CONDITION_PREFIX, CONTROLLER_NAME, DesiredStatus, WantedCondition

# The same reason is told again about a policy after so many seconds.
PAUSE_S = 60.0
# So many policies of a namespace may have something waiting. More at a time are not worth telling one by one.
MAX_WAITING = 10_000


class PolicyEvent(NamedTuple):
    """Something to tell about a policy. A later event about the same policy and `action` takes its place."""

    policy: Identity
    version: str
    uid: str
    action: str
    reason: str
    note: str
    is_warning: bool
    # Whether it is about something that goes on and stands in no status, and whether it may have been told before this
    # process led: then it is told only if nobody else has.
    is_standing: bool = False
    is_old: bool = False


class _Standing(NamedTuple):
    """The worst of all conditions of one type."""

    status: bool
    reason: str
    message: str


def status_events(before: Mapping[str, Any], desired: DesiredStatus) -> Iterator[PolicyEvent]:
    """Yield what a written status changed. `before` is the status of the object before."""
    if desired.ancestors is None:
        every = list_of_maps(before.get("conditions"))
        ours = [condition for condition in every if str(condition.get("type")).startswith(CONDITION_PREFIX)]
    else:
        entries = list_of_maps(before.get("ancestors"))
        known = (entry for entry in entries if entry.get("controllerName") == CONTROLLER_NAME)
        ours = [condition for entry in known for condition in list_of_maps(entry.get("conditions"))]
    conditions = (
        WantedCondition(*(str(condition.get(key, "")) for key in ("type", "status", "reason", "message")))
        for condition in ours
    )
    lists = [entry.conditions for entry in desired.ancestors or ()] or [desired.conditions or ()]
    wanted = (condition for listed in lists for condition in listed)
    yield from condition_events(desired.identity, desired.version, desired.uid, conditions, wanted)


def condition_events(
    policy: Identity, version: str, uid: str, before: Iterable[WantedCondition], after: Iterable[WantedCondition]
) -> Iterator[PolicyEvent]:
    """Yield what changed between two sets of conditions of a policy."""
    then, now = _standings(before), _standings(after)
    accepted = now.get("Accepted")
    if accepted is not None and _differs(then.get("Accepted"), accepted):
        reason = "Accepted" if accepted.status else "Rejected"
        note = accepted.message if accepted.status else f"{accepted.reason}: {accepted.message}"
        yield PolicyEvent(policy, version, uid, "Accept", reason, note, not accepted.status)
    old, programmed = then.get("Programmed"), now.get("Programmed")
    if programmed is not None and _differs(old, programmed):
        # That a new policy waits for its engines, or that one goes on waiting, is not worth telling.
        waits = programmed.reason == "Reconciling"
        if programmed.status or not waits or (old is not None and old.status):
            reason = "Programmed" if programmed.status else "NotProgrammed"
            note = programmed.message if programmed.status else f"{programmed.reason}: {programmed.message}"
            yield PolicyEvent(policy, version, uid, "Program", reason, note, not programmed.status and not waits)
    old, conflicted = then.get("Conflicted"), now.get("Conflicted")
    if conflicted is not None and conflicted.status and (old is None or not old.status):
        yield PolicyEvent(policy, version, uid, "Compare", "Conflicted", conflicted.message, True)


def _standings(conditions: Iterable[WantedCondition]) -> dict[str, _Standing]:
    standings: dict[str, _Standing] = {}
    for condition in conditions:
        name = condition.type.removeprefix(CONDITION_PREFIX)
        standing = _Standing(condition.status == "True", condition.reason, condition.message)
        known = standings.get(name)
        if known is None or (known.status and not standing.status):
            standings[name] = standing
    return standings


def _differs(before: _Standing | None, after: _Standing) -> bool:
    """Whether a standing changed so far that it is worth telling: in status, or in the reason why it is bad."""
    return before is None or before.status != after.status or (not after.status and before.reason != after.reason)


def event_note(text: str) -> str:
    """Return a note that an API server takes: at most 1,024 bytes."""
    return bounded_message(text.split("\n"))


class EventLimit:
    """Lets the same reason be told about a policy once a minute. What waits is told later if it still holds.

    Namespaces take turns, so that a thousand mistakes in one of them hold up nothing that is told about the others.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        # By namespace, the one whose turn is next first; then by policy and action, in the order in which they came.
        self._waiting: OrderedDict[str, dict[tuple[str, str], PolicyEvent]] = OrderedDict()
        # When each reason was told about a policy last, and what was told last by each action.
        self._told_at: dict[tuple[str, str], float] = {}
        self._last: dict[tuple[str, str], str] = {}
        self._forgot_at = clock()

    def add(self, event: PolicyEvent) -> None:
        """Let an event wait for its turn, in place of an earlier one about the same."""
        key, namespace = (event.uid, event.action), event.policy[2]
        line = self._waiting.setdefault(namespace, {})
        line.pop(key, None)
        is_again = self._last.get(key) == event.reason and self._wait(event) > 0
        if not is_again and len(line) < MAX_WAITING:
            line[key] = event
        if not line:
            del self._waiting[namespace]

    def take(self) -> PolicyEvent | None:
        """Take the next event that may be told now, if there is one."""
        self._forget()
        lines = (line.values() for line in self._waiting.values())
        event = next((event for line in lines for event in line if self._wait(event) <= 0), None)
        if event is None:
            return None
        key, namespace = (event.uid, event.action), event.policy[2]
        del self._waiting[namespace][key]
        self._waiting.move_to_end(namespace)
        if not self._waiting[namespace]:
            del self._waiting[namespace]
        self._told_at[event.uid, event.reason] = self._clock()
        self._last[key] = event.reason
        return event

    def _wait(self, event: PolicyEvent) -> float:
        """Return in how many seconds an event may be told."""
        return self._told_at.get((event.uid, event.reason), -math.inf) + PAUSE_S - self._clock()

    @property
    def next_s(self) -> float | None:
        """In how many seconds the next event is due; None if none waits."""
        waits = (self._wait(event) for line in self._waiting.values() for event in line.values())
        return max(0.0, min(waits)) if self._waiting else None

    def _forget(self) -> None:
        """Forget what was told more than a minute ago, now and then."""
        now = self._clock()
        if now - self._forgot_at < PAUSE_S:
            return
        self._forgot_at = now
        self._told_at = {key: at for key, at in self._told_at.items() if now - at < PAUSE_S}
        self._last = {key: reason for key, reason in self._last.items() if (key[0], reason) in self._told_at}

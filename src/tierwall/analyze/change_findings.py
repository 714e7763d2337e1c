"""The findings that one change of a policy brings: those with it that are not there without it.

A finding counts if it is about the changed policy or names it. The checks are those of `tierwall check`, each asked
about one policy: a cluster of thousands is not analyzed for one of them.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import cache
from math import inf
from typing import Any, TypeAlias

from msgspec import Struct

from tierwall.analyze.attached_change import KINDS as ATTACHED_KINDS
from tierwall.analyze.attached_change import AttachedIndex, attached_findings
from tierwall.analyze.network_cells import TooManyCells
from tierwall.analyze.network_change import SHADOWED, NetworkChangeCheck
from tierwall.analyze.network_index import NetworkIndex
from tierwall.analyze.network_opened import opened_by_change
from tierwall.core.diagnostics import Diagnostic
from tierwall.logic.solver import solver
from tierwall.network.model.policies import KINDS as NETWORK_KINDS
from tierwall.resources.resource import Resource
from tierwall.resources.snapshot import Snapshot

# When the look at the policy after the change ends, that at the policy before it, and the search for opened pods, as
# shares of the time that the first one has; and when proofs about the rules of both versions end.
LOOK, LOOK_BEFORE, OPENED = 1.0, 1.4, 1.6
PROOFS, PROOFS_BEFORE = 1.2, 1.6
# The most values in the spec of a policy, lists and maps among them, that are read while somebody waits.
MAX_VALUES = 3_000
# The kinds that are judged.
KINDS = frozenset({*NETWORK_KINDS, *ATTACHED_KINDS})
NOT_COMPARED = "TW215"
# What a change may bring, the worst first (docs/warnings.md#what-is-said).
WORST_FIRST = (
    *("TW112", "TW208", "TW401", "TW402", "TW307", "TW409"),
    *("TW201", "TW304"),
    *("TW202", "TW212", "TW203"),
    *("TW204", "TW301"),
    *("TW217", "TW305"),
    *("TW205", "TW213", "TW302", "TW404", "TW408"),
    *("TW207", "TW303", "TW306", "TW403", "TW405", "TW406", "TW407", "TW411", "TW412", "TW214"),
    *("TW216", NOT_COMPARED),
)
# What a finding says: its code, the object that it is about, and where in it, or another object.
Fact: TypeAlias = tuple[str, str, str]
# These findings are about two policies, in either order.
_OF_PAIRS = ("TW201", "TW216")
# These findings are about a policy and each of those that affect it.
_BY_OTHERS = ("TW202", "TW203", "TW212")


class PolicyChange(Struct, frozen=True):
    """One change: the policy before it, None if it is new, and after it, None if it is deleted."""

    old: Resource | None
    new: Resource | None

    @property
    def policy(self) -> Resource:
        """The changed policy: as it is after the change, or as it was."""
        changed = self.new if self.new is not None else self.old
        assert changed is not None
        return changed


class ChangeFindings(Struct, frozen=True):
    """The findings that a change brings, in no particular order.

    `counted` are further NetworkPolicies that the changed policy overrides; if it is not complete, there may be more.
    """

    findings: tuple[Diagnostic, ...]
    counted: frozenset[str] = frozenset()
    is_complete: bool = True


class ChangeIndex:
    """What is known about a followed cluster, kept up to date, to judge one change at a time. For one thread."""

    def __init__(self) -> None:
        _load_ahead()
        self._network = NetworkIndex()
        self._attached = AttachedIndex()

    def update(self, snapshot: Snapshot) -> None:
        """Take over what has changed in the cluster."""
        self._network.update(snapshot)
        self._attached.update(snapshot)

    def findings(self, change: PolicyChange, seconds: float = inf) -> ChangeFindings:
        """Return what a change brings. Looks at other policies take about so many seconds of this thread's time."""
        policy = change.policy
        if any(version is not None and not _is_short(version) for version in (change.old, change.new)):
            message = f"{policy.reference} was not checked: it has more than {MAX_VALUES:,} values"
            return ChangeFindings((policy.diagnostic(NOT_COMPARED, message),))
        if (policy.group, policy.kind) in NETWORK_KINDS:
            return self._network_findings(change, seconds)
        if (policy.group, policy.kind) in ATTACHED_KINDS:
            return self._attached_findings(change)
        return ChangeFindings(())

    def _attached_findings(self, change: PolicyChange) -> ChangeFindings:
        if change.new is None:
            return ChangeFindings(())
        about = str(change.new.reference)
        after, is_compared = attached_findings(self._attached, change.new)
        before = attached_findings(self._attached, change.old)[0] if change.old is not None and after else []
        known = {fact for finding in before for fact in facts(finding, about)}
        brought = [finding for finding in after if finding.code in WORST_FIRST and not facts(finding, about) <= known]
        if not is_compared:
            message = f"{about} was not compared with other policies: there are too many around its targets"
            brought.append(change.new.diagnostic(NOT_COMPARED, message))
        return ChangeFindings(tuple(brought))

    def _network_findings(self, change: PolicyChange, seconds: float) -> ChangeFindings:
        about = str(change.policy.reference)
        of_new: list[Diagnostic] = []
        known: set[Fact] = set()
        overridden: set[str] = set()
        is_complete = True
        uncompared: list[Diagnostic] = []
        # Of the time of this thread, each part takes what the parts before it have left.
        begun = time.thread_time()
        if change.new is not None:
            after = NetworkChangeCheck(self._network, change.new, begun + LOOK * seconds, begun + PROOFS * seconds)
            of_new = list(after.findings())
            overridden = set(map(str, after.counted))
            is_complete = after.is_complete
            if not (after.is_compared and after.is_proved):
                message = f"{about} was not compared with all other policies: too many rules on too many ports"
                uncompared = [change.new.diagnostic(NOT_COMPARED, message)]
        if change.old is not None and of_new:
            among = {name for finding in of_new for name in (str(finding.reference), *finding.related_objects)}
            before = NetworkChangeCheck(
                self._network,
                change.old,
                begun + LOOK_BEFORE * seconds,
                begun + PROOFS_BEFORE * seconds,
                among | overridden,
                {finding.code for finding in of_new},
            )
            known = {fact for finding in before.findings() for fact in facts(finding, about)}
            if not before.is_proved:
                # Nobody knows which of these are new.
                of_new = [finding for finding in of_new if finding.code != SHADOWED]
            # What was overridden before is not all known if there was no time to count it.
            overridden = overridden - set(map(str, before.counted)) if before.is_complete else set()
        brought = [finding for finding in of_new if not facts(finding, about) <= known]
        brought += uncompared
        try:
            brought += opened_by_change(self._network, change.old, change.new, begun + OPENED * seconds)
        except TooManyCells:
            message = f"whether {about} opens pods to the outside was not checked: too many policies select them"
            brought.append(change.policy.diagnostic(NOT_COMPARED, message))
        return ChangeFindings(tuple(brought), frozenset(overridden), is_complete)


def _is_short(policy: Resource) -> bool:
    """Whether a policy is short enough to be read while somebody waits."""
    values = 0
    waiting: list[Any] = [policy.spec]
    while waiting and values <= MAX_VALUES:
        value = waiting.pop()
        if isinstance(value, dict):
            waiting += value.values()
        elif isinstance(value, list):
            waiting += value
        values += 1
    return values <= MAX_VALUES


@cache
def _load_ahead() -> None:
    """Load what proves that rules never count and what compiles expressions, so that no change waits for it."""
    import tierwall.analyze.network_shadowed
    import tierwall.cel.evaluate.generate_calls  # noqa: F401 - few of those who import this module judge a change

    solver()


def facts(finding: Diagnostic, about: str) -> frozenset[Fact]:
    """Return what a finding says about a policy; nothing if it has nothing to do with it."""
    return frozenset(_facts(finding, about))


def _facts(finding: Diagnostic, about: str) -> Iterator[Fact]:
    code, subject = finding.code, str(finding.reference)
    if code in _OF_PAIRS:
        for other in finding.related_objects:
            if about in (subject, other):
                yield code, *sorted((subject, other))  # type: ignore[misc]
    elif code in _BY_OTHERS:
        for other in finding.related_objects:
            if about in (subject, other):
                yield code, subject, other
    elif subject == about:
        for place in finding.places or ("",):
            yield code, subject, place

"""Test which changes of statuses make Events, and that the same is told at most once a minute."""

from __future__ import annotations

from itertools import pairwise, product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tierwall.serve.controller.desired import (
    CONTROLLER_NAME,
    DesiredStatus,
    WantedAncestor,
    WantedCondition,
    WantedRef,
)
from tierwall.serve.controller.policy_events import (
    PAUSE_S,
    EventLimit,
    PolicyEvent,
    condition_events,
    event_note,
    status_events,
)

POLICY = ("agentic.networking.x-k8s.io", "XAccessPolicy", "shop", "guard")
ADMIN = ("policy.networking.k8s.io", "AdminNetworkPolicy", "", "guard")
Changes = list[tuple[str, bool]]


def accepted(status: bool = True, reason: str = "") -> WantedCondition:
    return WantedCondition("Accepted", str(status), reason or ("Accepted" if status else "Invalid"), "words")


def programmed(status: bool, reason: str = "Reconciling") -> WantedCondition:
    return WantedCondition("Programmed", str(status), "Programmed" if status else reason, "words")


def conflicted(status: bool) -> WantedCondition:
    return WantedCondition("tierwall.io/Conflicted", str(status), "SamePriority" if status else "NoConflicts", "words")


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ([], [accepted()], [("Accepted", False)]),
        ([], [accepted(False)], [("Rejected", True)]),
        ([accepted()], [accepted()], []),
        ([accepted()], [accepted(False)], [("Rejected", True)]),
        ([accepted(False)], [accepted()], [("Accepted", False)]),
        ([accepted(False, "Invalid")], [accepted(False, "TargetNotFound")], [("Rejected", True)]),
        ([accepted()], [accepted(), accepted(False)], [("Rejected", True)]),
        ([accepted(False), accepted()], [accepted(False)], []),
        ([accepted()], [], []),
        ([], [accepted(), programmed(False)], [("Accepted", False)]),
        ([accepted(), programmed(False)], [accepted(), programmed(True)], [("Programmed", False)]),
        ([accepted(), programmed(True)], [accepted(), programmed(False)], [("NotProgrammed", False)]),
        (
            [accepted(), programmed(False)],
            [accepted(), programmed(False, "NodesMissing")],
            [("NotProgrammed", True)],
        ),
        ([accepted(), programmed(False, "NodesMissing")], [accepted(), programmed(False)], []),
        ([accepted(), programmed(True)], [accepted(False)], [("Rejected", True)]),
        ([conflicted(False)], [conflicted(True)], [("Conflicted", True)]),
        ([conflicted(True)], [conflicted(True)], []),
        ([conflicted(True)], [conflicted(False)], []),
    ],
)
def test_a_change_makes_an_event(
    before: list[WantedCondition], after: list[WantedCondition], expected: Changes
) -> None:
    events = condition_events(POLICY, "v1alpha1", "u", before, after)
    assert [(event.reason, event.is_warning) for event in events] == expected


def document(condition: WantedCondition) -> dict[str, Any]:
    return {key: getattr(condition, key) for key in ("type", "status", "reason", "message")}


def test_only_our_own_entries_count_as_told_before() -> None:
    ancestor = WantedAncestor(WantedRef("gateway.networking.k8s.io", "Gateway", "shop", "gw"), (accepted(),))
    desired = DesiredStatus(identity=POLICY, version="v1alpha1", uid="u", generation=2, ancestors=(ancestor,))
    for controller, reasons in ((CONTROLLER_NAME, []), ("example.com/other", ["Accepted"])):
        before = {"ancestors": [{"controllerName": controller, "conditions": [document(accepted())]}]}
        assert [event.reason for event in status_events(before, desired)] == reasons


def test_conditions_with_our_prefix_count_as_told_before() -> None:
    conditions = (WantedCondition("tierwall.io/Accepted", "True", "Accepted", "words"), conflicted(True))
    desired = DesiredStatus(identity=ADMIN, version="v1alpha1", uid="u", generation=2, conditions=conditions)
    before = {"conditions": [document(conditions[0]), document(conflicted(False))]}
    assert [event.reason for event in status_events(before, desired)] == ["Conflicted"]
    assert list(status_events({"conditions": list(map(document, conditions))}, desired)) == []
    foreign = {"conditions": [document(accepted()), document(conflicted(True))]}
    assert [event.reason for event in status_events(foreign, desired)] == ["Accepted"]


def test_a_note_is_as_long_as_an_api_server_takes() -> None:
    assert event_note("two\nlines") == "two\nlines"
    assert len(event_note("é" * 2000).encode()) <= 1024
    assert len(event_note("line\n" * 2000).encode()) <= 1024


REASONS = {"Accepted": "Accept", "Rejected": "Accept", "Programmed": "Program", "NotProgrammed": "Program"}
CHANGES = st.tuples(st.integers(0, 90), st.sampled_from("ab"), st.sampled_from(sorted(REASONS)))


@given(st.lists(CHANGES, max_size=30))
def test_the_same_is_told_once_a_minute_and_the_last_change_is_told_in_the_end(
    changes: list[tuple[int, str, str]],
) -> None:
    now = 0.0
    limit = EventLimit(lambda: now)
    told: list[tuple[float, str, str]] = []

    def tell() -> None:
        while (event := limit.take()) is not None:
            told.append((now, event.uid, event.reason))

    for seconds, uid, reason in changes:
        for _ in range(seconds):
            now += 1
            tell()
        limit.add(PolicyEvent(POLICY, "v1", uid, REASONS[reason], reason, "", False))
        tell()
    while (pause := limit.next_s) is not None:
        assert pause <= PAUSE_S
        now += pause
        tell()
    for uid, reason in product("ab", REASONS):
        times = [at for at, *what in told if what == [uid, reason]]
        assert all(later - earlier >= PAUSE_S for earlier, later in pairwise(times))
    for action in ("Accept", "Program"):
        for uid in "ab":
            wanted = [reason for _, changed, reason in changes if changed == uid and REASONS[reason] == action]
            said = [reason for _, about, reason in told if about == uid and REASONS[reason] == action]
            assert said[-1:] == wanted[-1:]


def event(namespace: str, number: int = 0, reason: str = "Rejected") -> PolicyEvent:
    policy = (*POLICY[:2], namespace, f"p{number}")
    return PolicyEvent(policy, "v1", f"{namespace}-{number}", REASONS[reason], reason, "", True)


def test_a_crowd_of_one_namespace_holds_up_no_other() -> None:
    limit = EventLimit(lambda: 0.0)
    for number in range(20_000):
        limit.add(event("crowd", number))
    limit.add(event("crowd", 3, "Accepted"))
    limit.add(event("shop"))
    taken = [limit.take() for _ in range(4)]
    assert [each.policy[2] for each in taken if each is not None] == ["crowd", "shop", "crowd", "crowd"]


def test_a_minute_begins_when_the_event_is_told() -> None:
    """However many were told before it."""
    now = 0.0
    limit = EventLimit(lambda: now)
    for number in range(3):
        limit.add(event("shop", number))
    for _ in range(3):
        assert limit.take() is not None
        now += 100
    told = now - 100
    for reason in ("Accepted", "Rejected"):
        limit.add(event("shop", 2, reason))
    # Before the last one was told, the first two may be told again; the last one may not.
    now = told + PAUSE_S - 1
    limit.add(event("shop", 0))
    assert limit.take() == event("shop", 0)
    assert limit.take() is None

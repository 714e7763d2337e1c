"""The warnings of one change: what is said to whom, in which form, and what happens if it cannot be said."""

from __future__ import annotations

import asyncio
import contextlib
import re
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from tests.worlds.network_objects import admin, namespace, network_policy, pod, rule
from tests.worlds.network_snapshots import resource
from tierwall.analyze.change_findings import WORST_FIRST
from tierwall.core.catalogue import CATALOGUE
from tierwall.resources.resource import Resource
from tierwall.resources.snapshot import Snapshot
from tierwall.serve.authorizer.bridge import AdmissionRequest, GroupVersionResource, UserInfo
from tierwall.serve.controller import turn_runner
from tierwall.serve.controller.state import ControllerState
from tierwall.serve.controller.turn_runner import LOOK_S, TurnRunner
from tierwall.serve.controller.warning_index import WarningIndex, WarningResult
from tierwall.serve.controller.warning_lines import MAX_LENGTH, WarningLine, one_line, shown
from tierwall.serve.controller.warnings import WarningSettings, WarningsPart, tenant

Object = dict[str, Any]
RBAC = "rbac.authorization.k8s.io"
SHOP = [namespace("shop"), pod("shop", "web", app="web"), pod("shop", "db", app="db")]
FROM_DB = {"from": [{"podSelector": {"matchLabels": {"app": "db"}}}]}
GUARD = admin("guard", rule("Deny", namespaces={}))
MASTER = UserInfo("root", groups=["system:masters"])
DORA = UserInfo("dora", groups=["developers"])


def grants(name: str, namespace: str, *rules: tuple[str, str, str]) -> list[Object]:
    """A role with rules (group, resource, verb) for the group `developers`, in a namespace or everywhere."""
    prefix, where = ("", {"namespace": namespace}) if namespace else ("Cluster", {})
    listed = [{"apiGroups": [group], "resources": [kind], "verbs": [verb]} for group, kind, verb in rules]
    role = {"apiVersion": f"{RBAC}/v1", "kind": f"{prefix}Role", "metadata": {"name": name, **where}, "rules": listed}
    binding = {
        "apiVersion": f"{RBAC}/v1",
        "kind": f"{prefix}RoleBinding",
        "metadata": {"name": name, **where},
        "roleRef": {"apiGroup": RBAC, "kind": f"{prefix}Role", "name": name},
        "subjects": [{"kind": "Group", "name": "developers", "apiGroup": RBAC}],
    }
    return [role, binding]


def live(value: Object) -> Resource:
    made = resource(value)
    home = value["metadata"].get("namespace", "") if made.group == RBAC else made.namespace
    return Resource(made.group, made.version, made.kind, home, made.name, value, is_live=made.group == RBAC)


def state(objects: list[Object], revision: int = 1) -> ControllerState:
    snapshot = Snapshot.of(map(live, objects))
    judged = Snapshot.of(made for made in snapshot if made.group != RBAC)
    return ControllerState(snapshot, judged, revision)


def request(new: Object | None, old: Object | None = None, user: UserInfo = MASTER) -> AdmissionRequest:
    metadata = (new or old or {}).get("metadata", {})
    return AdmissionRequest(
        uid="u",
        operation="CREATE",
        resource=GroupVersionResource("", "v1", "policies"),
        user_info=user,
        name=metadata.get("name", ""),
        namespace=metadata.get("namespace", ""),
        object=new,
        old_object=old,
    )


def judged(
    objects: list[Object], new: Object, old: Object | None = None, user: UserInfo = MASTER, **settings: Any
) -> WarningResult:
    """Return what a user is told about a change in a cluster."""
    index = WarningIndex(**settings)
    index.update(state([*objects, *([old] if old else [])]))
    return index.judge(request(new, old, user), 60)


def said(objects: list[Object], new: Object, old: Object | None = None, user: UserInfo = MASTER, **more: Any) -> str:
    return "\n".join(judged(objects, new, old, user, **more).warnings)


THEIRS = network_policy("theirs", FROM_DB)


def test_an_administrator_is_told_names_and_an_example() -> None:
    assert said([*SHOP, GUARD], THEIRS) == (
        "TW202: AdminNetworkPolicy/guard denies everything that ingress[0] of NetworkPolicy/shop/theirs allows, "
        "for example any pod with app=db in shop to shop/db on TCP 1"
    )
    assert said([*SHOP, THEIRS], GUARD) == (
        "TW202: AdminNetworkPolicy/guard overrides NetworkPolicy/shop/theirs, "
        "for example on any pod with app=db in shop to shop/db on TCP 1"
    )


HIDDEN = "TW203: an admin policy that you may not read overrides NetworkPolicy/shop/theirs"
READS_ADMIN = ("policy.networking.k8s.io", "adminnetworkpolicies", "get")
LISTS_PODS = ("", "pods", "list")


@pytest.mark.parametrize(
    ("rights", "words"),
    [
        ([], HIDDEN),
        (grants("pods", "", LISTS_PODS), HIDDEN),
        (grants("here", "shop", READS_ADMIN), HIDDEN),
        (
            grants("admin", "", READS_ADMIN),
            "TW202: AdminNetworkPolicy/guard denies everything that ingress[0] of NetworkPolicy/shop/theirs allows",
        ),
    ],
)
def test_others_learn_of_an_admin_policy_what_they_may_read(rights: list[Object], words: str) -> None:
    assert said([*SHOP, GUARD, *rights], THEIRS, user=DORA) == words


def test_admin_policies_can_be_revealed_but_not_pods() -> None:
    assert said([*SHOP, GUARD], THEIRS, user=DORA, reveals_admin_policies=True) == (
        "TW202: AdminNetworkPolicy/guard denies everything that ingress[0] of NetworkPolicy/shop/theirs allows"
    )


def test_the_name_and_the_number_of_overridden_policies_are_told_as_rights_go() -> None:
    more = [network_policy(f"p{number}", FROM_DB) for number in range(3)]
    assert said([*SHOP, *more], GUARD, user=DORA) == "TW202: AdminNetworkPolicy/guard overrides 3 NetworkPolicies"
    rights = grants("netpol", "shop", ("networking.k8s.io", "networkpolicies", "get"))
    assert said([*SHOP, *more, *rights], GUARD, user=DORA) == (
        "TW202: AdminNetworkPolicy/guard overrides 3 NetworkPolicies, for example NetworkPolicy/shop/p0"
    )


def test_policies_of_one_priority_are_named_to_those_who_may_read_them() -> None:
    rival = admin("rival", rule("Allow", namespaces={}))
    words = said([*SHOP, GUARD], rival)
    assert words.startswith(
        "TW201: AdminNetworkPolicy/rival has the same priority as AdminNetworkPolicy/guard, and they disagree on "
    )
    assert said([*SHOP, GUARD], rival, user=DORA).splitlines()[0] == (
        "TW201: AdminNetworkPolicy/rival has the same priority as another policy, and they disagree on some connections"
    )


ELSEWHERE = {"from": [{"namespaceSelector": {"matchLabels": {"team": "secret"}}}]}
NOBODY = network_policy("nobody", podSelector={"matchLabels": {"app": "wbe"}})


def test_what_a_selector_selects_is_told_to_those_who_may_list_it() -> None:
    peer = network_policy("peer", ELSEWHERE)
    here, everywhere = grants("here", "shop", LISTS_PODS), grants("all", "", LISTS_PODS)
    assert said(SHOP, NOBODY, user=DORA) == ""
    assert said([*SHOP, *here], NOBODY, user=DORA) == "TW204: NetworkPolicy/shop/nobody selects no pod that exists"
    assert said([*SHOP, *here], peer, user=DORA) == ""
    assert said([*SHOP, *everywhere], peer, user=DORA).startswith("TW205: from[0] of NetworkPolicy/shop/peer")


def test_opened_pods_are_named_to_those_who_may_list_them() -> None:
    closed = network_policy("p")
    opened = network_policy("p", {})
    assert said(SHOP, opened, closed, DORA) == "TW217: NetworkPolicy/shop/p opens pods to the outside"
    assert said(SHOP, opened, closed) == (
        "TW217: NetworkPolicy/shop/p opens shop/web and shop/db to addresses outside the cluster on all ports"
    )


def test_what_was_there_before_is_not_said_again() -> None:
    relabelled = {**THEIRS, "metadata": {**THEIRS["metadata"], "labels": {"a": "b"}}}
    assert said([*SHOP, GUARD], relabelled, THEIRS) == ""


def test_an_annotation_accepts_a_finding_but_not_against_a_refusal() -> None:
    annotations = {"tierwall.io/ignore": "TW204 not deployed yet"}
    accepted = {**NOBODY, "metadata": {**NOBODY["metadata"], "annotations": annotations}}
    assert judged(SHOP, accepted) == WarningResult()
    refused = judged(SHOP, accepted, refused_codes=frozenset({"TW204"}))
    assert refused.refusal == "TW204: NetworkPolicy/shop/nobody selects no pod that exists"


def test_a_refusal_tells_nothing_that_a_warning_does_not() -> None:
    assert (
        judged(SHOP, NOBODY, user=DORA, refused_codes=frozenset({"TW204"})).refusal == "TW204: subject selects nothing"
    )
    hidden = judged([*SHOP, GUARD], THEIRS, user=DORA, refused_codes=frozenset({"TW202"})).refusal
    assert hidden == HIDDEN.replace("TW203", "TW202")
    assert judged([*SHOP, GUARD], THEIRS, refused_codes=frozenset({"TW201"})).refusal == ""


def test_targets_that_do_not_exist_are_told() -> None:
    target = {"group": "gateway.networking.k8s.io", "kind": "Gateway", "name": "edge"}
    policy = {
        "apiVersion": "agentgateway.dev/v1alpha1",
        "kind": "AgentgatewayPolicy",
        "metadata": {"name": "p", "namespace": "shop"},
        "spec": {"targetRefs": [target], "traffic": {"timeouts": {"request": "1s"}}},
    }
    assert said(SHOP, policy, user=DORA) == (
        "TW301: AgentgatewayPolicy/shop/p attaches nowhere: Gateway shop/edge not found"
    )


@given(st.text())
def test_a_line_has_no_control_characters_and_is_short(text: str) -> None:
    line = one_line(f"TW201: {text}")
    assert line.startswith("TW201: ")
    assert len(line) <= MAX_LENGTH
    assert not re.search(r"[\x00-\x1f\x7f-\x9f]", line)


def test_five_lines_are_shown_and_the_others_counted() -> None:
    lines = [WarningLine("TW204", f"line {number}") for number in range(7)]
    assert shown(lines)[4:] == ["TW204: line 4", "and 2 more: tierwall check --cluster FILE"]
    assert len(shown([*lines[:5], WarningLine("TW204", "hidden", False)])) == 5


def test_every_code_is_in_the_catalogue_once() -> None:
    assert set(WORST_FIRST) <= CATALOGUE.keys()
    assert len(set(WORST_FIRST)) == len(WORST_FIRST)


class FakeContext:
    """As much of a context as the part needs without a server."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.reports: list[str] = []

    def send_report(self, report: Any) -> None:
        self.reports.append(report.summary if hasattr(report, "summary") else str(report))

    def unchecked(self) -> float | None:
        return self.registry.get_sample_value("tierwall_warnings_unchecked_total")


def answers(index: Any, objects: list[Object] | None) -> tuple[dict[str, Any], FakeContext]:
    """Return the answer of a part whose index is replaced, and its context."""
    context = FakeContext()

    async def run() -> dict[str, Any]:
        part = WarningsPart(context, WarningSettings(webhook=("127.0.0.1", 0)))  # type: ignore[arg-type]
        if objects is not None:
            part.take(state(objects))
            while not part._index.is_read:
                await asyncio.sleep(0.001)
        if index is not None:
            part._index = index
        try:
            return await part.answer(request(NOBODY))
        finally:
            await part.end()

    return asyncio.run(run()), context


def test_before_the_cluster_is_read_nothing_is_checked_and_nothing_refused() -> None:
    answer, context = answers(None, None)
    assert answer["response"] == {
        "uid": "u",
        "allowed": True,
        "warnings": ["tierwall: not checked yet: the cluster is still being read"],
    }
    assert context.unchecked() == 1


def test_a_checked_change_is_answered() -> None:
    answer, context = answers(None, SHOP)
    assert answer["response"]["warnings"] == ["TW204: NetworkPolicy/shop/nobody selects no pod that exists"]
    assert context.unchecked() == 0
    assert context.registry.get_sample_value("tierwall_warnings_duration_seconds_count") == 1


class BadIndex:
    """An index that takes its time, or fails."""

    is_read = True

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def judge(self, request: AdmissionRequest, seconds: float) -> WarningResult:
        if not self._seconds:
            raise RecursionError("too deep")
        time.sleep(self._seconds)
        return WarningResult((), "refused too late")


@pytest.mark.parametrize(("seconds", "words"), [(1.5, "not checked in time"), (0, "not checked because of an error")])
def test_a_slow_or_failed_check_allows_the_change(seconds: float, words: str) -> None:
    answer, context = answers(BadIndex(seconds), None)
    assert answer["response"]["allowed"] is True
    (warning,) = answer["response"]["warnings"]
    assert words in warning
    assert context.unchecked() == 1
    assert len(context.reports) == (0 if seconds else 1)


class BusyIndex:
    """An index that never comes to an end with what one user sends, and tries to swallow whatever stops it."""

    is_read = True

    def __init__(self) -> None:
        self.ended = 0

    def judge(self, request: AdmissionRequest, seconds: float) -> WarningResult:
        try:
            while request.user_info is not MASTER:
                with contextlib.suppress(Exception):
                    sum(range(1000))
        finally:
            self.ended += request.user_info is not MASTER
        return WarningResult(("judged",))


def test_a_change_that_keeps_the_thread_busy_is_ended_and_delays_others_for_a_turn_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(turn_runner, "TURN_S", 0.1)
    context, index = FakeContext(), BusyIndex()

    async def ask(part: WarningsPart, user: UserInfo) -> list[str]:
        answer = await part.answer(request(NOBODY, user=user))
        return list(answer["response"]["warnings"])

    async def run() -> tuple[list[list[str]], list[str]]:
        part = WarningsPart(context, WarningSettings(webhook=("127.0.0.1", 0)))  # type: ignore[arg-type]
        part._index = index  # type: ignore[assignment]
        hostile = [asyncio.ensure_future(ask(part, DORA)) for _ in range(20)]
        await asyncio.sleep(0.05)
        other = await ask(part, MASTER)
        answers = await asyncio.gather(*hostile)
        while part._turns._ending:
            await asyncio.sleep(0.01)
        # All is well afterwards.
        assert await ask(part, MASTER) == ["judged"]
        await part.end()
        return answers, other

    answers, lines = asyncio.run(run())
    assert lines == ["judged"]
    assert all("not checked in time" in line for (line,) in answers)
    assert context.unchecked() == 20
    # Whoever had no turn was never begun.
    assert 1 <= index.ended < 20


def test_an_update_waits_for_one_change_at_most_and_is_not_ended() -> None:
    async def run() -> list[str]:
        turns, done = TurnRunner(), list[str]()

        def update() -> None:
            begun = time.thread_time()
            while time.thread_time() < begun + 2 * LOOK_S:
                pass
            done.append("update")

        first = asyncio.ensure_future(turns.run("a", lambda: done.append("a"), time.monotonic() + 60))
        second = asyncio.ensure_future(turns.run("b", lambda: done.append("b"), time.monotonic() + 60))
        await asyncio.sleep(0)
        await asyncio.gather(first, second, turns.update(update))
        return done

    assert asyncio.run(run()) == ["a", "update", "b"]


def test_service_accounts_of_a_namespace_share_their_turns() -> None:
    accounts = [UserInfo(f"system:serviceaccount:shop:{name}") for name in ("a", "b")]
    assert tenant(accounts[0]) == tenant(accounts[1]) != tenant(UserInfo("system:serviceaccount:other:a"))
    assert tenant(UserInfo("shop")) != tenant(accounts[0])

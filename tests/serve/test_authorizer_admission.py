"""Conditions grant only while admission is proved live: by the canary, and by a configuration that is as written."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.labs.admitting_server import USER, AdmittingServer, admitting
from tests.labs.authorizer_server import CLAIMS, KEY, Clock, Served, access, admission
from tierwall.cluster.connection import Connection
from tierwall.serve.authorizer.admission_state import NOT_ASKED, AdmissionState
from tierwall.serve.authorizer.admission_watcher import AdmissionTiming, AdmissionWatcher
from tierwall.serve.authorizer.bridge import AdmissionRequest, GroupVersionResource
from tierwall.serve.authorizer.canary import NAME, REPLICA_SECONDS, CanarySealer
from tierwall.serve.authorizer.webhook_check import check_webhook, written_webhook

GUARDRAIL = ("guardrail", "Deny", 'request.verb == "create" && object.locked')


def written(**changes: Any) -> dict[str, Any]:
    """Return the configuration that `install` writes, as an API server shows it, with changes to its webhook."""
    configuration = copy.deepcopy(dict(written_webhook()))
    configuration["webhooks"][0] |= {"namespaceSelector": {}, "objectSelector": {}, **changes}
    return configuration


class Proof:
    """An authorizer, its API server, and a watcher between them whose clock the test sets."""

    def __init__(self, served: Served, server: AdmittingServer) -> None:
        self.served, self.server, self.clock = served, server, Clock()
        self.watcher = AdmissionWatcher(server.access, served.reviews.canaries, "default", clock=self.clock)
        served.reviews.admission = self.watcher.state

    def look(self, seconds: float = 5.0) -> AdmissionState:
        """Let seconds pass, and look once."""
        self.clock.now += seconds

        async def look() -> None:
            connection = Connection(self.server.access, 30)
            try:
                await self.watcher.look(connection)
            finally:
                await connection.close()

        asyncio.run(look())
        return self.watcher.state()

    def verdict(self, user: str = "alice") -> str:
        status = self.served.post("/authorize", access(user)).json["status"]
        return "Allow" if status["allowed"] else "Deny" if status.get("denied") else "NoOpinion"


@pytest.fixture
def proof(tmp_path: Path) -> Iterator[Proof]:
    served = Served(tmp_path, bridged=True)
    with admitting(served, written()) as server:
        yield Proof(served, server)


def test_nothing_is_granted_on_conditions_until_admission_is_proved(proof: Proof) -> None:
    assert proof.verdict() == "NoOpinion"
    assert proof.verdict("carol") == "Deny", "a condition that could deny denies"
    assert proof.verdict("bob") == "Allow", "what does not depend on conditions is as ever"
    assert proof.look().is_live
    assert (proof.verdict(), proof.verdict("carol")) == ("Allow", "NoOpinion")


def test_conditions_fold_as_for_a_caller_that_does_not_know_them(tmp_path: Path) -> None:
    role = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRole",
        "metadata": {"name": "all"},
        "rules": [{"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}],
    }
    binding = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": "all"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "all"},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "alice"}],
    }
    for bridged in (True, False):
        served = Served(tmp_path, bridged=bridged)
        served.write([("alice", "Allow", f"{CLAIMS} && object.ok")], role, binding)
        served.reload()
        served.reviews.admission = lambda: NOT_ASKED
        assert served.post("/authorize", access()).json["status"]["allowed"] is True


def test_a_canary_that_is_accepted_ends_the_proof_at_once(proof: Proof) -> None:
    assert proof.look().is_live
    proof.server.asks_webhook = False
    state = proof.look()
    assert not state.is_live
    assert "accepts the canary" in state.reason
    assert proof.verdict() == "NoOpinion"
    proof.server.asks_webhook = True
    assert proof.look().is_live
    assert proof.verdict() == "Allow"


def test_a_server_that_does_not_answer_ends_the_proof_when_it_expires(proof: Proof) -> None:
    assert proof.look().is_live
    proof.server.failure = 500
    assert proof.look().is_live, "a restart of the server closes nothing"
    state = proof.look(20)
    assert not state.is_live
    assert "fails on purpose" in state.reason
    proof.server.failure = 0
    assert proof.look().is_live


def test_a_proof_expires_even_if_nobody_looks_again(proof: Proof) -> None:
    assert proof.look().is_live
    proof.clock.now += AdmissionTiming().proof - 0.1
    assert proof.verdict() == "Allow"
    proof.clock.now += 0.1
    assert proof.verdict() == "NoOpinion"
    timing = AdmissionTiming()
    assert timing.proof + timing.interval < 30, "a change must count within 30 s"


def test_a_deleted_configuration_ends_the_proof_although_the_webhook_still_answers(proof: Proof) -> None:
    assert proof.look().is_live
    proof.server.configuration = None
    state = proof.look()
    assert not state.is_live
    assert "deleted" in state.reason
    proof.server.configuration_failure = 500
    assert not proof.look().is_live, "what was known holds while it cannot be read"
    proof.server.configuration_failure = 0
    proof.server.configuration = written()
    assert proof.look().is_live


@pytest.mark.parametrize("code", [403, 404, 500])
def test_the_canary_alone_proves_it_where_the_configuration_cannot_be_read(proof: Proof, code: int) -> None:
    proof.server.configuration_failure = code
    state = proof.look()
    assert state.is_live
    assert "canary alone" in state.reason


@pytest.mark.parametrize("code", [403, 500])
def test_a_configuration_that_can_no_longer_be_read_ends_the_proof_when_it_expires(proof: Proof, code: int) -> None:
    assert proof.look().is_live
    proof.server.configuration_failure = code
    assert proof.look().is_live, "a server that fails for a moment closes nothing"
    proof.server.configuration = written(rules=[])
    state = proof.look(20)
    assert not state.is_live, "nobody knows what it says now"
    assert "cannot be read" in state.reason
    assert proof.verdict() == "NoOpinion"
    assert not proof.look().is_live
    proof.server.configuration, proof.server.configuration_failure = written(), 0
    assert proof.look().is_live


def test_a_changed_address_makes_older_proofs_void(proof: Proof) -> None:
    assert proof.look().is_live
    proof.server.configuration = written(clientConfig={"url": "https://elsewhere/admit"})
    assert not proof.look().is_live
    assert proof.look().is_live, "the canary came back from there, too"


def test_a_proof_tells_whether_a_replica_gave_it(proof: Proof, tmp_path: Path) -> None:
    assert proof.look().is_live
    assert not proof.served.reviews.canaries.has_replicas
    with admitting(Served(tmp_path, bridged=True), written()) as elsewhere:
        other = Proof(proof.served, elsewhere)
        assert other.look().is_live
    assert proof.served.reviews.canaries.has_replicas


def test_users_whom_the_webhook_leaves_out_get_no_conditional_grant(proof: Proof) -> None:
    expression = "!('dev' in request.userInfo.groups)"
    proof.server.configuration = written(matchConditions=[{"name": "exempt-0", "expression": expression}])
    assert proof.look().is_live
    assert proof.verdict() == "Allow"
    status = proof.served.post("/authorize", access(groups=["dev"])).json["status"]
    assert status["allowed"] is False


def test_a_guardrail_about_every_create_does_not_keep_the_proof_away(tmp_path: Path) -> None:
    served = Served(tmp_path, [GUARDRAIL], bridged=True)
    with admitting(served, written()) as server:
        proof = Proof(served, server)
        configmaps = {"resource": "configmaps", "namespace": "default"}
        assert served.post("/authorize", access("eve", attributes=configmaps)).json["status"]["denied"] is True
        assert proof.look().is_live
        server.asks_webhook = False
        assert not proof.look().is_live
        elsewhere = {"resource": "configmaps", "namespace": "kube-system"}
        for user, attributes in ((USER, elsewhere), (USER, {"resource": "secrets"}), ("eve", configmaps)):
            assert served.post("/authorize", access(user, attributes=attributes)).json["status"]["denied"] is True
        server.asks_webhook = True
        assert proof.look().is_live


def test_the_canary_is_always_a_dry_run_and_not_in_the_decision_log(proof: Proof) -> None:
    for is_asked in (True, False, True):
        proof.server.asks_webhook = is_asked
        proof.look()
    assert proof.server.created == []
    assert {record["phase"] for record in proof.served.records()} == {"authorize"}
    assert 'verdict="Deny"' in proof.served.get("/metrics").body.decode()


def test_readiness_and_the_metric_tell(proof: Proof) -> None:
    proof.served.metrics.watch_admission(proof.watcher.state)
    answer = proof.served.get("/readyz")
    assert answer.status == 200
    assert answer.json["message"].startswith("admission: not live, ")
    assert answer.json["admission"]["live"] is False
    assert "tierwall_admission_live 0.0" in proof.served.get("/metrics").body.decode()
    proof.look()
    assert "message" not in proof.served.get("/readyz").json
    assert "tierwall_admission_live 1.0" in proof.served.get("/metrics").body.decode()


def test_the_watcher_keeps_looking_and_reports_what_changes(proof: Proof) -> None:
    reported: list[str] = []
    timing = AdmissionTiming(interval=0.02, retry=0.01, request=30, proof=30)
    watcher = AdmissionWatcher(
        proof.server.access,
        proof.served.reviews.canaries,
        "default",
        lambda state: reported.append(state.words()),
        timing,
    )

    async def follow() -> None:
        stop = asyncio.Event()
        task = asyncio.create_task(watcher.run(stop))
        await _until(lambda: len(reported) == 1)
        proof.server.asks_webhook = False
        await _until(lambda: len(reported) == 2)
        proof.server.asks_webhook = True
        await _until(lambda: len(reported) == 3)
        stop.set()
        await task

    asyncio.run(follow())
    assert [words.partition(",")[0] for words in reported] == ["live", "not live", "live"]


async def _until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not holds():
            await asyncio.sleep(0.01)


# the canary


def canary_request(canary: dict[str, Any]) -> AdmissionRequest:
    return AdmissionRequest(
        uid="u", operation="CREATE", resource=GroupVersionResource("", "v1", "configmaps"), name=NAME, object=canary
    )


def test_only_whoever_has_the_key_can_refuse_a_canary() -> None:
    ours, theirs = CanarySealer(lambda: (KEY,)), CanarySealer(lambda: (b"another key of sixteen bytes",))
    canary, proof = ours.canary("default")
    assert proof not in str(canary)
    assert proof in str(ours.refusal(canary_request(canary)))
    other = theirs.refusal(canary_request(canary))
    assert other is not None
    assert proof not in other
    assert "--seal-key" in other


def test_a_refusal_of_an_earlier_canary_proves_nothing() -> None:
    sealer = CanarySealer(lambda: (KEY,))
    (first, _), (_, proof) = sealer.canary("default"), sealer.canary("default")
    assert proof not in str(sealer.refusal(canary_request(first)))


def test_a_canary_under_the_key_of_before_counts() -> None:
    canary, proof = CanarySealer(lambda: (KEY,)).canary("default")
    assert proof in str(CanarySealer(lambda: (b"the new key", KEY)).refusal(canary_request(canary)))


@pytest.mark.parametrize("data", [None, {}, {"nonce": 1, "seal": "x"}, {"nonce": "x" * 65, "seal": "x"}, []])
def test_another_object_of_that_name_is_judged_like_any_other(proof: Proof, data: Any) -> None:
    value = {"metadata": {"name": NAME}, "data": data}
    resource = {"group": "", "version": "v1", "resource": "configmaps"}
    review = admission("nobody", object=value, name=NAME, resource=resource, requestResource=resource)
    assert proof.served.post("/admit", review).json["response"]["allowed"] is True


# the configuration


CHANGED: dict[str, Any] = {
    "failurePolicy": "Ignore",
    "matchPolicy": "Equivalent",
    "sideEffects": "NoneOnDryRun",
    "timeoutSeconds": 30,
    "namespaceSelector": {"matchLabels": {"a": "b"}},
    "objectSelector": {"matchExpressions": [{"key": "a", "operator": "Exists"}]},
    "matchConditions": [{"name": "x", "expression": "false"}],
    "rules": [],
    "name": "other.example.com",
}


@pytest.mark.parametrize("field", CHANGED)
def test_each_change_of_the_configuration_is_named(proof: Proof, field: str) -> None:
    assert check_webhook(written()).problem == ""
    assert proof.look().is_live
    proof.server.configuration = written(**{field: CHANGED[field]})
    state = proof.look()
    assert not state.is_live
    assert ("conditions.tierwall.io" if field == "name" else field) in state.reason
    assert proof.verdict() == "NoOpinion"


@pytest.mark.parametrize("value", [{}, {"webhooks": None}, {"webhooks": [1, {}]}, {"webhooks": [{"rules": [1]}]}])
def test_a_configuration_of_any_form_is_compared(value: dict[str, Any]) -> None:
    assert check_webhook(value).problem


OPERATIONS = ("CREATE", "UPDATE", "DELETE", "CONNECT", "*")
RULES = st.fixed_dictionaries(
    {
        "operations": st.sets(st.sampled_from(OPERATIONS)).map(sorted),
        "apiGroups": st.sets(st.sampled_from(("", "apps", "*"))).map(sorted),
        "apiVersions": st.sets(st.sampled_from(("v1", "*"))).map(sorted),
        "resources": st.sets(st.sampled_from(("pods", "*", "*/*"))).map(sorted),
        "scope": st.sampled_from(("*", "Namespaced")),
    }
)


@given(st.lists(RULES, max_size=3))
def test_rules_that_do_not_cover_every_write_are_a_problem(rules: list[dict[str, Any]]) -> None:
    covers = any(
        (set(rule["operations"]) >= set(OPERATIONS[:4]) or "*" in rule["operations"])
        and "*" in rule["apiGroups"]
        and "*" in rule["apiVersions"]
        and "*/*" in rule["resources"]
        and rule["scope"] == "*"
        for rule in rules
    )
    assert bool(check_webhook(written(rules=rules)).problem) is not covers


def test_canaries_that_cross_show_that_there_are_replicas() -> None:
    clock = Clock()
    first, second = (CanarySealer(lambda: (KEY,), clock) for _ in range(2))
    for sealer in (first, second):
        late, _ = sealer.canary("default")
        canary, _ = sealer.canary("default")
        sealer.refusal(canary_request(late))
        sealer.refusal(canary_request(canary))
        sealer.proved()
        assert not sealer.has_replicas, "it was asked about its own canaries alone"
    canary, _ = first.canary("default")
    second.refusal(canary_request(canary))
    first.proved()
    assert first.has_replicas, "another one refused its canary"
    assert second.has_replicas, "it was asked about the canary of another"
    clock.now += REPLICA_SECONDS - 1
    assert first.has_replicas
    clock.now += 1
    assert not first.has_replicas


def test_a_canary_under_another_key_says_nothing_about_replicas() -> None:
    ours, theirs = CanarySealer(lambda: (KEY,)), CanarySealer(lambda: (b"another key",))
    canary, _ = theirs.canary("default")
    ours.refusal(canary_request(canary))
    assert not ours.has_replicas

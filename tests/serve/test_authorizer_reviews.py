"""Reviews answered by the webhook: the shape follows from the caller's review; sealed conditions; bad input."""

from __future__ import annotations

import asyncio
import copy
import json
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Histogram, generate_latest

from tests.labs.authorizer_server import POLICIES, Served, access, claim, conditions, readable, series
from tierwall.api.wire.review import WireShape
from tierwall.serve.authorizer.metrics import SECONDS, AuthorizerMetrics
from tierwall.serve.authorizer.record import DecisionRecord
from tierwall.serve.authorizer.reviews import Reviews


@pytest.fixture
def served(tmp_path: Path) -> Served:
    return Served(tmp_path)


def status(served: Served, review: dict[str, Any]) -> dict[str, Any]:
    answer = served.post("/authorize", review)
    assert answer.status == 200
    assert answer.json["kind"] == "SubjectAccessReview"
    value: dict[str, Any] = answer.json["status"]
    return value


def response(served: Served, review: dict[str, Any], path: str = "/conditions") -> dict[str, Any]:
    answer = served.post(path, review)
    assert answer.status == 200
    value: dict[str, Any] = answer.json["response"]
    return value


# shapes


def test_a_caller_without_conditions_gets_a_concrete_answer(served: Served) -> None:
    assert status(served, access())["allowed"] is False
    assert "denied" not in status(served, access())
    carol = status(served, access("carol"))
    assert (carol["allowed"], carol["denied"]) == (False, True), "a Deny was possible"
    assert status(served, access("bob"))["allowed"] is True
    assert status(served, access("eve"))["denied"] is True


def test_v1beta1_spells_groups_group_and_gets_no_conditions(served: Served) -> None:
    review = access(**readable(), group=["dev"])
    review["apiVersion"] = "authorization.k8s.io/v1beta1"
    answer = served.post("/authorize", review)
    assert answer.json["apiVersion"] == "authorization.k8s.io/v1beta1"
    assert answer.json["status"]["allowed"] is False
    assert "conditionsChain" not in answer.json["status"]
    assert served.records()[0]["groups"] == ["dev"]


def test_a_mode_in_the_spec_brings_the_conditions_chain(served: Served) -> None:
    answered = status(served, access(**readable()))
    (entry,) = answered["conditionsChain"]
    (condition,) = entry["conditions"]
    assert condition["condition"] == 'object.spec.storageClassName == "dev"'
    assert condition["id"].endswith(".seal.tierwall.io/alice-claims")
    assert answered["allowed"] is False


def test_handled_decision_types_bring_the_conditional_decision(served: Served) -> None:
    answered = status(served, access(**series()))
    assert answered["conditionalDecision"]["type"] == "ConditionsMap"
    assert "conditionsChain" not in answered


def test_the_newest_shape_of_the_proposal_can_be_chosen(tmp_path: Path) -> None:
    served = Served(tmp_path, shape=WireShape.KEP)
    chain = status(served, access(**readable()))["conditionSetChain"]
    assert chain[0]["conditionsType"] == "k8s.io/authorization-cel"
    assert response(served, conditions(conditionSetChain=chain, object=claim()))["allowed"] is True
    assert response(served, conditions(conditionSetChain=chain, object=claim("prod")))["allowed"] is False


def test_a_concrete_answer_looks_the_same_in_every_shape(served: Served) -> None:
    for more in ({}, readable(), series()):
        assert status(served, access("bob", **more))["allowed"] is True


# the second phase


def test_conditions_come_back_and_are_evaluated_without_state(tmp_path: Path) -> None:
    first, other = tmp_path / "a", tmp_path / "b"
    first.mkdir()
    other.mkdir()
    chain = status(Served(first), access(**readable()))["conditionsChain"]
    # Another replica with the same key, which no longer has the policy.
    replica = Served(other, POLICIES[1:])
    assert response(replica, conditions(conditionSets=chain, operation="CREATE", object=claim()))["allowed"] is True
    assert response(replica, conditions(conditionSets=chain, operation="CREATE", object=claim("x")))["allowed"] is False


def test_the_series_echoes_the_uid_and_knows_who_asks(tmp_path: Path) -> None:
    check = 'authorizer.group("").resource("pods").namespace("dev").check("get").allowed()'
    served = Served(
        tmp_path,
        (
            ("claims", "Allow", f'request.resource == "persistentvolumeclaims" && object.ok && {check}'),
            ("pods", "Allow", 'request.resource == "pods" && request.userInfo.username == "alice"'),
        ),
    )
    decision = status(served, access(**series()))["conditionalDecision"]
    request = {
        "uid": "u7",
        "operation": "CREATE",
        "resource": {"group": "", "version": "v1", "resource": "persistentvolumeclaims"},
        "userInfo": {"username": "alice"},
        "object": {"ok": True},
    }
    allowed = response(served, conditions(decision=decision, admissionRequest=request))
    assert allowed["uid"] == "u7"
    assert allowed["decision"]["type"] == "Allow"
    mallory = {**request, "userInfo": {"username": "mallory"}}
    assert response(served, conditions(decision=decision, admissionRequest=mallory))["decision"]["type"] != "Allow"


def test_a_caller_with_one_address_sends_both_kinds_there(served: Served) -> None:
    chain = status(served, access(**readable()))["conditionsChain"]
    review = conditions(conditionSets=chain, object=claim())
    assert response(served, review, "/authorize")["allowed"] is True


def test_a_set_with_plain_and_packed_conditions_survives_every_shape(tmp_path: Path) -> None:
    long = " && ".join(f'object.spec.field{n} != "{"x" * 40}"' for n in range(40))
    policies = (
        ("long", "Deny", f"{CLAIM} && !({long})"),
        ("short", "Allow", f'{CLAIM} && object.spec.storageClassName == "dev"'),
    )
    fields = {f"field{n}": "" for n in range(40)}
    good = {"spec": {"storageClassName": "dev", **fields}}
    for index, shape in enumerate((WireShape.CONDITIONS_CHAIN, WireShape.KEP)):
        folder = tmp_path / str(index)
        folder.mkdir()
        served = Served(folder, policies, shape=shape)
        name, back = (
            ("conditionsChain", "conditionSets")
            if shape is WireShape.CONDITIONS_CHAIN
            else ("conditionSetChain", "conditionSetChain")
        )
        chain = status(served, access(**readable()))[name]
        assert response(served, conditions(**{back: chain}, object=good))["allowed"] is True
        bad = {"spec": {**good["spec"], "field3": "x" * 40}}
        assert response(served, conditions(**{back: chain}, object=bad)).get("denied") is True


CLAIM = 'request.resource == "persistentvolumeclaims"'


def test_conditions_under_the_failure_mode_no_opinion_survive_the_series(tmp_path: Path) -> None:
    served = Served(tmp_path)
    chain = {
        "apiVersion": "apiserver.config.k8s.io/v1",
        "kind": "AuthorizationConfiguration",
        "authorizers": [{"type": "CEL", "name": "policies", "failureMode": "NoOpinion"}],
    }
    served.write(POLICIES, chain)
    assert served.reload()
    decision = status(served, access(**series()))["conditionalDecision"]
    request = {"uid": "u", "operation": "CREATE", "resource": {}, "object": claim()}
    assert response(served, conditions(decision=decision, admissionRequest=request))["decision"]["type"] == "Allow"


# conditions that were not issued here


def tampered(chain: list[dict[str, Any]]) -> list[tuple[str, Any]]:
    def change(**new: str) -> Any:
        other = copy.deepcopy(chain)
        other[0]["conditions"][0] |= new
        return other

    dropped = copy.deepcopy(chain)
    dropped[0]["conditions"] = dropped[0]["conditions"][1:]
    added = copy.deepcopy(chain)
    added[0]["conditions"].append({"id": "mine", "effect": "Allow", "condition": "true", "type": CEL})
    softer = copy.deepcopy(chain)
    softer[0]["failureMode"] = "NoOpinion"
    return [
        ("text", change(condition="true")),
        ("effect", change(effect="NoOpinion")),
        ("type", change(type="tierwall.io/authorization-cel-packed")),
        ("id", change(id="unknown")),
        ("id under the seal", change(id=chain[0]["conditions"][0]["id"] + "x")),
        ("a condition dropped", dropped),
        ("a condition added", added),
        ("failure mode", softer),
    ]


CEL = "k8s.io/authorization-cel"


def test_conditions_that_were_changed_on_the_way_are_refused(tmp_path: Path) -> None:
    served = Served(tmp_path, (*POLICIES, ("deny-x", "Deny", f"{CLAIM} && object.spec.x == 1")))
    chain = status(served, access(**readable()))["conditionsChain"]
    good = {**claim(), "spec": {"storageClassName": "dev", "x": 0}}
    assert response(served, conditions(conditionSets=chain, object=good))["allowed"] is True
    for what, changed in tampered(chain):
        answered = response(served, conditions(conditionSets=changed, object=good))
        assert answered["allowed"] is False, what
        assert answered["denied"] is True, what
        assert answered["evaluationError"], what


def test_conditions_sealed_with_another_key_are_refused(served: Served, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    chain = status(Served(other, key=b"another key of some length"), access(**readable()))["conditionsChain"]
    answered = response(served, conditions(conditionSets=chain, object=claim()))
    assert (answered["allowed"], answered["denied"]) == (False, True)
    assert "not issued here" in answered["evaluationError"]


def test_condition_text_is_never_run_as_code(served: Served) -> None:
    text = '__import__("os").system("true")'
    made_up = [{"authorizerName": "policies", "conditions": [{"id": "x", "effect": "Allow", "condition": text}]}]
    assert response(served, conditions(conditionSets=made_up, object=claim()))["allowed"] is False


def test_an_object_that_lacks_a_field_does_not_satisfy_a_condition(served: Served) -> None:
    chain = status(served, access(**readable()))["conditionsChain"]
    values: list[Any] = [{}, {"spec": None}, {"spec": []}, None, 3, "text"]
    for value in values:
        assert response(served, conditions(conditionSets=chain, object=value))["allowed"] is False
    deny = status(served, access("carol", **readable()))["conditionsChain"]
    answered = response(served, conditions(conditionSets=deny, object={}))
    assert answered["denied"] is True, "a Deny that fails counts as true"
    assert "no-prod" in answered["evaluationError"]


# bad input


@pytest.mark.parametrize("path", ["/authorize", "/conditions", "/admit"])
@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"null",
        b"[]",
        b"3",
        b"\xff\xfe",
        b'"\\ud800"',
        b"[" * 100_000,
        b'{"a":' * 20_000,
        b"{}",
        b'{"apiVersion":"v1","kind":"Pod"}',
        b'{"apiVersion":"authorization.k8s.io/v1","kind":"SubjectAccessReview"}',
        b'{"apiVersion":"authorization.k8s.io/v1","kind":"SubjectAccessReview","spec":[]}',
        b'{"apiVersion":"authorization.k8s.io/v1","kind":"SubjectAccessReview","spec":{"user":3}}',
        b'{"apiVersion":"authorization.k8s.io/v1","kind":"SubjectAccessReview","spec":{"user":"a"}}',
        b'{"apiVersion":"authorization.k8s.io/v2","kind":"SubjectAccessReview","spec":{"user":"a"}}',
        b'{"apiVersion":"authorization.k8s.io/v1alpha1","kind":"AuthorizationConditionsReview"}',
        b'{"apiVersion":"authorization.k8s.io/v1alpha1","kind":"AuthorizationConditionsReview","request":{}}',
        b'{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview"}',
        b'{"apiVersion":"admission.k8s.io/v1beta1","kind":"AdmissionReview","request":{}}',
    ],
)
def test_a_body_that_is_not_a_review_gets_a_clear_error_and_fails_closed(
    tmp_path: Path, path: str, body: bytes
) -> None:
    served = Served(tmp_path, bridged=True)
    answer = served.post(path, body)
    assert answer.status == 400
    if path == "/admit":
        assert answer.json["response"]["allowed"] is False
        assert answer.json["response"]["status"]["message"]
    else:
        answered = answer.json.get("status") or answer.json["response"]
        assert (answered["allowed"], answered["denied"]) == (False, True)
        assert answered["evaluationError"]
    assert status(served, access("bob"))["allowed"] is True, "it stays up"


@pytest.mark.parametrize("kind", ["SelfSubjectAccessReview", "LocalSubjectAccessReview", "SelfSubjectRulesReview"])
@pytest.mark.parametrize("bridged", [False, True])
def test_a_review_that_only_an_api_server_takes_is_refused_and_never_decided(
    tmp_path: Path, kind: str, bridged: bool
) -> None:
    served = Served(tmp_path, bridged=bridged)
    review = {**access("bob"), "kind": kind, "metadata": {"namespace": "dev"}}
    assert status(served, {**review, "kind": "SubjectAccessReview"})["allowed"] is True
    answer = served.post("/authorize", review)
    assert answer.status == 400
    assert (answer.json["status"]["allowed"], answer.json["status"]["denied"]) == (False, True)
    why = answer.json["status"]["evaluationError"]
    assert f"found `{kind}`" in why
    assert "asks webhooks with a `SubjectAccessReview`" in why


def test_a_body_over_the_limit_is_refused_and_fails_closed(served: Served) -> None:
    long = json.dumps(access("b" * (2 << 20))).encode()
    answer = served.post("/authorize", long)
    assert answer.status == 413
    assert answer.json["status"]["denied"] is True
    assert "1,048,576 bytes" in answer.json["status"]["evaluationError"]
    assert answer.headers[b"connection"] == b"close"
    ten = [b"x" * 65536] * 160
    for path in ("/authorize", "/conditions", "/admit"):
        assert served.call("POST", path, ten).status == 413
    assert status(served, access("bob"))["allowed"] is True


def test_a_review_of_conditions_may_be_longer_than_one_of_access(served: Served) -> None:
    chain = status(served, access(**readable()))["conditionsChain"]
    large = claim()
    large["data"] = "x" * (2 << 20)
    review = conditions(conditionSets=chain, object=large)
    assert response(served, review)["allowed"] is True
    assert response(served, review, "/authorize")["allowed"] is True


def test_a_client_that_stalls_is_not_waited_for(tmp_path: Path) -> None:
    served = Served(tmp_path, read_seconds=0.05)
    answer = served.call("POST", "/authorize", [b'{"apiVersion":'], stalls=True)
    assert answer.status == 408
    assert answer.json["status"]["denied"] is True
    assert answer.headers[b"connection"] == b"close"


def test_a_client_that_never_begins_its_body_is_not_waited_for(tmp_path: Path) -> None:
    answer = Served(tmp_path, read_seconds=0.05).call("POST", "/authorize", [])
    assert answer.status == 408
    assert answer.json["status"]["denied"] is True


def _after_a_while(parts: list[bytes]) -> Any:
    """Return a client that sends each part after the server has begun to wait for it, and hangs up at the end."""
    left = list(parts)

    async def receive() -> dict[str, Any]:
        await asyncio.sleep(0)
        if not left:
            return {"type": "http.disconnect"}
        return {"type": "http.request", "body": left.pop(0), "more_body": bool(left)}

    return receive


@pytest.mark.parametrize("cuts", [1, 2, 7])
def test_a_body_that_arrives_late_and_in_parts_is_answered(served: Served, cuts: int) -> None:
    body = json.dumps(access("bob")).encode()
    parts = [body[len(body) * cut // cuts : len(body) * (cut + 1) // cuts] for cut in range(cuts)]
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "POST", "path": "/authorize", "headers": []}
    asyncio.run(served.app(scope, _after_a_while(parts), send))
    assert sent[0]["status"] == 200
    assert json.loads(sent[1]["body"])["status"]["allowed"] is True


def test_a_caller_that_hung_up_gets_no_answer(served: Served) -> None:
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "POST", "path": "/authorize", "headers": []}
    asyncio.run(served.app(scope, _after_a_while([]), send))
    assert sent == []


def test_a_request_that_is_cancelled_stops_waiting_for_its_body(served: Served) -> None:
    cleaned: list[bool] = []

    async def receive() -> Any:
        try:
            await asyncio.Event().wait()
        finally:
            cleaned.append(True)

    async def cancelled() -> None:
        async def send(message: Any) -> None:
            raise AssertionError

        scope = {"type": "http", "method": "POST", "path": "/authorize", "headers": []}
        task = asyncio.create_task(served.app(scope, receive, send))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancelled())
    assert cleaned == [True]


def test_unknown_paths_and_methods_are_refused(served: Served) -> None:
    assert served.post("/", access()).status == 404
    assert served.get("/authorize").status == 405
    assert served.post("/metrics", b"").status == 405


KEYS = ("apiVersion", "kind", "spec", "request", "user", "groups", "resourceAttributes", "verb", "extra")
LEAVES = st.none() | st.booleans() | st.integers() | st.text()
VALUES = st.recursive(
    LEAVES, lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from(KEYS), inner), max_leaves=12
)


@pytest.fixture(scope="module")
def bridged(tmp_path_factory: pytest.TempPathFactory) -> Served:
    return Served(tmp_path_factory.mktemp("policies"), bridged=True)


@given(value=VALUES)
def test_no_value_crashes_the_webhook_or_is_allowed(bridged: Served, value: Any) -> None:
    for phase in ("authorize", "conditions", "admit"):
        answer = bridged.reviews.answer(phase, json.dumps(value).encode())
        assert answer.status == 400
        assert answer.record.verdict == "Deny"


# metrics, logs and health


def test_the_decision_log_names_the_deciding_policy(served: Served) -> None:
    served.post("/authorize", access("bob"))
    served.post("/authorize", access("eve"))
    served.post("/authorize", access(**readable()))
    bob, eve, alice = served.records()
    assert (bob["verdict"], bob["policy"]) == ("Allow", "ClusterAuthorizationPolicy/bob-claims")
    assert (eve["verdict"], eve["policy"], eve["authorizer"]) == (
        "Deny",
        "ClusterAuthorizationPolicy/no-eve",
        "policies",
    )
    assert alice["policies"] == ["ClusterAuthorizationPolicy/alice-claims"]
    assert alice["revision"] == served.follower.current.revision
    assert bob["seconds"] >= 0
    assert "time" in bob


def test_the_decision_log_names_the_condition_where_it_came_back_without_its_policy(served: Served) -> None:
    chain = status(served, access(**readable()))["conditionsChain"]
    response(served, conditions(conditionSets=chain, operation="CREATE", object=claim()))
    _, second = served.records()
    assert (second["phase"], second["verdict"], second["authorizer"]) == ("conditions", "Allow", "policies")
    assert second["condition"] == "alice-claims"
    assert "policy" not in second


def test_the_decision_log_names_the_policy_that_settled_it_among_others_of_its_verdict(tmp_path: Path) -> None:
    served = Served(
        tmp_path,
        (
            ("a-fails", "Deny", "1 / 0 == 1"),
            ("b-conditional", "Deny", "object.x == 1"),
            ("z-denies", "Deny", 'request.userInfo.username == "bob"'),
        ),
    )
    served.post("/authorize", access("bob"))
    served.post("/authorize", access("alice"))
    bob, alice = served.records()
    assert (bob["policy"], bob["rule"]) == ("ClusterAuthorizationPolicy/z-denies", "spec")
    assert (alice["policy"], alice["rule"]) == ("ClusterAuthorizationPolicy/a-fails", "spec")


def test_metrics_count_decisions_by_authorizer_verdict_and_phase(served: Served) -> None:
    served.post("/authorize", access("bob"))
    served.post("/authorize", b"{")
    page = served.get("/metrics").body.decode()
    assert 'tierwall_authorizer_decisions_total{authorizer="policies",phase="authorize",verdict="Allow"} 1.0' in page
    assert 'tierwall_authorizer_request_duration_seconds_count{phase="authorize"} 2.0' in page
    assert 'tierwall_authorizer_refused_requests_total{phase="authorize",status="400"} 1.0' in page


class FullDisk(BytesIO):
    """A file on a full disk."""

    def write(self, _: Any) -> int:
        raise OSError(28, "No space left on device")


def test_a_log_that_cannot_be_written_stops_nothing_and_is_reported_once(tmp_path: Path) -> None:
    served = Served(tmp_path, log=FullDisk())
    for user in ("alice", "bob", "carol"):
        assert served.post("/authorize", access(user)).status == 200
    assert served.said == ["decision log refused: {'why': '[Errno 28] No space left on device'}"]


def test_without_a_log_the_counters_say_the_same(served: Served) -> None:
    plain = Reviews(served.follower, served.issuer, logged=False)
    for user in ("alice", "bob", "carol", "eve", "nobody"):
        body = json.dumps(access(user, **readable())).encode()
        whole, brief = served.reviews.answer("authorize", body), plain.answer("authorize", body)
        assert (whole.status, whole.body) == (brief.status, brief.body)
        for key in ("phase", "verdict", "authorizer", "error", "revision", "status"):
            assert getattr(whole.record, key) == getattr(brief.record, key)
        assert brief.record.user == ""


def test_while_policies_are_prepared_reviews_are_answered_and_readiness_is_denied(served: Served) -> None:
    served.app.warming = True
    assert status(served, access("bob"))["allowed"] is True
    page = served.get("/readyz")
    assert (page.status, page.json["ready"], page.json["message"]) == (503, False, "policies are being prepared")
    assert served.get("/healthz").status == 200
    served.app.warming = False
    assert served.get("/readyz").status == 200


def test_the_latencies_add_up_as_prometheus_counts_them(served: Served) -> None:
    metrics, plain = AuthorizerMetrics(served.follower), CollectorRegistry()
    name = "tierwall_authorizer_request_duration_seconds"
    words = "From a review that was read to its answer, without the time that clients take to send and to read."
    histogram = Histogram(name, words, ("phase",), buckets=SECONDS, registry=plain)
    for seconds in (0.0, 0.00005, 0.00006, 0.001, 0.3, 5.0, 10.0, 11.0):
        metrics.observe(DecisionRecord("authorize", "Allow"), seconds)
        histogram.labels("authorize").observe(seconds)
    ours, theirs = (set(generate_latest(registry).decode().splitlines()) for registry in (metrics.registry, plain))
    assert {line for line in theirs if "_created" not in line} <= ours


def test_latencies_leave_out_slow_clients(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("tierwall.serve.authorizer.app.perf_counter", lambda: now[0])
    body = json.dumps(access("bob")).encode()
    left = [body[:9], body[9:]]

    async def receive() -> Any:
        now[0] += 7
        return {"type": "http.request", "body": left.pop(0), "more_body": bool(left)}

    async def send(message: Any) -> None:
        now[0] += 7

    asyncio.run(served.app({"type": "http", "method": "POST", "path": "/authorize", "headers": []}, receive, send))
    assert now[0] == 28
    assert served.records()[0]["seconds"] == 0
    page = served.get("/metrics").body.decode()
    assert 'tierwall_authorizer_request_duration_seconds_sum{phase="authorize"} 0.0' in page


def test_health_differs_from_readiness(served: Served) -> None:
    assert served.get("/healthz").body == b"ok\n"
    assert served.get("/readyz").json["ready"] is True
    served.app.stopping = True
    assert served.get("/readyz").status == 503
    assert served.get("/healthz").status == 200

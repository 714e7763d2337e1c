"""Webhooks inside the chain: their conditions go back to them, and no request waits for the webhooks of another."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator, MutableMapping
from pathlib import Path
from typing import Any

import pytest

from tests.labs.authorizer_server import Served, access, admission, claim, conditions, readable, series
from tests.labs.upstream_authorizer import Upstream, chain_of_members
from tests.labs.waiting import PATIENCE_S
from tierwall.api.wire.review import WireShape
from tierwall.serve.authorizer import review_client

CLAIM = 'request.resource == "persistentvolumeclaims"'
# Too long for one condition, so it is packed and only its author can evaluate it.
LONG = " && ".join(f'object.spec.field{number} != "{"x" * 40}"' for number in range(40))
FIELDS = {f"field{number}": "" for number in range(40)}
INNER = (("dev", "Allow", f'{CLAIM} && object.spec.storageClassName == "dev" && {LONG}'),)
BY_SHAPE: dict[str, dict[str, Any]] = {
    "conditionsChain": {"conditionsEndpointKubeConfigContext": "c"},
    "conditionalDecision": {"conditionsReview": {"version": "v1alpha1", "kubeConfigContextName": "c"}},
}
SHAPES = ("conditionsChain", "conditionSetChain", "conditionalDecision")


def folder(path: Path, name: str) -> Path:
    made = path / name
    made.mkdir()
    return made


@pytest.fixture
def inner(tmp_path: Path) -> Iterator[Upstream]:
    """Another authorizer of our own, as a webhook."""
    server = Upstream(tmp_path)
    authorizer = Served(folder(tmp_path, "inner"), INNER)
    server.decide = lambda body: authorizer.reviews.answer("authorize", body).body
    yield server
    server.stop()


def serve(path: Path, *members: dict[str, Any], shape: str = "conditionsChain", **more: Any) -> Served:
    wire = WireShape.KEP if shape == "conditionSetChain" else WireShape.CONDITIONS_CHAIN
    served = Served(folder(path, "outer"), (), shape=wire, **more)
    served.write((), chain_of_members(*members))
    assert served.reload()
    return served


def ask(served: Served, shape: str) -> tuple[list[str], Any]:
    """Return the names of the entries that answer a request, and the answer."""
    more = series() if shape == "conditionalDecision" else readable()
    answer = served.post("/authorize", access(**more)).json["status"][shape]
    entries = answer["union"] if shape == "conditionalDecision" else answer
    return [entry["authorizerName"] for entry in entries], answer


def outcome(served: Served, shape: str, answer: Any, storage_class: str) -> str:
    value = claim(storage_class)
    value["spec"] |= FIELDS
    if shape == "conditionalDecision":
        resource = {"group": "", "version": "v1", "resource": "persistentvolumeclaims"}
        request = {"uid": "u", "operation": "CREATE", "resource": resource, "userInfo": {"username": "alice"}}
        request |= {"namespace": "dev", "name": "c", "object": value}
        reply = served.post("/conditions", conditions(decision=answer, admissionRequest=request))
        assert reply.status == 200
        return str(reply.json["response"]["decision"]["type"])
    back = "conditionSets" if shape == "conditionsChain" else shape
    reply = served.post("/conditions", conditions(**{back: answer}, operation="CREATE", object=value))
    assert reply.status == 200
    response = reply.json["response"]
    return "Allow" if response["allowed"] else "Deny" if response.get("denied") else "NoOpinion"


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("inner_shape", BY_SHAPE)
def test_conditions_of_a_webhook_are_named_after_it_and_go_back_to_it(
    tmp_path: Path, inner: Upstream, shape: str, inner_shape: str
) -> None:
    served = serve(tmp_path, inner.member("hook", **BY_SHAPE[inner_shape]), shape=shape)
    names, answer = ask(served, shape)
    # In the other shape, an authorizer that stands alone has no name.
    assert names == ["hook.policies" if inner_shape == "conditionsChain" else "hook"]
    assert outcome(served, shape, answer, "dev") == "Allow"
    assert outcome(served, shape, answer, "prod") == "NoOpinion"
    kinds = [asked["kind"] for asked in inner.asked]
    assert kinds == ["SubjectAccessReview", *["AuthorizationConditionsReview"] * 2]


@pytest.mark.parametrize("shape", SHAPES)
def test_equal_names_inside_webhooks_do_not_clash(tmp_path: Path, inner: Upstream, shape: str) -> None:
    conditional = BY_SHAPE["conditionsChain"]
    members = ({"type": "CEL", "name": "policies"}, inner.member("a", **conditional), inner.member("b", **conditional))
    served = serve(tmp_path, *members, shape=shape)
    served.write([("never", "Deny", 'object.spec.storageClassName == "never"')], chain_of_members(*members))
    assert served.reload()
    names, answer = ask(served, shape)
    assert names == ["policies", "a.policies", "b.policies"]
    assert outcome(served, shape, answer, "dev") == "Allow"
    assert outcome(served, shape, answer, "never") == "Deny"
    assert outcome(served, shape, answer, "prod") == "NoOpinion"
    # What is not whole does not even reach a webhook.
    before = len(inner.asked)
    entries = answer["union"] if shape == "conditionalDecision" else answer
    part = {"type": "Union", "union": entries[1:]} if shape == "conditionalDecision" else entries[1:]
    assert outcome(served, shape, part, "dev") == "Deny"
    assert len(inner.asked) == before


def test_a_webhook_that_cannot_be_reached_in_the_second_phase_allows_nothing(tmp_path: Path, inner: Upstream) -> None:
    served = serve(tmp_path, inner.member("hook", **BY_SHAPE["conditionsChain"]))
    _, answer = ask(served, "conditionsChain")
    inner.status = 500
    assert outcome(served, "conditionsChain", answer, "dev") == "NoOpinion"


def test_the_bridge_enforces_conditions_of_a_webhook(tmp_path: Path, inner: Upstream) -> None:
    served = serve(tmp_path, inner.member("hook", **BY_SHAPE["conditionsChain"]), bridged=True)
    assert served.post("/authorize", access()).json["status"]["allowed"] is True
    for storage_class, is_allowed in (("dev", True), ("prod", False)):
        value = claim(storage_class)
        value["spec"] |= FIELDS
        response = served.post("/admit", admission(object=value)).json["response"]
        assert response["allowed"] is is_allowed


def test_a_name_that_begins_with_that_of_a_conditional_webhook_is_refused(tmp_path: Path, inner: Upstream) -> None:
    served = serve(tmp_path, inner.member("hook"))
    for webhook, is_taken in (
        (inner.member("hook"), True),
        (inner.member("hook", **BY_SHAPE["conditionsChain"]), False),
    ):
        served.write((), chain_of_members({"type": "RBAC", "name": "hook.rbac"}, webhook))
        served.reload()
        assert bool(served.follower.stale) is not is_taken


# waiting


class HeldUpstream(Upstream):
    """A webhook that answers nobody until it is let go."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.may_answer = threading.Event()
        self.says(allowed=True)
        allowed = self.answer

        def decide(_: bytes) -> bytes:
            self.may_answer.wait(PATIENCE_S)
            return allowed

        self.decide = decide


async def finish_order(served: Served, reviews: dict[str, dict[str, Any]], release: Any) -> list[str]:
    """Send reviews at the same time, and `release` once the one called `local` is answered; in the order of answers."""
    order: list[str] = []

    async def send_review(name: str) -> None:
        body = json.dumps(reviews[name]).encode()

        async def receive() -> MutableMapping[str, Any]:
            return {"type": "http.request", "body": body, "more_body": False}

        async def send(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.body":
                order.append(name)
                if name == "local":
                    release()

        scope = {"type": "http", "method": "POST", "path": "/authorize", "headers": []}
        await served.app(scope, receive, send)

    await asyncio.gather(*map(send_review, reviews))
    return order


def only(user: str) -> dict[str, Any]:
    return {"matchConditions": [{"expression": f'request.user.startsWith("{user}")'}], "timeout": "30s"}


def test_six_slow_webhooks_hold_nobody_who_does_not_ask_them(tmp_path: Path) -> None:
    hooks = [HeldUpstream(folder(tmp_path, f"hook{number}")) for number in range(6)]
    members = [hook.member(f"hook-{number}", **only("slow")) for number, hook in enumerate(hooks)]
    chain = chain_of_members({"type": "CEL", "name": "policies"}, *members)
    served = Served(folder(tmp_path, "outer"), ())
    served.write([("bob", "Allow", 'request.userInfo.username == "bob"')], chain)
    assert served.reload()
    reviews = {f"slow-{number}": access(f"slow-{number}") for number in range(40)} | {"local": access("bob")}

    def release() -> None:
        for hook in hooks:
            hook.may_answer.set()

    try:
        order = asyncio.run(finish_order(served, reviews, release))
    finally:
        for hook in hooks:
            hook.stop()
    assert order[0] == "local"
    assert sorted(order) == sorted(reviews)


def test_a_request_waits_only_for_the_webhooks_that_it_asks(tmp_path: Path) -> None:
    slow, quick = HeldUpstream(folder(tmp_path, "slow")), Upstream(folder(tmp_path, "quick"))
    quick.says(allowed=True)
    served = serve(tmp_path, slow.member("slow", **only("slow")), quick.member("quick"))
    reviews = {f"slow-{number}": access(f"slow-{number}") for number in range(20)} | {"local": access("bob")}
    try:
        order = asyncio.run(finish_order(served, reviews, slow.may_answer.set))
    finally:
        slow.stop()
        quick.stop()
    assert order[0] == "local"
    assert len(quick.asked) == 1, "the slow one allowed the others"


def test_beyond_its_bound_a_webhook_fails_as_its_failure_policy_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(review_client, "MAX_IN_FLIGHT", 3)
    slow = HeldUpstream(folder(tmp_path, "slow"))
    served = serve(tmp_path, slow.member("slow", timeout="30s"))
    reviews = {f"slow-{number}": access(f"slow-{number}") for number in range(3)} | {"local": access("late")}
    try:
        order = asyncio.run(finish_order(served, reviews, slow.may_answer.set))
    finally:
        slow.stop()
    assert order[0] == "local"
    records = {record["user"]: record for record in served.records()}
    assert records["late"]["verdict"] == "Deny"
    assert "3 reviews are waiting" in records["late"]["error"]
    assert {record["verdict"] for user, record in records.items() if user != "late"} == {"Allow"}


def test_what_is_decided_here_is_remembered_and_what_a_webhook_says_is_not(tmp_path: Path) -> None:
    hook = Upstream(folder(tmp_path, "hook"))
    hook.says(allowed=True)
    member = hook.member("hook", cacheAuthorizedRequests=False)
    served = Served(folder(tmp_path, "outer"), ())
    policies = [("bob", "Allow", 'request.userInfo.username == "bob"')]
    served.write(policies, chain_of_members({"type": "CEL", "name": "policies"}, member))
    assert served.reload()
    try:
        for _ in range(3):
            assert served.post("/authorize", access("bob")).json["status"]["allowed"] is True
            assert served.post("/authorize", access("carol")).json["status"]["allowed"] is True
    finally:
        hook.stop()
    assert [asked["spec"]["user"] for asked in hook.asked] == ["carol"] * 3

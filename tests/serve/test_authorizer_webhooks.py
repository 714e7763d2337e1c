"""A chain that asks another server: real HTTPS on loopback, as the kubeconfig says."""

from __future__ import annotations

import gc
import gzip
import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from io import BufferedIOBase
from pathlib import Path
from typing import Any

import pytest

import tierwall.core.verdict as verdicts
from tests.labs.authorizer_server import POLICIES, Served, access, readable, series
from tests.labs.upstream_authorizer import Upstream, chain_of_members
from tests.labs.waiting import PATIENCE_S
from tierwall.api.algebra.request import Attributes
from tierwall.resources.load import load
from tierwall.serve.authorizer.policies import PolicySet, policy_set_of


@pytest.fixture
def upstream(tmp_path: Path) -> Iterator[Upstream]:
    server = Upstream(tmp_path)
    yield server
    server.stop()


def configuration(upstream: Upstream, failure_policy: str = "Deny", timeout: str = "3s") -> dict[str, Any]:
    return chain_of_members(upstream.member(failurePolicy=failure_policy, timeout=timeout))


def chain(upstream: Upstream, failure_policy: str = "Deny", timeout: str = "3s") -> PolicySet:
    folder = upstream.kubeconfig.parent / "policies"
    folder.mkdir(exist_ok=True)
    (folder / "chain.json").write_text(json.dumps(configuration(upstream, failure_policy, timeout)))
    return policy_set_of(load([str(folder)]).snapshot)


ALICE = Attributes(user="alice", verb="get", version="v1", resource="pods", namespace="dev")


@pytest.mark.parametrize(
    ("status", "verdict"),
    [
        ({"allowed": True}, "Allow"),
        ({"allowed": False, "denied": True}, "Deny"),
        ({"allowed": False}, "NoOpinion"),
        ({"allowed": True, "denied": True}, "Deny"),
    ],
)
def test_the_answer_of_the_other_server_is_taken(upstream: Upstream, status: dict[str, Any], verdict: str) -> None:
    upstream.says(**status)
    assert chain(upstream).chain.authorize(ALICE).verdict == verdict
    (asked,) = upstream.asked
    assert asked["spec"]["user"] == "alice"
    assert asked["spec"]["resourceAttributes"]["resource"] == "pods"


def test_an_answer_is_asked_for_once_while_it_holds(upstream: Upstream) -> None:
    upstream.says(allowed=True)
    members = chain(upstream).chain
    assert {members.authorize(ALICE).verdict for _ in range(3)} == {verdicts.Verdict.ALLOW}
    assert len(upstream.asked) == 1


@pytest.mark.parametrize(("policy", "verdict"), [("Deny", "Deny"), ("NoOpinion", "NoOpinion")])
@pytest.mark.parametrize("answer", [b"", b"no json", b"[]", b'{"kind": "SubjectAccessReview"}'])
def test_no_usable_answer_is_decided_by_the_failure_policy(
    upstream: Upstream, policy: str, verdict: str, answer: bytes
) -> None:
    upstream.answer = answer
    decision = chain(upstream, policy).chain.authorize(ALICE)
    assert decision.verdict == verdict
    assert "upstream" in decision.error


@pytest.mark.parametrize("url", ["https://127.0.0.1:1/", "http://127.0.0.1:1/", "nonsense"])
def test_a_server_that_cannot_be_reached_is_decided_by_the_failure_policy(upstream: Upstream, url: str) -> None:
    upstream.write(url)
    assert chain(upstream).chain.authorize(ALICE).verdict == "Deny"


def test_a_server_that_answers_with_an_error_is_decided_by_the_failure_policy(upstream: Upstream) -> None:
    upstream.says(allowed=True)
    upstream.status = 500
    decision = chain(upstream).chain.authorize(ALICE)
    assert (decision.verdict, "status 500" in decision.error) == ("Deny", True)


@pytest.mark.parametrize("text", ["", "a: [", "{}", '{"current-context": "c", "contexts": []}'])
def test_a_kubeconfig_that_cannot_be_used_is_decided_by_the_failure_policy(upstream: Upstream, text: str) -> None:
    upstream.kubeconfig.write_text(text)
    decision = chain(upstream).chain.authorize(ALICE)
    assert (decision.verdict, "kubeconfig" in decision.error) == ("Deny", True)


TOKEN = """\
import json, os, pathlib
counter = pathlib.Path(__file__).with_suffix(".count")
number = int(counter.read_text()) + 1 if counter.exists() else 1
counter.write_text(str(number))
version = json.loads(os.environ["KUBERNETES_EXEC_INFO"])["apiVersion"]
print(json.dumps({"kind": "ExecCredential", "apiVersion": version, "status": {"token": f"token-{number}"}}))
"""


def test_a_credential_plugin_gives_the_token_once(upstream: Upstream) -> None:
    upstream.says(allowed=True)
    upstream.plugin(TOKEN)
    members = chain(upstream).chain
    for user in ("alice", "bob"):
        assert members.authorize(Attributes(user=user, verb="get", version="v1", resource="pods")).verdict == "Allow"
    assert upstream.tokens == ["Bearer token-1", "Bearer token-1"]


def test_a_token_that_is_refused_is_renewed(upstream: Upstream) -> None:
    upstream.says(allowed=True)
    upstream.plugin(TOKEN)
    upstream.status = 401

    def accept(stream: BufferedIOBase, body: bytes) -> None:
        stream.write(body)
        upstream.status = 200

    upstream.send = accept
    assert chain(upstream).chain.authorize(ALICE).verdict == "Allow"
    assert upstream.tokens == ["Bearer token-1", "Bearer token-2"]


@pytest.mark.parametrize(
    ("program", "problem"),
    [
        ("raise SystemExit(3)", "failed with exit code 3"),
        ("print('hello')", "did not print an ExecCredential"),
        ("import time; time.sleep(600)", "no answer within 0.5 s"),
    ],
)
def test_a_plugin_that_fails_or_hangs_is_decided_by_the_failure_policy(
    upstream: Upstream, program: str, problem: str
) -> None:
    upstream.says(allowed=True)
    upstream.plugin(program)
    decision = chain(upstream, timeout="0.5s" if "within" in problem else "30s").chain.authorize(ALICE)
    assert (decision.verdict, problem in decision.error) == ("Deny", True), decision.error
    assert not upstream.asked, "nothing is sent without the credential"


def test_a_server_that_drips_its_answer_is_given_up_after_the_timeout(upstream: Upstream) -> None:
    upstream.says(allowed=True)
    stop = threading.Event()

    def drip(stream: BufferedIOBase, body: bytes) -> None:
        for number in range(len(body)):
            stream.write(body[number : number + 1])
            stream.flush()
            if stop.wait(0.1):
                return

    upstream.send = drip
    decision = chain(upstream, timeout="0.5s").chain.authorize(ALICE)
    stop.set()
    assert (decision.verdict, "no answer within 0.5 s" in decision.error) == ("Deny", True), decision.error


@pytest.mark.parametrize("packed", [False, True])
def test_an_answer_that_is_too_long_is_decided_by_the_failure_policy(upstream: Upstream, packed: bool) -> None:
    upstream.says(allowed=True, reason="x" * (2 << 20))
    if packed:
        upstream.answer = gzip.compress(upstream.answer)
        upstream.headers["content-encoding"] = "gzip"
    decision = chain(upstream).chain.authorize(ALICE)
    assert (decision.verdict, "larger than 1 MiB" in decision.error) == ("Deny", True), decision.error


def test_a_redirect_is_not_followed(upstream: Upstream) -> None:
    upstream.says(allowed=True)
    upstream.status, upstream.headers = 307, {"location": upstream.url}
    decision = chain(upstream).chain.authorize(ALICE)
    assert (decision.verdict, len(upstream.asked)) == ("Deny", 1)
    assert "is not followed" in decision.error


def test_a_token_with_a_line_break_is_not_sent(upstream: Upstream) -> None:
    upstream.says(allowed=True)
    upstream.write(upstream.url, token="a\r\nx-evil: 1")
    decision = chain(upstream).chain.authorize(ALICE)
    assert (decision.verdict, "control character" in decision.error) == ("Deny", True), decision.error
    assert not upstream.asked


def test_the_key_of_the_client_never_touches_the_disk(upstream: Upstream, monkeypatch: pytest.MonkeyPatch) -> None:
    upstream.says(allowed=True)
    monkeypatch.setattr("tempfile._mkstemp_inner", None)
    assert chain(upstream).chain.authorize(ALICE).verdict == "Allow"


def test_a_chain_that_is_gone_leaves_no_connection_open(upstream: Upstream) -> None:
    upstream.says(allowed=True)
    policies = chain(upstream)
    assert policies.chain.authorize(ALICE).verdict == "Allow"
    (closed,) = upstream.connections
    assert not closed.is_set()
    del policies
    gc.collect()
    assert closed.wait(PATIENCE_S)


@pytest.fixture
def served(upstream: Upstream, tmp_path: Path) -> Served:
    folder = tmp_path / "served"
    folder.mkdir()
    served = Served(folder)
    served.write([], configuration(upstream))
    assert served.reload()
    return served


def test_the_server_asks_the_other_and_answers(upstream: Upstream, served: Served) -> None:
    upstream.says(allowed=True, reason="because upstream says so")
    assert served.post("/authorize", access()).json["status"]["allowed"] is True
    assert served.get("/healthz").status == 200


def test_reviews_that_wait_for_the_other_server_do_not_wait_for_each_other(upstream: Upstream, served: Served) -> None:
    upstream.says(allowed=True)
    upstream.meeting = threading.Barrier(4)
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda number: served.post("/authorize", access(f"user-{number}")), range(4)))
    assert [answer.json["status"]["allowed"] for answer in answers] == [True] * 4
    assert sorted(asked["spec"]["user"] for asked in upstream.asked) == [f"user-{number}" for number in range(4)]


def test_a_failure_of_the_other_server_is_over_when_it_answers_again(upstream: Upstream, served: Served) -> None:
    upstream.says(allowed=True)
    upstream.status = 500
    assert served.post("/authorize", access()).json["status"]["allowed"] is False
    upstream.status = 200
    assert served.post("/authorize", access()).json["status"]["allowed"] is True


@pytest.mark.parametrize("bridged", [False, True])
@pytest.mark.parametrize("more", [{}, readable(), series()])
@pytest.mark.parametrize("verb", ["create", "list"])
def test_a_review_calls_a_webhook_behind_conditions_at_most_once(
    upstream: Upstream, tmp_path: Path, bridged: bool, more: dict[str, Any], verb: str
) -> None:
    upstream.says(allowed=False)
    folder = tmp_path / "behind"
    folder.mkdir()
    served = Served(folder, bridged=bridged)
    setup = configuration(upstream)
    setup["authorizers"][0]["webhook"] |= {"cacheUnauthorizedRequests": False}
    setup["authorizers"].insert(0, {"type": "CEL", "name": "policies"})
    served.write([*POLICIES, ("anybody", "Allow", "object.metadata.name == 'x'")], setup)
    assert served.reload()
    assert served.post("/authorize", access(verb=verb, **more)).status == 200
    assert len(upstream.asked) <= 1

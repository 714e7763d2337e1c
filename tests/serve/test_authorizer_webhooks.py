"""A chain that asks another server: real HTTPS on loopback, as the kubeconfig says."""

from __future__ import annotations

import json
import ssl
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import trustme

import tierwall.core.verdict as verdicts
from tests.labs.authorizer_server import POLICIES, Served, access, readable, series
from tests.labs.waiting import PATIENCE_S
from tierwall.api.algebra.request import Attributes
from tierwall.resources.load import load
from tierwall.serve.authorizer.policies import PolicySet, policy_set_of


class Upstream:
    """Another authorizer: gives the answers it is told to give, and remembers its questions."""

    def __init__(self, folder: Path) -> None:
        self.asked: list[dict[str, Any]] = []
        # Callers wait here for each other.
        self.meeting = threading.Barrier(1)
        self.answer: bytes = b""
        self.status = 200
        authority = trustme.CA()
        self.kubeconfig = folder / "upstream.kubeconfig"
        authority.cert_pem.write_to_path(folder / "ca.pem")
        client = authority.issue_cert("client")
        client.private_key_pem.write_to_path(folder / "client.key")
        client.cert_chain_pems[0].write_to_path(folder / "client.pem")
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        authority.issue_cert("localhost", "127.0.0.1").configure_cert(context)
        authority.configure_trust(context)
        context.verify_mode = ssl.CERT_REQUIRED
        upstream = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                upstream.asked.append(json.loads(self.rfile.read(int(self.headers["content-length"]))))
                upstream.meeting.wait(timeout=PATIENCE_S)
                self.send_response(upstream.status)
                self.send_header("content-length", str(len(upstream.answer)))
                self.end_headers()
                self.wfile.write(upstream.answer)

            def log_message(self, *_: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.server.socket = context.wrap_socket(self.server.socket, server_side=True)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.write(f"https://127.0.0.1:{self.server.server_address[1]}/authorize")

    def write(self, url: str) -> None:
        value = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "up", "cluster": {"server": url, "certificate-authority": "ca.pem"}}],
            "users": [{"name": "me", "user": {"client-certificate": "client.pem", "client-key": "client.key"}}],
            "contexts": [{"name": "c", "context": {"cluster": "up", "user": "me"}}],
            "current-context": "c",
        }
        self.kubeconfig.write_text(json.dumps(value))

    def says(self, **status: Any) -> None:
        review = {"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "status": status}
        self.answer = json.dumps(review).encode()


@pytest.fixture
def upstream(tmp_path: Path) -> Iterator[Upstream]:
    server = Upstream(tmp_path)
    yield server
    server.server.shutdown()
    server.server.server_close()


def configuration(upstream: Upstream, failure_policy: str = "Deny") -> dict[str, Any]:
    webhook = {
        "timeout": "3s",
        "subjectAccessReviewVersion": "v1",
        "matchConditionSubjectAccessReviewVersion": "v1",
        "failurePolicy": failure_policy,
        "connectionInfo": {"type": "KubeConfigFile", "kubeConfigFile": str(upstream.kubeconfig)},
    }
    return {
        "apiVersion": "apiserver.config.k8s.io/v1",
        "kind": "AuthorizationConfiguration",
        "authorizers": [{"type": "Webhook", "name": "upstream", "webhook": webhook}],
    }


def chain(upstream: Upstream, failure_policy: str = "Deny") -> PolicySet:
    folder = upstream.kubeconfig.parent / "policies"
    folder.mkdir(exist_ok=True)
    (folder / "chain.json").write_text(json.dumps(configuration(upstream, failure_policy)))
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


@pytest.fixture
def served(upstream: Upstream, tmp_path: Path) -> Served:
    folder = tmp_path / "served"
    folder.mkdir()
    served = Served(folder)
    served.write([], configuration(upstream))
    assert served.reload()
    return served


def test_the_server_asks_on_a_thread_and_answers(upstream: Upstream, served: Served) -> None:
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

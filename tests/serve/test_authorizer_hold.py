"""The running authorizer among broken files: others' errors hold nothing up, and a rewrite lets nothing through
(docs/semantics.md#errors-belong-to-their-object)."""

from __future__ import annotations

import http.client
import json
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.labs.waiting import PATIENCE_S, eventually

TIERWALL = str(Path(sys.executable).parent / "tierwall")
NESTED = "request.verb == 'x' ? true : " * 240 + "false"


def policy(namespace: str, name: str, effect: str, expression: str) -> str:
    value = {
        "apiVersion": "tierwall.io/v1alpha1",
        "kind": "AuthorizationPolicy",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"effect": effect, "expression": expression},
    }
    return json.dumps(value) + "\n"


class Running:
    """A `tierwall authorizer` process without TLS, on loopback."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.folder = folder
        self._log = folder.parent / "stderr"
        command = [TIERWALL, "authorizer", "--policies", str(folder), "--listen", "127.0.0.1:0", *options]
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(command, stderr=log)
        eventually(lambda: '"serving"' in self.said() or self.process.poll() is not None, self.said)
        [serving] = [line for line in map(json.loads, self.said().splitlines()) if line["event"] == "serving"]
        self.port = int(serving["address"].rpartition(":")[2])

    def said(self) -> str:
        return self._log.read_text()

    def call(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_S)
        try:
            connection.request(method, path, None if body is None else json.dumps(body))
            answer = connection.getresponse()
            return answer.status, json.load(answer)
        finally:
            connection.close()

    def allows(self, namespace: str, resource: str = "pods", user: str = "alice") -> bool:
        attributes = {"verb": "get", "version": "v1", "resource": resource, "namespace": namespace}
        spec = {"user": user, "resourceAttributes": attributes}
        review = {"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": spec}
        return bool(self.call("POST", "/authorize", review)[1]["status"]["allowed"])

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            self.process.wait(PATIENCE_S)


Start = Callable[..., Running]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    running: list[Running] = []

    def run(files: dict[str, str], *options: str) -> Running:
        folder = tmp_path / "policies"
        folder.mkdir()
        for name, text in files.items():
            (folder / name).write_text(text)
        running.append(Running(folder, *options))
        return running[-1]

    yield run
    for process in running:
        process.stop()


BROKEN = {
    "an expression that does not parse": policy("b", "bad", "Deny", "request.verb =="),
    "an effect that does not exist": policy("b", "bad", "Perhaps", "true"),
    "240 levels": policy("b", "bad", "Deny", NESTED),
    "a field that does not exist": policy("b", "bad", "Allow", "true").replace('"spec"', '"nonsense": 1, "spec"'),
    "half of an object": "kind: AuthorizationPolicy\n",
}


@pytest.mark.parametrize("what", BROKEN)
def test_a_revocation_counts_while_another_namespace_is_broken(start: Start, what: str) -> None:
    grant = policy("a", "grant", "Allow", "true")
    process = start({"a.yaml": grant, "b.yaml": policy("b", "grant", "Allow", "true")}, "--bridge")
    assert (process.allows("a"), process.allows("b")) == (True, True)
    (process.folder / "broken.yaml").write_text(BROKEN[what])
    (process.folder / "a.yaml").unlink()
    eventually(lambda: not process.allows("a"), "a grant that was removed")
    (process.folder / "a.yaml").write_text(grant)
    eventually(lambda: process.allows("a"), "the grant")
    (process.folder / "deny.yaml").write_text(policy("a", "deny", "Deny", "true"))
    eventually(lambda: not process.allows("a"), "a denial that was added")
    status, ready = process.call("GET", "/readyz")
    assert (status, ready["stale"]) == (200, False)
    if what != "240 levels":
        assert "broken.yaml" in str(ready["problems"])


def test_a_start_with_broken_objects_serves_the_good_ones(start: Start) -> None:
    grants = {f"{namespace}.yaml": policy(namespace, "grant", "Allow", "true") for namespace in ("a", "b", "c")}
    process = start({**grants, "bad.yaml": BROKEN["an expression that does not parse"]})
    assert [process.allows(namespace) for namespace in ("a", "b", "c")] == [True, False, True]
    assert "bad.yaml" in process.said()
    assert process.call("GET", "/readyz")[0] == 200


def test_a_hundred_rewrites_in_place_let_nothing_through(start: Start) -> None:
    deny = policy("a", "deny", "Deny", "request.resource == 'secrets'")
    process = start({"a.yaml": policy("a", "grant", "Allow", "true"), "deny.yaml": deny})
    assert (process.allows("a"), process.allows("a", "secrets")) == (True, False)
    passed: list[int] = []
    done = threading.Event()

    def ask() -> None:
        number = 0
        while not done.is_set():
            number += 1
            if process.allows("a", "secrets", user=f"user-{number}"):
                passed.append(number)

    asking = threading.Thread(target=ask)
    asking.start()
    try:
        pause = threading.Event()
        for number in range(100):
            with (process.folder / "deny.yaml").open("w") as file:  # empty from now on
                pause.wait(0.02)
                file.write(deny[: len(deny) // 2])
                file.flush()  # half a document
                pause.wait(0.02)
                file.write(deny[len(deny) // 2 :])
            if number == 50:
                (process.folder / "other.yaml").write_text(policy("b", "grant", "Allow", "true"))
    finally:
        done.set()
        asking.join()
    assert passed == []
    eventually(lambda: process.allows("b"), "another file that was written meanwhile")
    (process.folder / "deny.yaml").unlink()
    eventually(lambda: process.allows("a", "secrets"), "a file that was removed counts")

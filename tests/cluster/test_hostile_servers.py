"""API servers that answer with anything: one sentence with the address, or the kind is named as unavailable.

docs/clusters.md#when-it-fails
"""

from __future__ import annotations

import contextlib
import gzip
import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from tierwall.cluster.cluster import Cluster
from tierwall.cluster.load import load_cluster
from tierwall.core.diagnostics import InputError
from tierwall.resources.snapshot import Snapshot

# What is asked for, as a path and its query; what is answered: a status, headers, and parts of a body.
Answer = tuple[int, dict[str, str], Iterator[bytes]]
AGGREGATED = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"


def _whole(body: bytes | object, status: int = 200, **headers: str) -> Answer:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return status, {"content-type": "application/json", "content-length": str(len(data)), **named}, iter([data])


def _discovery(path: str) -> Answer:
    def served(plural: str, kind: str) -> dict[str, Any]:
        return {"resource": plural, "responseKind": {"kind": kind}, "scope": "Namespaced", "verbs": ["list"]}

    core = {"versions": [{"version": "v1", "freshness": "Current", "resources": [served("pods", "Pod")]}]}
    policies = {
        "metadata": {"name": "networking.k8s.io"},
        "versions": [
            {"version": "v1", "freshness": "Current", "resources": [served("networkpolicies", "NetworkPolicy")]}
        ],
    }
    return _whole({"items": [core if path == "/api" else policies]}, content_type=AGGREGATED)


def _pods(*items: Any, **metadata: Any) -> dict[str, Any]:
    return {"kind": "PodList", "apiVersion": "v1", "metadata": {"resourceVersion": "1", **metadata}, "items": items}


class ScriptedServer:
    """Serves pods and network policies; `answers` has what is answered otherwise, by path."""

    def __init__(self) -> None:
        self.answers: dict[str, Callable[[dict[str, str]], Answer]] = {}
        self.paths: list[str] = []
        self.stop = threading.Event()
        script = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                url = urlsplit(self.path)
                script.paths.append(url.path)
                query = {key: values[0] for key, values in parse_qs(url.query).items()}
                if url.path in script.answers:
                    status, headers, parts = script.answers[url.path](query)
                elif url.path in ("/api", "/apis"):
                    status, headers, parts = _discovery(url.path)
                else:
                    status, headers, parts = _whole({"kind": "NetworkPolicyList", "items": []})
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.end_headers()
                with contextlib.suppress(OSError):
                    for part in parts:
                        self.wfile.write(part)
                        self.wfile.flush()
                if "content-length" not in headers:
                    self.close_connection = True

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._server.handle_error = lambda *_: None  # type: ignore[method-assign]
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def pods(self, answer: Callable[[dict[str, str]], Answer]) -> None:
        self.answers["/api/v1/pods"] = answer

    def close(self) -> None:
        self.stop.set()
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    server = ScriptedServer()
    yield server
    server.close()


def read(server: ScriptedServer, folder: Path, timeout: float = 10.0) -> Snapshot:
    config = {
        "current-context": "x",
        "contexts": [{"name": "x", "context": {"cluster": "c"}}],
        "clusters": [{"name": "c", "cluster": {"server": server.url}}],
    }
    (folder / "config").write_text(json.dumps(config))
    return load_cluster(Cluster(kubeconfig=str(folder / "config"), timeout=timeout), ["network"])


def sentence(server: ScriptedServer, folder: Path, timeout: float = 10.0) -> str:
    with pytest.raises(InputError) as caught:
        read(server, folder, timeout)
    (diagnostic,) = caught.value.diagnostics
    assert diagnostic.code == "TW042"
    assert server.url in diagnostic.message
    assert "\n" not in diagnostic.message
    assert len(diagnostic.message) < 1000
    return diagnostic.message


@pytest.mark.parametrize(
    ("body", "kind", "problem"),
    [
        (b"", "application/json", "expected the JSON of Kubernetes"),
        (b"<html>log in</html>", "text/html", "found `text/html`"),
        (b"{", "application/json", "JSON of another form"),
        (b"[]", AGGREGATED, "JSON of another form"),
        (b'{"items": 5}', AGGREGATED, "JSON of another form"),
        (b'{"versions": [1]}', "application/json", "JSON of another form"),
        (b"\xff\xfe\x00", "application/json", "JSON of another form"),
        (b"[" * 100_000, AGGREGATED, "JSON of another form"),
        (b'{"a":' * 50_000, "application/json", "JSON of another form"),
    ],
)
def test_discovery_that_is_something_else(
    server: ScriptedServer, tmp_path: Path, body: bytes, kind: str, problem: str
) -> None:
    server.answers["/api"] = lambda query: _whole(body, content_type=kind)
    assert problem in sentence(server, tmp_path)


@pytest.mark.parametrize(
    ("plural", "aggregated"),
    [
        *(
            (plural, True)
            for plural in ("../../../api/v1/secrets", "x/../y", "..", "a?b=", "a#", "a%2fb", "a b", "a\x1bb")
        ),
        # In the plain form, a name with a slash is a subresource.
        *((plural, False) for plural in ("..", "a?b=")),
    ],
)
def test_a_resource_that_leads_elsewhere_is_not_asked_for(
    server: ScriptedServer, tmp_path: Path, plural: str, aggregated: bool
) -> None:
    """An extension server names its own resources; discovery passes the names on."""
    group = "projectcalico.org"
    if aggregated:
        resource = {"resource": plural, "responseKind": {"kind": "GlobalNetworkPolicy"}, "scope": "Cluster"}
        version = {"version": "v3", "freshness": "Current", "resources": [resource | {"verbs": ["list"]}]}
        groups: Any = {"items": [{"metadata": {"name": group}, "versions": [version]}]}
    else:
        groups = {"groups": [{"name": group, "versions": [{"groupVersion": f"{group}/v3", "version": "v3"}]}]}
        named = {"name": plural, "kind": "GlobalNetworkPolicy", "verbs": ["list"]}
        server.answers[f"/apis/{group}/v3"] = lambda query: _whole({"resources": [named]})
    kind = AGGREGATED if aggregated else "application/json"
    server.answers["/apis"] = lambda query: _whole(groups, content_type=kind)
    snapshot = read(server, tmp_path)
    assert set(server.paths) <= {"/api", "/apis", f"/apis/{group}/v3", "/api/v1/pods"}
    assert {(unlisted.group, unlisted.reason) for unlisted in snapshot.unlisted} == {(group, "unavailable")}


def test_a_redirect_is_not_followed(server: ScriptedServer, tmp_path: Path) -> None:
    server.answers["/api"] = lambda query: _whole(b"", 302, location=f"{server.url}/login?next=/api")
    assert "redirects: to" in sentence(server, tmp_path)
    assert server.paths == ["/api"]


def _drip(stop: threading.Event) -> Iterator[bytes]:
    while not stop.wait(0.05):
        yield b" "


def test_a_body_that_drips_is_given_up_after_the_timeout(server: ScriptedServer, tmp_path: Path) -> None:
    server.answers["/api"] = lambda query: (200, {"content-type": "application/json"}, _drip(server.stop))
    assert "no answer within 0.5 s" in sentence(server, tmp_path, timeout=0.5)


def test_headers_that_drip_are_given_up_after_the_timeout(tmp_path: Path) -> None:
    """A server that sends a header a byte at a time, and never ends it."""
    import socket

    listening = socket.create_server(("127.0.0.1", 0))
    stop = threading.Event()

    def serve() -> None:
        connection, _ = listening.accept()
        with connection, contextlib.suppress(OSError):
            connection.sendall(b"HTTP/1.1 200 OK\r\nx: ")
            while not stop.wait(0.05):
                connection.sendall(b"a")

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    fake = ScriptedServer.__new__(ScriptedServer)
    fake.url = f"http://127.0.0.1:{listening.getsockname()[1]}"
    try:
        assert "no answer within 0.5 s" in sentence(fake, tmp_path, timeout=0.5)
    finally:
        stop.set()
        thread.join()
        listening.close()


@pytest.mark.parametrize("times", [1, 2])
def test_an_answer_that_unpacks_to_too_much_is_refused(
    server: ScriptedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    monkeypatch.setattr("tierwall.cluster.connection.MAX_BODY", 1 << 20)
    body = b"0" * (8 << 20)
    for _ in range(times):
        body = gzip.compress(body)
    encoding = ", ".join(["gzip"] * times)
    server.answers["/api"] = lambda query: _whole(body, content_encoding=encoding)
    problem = "its answer is larger than 1 MiB" if times == 1 else "found the encoding `gzip, gzip`"
    assert problem in sentence(server, tmp_path)


def test_an_endless_answer_is_cut_off(server: ScriptedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tierwall.cluster.connection.MAX_BODY", 1 << 20)

    def endless() -> Iterator[bytes]:
        while not server.stop.is_set():
            yield b" " * 65536

    server.answers["/apis"] = lambda query: (200, {"content-type": "application/json"}, endless())
    assert "its answer is larger than 1 MiB" in sentence(server, tmp_path)


def test_an_endless_error_is_cut_off(server: ScriptedServer, tmp_path: Path) -> None:
    def endless() -> Iterator[bytes]:
        while not server.stop.is_set():
            yield b"no \x1b[31m" * 1000

    server.answers["/api"] = lambda query: (500, {"content-type": "text/plain"}, endless())
    assert "answers with 500" in sentence(server, tmp_path)


def test_a_hundred_thousand_groups_are_no_trouble(server: ScriptedServer, tmp_path: Path) -> None:
    groups = [
        {"metadata": {"name": f"g{number}.example.com"}, "versions": [{"version": "v1"}]} for number in range(100_000)
    ]
    server.answers["/apis"] = lambda query: _whole({"items": groups}, content_type=AGGREGATED)
    assert len(read(server, tmp_path, 60.0)) == 0
    assert sorted(set(server.paths)) == ["/api", "/api/v1/pods", "/apis"]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"null",
        b'"PodList"',
        b"<html>",
        b'{"kind": "Status", "status": "Failure"}',
        b'{"kind": "PodList", "items": 5}',
        b'{"kind": "PodList", "items": [5]}',
        b'{"kind": "PodList", "items": [null]}',
        b'{"kind": "PodList", "metadata": 5, "items": []}',
        b'{"kind": "PodList", "items": [{"metadata": {"name": "a"}}]',
        b'{"kind": "PodList", "items": [' + b'{"a":' * 100_000,
    ],
)
def test_a_list_that_is_something_else_makes_its_kind_unavailable(
    server: ScriptedServer, tmp_path: Path, body: bytes
) -> None:
    server.pods(lambda query: _whole(body))
    snapshot = read(server, tmp_path)
    assert [(kind.kind, kind.reason) for kind in snapshot.unlisted] == [("Pod", "unavailable")]


def test_items_without_a_name_and_of_another_kind_are_no_trouble(server: ScriptedServer, tmp_path: Path) -> None:
    items = [
        {"metadata": {"name": "a", "namespace": "x"}},
        {"metadata": {"namespace": "x"}},
        {"metadata": {"name": None}},
        {"metadata": {"name": 5, "namespace": "x"}},
        {"metadata": {}},
        {},
        {"kind": "Secret", "apiVersion": "v1", "metadata": {"name": "b", "namespace": "x"}, "data": {"k": "dg=="}},
    ]
    server.pods(lambda query: _whole(_pods(*items)))
    snapshot = read(server, tmp_path)
    assert sorted(str(resource.reference) for resource in snapshot) == ["Pod/x/a", "Pod/x/b"]
    assert not any("data" in resource.value for resource in snapshot)


def test_an_object_on_two_pages_is_one_object(server: ScriptedServer, tmp_path: Path) -> None:
    def page(query: dict[str, str]) -> Answer:
        pod = {"metadata": {"name": "a", "namespace": "x", "labels": {"page": query.get("continue", "first")}}}
        return _whole(_pods(pod, **({} if "continue" in query else {"continue": "second"})))

    server.pods(page)
    (pod,) = read(server, tmp_path)
    assert pod.labels == {"page": "second"}


@pytest.mark.parametrize("length", [1, 7, 1 << 30])
def test_a_list_that_never_ends_is_given_up(
    server: ScriptedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, length: int
) -> None:
    """Marks that come back, and pages without anything on them."""
    monkeypatch.setattr("tierwall.cluster.pages._MAX_IDLE", 50)

    def page(query: dict[str, str]) -> Answer:
        return _whole(_pods(**{"continue": str((int(query.get("continue", "0")) + 1) % length)}))

    server.pods(page)
    snapshot = read(server, tmp_path)
    assert [(kind.kind, kind.reason) for kind in snapshot.unlisted] == [("Pod", "unavailable")]
    assert len(server.paths) < 100

"""Another authorizer, reached over real HTTPS on loopback as its kubeconfig says."""

from __future__ import annotations

import json
import ssl
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import BufferedIOBase
from pathlib import Path
from typing import Any

import trustme

from tests.labs.waiting import PATIENCE_S


class Upstream:
    """Another authorizer: gives the answers it is told to give, and remembers its questions."""

    def __init__(self, folder: Path) -> None:
        self.asked: list[dict[str, Any]] = []
        # Callers wait here for each other.
        self.meeting = threading.Barrier(1)
        self.answer: bytes = b""
        # Takes the place of `answer`: from the body of a review to that of the reply.
        self.decide: Callable[[bytes], bytes] | None = None
        self.status = 200
        self.headers: dict[str, str] = {}
        # Sends the body of an answer; by default at once.
        self.send: Callable[[BufferedIOBase, bytes], object] = lambda stream, body: stream.write(body)
        self.tokens: list[str | None] = []
        self.connections: list[threading.Event] = []
        self.folder = folder
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
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                upstream.asked.append(json.loads(body))
                upstream.tokens.append(self.headers["authorization"])
                upstream.meeting.wait(timeout=PATIENCE_S)
                answer = upstream.decide(body) if upstream.decide is not None else upstream.answer
                self.send_response(upstream.status)
                self.send_header("content-length", str(len(answer)))
                for name, value in upstream.headers.items():
                    self.send_header(name, value)
                self.end_headers()
                with suppress(OSError):
                    upstream.send(self.wfile, answer)

            def handle(self) -> None:
                closed = threading.Event()
                upstream.connections.append(closed)
                with suppress(OSError):
                    super().handle()
                closed.set()

            def log_message(self, *_: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.server.socket = context.wrap_socket(self.server.socket, server_side=True)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.write(f"https://127.0.0.1:{self.server.server_address[1]}/authorize")

    def write(self, url: str, **user: Any) -> None:
        """Write the kubeconfig."""
        self.url = url
        value = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "up", "cluster": {"server": url, "certificate-authority": "ca.pem"}}],
            "users": [{"name": "me", "user": {"client-certificate": "client.pem", "client-key": "client.key"} | user}],
            "contexts": [{"name": "c", "context": {"cluster": "up", "user": "me"}}],
            "current-context": "c",
        }
        self.kubeconfig.write_text(json.dumps(value))

    def plugin(self, program: str) -> None:
        """Let a credential plugin give the token."""
        (self.folder / "plugin.py").write_text(program)
        plugin = {
            "apiVersion": "client.authentication.k8s.io/v1",
            "command": sys.executable,
            "args": [str(self.folder / "plugin.py")],
            "interactiveMode": "Never",
        }
        self.write(self.url, exec=plugin)

    def says(self, **status: Any) -> None:
        """Give this status from now on."""
        review = {"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "status": status}
        self.answer = json.dumps(review).encode()

    def stop(self) -> None:
        """Stop serving."""
        self.server.shutdown()
        self.server.server_close()

    def member(self, name: str = "upstream", **webhook: Any) -> dict[str, Any]:
        """Return this server as an authorizer of an AuthorizationConfiguration."""
        settings = {
            "timeout": "3s",
            "subjectAccessReviewVersion": "v1",
            "matchConditionSubjectAccessReviewVersion": "v1",
            "failurePolicy": "Deny",
            "connectionInfo": {"type": "KubeConfigFile", "kubeConfigFile": str(self.kubeconfig)},
            **webhook,
        }
        return {"type": "Webhook", "name": name, "webhook": settings}


def chain_of_members(*members: dict[str, Any]) -> dict[str, Any]:
    """Return the AuthorizationConfiguration of a chain."""
    return {
        "apiVersion": "apiserver.config.k8s.io/v1",
        "kind": "AuthorizationConfiguration",
        "authorizers": list(members),
    }

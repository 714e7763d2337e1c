"""The API server that an authorizer proves its admission on: webhook configurations, dry runs, and who asks.

It asks the authorizer as a real one does: first whether the user may create the object, then its webhook, if the
configuration says so. What it does not know of match conditions, rules and selectors does not matter here: the
authorizer must notice the change itself. tests/engines/test_cluster_admission.py does the same on a real server.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tests.labs.authorizer_server import Served, access
from tierwall.cluster.access import ClusterAccess
from tierwall.serve.authorizer.admission_watcher import CONFIGURATIONS

USER = "tierwall-authorizer"


class AdmittingServer:
    """The state of the server. `configuration` is what GET answers; None is 404."""

    def __init__(self, served: Served, configuration: dict[str, Any] | None) -> None:
        self.served, self.configuration = served, configuration
        # Whether the webhook is asked, whatever can be read of its configuration.
        self.asks_webhook = True
        # The status of every answer, if it is not zero, and of answers about the configuration.
        self.failure = self.configuration_failure = 0
        self.created: list[str] = []
        self.url = ""

    @property
    def access(self) -> ClusterAccess:
        """The way to this server."""
        return ClusterAccess(context="", server=self.url, namespace="default")

    def get(self, path: str) -> tuple[int, dict[str, Any]]:
        """Answer a GET."""
        code = self.failure or self.configuration_failure
        if code:
            return code, _status(code, "it fails on purpose")
        if path.startswith(f"{CONFIGURATIONS}/") and self.configuration is not None:
            return 200, self.configuration
        return 404, _status(404, "not found")

    def post(self, path: str, query: dict[str, list[str]], value: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        """Answer a POST."""
        if self.failure:
            return self.failure, _status(self.failure, "it fails on purpose")
        is_review = path.endswith("/selfsubjectreviews")
        attributes: dict[str, Any] = {"resource": "configmaps", "namespace": "default"}
        if is_review:
            attributes = {"group": "authentication.k8s.io", "resource": "selfsubjectreviews", "namespace": ""}
        if self.served.post("/authorize", access(USER, attributes=attributes)).json["status"].get("denied"):
            return 403, _status(403, "forbidden by the authorizer")
        if is_review:
            return 201, {**value, "status": {"userInfo": {"username": USER}}}
        if self.asks_webhook:
            response = self.served.post("/admit", _admission(value)).json["response"]
            if not response["allowed"]:
                message = (
                    f'admission webhook "conditions.tierwall.io" denied the request: {response["status"]["message"]}'
                )
                return 403, _status(403, message)
        if query.get("dryRun") != ["All"]:
            self.created.append(value["metadata"]["name"])
        return 201, value


def _admission(value: dict[str, Any]) -> dict[str, Any]:
    request = {
        "uid": "u1",
        "operation": "CREATE",
        "resource": {"group": "", "version": "v1", "resource": "configmaps"},
        "name": value["metadata"]["name"],
        "namespace": "default",
        "userInfo": {"username": USER},
        "object": value,
        "dryRun": True,
    }
    return {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}


def _status(code: int, message: str) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "Status", "code": code, "reason": "", "message": message}


@contextmanager
def admitting(served: Served, configuration: dict[str, Any] | None) -> Iterator[AdmittingServer]:
    """Serve on loopback over plain HTTP."""
    server = AdmittingServer(served, configuration)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self._send(*server.get(urlsplit(self.path).path))

        def do_POST(self) -> None:
            value = json.loads(self.rfile.read(int(self.headers["content-length"])))
            parts = urlsplit(self.path)
            self._send(*server.post(parts.path, parse_qs(parts.query), value))

        def _send(self, code: int, value: dict[str, Any]) -> None:
            body = json.dumps(value).encode()
            self.send_response(code)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    listening = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.url = f"http://127.0.0.1:{listening.server_port}"
    thread = threading.Thread(target=listening.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        listening.shutdown()
        listening.server_close()
        thread.join()

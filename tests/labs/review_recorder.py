"""A webhook authorizer without opinions that keeps every SubjectAccessReview: what an API server tells authorizers."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import yaml


class ReviewRecorder:
    """A server on loopback, and the reviews that it was sent."""

    def __init__(self) -> None:
        self.specs: list[dict[str, Any]] = []
        recorder = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                review = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                recorder.specs.append(review["spec"])
                answer = json.dumps({**review, "status": {"allowed": False}}).encode()
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, *arguments: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        """Stop."""
        self._server.shutdown()
        self._server.server_close()

    def put_first(self, configuration: Path) -> None:
        """Let the API server with this AuthorizationConfiguration ask here before it asks anybody else."""
        kubeconfig = configuration.parent / "recorder.kubeconfig"
        url = f"http://127.0.0.1:{self._server.server_address[1]}"
        kubeconfig.write_text(
            yaml.safe_dump(
                {
                    "apiVersion": "v1",
                    "kind": "Config",
                    "clusters": [{"name": "c", "cluster": {"server": url}}],
                    "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
                    "users": [{"name": "u", "user": {}}],
                    "current-context": "x",
                }
            )
        )
        document = yaml.safe_load(configuration.read_text())
        webhook = {
            "timeout": "10s",
            "failurePolicy": "NoOpinion",
            "subjectAccessReviewVersion": "v1",
            "matchConditionSubjectAccessReviewVersion": "v1",
            "cacheAuthorizedRequests": False,
            "cacheUnauthorizedRequests": False,
            "connectionInfo": {"type": "KubeConfigFile", "kubeConfigFile": str(kubeconfig)},
        }
        document["authorizers"].insert(0, {"type": "Webhook", "name": "recorder", "webhook": webhook})
        configuration.write_text(yaml.safe_dump(document))

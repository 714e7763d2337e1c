"""A cluster whose API server asks `tierwall controller --webhook` about changes, as the chart installs it.

The controller has the rights that the chart grants, and nothing more. The API server reaches it by an address of the
machine, since nothing here routes to Services.
"""

from __future__ import annotations

import base64
import json
import os
import subprocess
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

from tests.labs.chart import NAMESPACE, rendered
from tests.labs.control_plane import tool
from tests.labs.kube_cluster import TIERWALL
from tests.labs.live_client import LiveClient
from tests.labs.live_cluster import LiveCluster
from tests.labs.recording_server import Authority
from tests.labs.waiting import PATIENCE_S, eventually, unused_port

CONFIGURATION = "validatingwebhookconfigurations/tierwall-warnings"
_ACCOUNT = f"system:serviceaccount:{NAMESPACE}:tierwall-controller"


class WarnedCluster(LiveCluster):
    """The cluster, the controller, and kubectl."""

    users = {**LiveCluster.users, "controller": (_ACCOUNT, ("system:serviceaccounts", "system:authenticated"))}

    def start(self) -> None:
        """Start the API server, with what the chart creates in it; the controller is not running yet."""
        super().start()
        self.client = LiveClient(self.folder)
        self.client.namespace(NAMESPACE)
        chart = rendered()
        self.client.create(*(value for value in chart if value["apiVersion"] == "rbac.authorization.k8s.io/v1"))
        authority = Authority()
        certificate, key = authority.issue("webhook", "127.0.0.1")
        self.files = self.folder / "webhook"
        self.files.mkdir()
        for name, data in (("tls.crt", certificate), ("tls.key", key), ("ca.crt", authority.pem)):
            (self.files / name).write_bytes(data)
        self.webhook_port, self.http_port = unused_port(), unused_port()
        (configuration,) = (value for value in chart if value["kind"] == "ValidatingWebhookConfiguration")
        (by_service,) = configuration["webhooks"]
        client = {"url": f"https://127.0.0.1:{self.webhook_port}/warnings", "caBundle": encoded(authority.pem)}
        by_address = {**by_service, "name": "address.tierwall.io", "clientConfig": client}
        # The controller writes its CA where its Service is named. Nobody is asked there.
        by_service["rules"] = [{**by_service["rules"][0], "resources": ["nothing"]}]
        self.client.create({**configuration, "webhooks": [by_address, by_service]})

    def stop(self) -> None:
        """Stop everything that was started here."""
        if hasattr(self, "client"):
            self.client.close()
        super().stop()

    def start_controller(self, *options: str, has_files: bool = True) -> None:
        """Start the controller, and wait until it has read the cluster."""
        files = ("--webhook-cert", str(self.files / "tls.crt"), "--webhook-key", str(self.files / "tls.key"))
        self._start(
            "controller",
            *(TIERWALL, "controller", "--kubeconfig", str(self.kubeconfig), "--context", "controller"),
            *("--release-namespace", NAMESPACE, "--identity", "one", "--http", f"127.0.0.1:{self.http_port}"),
            *("--webhook", f"127.0.0.1:{self.webhook_port}", *(files if has_files else ()), *options),
        )
        process = self._processes["controller"]
        eventually(lambda: self.is_ready() or process.poll() is not None, lambda: self.log("controller"))
        assert process.poll() is None, self.log("controller")

    def stop_controller(self) -> None:
        """End the controller."""
        self._processes["controller"].terminate()
        self._processes.pop("controller").wait(PATIENCE_S)

    @property
    def kubeconfig(self) -> Path:
        """The kubeconfig with a context for each user."""
        return self.folder / "config"

    def is_ready(self) -> bool:
        """Whether the controller is ready."""
        try:
            with urlopen(f"http://127.0.0.1:{self.http_port}/readyz", timeout=PATIENCE_S) as answer:
                return bool(answer.status == 200)
        except (URLError, OSError):
            return False

    def metric(self, name: str) -> float:
        """Return a metric of the controller without labels."""
        with urlopen(f"http://127.0.0.1:{self.http_port}/metrics", timeout=PATIENCE_S) as answer:
            lines = str(answer.read(), "utf-8").splitlines()
        return float(next(line for line in lines if line.startswith(f"{name} ")).split()[1])

    def warned_apply(self, value: dict[str, Any], *options: str, context: str = "admin") -> tuple[bool, list[str]]:
        """Apply an object with kubectl; return whether that succeeded, and the lines on standard error."""
        command = [tool("kubectl"), "--context", context, "apply", "-f", "-", *options]
        done = subprocess.run(
            command,
            input=json.dumps(value),
            env={**self.client.environment(), "PATH": os.environ["PATH"]},
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
        )
        return done.returncode == 0, done.stderr.splitlines()

    def bundle(self) -> str:
        """Return the CA that the configuration has for the Service of the controller."""
        path = f"/apis/admissionregistration.k8s.io/v1/{CONFIGURATION}"
        status, configuration = self.client.request("GET", path)
        assert status == 200, configuration
        return str(configuration["webhooks"][1]["clientConfig"].get("caBundle") or "")


def encoded(data: bytes) -> str:
    """Return data as an API server shows it."""
    return base64.b64encode(data).decode()

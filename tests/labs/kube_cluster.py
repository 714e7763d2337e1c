"""A real control plane on loopback with `tierwall authorizer` beside it."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

from tests.labs.control_plane import ControlPlane, KubectlResult
from tests.labs.waiting import PATIENCE_S, eventually, unused_port
from tests.worlds.api_fakes import policies_text

TIERWALL = str(Path(sys.executable).parent / "tierwall")
# The user as whom the authorizer asks the API server: that of a pod.
AUTHORIZER = "system:serviceaccount:tierwall-system:tierwall-authorizer"
# How an API server says that a webhook did not answer within its timeout, of 3 or 5 seconds.
_TOO_SLOW = ("context deadline exceeded", "Client.Timeout exceeded")


class Cluster(ControlPlane):
    """The processes, kubectl for each user, and the policies of the authorizer."""

    users = {
        **ControlPlane.users,
        "alice": ("alice", ("dev",)),
        "bob": ("bob", ("dev",)),
        "mallory": ("mallory", ("dev",)),
        # The authorizer itself, with the roles that `install` writes.
        "authorizer": (AUTHORIZER, ()),
    }
    # More options of `authorizer` and of `authorizer install`.
    options: tuple[str, ...] = ()
    install_options: tuple[str, ...] = ()
    admission_config = "admission.yaml"
    gates: tuple[str, ...] = ()

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.policies = folder / "policies"
        self.policies.mkdir()
        self.decisions = folder / "decisions.jsonl"
        self.port = self.health_port = 0

    # processes

    def start(self) -> None:
        """Start everything and wait until it answers."""
        self._write_kubeconfigs()
        audit = self.folder / "audit.yaml"
        audit.write_text("apiVersion: audit.k8s.io/v1\nkind: Policy\nrules: [{level: Metadata}]\n")
        self._start_etcd()
        self._first_authorizer()
        self._start_api_server(
            f"--authorization-config={self.pki / 'authorization.yaml'}",
            f"--admission-control-config-file={self.pki / self.admission_config}",
            "--watch-cache=false",
            f"--audit-policy-file={audit}",
            f"--audit-log-path={self.folder / 'audit.jsonl'}",
            *self.gates,
        )
        if (self.pki / "webhook.yaml").exists():
            self.kubectl("admin", "apply", "-f", str(self.pki / "webhook.yaml"), expect=True)
        self.kubectl("admin", "apply", "-f", str(self.pki / "rbac.yaml"), expect=True)
        self.kubectl("admin", "create", "namespace", "dev", expect=True)
        self.wait_until_live()

    def _first_authorizer(self) -> None:
        """Start on free ports. The API server must be told one in advance, so try until both are free."""
        while True:
            self.port, self.health_port = unused_port(), unused_port()
            install(self.pki, f"https://127.0.0.1:{self.port}", "--api-server-user", AUTHORIZER, *self.install_options)
            try:
                return self.start_authorizer()
            except AssertionError:
                if "cannot listen" not in self.log("authorizer"):
                    raise
                (self.folder / "authorizer.log").unlink()

    def start_authorizer(self) -> None:
        """Start `tierwall authorizer --bridge` and wait until it answers."""
        pki = self.pki
        self._start(
            "authorizer",
            *(TIERWALL, "authorizer", "--policies", str(self.policies)),
            *("--listen", f"127.0.0.1:{self.port}", "--health-listen", f"127.0.0.1:{self.health_port}"),
            *("--tls-cert", str(pki / "server.crt"), "--tls-key", str(pki / "server.key")),
            *("--client-ca", str(pki / "ca.crt"), "--bridge", "--log", str(self.decisions), "--grace", "5"),
            *("--api-server-kubeconfig", str(self.folder / "authorizer.kubeconfig"), *self.options),
        )
        process = self._processes["authorizer"]
        eventually(lambda: self.health() is not None or process.poll() is not None, "the authorizer")
        assert process.poll() is None, self.log("authorizer")
        if "api-server" in self._processes:
            self.wait_until_live()

    def wait_until_live(self, is_live: bool = True) -> str:
        """Wait until the authorizer has proved that admission is live, or no longer has; return its reason."""
        eventually(lambda: self._admission().get("live") is is_live, lambda: f"live {is_live}: {self._admission()}")
        return str(self._admission()["reason"])

    def _admission(self) -> dict[str, Any]:
        admission: dict[str, Any] = (self.health() or {}).get("admission", {})
        return admission

    # asking

    def kubectl(self, who: str, *arguments: str, stdin: str = "", expect: bool | None = None) -> KubectlResult:
        """Run kubectl as a user. A request that a busy machine could not decide in time says nothing: ask again."""
        end = time.monotonic() + PATIENCE_S
        while True:
            said = super().kubectl(who, *arguments, stdin=stdin)
            if said.is_done or not any(words in said.text for words in _TOO_SLOW) or time.monotonic() > end:
                break
        if expect is not None:
            assert said.is_done is expect, said
        return said

    def policy(self, file: str, *policies: tuple[str, str, str], wait: bool = True) -> None:
        """Write a file of policies (name, effect, expression) and wait until it is in force."""
        self.write_policies(file, policies_text(policies), wait)

    def write_policies(self, file: str, text: str, wait: bool = True) -> None:
        """Replace a file, as editors do, and wait until the authorizer has another revision."""
        before = (self.health() or {}).get("revision")
        fresh = self.policies / f".{file}.new"
        fresh.write_text(text)
        fresh.replace(self.policies / file)
        if wait and before is not None:
            eventually(lambda: (self.health() or {}).get("revision") != before, "new policies")

    def health(self) -> dict[str, Any] | None:
        """Return the answer of `/readyz`; None if nothing answers."""
        try:
            with urlopen(f"http://127.0.0.1:{self.health_port}/readyz", timeout=PATIENCE_S) as answer:
                readiness: dict[str, Any] = json.load(answer)
                return readiness
        except (URLError, OSError):
            return None

    def metrics(self) -> str:
        """Return the answer of `/metrics`."""
        with urlopen(f"http://127.0.0.1:{self.health_port}/metrics", timeout=PATIENCE_S) as answer:
            return str(answer.read(), "utf-8")

    def records(self) -> list[dict[str, Any]]:
        """Return the decision log."""
        return [json.loads(line) for line in self.decisions.read_text().splitlines()]

    def audited(self, user: str) -> list[dict[str, str]]:
        """Return the annotations of the audited requests of a user, each with its `verb`."""
        events = map(json.loads, (self.folder / "audit.jsonl").read_text().splitlines())
        return [
            {**event.get("annotations", {}), "verb": event["verb"]}
            for event in events
            if event["user"].get("username") == user and event["stage"] == "ResponseComplete"
        ]


def install(pki: Path, url: str, *more: str) -> None:
    """Write the certificates and configuration of an authorizer at an address."""
    command = [TIERWALL, "authorizer", "install", "--out", str(pki), "--url", url, *more]
    subprocess.run(command, check=True, capture_output=True, timeout=PATIENCE_S)

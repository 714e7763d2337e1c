"""A real control plane on loopback: etcd, kube-apiserver, and `tierwall authorizer` beside them."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import ssl
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import Request, urlopen

import yaml

from tests import ROOT
from tests.labs.waiting import PATIENCE_S, HeldPort, eventually, unused_port
from tests.needs import unavailable
from tests.worlds.api_fakes import policies_text

TOOLS = ROOT / "deploy" / "cluster-tools"
TIERWALL = str(Path(sys.executable).parent / "tierwall")
USERS = {
    "admin": ("root", ("system:masters",)),
    "alice": ("alice", ("dev",)),
    "bob": ("bob", ("dev",)),
    "mallory": ("mallory", ("dev",)),
}


def assets() -> Path:
    """Return the folder with kube-apiserver and kubectl. Without one, the test is skipped, or fails in CI."""
    version = re.search(r"^require k8s\.io/kubernetes v(\S+)", (TOOLS / "go.mod").read_text(), re.MULTILINE)
    assert version is not None
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tierwall" / f"kube-{version[1]}"
    for given in (os.environ.get("TIERWALL_KUBE_ASSETS"), os.environ.get("KUBEBUILDER_ASSETS"), str(cache)):
        if given and all((Path(given) / program).exists() for program in ("kube-apiserver", "kubectl")):
            return Path(given)
    why = "run `make cluster-tools`" if shutil.which("go") else "Go is absent, so they cannot be built"
    unavailable(f"no kube-apiserver and kubectl: {why}")
    raise AssertionError


def etcd() -> str:
    """Return the path of etcd."""
    beside = Path(sys.executable).parent / "etcd"
    path = str(beside) if beside.exists() else shutil.which("etcd")
    if path is None:
        unavailable("no etcd: install the development requirements")
        raise AssertionError
    return path


class KubectlResult:
    """The result of a call of kubectl."""

    def __init__(self, process: subprocess.CompletedProcess[str]) -> None:
        self.is_done = process.returncode == 0
        self.text = process.stdout + process.stderr

    def __repr__(self) -> str:
        return f"{'done' if self.is_done else 'failed'}: {self.text}"

    @property
    def is_forbidden(self) -> bool:
        """Whether the API server, or admission, refused it."""
        return not self.is_done and ("forbidden" in self.text.lower() or "denied the request" in self.text)


class Cluster:
    """The processes, and kubectl for each user."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.assets = assets()
        self.policies = folder / "policies"
        self.policies.mkdir()
        self.pki = folder / "pki"
        self.decisions = folder / "decisions.jsonl"
        self.port = self.health_port = 0
        self._held = [HeldPort() for _ in range(3)]
        self._api_port, self._etcd_port, self._peer_port = (port.number for port in self._held)
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    # processes

    def start(self) -> None:
        """Start everything and wait until it answers."""
        self._start_etcd()
        self._first_authorizer()
        self._start_api_server()
        self._write_kubeconfigs()
        eventually(self._is_ready, "the API server")
        self.kubectl("admin", "apply", "-f", str(self.pki / "webhook.yaml"), expect=True)
        self.kubectl("admin", "create", "namespace", "dev", expect=True)

    def stop(self) -> None:
        """Stop everything that was started here."""
        for name in reversed(list(self._processes)):
            self.stop_process(name)
        for port in self._held:
            port.close()

    def stop_process(self, name: str, kill: bool = False) -> None:
        """Stop one process."""
        process = self._processes.pop(name)
        process.send_signal(signal.SIGKILL if kill else signal.SIGTERM)
        try:
            process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def _first_authorizer(self) -> None:
        """Start on free ports. The API server must be told one in advance, so try until both are free."""
        while True:
            self.port, self.health_port = unused_port(), unused_port()
            self._tierwall("install", "--out", str(self.pki), "--url", f"https://127.0.0.1:{self.port}")
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
        )
        process = self._processes["authorizer"]
        eventually(lambda: self.health() is not None or process.poll() is not None, "the authorizer")
        assert process.poll() is None, self.log("authorizer")

    def _start_etcd(self) -> None:
        client, peer = f"http://127.0.0.1:{self._etcd_port}", f"http://127.0.0.1:{self._peer_port}"
        self._start(
            "etcd",
            *(etcd(), "--data-dir", str(self.folder / "etcd"), "--unsafe-no-fsync", "--log-level", "error"),
            "--socket-reuse-port",
            *("--listen-client-urls", client, "--advertise-client-urls", client, "--listen-peer-urls", peer),
            *("--initial-advertise-peer-urls", peer, "--initial-cluster", f"default={peer}"),
        )

    def _start_api_server(self) -> None:
        tokens = self.folder / "tokens.csv"
        lines = (f'{user}-token,{name},{user}-uid,"{",".join(groups)}"' for user, (name, groups) in USERS.items())
        tokens.write_text("\n".join(lines) + "\n")
        self._start(
            "api-server",
            str(self.assets / "kube-apiserver"),
            f"--etcd-servers=http://127.0.0.1:{self._etcd_port}",
            "--bind-address=127.0.0.1",
            "--advertise-address=127.0.0.1",
            f"--secure-port={self._api_port}",
            "--permit-port-sharing",
            f"--cert-dir={self.folder / 'api-server'}",
            f"--token-auth-file={tokens}",
            *self._policy_flags(),
            "--disable-admission-plugins=ServiceAccount",
            "--service-cluster-ip-range=10.0.0.0/24",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={self.pki / 'ca.crt'}",
            f"--service-account-signing-key-file={self.pki / 'ca.key'}",
            "--endpoint-reconciler-type=none",
            "--watch-cache=false",
        )

    def _policy_flags(self) -> tuple[str, ...]:
        """The flags that select who authorizes requests."""
        return (
            f"--authorization-config={self.pki / 'authorization.yaml'}",
            f"--admission-control-config-file={self.pki / 'admission.yaml'}",
        )

    def _start(self, name: str, *command: str) -> None:
        with (self.folder / f"{name}.log").open("ab") as log:
            self._processes[name] = subprocess.Popen(command, stdout=log, stderr=log, cwd=self.folder)

    def _is_ready(self) -> bool:
        for name, process in self._processes.items():
            assert process.poll() is None, f"{name} ended: {self.log(name)[-3000:]}"
        request = Request(f"https://127.0.0.1:{self._api_port}/readyz", headers={"Authorization": "Bearer admin-token"})
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        try:
            with urlopen(request, timeout=PATIENCE_S, context=context) as answer:
                return bool(answer.status == 200)
        except (URLError, OSError):
            return False

    def log(self, name: str) -> str:
        """Return what a process has written."""
        return (self.folder / f"{name}.log").read_text(errors="replace")

    # asking

    def kubectl(self, who: str, *arguments: str, stdin: str = "", expect: bool | None = None) -> KubectlResult:
        """Run kubectl as a user; with `expect` it must succeed, or fail."""
        command = [str(self.assets / "kubectl"), "--kubeconfig", str(self.folder / f"{who}.kubeconfig")]
        command += ["--cache-dir", str(self.folder / "cache"), *arguments]
        said = KubectlResult(subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=PATIENCE_S))
        if expect is not None:
            assert said.is_done is expect, said
        return said

    def apply(self, who: str, verb: str, value: dict[str, Any]) -> KubectlResult:
        """`kubectl create|replace|apply -f -` with an object; its schema is not fetched."""
        return self.kubectl(who, verb, "--validate=false", "-f", "-", stdin=json.dumps(value))

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

    def _write_kubeconfigs(self) -> None:
        cluster = {"server": f"https://127.0.0.1:{self._api_port}", "insecure-skip-tls-verify": True}
        for user in USERS:
            document = {
                "apiVersion": "v1",
                "kind": "Config",
                "clusters": [{"name": "c", "cluster": cluster}],
                "users": [{"name": "u", "user": {"token": f"{user}-token"}}],
                "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u", "namespace": "dev"}}],
                "current-context": "x",
            }
            (self.folder / f"{user}.kubeconfig").write_text(yaml.safe_dump(document))

    def _tierwall(self, *arguments: str) -> None:
        command = [TIERWALL, "authorizer", *arguments]
        subprocess.run(command, check=True, capture_output=True, timeout=PATIENCE_S)

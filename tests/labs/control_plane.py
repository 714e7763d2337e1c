"""A real control plane on loopback: etcd and kube-apiserver, each as a process, and kubectl for each user."""

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
from tests.labs.waiting import PATIENCE_S, HeldPort, eventually
from tests.needs import unavailable

TOOLS = ROOT / "deploy" / "cluster-tools"
# Where `make cluster-tools` puts programs: the folder's name, and the go.mod and module that say its version.
_BUILT = {
    "kube-apiserver": ("kube", TOOLS / "go.mod", "k8s.io/kubernetes"),
    "kubectl": ("kube", TOOLS / "go.mod", "k8s.io/kubernetes"),
    "etcd": ("etcd", TOOLS / "etcd" / "go.mod", "go.etcd.io/etcd/server/v3"),
    "helm": ("helm", TOOLS / "helm" / "go.mod", "helm.sh/helm/v3"),
}
# What a control plane is made of, and how it is asked.
_SERVERS = ("kube-apiserver", "kubectl", "etcd")


def tool(program: str) -> str:
    """Return the path of kube-apiserver, kubectl, etcd or helm. Without it, the test is skipped, or fails in CI."""
    name, module_file, module = _BUILT[program]
    version = re.search(rf"^require {re.escape(module)} v(\S+)", module_file.read_text(), re.MULTILINE)
    assert version is not None
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tierwall" / f"{name}-{version[1]}"
    for folder in (os.environ.get("TIERWALL_KUBE_ASSETS"), os.environ.get("KUBEBUILDER_ASSETS"), str(cache)):
        if folder and (Path(folder) / program).exists():
            return str(Path(folder) / program)
    why = "run `make cluster-tools`" if shutil.which("go") else "Go is absent, so it cannot be built"
    unavailable(f"no {program}: {why}")
    raise AssertionError


def need_tools() -> None:
    """Skip the test, or fail in CI, if one of the programs of a control plane is missing."""
    for program in _SERVERS:
        tool(program)


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


class ControlPlane:
    """The processes, and kubectl for each user, who has a token: `users` maps its kubeconfig to a name and groups."""

    users: dict[str, tuple[str, tuple[str, ...]]] = {"admin": ("root", ("system:masters",))}

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.pki = folder / "pki"
        self._programs = {program: tool(program) for program in _SERVERS}
        self._held = [HeldPort() for _ in range(3)]
        self.api_port, self._etcd_port, self._peer_port = (port.number for port in self._held)
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._data: set[Path] = set()

    # processes

    def stop(self) -> None:
        """Stop everything that was started here.

        Servers are killed: kube-apiserver would wait a minute for watches that are still open.
        """
        for name in reversed(list(self._processes)):
            self.stop_process(name, kill=name in ("api-server", "etcd"))
        for port in self._held:
            port.close()
        for data in self._data:
            # 65 MB each, and pytest keeps the folders of three runs.
            shutil.rmtree(data, ignore_errors=True)

    def stop_process(self, name: str, kill: bool = False) -> None:
        """Stop one process."""
        process = self._processes.pop(name)
        process.send_signal(signal.SIGKILL if kill else signal.SIGTERM)
        try:
            process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def _start_etcd(self, data: str = "etcd") -> None:
        self._data.add(self.folder / data)
        client, peer = self.etcd_url, f"http://127.0.0.1:{self._peer_port}"
        self._start(
            "etcd",
            *(self._programs["etcd"], "--data-dir", str(self.folder / data)),
            *("--unsafe-no-fsync", "--log-level", "error", "--socket-reuse-port"),
            *("--listen-client-urls", client, "--advertise-client-urls", client, "--listen-peer-urls", peer),
            *("--initial-advertise-peer-urls", peer, "--initial-cluster", f"default={peer}"),
        )

    def _start_api_server(self, *more: str) -> None:
        """Start kube-apiserver and wait until it answers."""
        tokens = self.folder / "tokens.csv"
        lines = (f'{user}-token,{name},{user}-uid,"{",".join(groups)}"' for user, (name, groups) in self.users.items())
        tokens.write_text("\n".join(lines) + "\n")
        self._start(
            "api-server",
            self._programs["kube-apiserver"],
            f"--etcd-servers={self.etcd_url}",
            "--bind-address=127.0.0.1",
            "--advertise-address=127.0.0.1",
            f"--secure-port={self.api_port}",
            "--permit-port-sharing",
            f"--cert-dir={self.folder / 'api-server'}",
            f"--token-auth-file={tokens}",
            "--disable-admission-plugins=ServiceAccount",
            "--service-cluster-ip-range=10.0.0.0/24",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={self.pki / 'ca.crt'}",
            f"--service-account-signing-key-file={self.pki / 'ca.key'}",
            "--endpoint-reconciler-type=none",
            *more,
        )
        eventually(self._is_ready, "the API server")

    def _start(self, name: str, *command: str) -> None:
        with (self.folder / f"{name}.log").open("ab") as log:
            owned = [*die_with_owner(), *command]
            self._processes[name] = subprocess.Popen(owned, stdout=log, stderr=log, cwd=self.folder)

    def _is_ready(self) -> bool:
        for name, process in self._processes.items():
            assert process.poll() is None, f"{name} ended: {self.log(name)[-3000:]}"
        request = Request(f"{self.url}/readyz", headers={"Authorization": "Bearer admin-token"})
        try:
            with urlopen(request, timeout=PATIENCE_S, context=unverified()) as answer:
                return bool(answer.status == 200)
        except (URLError, OSError):
            return False

    @property
    def url(self) -> str:
        """The address of the API server."""
        return f"https://127.0.0.1:{self.api_port}"

    @property
    def etcd_url(self) -> str:
        """The address of etcd."""
        return f"http://127.0.0.1:{self._etcd_port}"

    def log(self, name: str) -> str:
        """Return what a process has written."""
        return (self.folder / f"{name}.log").read_text(errors="replace")

    # asking

    def kubectl(self, who: str, *arguments: str, stdin: str = "", expect: bool | None = None) -> KubectlResult:
        """Run kubectl as a user; with `expect` it must succeed, or fail."""
        command = [self._programs["kubectl"], "--kubeconfig", str(self.folder / f"{who}.kubeconfig")]
        command += ["--cache-dir", str(self.folder / "cache"), *arguments]
        said = KubectlResult(subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=PATIENCE_S))
        if expect is not None:
            assert said.is_done is expect, said
        return said

    def apply(self, who: str, verb: str, value: dict[str, Any]) -> KubectlResult:
        """`kubectl create|replace|apply -f -` with an object; its schema is not fetched."""
        return self.kubectl(who, verb, "--validate=false", "-f", "-", stdin=json.dumps(value))

    def _write_kubeconfigs(self) -> None:
        cluster = {"server": self.url, "insecure-skip-tls-verify": True}
        for user in self.users:
            document = {
                "apiVersion": "v1",
                "kind": "Config",
                "clusters": [{"name": "c", "cluster": cluster}],
                "users": [{"name": "u", "user": {"token": f"{user}-token"}}],
                "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u", "namespace": "dev"}}],
                "current-context": "x",
            }
            (self.folder / f"{user}.kubeconfig").write_text(yaml.safe_dump(document))


def die_with_owner() -> list[str]:
    """Return a command prefix that makes the kernel kill the command when this process dies, however it dies."""
    if sys.platform != "linux":
        return []
    # PR_SET_PDEATHSIG is 1.
    code = f"import ctypes, os, sys; ctypes.CDLL(None).prctl(1, {int(signal.SIGKILL)})"
    alive = f"os.getppid() == {os.getpid()} or sys.exit(1)"
    return [sys.executable, "-I", "-S", "-c", f"{code}; {alive}; os.execvp(sys.argv[1], sys.argv[1:])"]


def unverified() -> ssl.SSLContext:
    """Return the TLS of a client that believes every server."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context

"""A real cluster on one machine: kubelets, containerd, runc and pods, in namespaces that end with one process.

`real_nodes_inside` is the first process of the cluster's own process namespace; the kernel ends everything in it when
the test ends, however it ends. Nodes and control plane share a bridge that nothing outside can reach, so ports never
clash. What is needed: root, nftables, control groups of version 1, and the programs of `make node-tools`.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from supply.image import ImageEntry, ImageSettings, write_image
from tests import ROOT
from tests.labs.control_plane import TOOLS, die_with_owner, tool
from tests.labs.waiting import PATIENCE_S, eventually
from tests.needs import unavailable

AGNHOST = "localhost/agnhost:local"
PAUSE = "localhost/pause:local"
_GROUPS = Path("/sys/fs/cgroup")


def node_tools() -> Path:
    """Return the folder of the programs of nodes. Without it, the test is skipped, or fails in CI."""
    version = re.search(r"^require k8s.io/kubernetes v(\S+)", (TOOLS / "nodes" / "go.mod").read_text(), re.MULTILINE)
    assert version is not None
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tierwall" / f"nodes-{version[1]}"
    if not (cache / "pinned").exists():
        unavailable("no kubelet: run `make node-tools`")
    if os.geteuid() != 0:
        unavailable("only root can run nodes")
    if not (_GROUPS / "cpuset" / "cgroup.procs").exists():
        unavailable("nodes need control groups of version 1")
    return cache


class RealNodes:
    """The cluster. Commands run in `control`, or on `node1`, `node2` and so on."""

    def __init__(self, folder: Path, count: int = 2) -> None:
        self.folder, self._count = folder, count
        self.tools = node_tools()
        self.names = tuple(f"node{number}" for number in range(1, count + 1))
        self.kubeconfig = folder / "admin.kubeconfig"
        self._group = f"tierwall-{os.getpid()}-{time.monotonic_ns()}"
        self._process: subprocess.Popen[bytes] | None = None
        self._started: list[subprocess.Popen[bytes]] = []

    def start(self) -> None:
        """Start everything, and wait until every node is ready."""
        images = self.folder / "images"
        images.mkdir()
        write_images(self.tools, images)
        log = (self.folder / "inside.log").open("wb")
        inside = [sys.executable, "-m", "tests.labs.real_nodes_inside", str(self.folder), str(self._count)]
        apart = ["unshare", "--net", "--mount", "--uts", "--ipc", "--pid", "--fork", "--kill-child", "--mount-proc"]
        programs = (tool(name) for name in ("etcd", "kube-apiserver", "kubectl"))
        self._process = subprocess.Popen(
            [*die_with_owner(), *apart, *inside, self._group, str(self.tools), *programs],
            stdout=log,
            stderr=log,
            cwd=ROOT,
        )
        log.close()
        eventually(self._is_ready, lambda: f"two nodes: {self.log('inside')[-3000:]}", 2 * PATIENCE_S)

    def _is_ready(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, self.log("inside")[-3000:]
        return (self.folder / "ready").exists()

    def stop(self) -> None:
        """End everything. Logs stay."""
        if self._process is not None:
            self._process.kill()
            for process in (self._process, *self._started):
                process.wait(PATIENCE_S)
        for hierarchy in _GROUPS.iterdir():
            eventually(partial(_is_removed, hierarchy / self._group), f"the end of {hierarchy / self._group}")

    def log(self, name: str) -> str:
        """Return what a process has written."""
        path = self.folder / f"{name}.log"
        return path.read_text(errors="replace") if path.exists() else ""

    # asking

    def command(self, where: str, *words: str) -> list[str]:
        """Return the command that runs another one in `control` or on a node."""
        assert self._process is not None
        [first] = _children(self._process.pid)
        enter = ["nsenter", "-t", str(first), "-n", "-m", "-p", "-u", "--"]
        if where != "control":
            # This number is of the inner process namespace.
            enter += ["nsenter", "-t", (self.folder / where / "pid").read_text(), "-n", "-m", "-u", "--"]
        return [*enter, *words]

    def run(self, where: str, *words: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        """Run a command there, and wait for it."""
        return subprocess.run(
            self.command(where, *words), input=stdin, capture_output=True, text=True, timeout=2 * PATIENCE_S
        )

    def start_process(self, where: str, name: str, *words: str) -> subprocess.Popen[bytes]:
        """Start a command there. It ends with the cluster."""
        with (self.folder / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(self.command(where, *words), stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        self._started.append(process)
        return process

    def send_signal(self, name: str, signal: str) -> None:
        """Send a signal, such as STOP, to a process of the control plane by its name, such as `api-server`."""
        done = self.run("control", "kill", f"-{signal}", (self.folder / f"{name}.pid").read_text())
        assert done.returncode == 0, done.stderr

    def try_kubectl(self, *words: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        """Run kubectl as an administrator, or as another user with `--token`."""
        asked = [tool("kubectl"), "--kubeconfig", str(self.kubeconfig), "--cache-dir", str(self.folder / "cache")]
        return self.run("control", *asked, *words, stdin=stdin)

    def kubectl(self, *words: str, stdin: str = "") -> str:
        """Run kubectl as an administrator; it must succeed."""
        done = self.try_kubectl(*words, stdin=stdin)
        assert done.returncode == 0, f"kubectl {' '.join(words)}: {done.stdout}{done.stderr}"
        return done.stdout

    def helm(self, *words: str) -> str:
        """Run helm as an administrator; it must succeed."""
        homes = [f"HELM_{name}_HOME={self.folder / 'helm'}" for name in ("CACHE", "CONFIG", "DATA")]
        asked = ["env", *homes, tool("helm"), "--kubeconfig", str(self.kubeconfig)]
        done = self.run("control", *asked, *words)
        assert done.returncode == 0, f"helm {' '.join(words)}: {done.stdout}{done.stderr}"
        return done.stdout

    def audited(self) -> Iterator[dict[str, Any]]:
        """Yield the requests of ServiceAccounts that the API server has answered so far."""
        with (self.folder / "audit.jsonl").open() as lines:
            yield from (json.loads(line) for line in lines if line.endswith("\n"))

    def tag(self, name: str, image: str = AGNHOST) -> None:
        """Give an image of every node another name, by which pods of a suite ask for it."""
        self._ctr("tag", "--force", image, name)

    def import_image(self, archive: Path) -> None:
        """Import an image on every node."""
        self._ctr("import", str(archive))

    def _ctr(self, *words: str) -> None:
        for name in self.names:
            done = self.run(name, str(self.tools / "debian/usr/bin/ctr"), "-n", "k8s.io", "images", *words)
            assert done.returncode == 0, done.stderr


def write_images(tools: Path, folder: Path) -> None:
    """Write the images of pods: the sandbox, and agnhost with a shell."""
    pause = ImageEntry("/pause", tools / "bin/pause", 0o755)
    write_image(folder / "pause.tar", [PAUSE], [pause], ImageSettings(["/pause"]))
    busybox = tools / "debian/bin/busybox"
    applets = subprocess.run([busybox, "--list"], check=True, capture_output=True, text=True).stdout.split()
    entries = [
        *(ImageEntry(f"/bin/{name}", "busybox") for name in applets),
        ImageEntry("/bin/busybox", busybox, 0o755),
        ImageEntry("/bin/bash", tools / "debian/bin/bash-static", 0o755),
        # It stands in for SCTP where the kernel has none, and runs the real one.
        ImageEntry("/agnhost", tools / "bin/sctp", 0o755),
        ImageEntry("/agnhost.real", tools / "bin/agnhost", 0o755),
        ImageEntry("/tmp/", None, 0o1777),
    ]
    settings = ImageSettings(["/agnhost"], ["pause"], environment={"PATH": "/:/bin"})
    write_image(folder / "agnhost.tar", [AGNHOST], entries, settings)


def _children(number: int) -> list[int]:
    text = Path(f"/proc/{number}/task/{number}/children").read_text()
    return [int(child) for child in text.split()]


def _is_removed(group: Path) -> bool:
    """Remove a control group and those below it; False if a process is still in one."""
    if not group.is_dir():
        return True
    for path in sorted((folder for folder in group.rglob("*") if folder.is_dir()), reverse=True):
        if not _is_empty(path):
            return False
    return _is_empty(group)


def _is_empty(group: Path) -> bool:
    try:
        group.rmdir()
    except OSError:
        return False
    return True

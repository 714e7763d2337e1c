"""The first process of a real cluster on one machine: starts the control plane and the nodes, then reaps.

Arguments: the folder of the cluster, the number of nodes, the name of its control groups, the folder of the programs of
nodes, and the paths of etcd, kube-apiserver and kubectl. `real_nodes` starts it in new namespaces.

Control plane and nodes are on a bridge, 172.31.99.0/24: the API server is .1, node N is .1N, and its pods are
10.244.N.0/24. Pods are on point-to-point links, so every packet of a pod is routed by its node.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import yaml
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from tests.labs.real_nodes import PAUSE
from tests.labs.recording_server import Authority

_NETWORK = "172.31.99"
API_SERVER = f"{_NETWORK}.1"
_GROUPS = Path("/sys/fs/cgroup")
# The kubelet writes these settings of the kernel where they differ, and they are the whole machine's. It finds files
# that say what it wants instead, and writes nothing.
_SETTINGS = {
    "vm/overcommit_memory": "1",
    "vm/panic_on_oom": "0",
    "kernel/panic": "10",
    "kernel/panic_on_oops": "1",
    "kernel/keys/root_maxkeys": "1000000",
    "kernel/keys/root_maxbytes": "25000000",
}
# Requests of ServiceAccounts, once each, when they are answered.
_AUDIT = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived", "ResponseStarted"],
    "rules": [{"level": "Metadata", "userGroups": ["system:serviceaccounts"]}, {"level": "None"}],
}


class InnerCluster:
    """The processes inside."""

    def __init__(self, folder: Path, count: int, group: str, tools: Path, programs: list[str]) -> None:
        self.folder, self.count, self.group, self.tools = folder, count, group, tools
        self.etcd, self.api_server, self.kubectl = programs
        self.kubeconfig = folder / "admin.kubeconfig"

    def start(self) -> None:
        """Start everything, and wait until every node is ready."""
        self._separate()
        self._start_control_plane()
        with ThreadPoolExecutor() as pool:
            list(pool.map(self._start_node, range(1, self.count + 1)))
        for number in range(1, self.count + 1):
            ready = ("wait", "--for=condition=Ready", f"node/node{number}", "--timeout=1s")
            wait_for(partial(self._asked, *ready), f"node{number}")
        wait_for(lambda: self._asked("get", "serviceaccount", "default"), "the ServiceAccount of pods")

    def _separate(self) -> None:
        """Hide what must not be changed, and make the control groups."""
        for name, value in _SETTINGS.items():
            file = self.folder / name.replace("/", ".")
            file.write_text(value + "\n")
            run("mount", "--bind", str(file), f"/proc/sys/{name}")
        run("mount", "--make-rshared", "/")
        run("mount", "-t", "tmpfs", "-o", "mode=755", "tmpfs", "/run")
        for hierarchy in _GROUPS.iterdir():
            if not (hierarchy / "cgroup.procs").exists():
                continue
            names = ("", "control", *(f"node{number}" for number in range(1, self.count + 1)))
            for name in names:
                group = hierarchy / self.group / name
                group.mkdir(parents=True, exist_ok=True)
                if hierarchy.name == "cpuset":
                    # A new group of this kind is empty, and an empty one takes no process.
                    for setting in ("cpuset.cpus", "cpuset.mems"):
                        (group / setting).write_text((hierarchy / setting).read_text())
            (hierarchy / self.group / "control" / "cgroup.procs").write_text("0")

    def _start_control_plane(self) -> None:
        pki = self.folder / "pki"
        pki.mkdir()
        authority = Authority()
        hosts = ("kubernetes", "kubernetes.default", "kubernetes.default.svc", "localhost")
        certificate, key = authority.issue("kube-apiserver", *hosts, "127.0.0.1", API_SERVER, "10.96.0.1")
        accounts = ec.generate_private_key(ec.SECP256R1()).private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
        )
        contents = {"ca.crt": authority.pem, "api.crt": certificate, "api.key": key, "accounts.key": accounts}
        contents["tokens.csv"] = b'admin-token,admin,admin,"system:masters"\n'
        for name, content in contents.items():
            (pki / name).write_bytes(content)
        self.kubeconfig.write_text(yaml.safe_dump(_kubeconfig(pki / "ca.crt")))
        (self.folder / "audit.yaml").write_text(yaml.safe_dump(_AUDIT))

        run("ip", "link", "set", "lo", "up")
        run("ip", "link", "add", "nodes", "type", "bridge")
        run("ip", "address", "add", f"{API_SERVER}/24", "dev", "nodes")
        run("ip", "link", "set", "nodes", "up")
        run("sysctl", "-q", "-w", "net.ipv4.ip_forward=1")
        url = "http://127.0.0.1:2379"
        self._start(
            "etcd",
            *(self.etcd, "--data-dir", str(self.folder / "etcd"), "--unsafe-no-fsync", "--log-level", "error"),
            *("--listen-client-urls", url, "--advertise-client-urls", url),
        )
        self._start(
            "api-server",
            self.api_server,
            f"--etcd-servers={url}",
            "--bind-address=0.0.0.0",
            f"--advertise-address={API_SERVER}",
            "--secure-port=6443",
            f"--tls-cert-file={pki / 'api.crt'}",
            f"--tls-private-key-file={pki / 'api.key'}",
            f"--token-auth-file={pki / 'tokens.csv'}",
            "--authorization-mode=Node,RBAC",
            "--service-cluster-ip-range=10.96.0.0/16",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={pki / 'accounts.key'}",
            f"--service-account-signing-key-file={pki / 'accounts.key'}",
            # Names of nodes are in no DNS.
            "--kubelet-preferred-address-types=InternalIP",
            # No proxy runs here, so webhooks are called at the addresses of their pods.
            "--enable-aggregator-routing",
            f"--audit-policy-file={self.folder / 'audit.yaml'}",
            f"--audit-log-path={self.folder / 'audit.jsonl'}",
            "--allow-privileged=true",
        )
        wait_for(lambda: self._asked("get", "--raw", "/readyz"), "the API server")
        self._start(
            "controller-manager",
            str(self.tools / "bin/kube-controller-manager"),
            f"--kubeconfig={self.kubeconfig}",
            "--leader-elect=false",
            f"--root-ca-file={pki / 'ca.crt'}",
            f"--service-account-private-key-file={pki / 'accounts.key'}",
        )
        scheduler = str(self.tools / "bin/kube-scheduler")
        self._start("scheduler", scheduler, f"--kubeconfig={self.kubeconfig}", "--leader-elect=false")

    def _start_node(self, number: int) -> None:
        name = f"node{number}"
        home = self.folder / name
        for part in ("kubelet", "containerd", "cni", "plugins"):
            (home / part).mkdir(parents=True)
        apart = ("unshare", "--net", "--mount", "--uts", "--propagation", "unchanged", "sleep", "infinity")
        process = self._start(name, *apart)
        network = Path(f"/proc/{process.pid}/ns/net")
        wait_for(lambda: network.readlink() != Path("/proc/self/ns/net").readlink(), f"the network of {name}")
        (home / "pid").write_text(str(process.pid))
        # Not `ip netns exec`: its new /sys has no control groups.
        within = ("nsenter", "-t", str(process.pid), "-n", "-m", "-u", "--")
        run("ip", "link", "add", name, "type", "veth", "peer", "name", "eth0", "netns", str(process.pid))
        run("ip", "link", "set", name, "master", "nodes", "up")
        run("ip", "route", "add", f"10.244.{number}.0/24", "via", f"{_NETWORK}.1{number}")
        run(*within, "sh", "-eu", stdin=self._node_script(number, home))
        (home / "cni" / "10-pods.conflist").write_text(json.dumps(_cni(number, home)))
        (home / "containerd.toml").write_text(self._containerd(home))
        for file, value in {"kubelet.yaml": self._kubelet(name, home), "proxy.yaml": self._proxy(name)}.items():
            (home / file).write_text(yaml.safe_dump(value))
        programs = self.tools / "debian/usr/bin"
        # containerd looks for its shim and for runc there.
        environment = {**os.environ, "PATH": f"{programs}:{self.tools / 'debian/usr/sbin'}:{os.environ['PATH']}"}
        containerd = (str(programs / "containerd"), "--config", str(home / "containerd.toml"))
        self._start(f"{name}-containerd", *within, *containerd, environment=environment)
        ctr = (*within, str(programs / "ctr"), "-n", "k8s.io")
        wait_for(lambda: subprocess.run([*ctr, "version"], capture_output=True).returncode == 0, "containerd")
        for image in sorted((self.folder / "images").glob("*.tar")):
            run(*ctr, "images", "import", str(image))
        kubelet = (str(self.tools / "bin/kubelet"), f"--config={home / 'kubelet.yaml'}")
        identity = (f"--hostname-override={name}", f"--node-ip={_NETWORK}.1{number}")
        self._start(f"{name}-kubelet", *within, *kubelet, f"--kubeconfig={self.kubeconfig}", *identity)
        proxy = str(self.tools / "bin/kube-proxy")
        self._start(f"{name}-proxy", *within, proxy, f"--config={home / 'proxy.yaml'}")

    def _node_script(self, number: int, home: Path) -> str:
        """Return what is done in the namespaces of a node: folders of its own, addresses and routes."""
        others = (other for other in range(1, self.count + 1) if other != number)
        lines = [
            f"hostname node{number}",
            "mount --make-rprivate /",
            "mount --make-rshared /",
            # Shims, kubelets and containerd use fixed paths below these.
            *(f"mount -t tmpfs -o mode=755 tmpfs {path}" for path in ("/run", "/var/log", "/var/lib")),
            "mkdir /var/lib/kubelet",
            f"mount --bind {home / 'kubelet'} /var/lib/kubelet",
            "mount --make-rshared /var/lib/kubelet",
            "ip link set lo up",
            f"ip address add {_NETWORK}.1{number}/24 dev eth0",
            "ip link set eth0 up",
            f"ip route add default via {API_SERVER}",
            *(f"ip route add 10.244.{other}.0/24 via {_NETWORK}.1{other}" for other in others),
            "sysctl -q -w net.ipv4.ip_forward=1 net.ipv4.conf.all.rp_filter=0 net.ipv4.conf.default.rp_filter=0",
        ]
        return "\n".join(lines) + "\n"

    def _containerd(self, home: Path) -> str:
        # Without CAP_SYS_RESOURCE no score below the parent's can be set.
        return f"""\
version = 2
root = "{home / "containerd"}"
state = "/run/containerd"
[grpc]
  address = "/run/containerd/containerd.sock"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{PAUSE}"
  disable_apparmor = true
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{self.tools / "debian/usr/lib/cni"}"
    conf_dir = "{home / "cni"}"
"""

    def _kubelet(self, name: str, home: Path) -> dict[str, Any]:
        (home / "resolv.conf").write_text("nameserver 192.0.2.53\n")  # nobody: there is no DNS
        return {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
            "authorization": {"mode": "AlwaysAllow"},
            "containerRuntimeEndpoint": "unix:///run/containerd/containerd.sock",
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": f"/{self.group}/{name}",
            "enforceNodeAllocatable": ["none"],
            "failCgroupV1": False,
            "failSwapOn": False,
            "makeIPTablesUtilChains": False,
            # Shares of the machine's disk say nothing about this node.
            "evictionHard": {
                "memory.available": "1Mi",
                **dict.fromkeys(("nodefs.available", "nodefs.inodesFree"), "0%"),
                **dict.fromkeys(("imagefs.available", "imagefs.inodesFree"), "0%"),
            },
            "imageGCHighThresholdPercent": 100,
            "resolvConf": str(home / "resolv.conf"),
            # `cluster_dns`, where a test runs it.
            "clusterDNS": [API_SERVER],
            "clusterDomain": "cluster.local",
            "volumePluginDir": str(home / "plugins"),
        }

    def _proxy(self, name: str) -> dict[str, Any]:
        return {
            "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
            "kind": "KubeProxyConfiguration",
            "mode": "nftables",
            "hostnameOverride": name,
            "clientConnection": {"kubeconfig": str(self.kubeconfig)},
            "clusterCIDR": "10.244.0.0/16",
            # The machine's limits are not this node's to change.
            "conntrack": {"maxPerCore": 0, "min": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s"},
        }

    def _start(self, name: str, *command: str, environment: dict[str, str] | None = None) -> subprocess.Popen[bytes]:
        with (self.folder / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, env=environment)
        (self.folder / f"{name}.pid").write_text(str(process.pid))
        return process

    def _asked(self, *words: str) -> bool:
        command = [self.kubectl, "--kubeconfig", str(self.kubeconfig), "--cache-dir", str(self.folder / "cache")]
        return subprocess.run([*command, *words], capture_output=True).returncode == 0


def _kubeconfig(authority: Path) -> dict[str, Any]:
    cluster = {"server": f"https://{API_SERVER}:6443", "certificate-authority": str(authority)}
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "real", "cluster": cluster}],
        "users": [{"name": "admin", "user": {"token": "admin-token"}}],
        "contexts": [{"name": "real", "context": {"cluster": "real", "user": "admin"}}],
        "current-context": "real",
    }


def _cni(number: int, home: Path) -> dict[str, Any]:
    addresses = {
        "type": "host-local",
        "dataDir": str(home / "addresses"),
        "ranges": [[{"subnet": f"10.244.{number}.0/24"}]],
        "routes": [{"dst": "0.0.0.0/0"}],
    }
    return {"cniVersion": "0.4.0", "name": "pods", "plugins": [{"type": "ptp", "ipMasq": False, "ipam": addresses}]}


def run(*command: str, stdin: str = "") -> None:
    """Run a command; it must succeed."""
    done = subprocess.run(command, input=stdin, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(command)}: {done.stdout}{done.stderr}")


def wait_for(holds: Callable[[], bool], what: str) -> None:
    """Wait until a condition is true."""
    end = time.monotonic() + 120
    while not holds():
        if time.monotonic() > end:
            sys.exit(f"did not come: {what}")
        time.sleep(0.1)


def main() -> None:
    """Start everything, say that it is ready, and reap whatever ends."""
    folder, count, group, tools, *programs = sys.argv[1:]
    InnerCluster(Path(folder), int(count), group, Path(tools), programs).start()
    (Path(folder) / "ready").touch()
    while True:
        try:
            os.wait()
        except ChildProcessError:
            time.sleep(1)


if __name__ == "__main__":
    main()

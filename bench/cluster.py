"""Reading and following a cluster: `python -m bench cluster`. See bench/cluster_server.py for the simulated server.

`python -m bench.cluster real` fills a real API server with the objects of the smaller size instead, over TLS.

Reading is the command as a process, `explain network` of one connection, beside a bare client that lists the same kinds
in pages, packed, and throws the answers away. The two take turns; the best of five rounds counts. Following is CPU time
over time by the clock, once everything was read.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

from bench.authorizer import served
from bench.cluster_server import KINDS, PAGE, PODS_OF_NAMESPACE, Object, live_pod, objects

if TYPE_CHECKING:
    from tests.labs.live_client import LiveClient

TIERWALL = str(Path(sys.executable).with_name("tierwall"))
SIZES, ROUNDS = (10_000, 100_000), 5
# Following: how many pods, changes a second, and seconds.
FOLLOWED, RATE, SECONDS = 10_000, 100, 20
BARE = f"""
import asyncio, httpx, ssl, sys
context = ssl.create_default_context(cafile=sys.argv[2]) if sys.argv[2] else False
if context:
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
headers = {{"accept-encoding": "gzip", "authorization": "Bearer admin-token"}}
async def read(client, path):
    query = {{"limit": "{PAGE}"}}
    while True:
        body = (await client.get(path, params=query)).content
        start = body.find(b'"continue":"')
        if start < 0:
            return
        query["continue"] = body[start + 12 : body.index(b'"', start + 12)].decode()
async def main():
    async with httpx.AsyncClient(base_url=sys.argv[1], headers=headers, timeout=60, verify=context) as client:
        await asyncio.gather(*(read(client, path) for path in {tuple(KINDS)!r}))
asyncio.run(main())
"""
# The peak of a process is at least that of the one it is forked from, so a small one starts it.
LAUNCHER = """
import os, sys, time
started = time.perf_counter()
pid = os.posix_spawn(sys.argv[1], sys.argv[1:], os.environ)
_, status, usage = os.wait4(pid, 0)
assert os.waitstatus_to_exitcode(status) in (0, 3), sys.argv
print()
print(time.perf_counter() - started, usage.ru_utime + usage.ru_stime, usage.ru_maxrss)
"""
FOLLOWER = """
import sys, time
from tierwall.cluster.access import find_access
from tierwall.cluster.following import FollowedCluster
from tierwall.cluster.wanted import wanted_kinds
access, seconds, changes = find_access(None, sys.argv[1], {}), float(sys.argv[2]), 0
followed = FollowedCluster(access, wanted_kinds(["network"]), 10.0, lambda: None)
followed.start()
assert followed.is_complete(60)
followed.take()
cpu, end = time.process_time(), time.monotonic() + seconds
while time.monotonic() < end:
    time.sleep(0.1)
    changes += len(followed.take().objects)
print((time.process_time() - cpu) / seconds, changes / seconds)
followed.close()
"""


def measure(*command: str) -> tuple[float, float, float]:
    """Return the seconds by the clock, the seconds of CPU and the peak MB of a process."""
    launched = [sys.executable, "-I", "-S", "-c", LAUNCHER, *command]
    done = subprocess.run(launched, check=True, capture_output=True, text=True)
    clock, seconds, peak = map(float, done.stdout.split("\n")[-2].split())
    return clock, seconds, peak / 1000


def kubeconfig(folder: str, url: str) -> str:
    """Write a kubeconfig and return its path."""
    document = {
        "clusters": [{"name": "c", "cluster": {"server": url}}],
        "contexts": [{"name": "bench", "context": {"cluster": "c", "user": "u"}}],
        "users": [{"name": "u", "user": {}}],
        "current-context": "bench",
    }
    path = Path(folder, "kubeconfig")
    path.write_text(json.dumps(document))
    return str(path)


def reading(url: str, config: str, authority: str = "") -> None:
    """Print how long the command takes, beside a client that throws everything away."""
    question = ("--from", "shop-3/web-3", "--to", "shop-4/web-4", "--port", "8080")
    commands = {
        "explain network": (TIERWALL, "explain", "network", *question, "--cluster", "--kubeconfig", config),
        "bare client": (sys.executable, "-c", BARE, url, authority),
    }
    rounds = [{name: measure(*command) for name, command in commands.items()} for _ in range(ROUNDS)]
    best = {name: min(times[name] for times in rounds) for name in commands}
    for name, (clock, seconds, peak) in best.items():
        print(f"  {name:16} {clock:6.2f} s, {seconds:6.2f} s of CPU, peak {peak:4.0f} MB")
    print(f"  ratio {best['explain network'][0] / best['bare client'][0]:.2f}")


def following(config: str) -> None:
    """Print what following costs."""
    command = [sys.executable, "-c", FOLLOWER, config, str(SECONDS)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    share, changes = map(float, done.stdout.split())
    print(f"  following: {share:.1%} of a core at {changes:.0f} changes a second that matter")


def run(sizes: tuple[int, ...] = SIZES) -> None:
    """Print everything."""
    for pods in sizes:
        command = [sys.executable, "-m", "bench.cluster_server", str(pods), str(RATE)]
        with served(command) as (_, port), tempfile.TemporaryDirectory() as folder:
            url = f"http://127.0.0.1:{port}"
            print(f"{pods:,} pods, {3 * pods // 10:,} policies, load {os.getloadavg()[0]:.1f}")
            config = kubeconfig(folder, url)
            reading(url, config)
            if pods <= FOLLOWED:
                following(config)


def real(pods: int = FOLLOWED) -> None:
    """Print how long reading a real API server takes, and following it while pods change."""
    from tests.labs.live_client import LiveClient
    from tests.labs.live_cluster import LiveCluster

    with tempfile.TemporaryDirectory() as folder:
        cluster = LiveCluster(Path(folder))
        try:
            cluster.start()
            live = LiveClient(cluster.folder)
            for kind in ("Namespace", "Node", "NetworkPolicy", "Service", "Pod"):
                live.create_many(created(kind, value) for value in objects(kind, pods))
            print(f"{pods:,} pods, {3 * pods // 10:,} policies, a real API server, load {os.getloadavg()[0]:.1f}")
            config = str(cluster.folder / "config")
            reading(live.url, config, str(cluster.pki / "ca.crt"))
            stop = threading.Event()
            writer = threading.Thread(target=_change, args=(live, pods, stop))
            writer.start()
            try:
                following(config)
            finally:
                stop.set()
                writer.join()
        finally:
            cluster.stop()


def created(kind: str, value: Object) -> Object:
    """Return an object as its user creates it; the API server adds the rest."""
    version = "networking.k8s.io/v1" if kind == "NetworkPolicy" else "v1"
    left_out = ("uid", "resourceVersion", "creationTimestamp", "managedFields")
    metadata = {key: part for key, part in value["metadata"].items() if key not in left_out}
    if kind == "Service":
        value = value | {"spec": value["spec"] | {"clusterIP": "None"}}
    return value | {"apiVersion": version, "kind": kind, "metadata": metadata}


def _change(live: LiveClient, pods: int, stop: threading.Event) -> None:
    """Change labels of pods at the rate."""
    started = time.monotonic()
    for number in count():
        if stop.wait(max(0.0, started + number / RATE - time.monotonic())):
            return
        metadata = live_pod(number * 7 % pods, pods // PODS_OF_NAMESPACE)["metadata"]
        path = f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}"
        live.request("PATCH", path, {"metadata": {"labels": {"turn": str(number)}}})


if __name__ == "__main__":
    if sys.argv[1:] == ["real"]:
        real()
    else:
        run(tuple(map(int, sys.argv[1:])) or SIZES)

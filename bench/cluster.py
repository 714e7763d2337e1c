"""Reading and following a cluster: `python -m bench cluster`. See bench/cluster_server.py for the simulated server.

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
import time
from pathlib import Path

from bench.authorizer import served
from bench.cluster_server import KINDS, PAGE

TIERWALL = str(Path(sys.executable).with_name("tierwall"))
SIZES, ROUNDS = (10_000, 100_000), 5
# Following: how many pods, changes a second, and seconds.
FOLLOWED, RATE, SECONDS = 10_000, 100, 20
BARE = f"""
import asyncio, httpx, sys
async def read(client, path):
    query = {{"limit": "{PAGE}"}}
    while True:
        body = (await client.get(path, params=query)).content
        start = body.find(b'"continue":"')
        if start < 0:
            return
        query["continue"] = body[start + 12 : body.index(b'"', start + 12)].decode()
async def main():
    async with httpx.AsyncClient(base_url=sys.argv[1], headers={{"accept-encoding": "gzip"}}, timeout=60) as client:
        await asyncio.gather(*(read(client, path) for path in {tuple(KINDS)!r}))
asyncio.run(main())
"""
FOLLOWER = """
import resource, sys, time
from tierwall.cluster.access import ClusterAccess
from tierwall.cluster.following import FollowedCluster
from tierwall.cluster.wanted import wanted_kinds
access, seconds, changes = ClusterAccess("bench", sys.argv[1], "default"), float(sys.argv[2]), 0
followed = FollowedCluster(access, wanted_kinds(["network"]), 10.0, lambda: None)
followed.start()
assert followed.is_complete(60)
followed.take()
cpu, end = time.process_time(), time.monotonic() + seconds
while time.monotonic() < end:
    time.sleep(0.1)
    changes += len(followed.take().objects)
print((time.process_time() - cpu) / seconds, changes / seconds, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
followed.close()
"""


def measure(*command: str) -> tuple[float, float, float]:
    """Return the seconds by the clock, the seconds of CPU and the peak MB of a process."""
    started = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    assert os.waitstatus_to_exitcode(status) in (0, 3), command
    return time.perf_counter() - started, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1000


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


def reading(url: str, config: str) -> None:
    """Print how long the command takes, beside a client that throws everything away."""
    question = ("--from", "shop-3/web-3", "--to", "shop-4/web-4", "--port", "8080")
    commands = {
        "explain network": (TIERWALL, "explain", "network", *question, "--context", "bench", "--kubeconfig", config),
        "bare client": (sys.executable, "-c", BARE, url),
    }
    rounds = [{name: measure(*command) for name, command in commands.items()} for _ in range(ROUNDS)]
    best = {name: min(times[name] for times in rounds) for name in commands}
    for name, (clock, seconds, peak) in best.items():
        print(f"  {name:16} {clock:6.2f} s, {seconds:6.2f} s of CPU, peak {peak:4.0f} MB")
    print(f"  ratio {best['explain network'][0] / best['bare client'][0]:.2f}")


def following(url: str) -> None:
    """Print what following costs."""
    command = [sys.executable, "-c", FOLLOWER, url, str(SECONDS)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    share, changes, peak = map(float, done.stdout.split())
    print(f"  following: {share:.1%} of a core, {changes:.0f} of {RATE} changes matter, peak {peak / 1000:.0f} MB")


def run(sizes: tuple[int, ...] = SIZES) -> None:
    """Print everything."""
    for pods in sizes:
        command = [sys.executable, "-m", "bench.cluster_server", str(pods), str(RATE)]
        with served(command) as (_, port), tempfile.TemporaryDirectory() as folder:
            url = f"http://127.0.0.1:{port}"
            print(f"{pods:,} pods, {3 * pods // 10:,} policies, load {os.getloadavg()[0]:.1f}")
            reading(url, kubeconfig(folder, url))
            if pods <= FOLLOWED:
                following(url)


if __name__ == "__main__":
    run(tuple(map(int, sys.argv[1:])) or SIZES)

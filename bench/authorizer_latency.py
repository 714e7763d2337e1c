"""Latencies of the authorizer as a client sees them, at 2,000 reviews a second from the moment that `/readyz` says yes.

Reviews are sent at even intervals, whether earlier ones were answered or not, and no two are alike. Beside them go
reviews that a webhook in the chain is asked about: it takes connections and never says a word, so each is held until
the webhook's timeout. Client and server share the machine. What else runs there shows in two figures: the latencies of
a bare handler under the same load, and how long the server was ready to run and got no core.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import socket
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter

import uvloop

from bench.api import reviews
from bench.authorizer import ECHO, USERS, authorizer, cpu, exchange, posted, requests, served

RATE, SECONDS = 2_000, 10
# Every so many reviews there is one that is held.
HELD_EVERY = 50
SHARES = (0.5, 0.9, 0.99, 0.999)


def waited(pid: int) -> float:
    """Seconds for which the threads of a process were ready to run and had no core."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((task / "schedstat").read_text().split()[1]) for task in tasks) / 1e9


async def paced(port: int, wanted: list[bytes], held: list[bytes]) -> list[float]:
    """Latencies of requests sent at even intervals, waiting in line included, in the order in which they were due.

    Requests of `held` have connections of their own and do not count.
    """
    lanes: asyncio.Queue[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = asyncio.Queue()
    for _ in range(64):
        lanes.put_nowait(await asyncio.open_connection("127.0.0.1", port))
    create_task = asyncio.get_running_loop().create_task
    latencies = [0.0] * len(wanted)

    async def send(n: int, due: float) -> None:
        lane = await lanes.get()
        await exchange(*lane, wanted[n])
        lanes.put_nowait(lane)
        latencies[n] = perf_counter() - due

    start = perf_counter()
    tasks = []
    for n in range(len(wanted)):
        due = start + n / RATE
        if due > perf_counter():
            await asyncio.sleep(due - perf_counter())
        tasks.append(create_task(send(n, due)))
        if held and n % HELD_EVERY == 0:
            tasks.append(create_task(_apart(port, held[n % len(held)])))
    await asyncio.wait_for(asyncio.gather(*tasks), 120)
    while not lanes.empty():
        lanes.get_nowait()[1].close()
    return latencies


async def _apart(port: int, request: bytes) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    await exchange(reader, writer, request)
    writer.close()


@contextmanager
def silent_chain() -> Iterator[str]:
    """A folder with a chain: a webhook that never answers, asked about the users `held-…` alone, and policies."""
    with tempfile.TemporaryDirectory() as folder, socket.create_server(("127.0.0.1", 0), backlog=1024) as listening:
        server = f"https://127.0.0.1:{listening.getsockname()[1]}"
        kubeconfig = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "w", "cluster": {"server": server, "insecure-skip-tls-verify": True}}],
            "contexts": [{"name": "w", "context": {"cluster": "w"}}],
            "current-context": "w",
        }
        webhook = {
            "timeout": "3s",
            "subjectAccessReviewVersion": "v1",
            "matchConditionSubjectAccessReviewVersion": "v1",
            "failurePolicy": "NoOpinion",
            "connectionInfo": {"type": "KubeConfigFile", "kubeConfigFile": f"{folder}/webhook.kubeconfig"},
            "matchConditions": [{"expression": 'request.user.startsWith("held-")'}],
        }
        members = [{"type": "Webhook", "name": "hook", "webhook": webhook}, {"type": "CEL", "name": "policies"}]
        chain = {"apiVersion": "apiserver.config.k8s.io/v1", "kind": "AuthorizationConfiguration"}
        Path(folder, "webhook.kubeconfig").write_text(json.dumps(kubeconfig))
        Path(folder, "chain.json").write_text(json.dumps({**chain, "authorizers": members}))
        yield folder


def held_requests() -> list[bytes]:
    """Reviews that the silent webhook is asked about."""
    asked = reviews(USERS, 200)
    for n, review in enumerate(asked):
        review["spec"]["user"] = f"held-{n}"
    return [posted("/authorize", review) for review in asked]


def show(words: str, server: tuple[int, int], count: int, held: list[bytes]) -> None:
    """Send the load, and print the latencies of the first second and of the whole."""
    pid, port = server
    wanted = requests(count, RATE * SECONDS)
    gc.collect()
    gc.disable()  # the client's own pauses would count as latency
    used, had_to_wait = cpu(pid), waited(pid)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        latencies = runner.run(paced(port, wanted, held))
    used, had_to_wait = cpu(pid) - used, waited(pid) - had_to_wait
    gc.enable()
    print(f"  {words}")
    for part, span in ((latencies[:RATE], "first second"), (latencies, f"{SECONDS} seconds")):
        in_order = sorted(part)
        at = "  ".join(f"p{share * 100:g} {in_order[int(len(part) * share) - 1] * 1e3:6.2f}" for share in SHARES)
        print(f"    {span:<14} {at}  ms")
    print(f"    server: {used / SECONDS:.2f} cores, without a core for {had_to_wait / SECONDS * 1e3:.0f} ms a second")


def run() -> None:
    """Print latencies for each number of policies, with the silent webhook, after those of a bare handler."""
    print(f"authorizer latency: {RATE:,} reviews a second after the start, load average {os.getloadavg()[0]:.1f}")
    with served([sys.executable, "-c", ECHO]) as echo:
        show("bare handler", echo, USERS, [])
    for count in (1_000, 10_000):
        with silent_chain() as folder, authorizer(count, "--policies", folder) as server:
            show(f"{count:,} policies, beside a silent webhook", server, count, held_requests())
    print(f"  load average {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    run()

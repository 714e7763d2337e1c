"""CPU time of the authorizer as a process, beside a bare uvicorn handler that decodes and echoes the same reviews.

Both run on loopback without TLS, with uvloop and httptools, asked over kept-alive connections; CPU time is that of
the server process alone, from the kernel, once the policies are ready. The two take turns, so that whatever else the
machine does is shared, and each line is the median of its rounds. Reviews that are said to be unlike any other were
not sent before, not even to warm up: the server keeps answers. Latencies: `authorizer_latency`.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from bench.api import policies, reviews
from tierwall.api.algebra.request import OPERATIONS

REQUESTS, CONNECTIONS, ROUNDS, WARM_UP = 4_000, 4, 5, 8_000
# Those who ask at a time; expressions that are in use get compiled, which is done with before measuring begins.
USERS = 100
ECHO = """
import msgspec, socket, sys, uvicorn
decode, encode = msgspec.json.Decoder().decode, msgspec.json.Encoder().encode
async def app(scope, receive, send):
    body = b""
    while True:
        message = await receive()
        body += message.get("body", b"")
        if not message.get("more_body"):
            break
    out = encode(decode(body))
    head = [(b"content-type", b"application/json"), (b"content-length", str(len(out)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": head})
    await send({"type": "http.response.body", "body": out})
listening = socket.create_server(("127.0.0.1", 0))
print(f"127.0.0.1:{listening.getsockname()[1]}", file=sys.stderr, flush=True)
config = uvicorn.Config(app, log_level="error", access_log=False, lifespan="off", loop="uvloop", http="httptools")
uvicorn.Server(config).run(sockets=[listening])
"""


def cpu(pid: int) -> float:
    """Seconds of CPU that all threads of a process have used, as exactly as the scheduler counts them."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9


def idle(pid: int, longest: float = 90.0) -> None:
    """Wait until a process has nothing more to do: making policies ready goes on for a while after the start."""
    end, before = time.monotonic() + longest, -1.0
    while (now := cpu(pid)) != before and time.monotonic() < end:
        before = now
        time.sleep(0.5)


def ready(port: int) -> None:
    """Wait until a server says that it is ready."""
    while True:
        page = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        page.request("GET", "/readyz")
        if page.getresponse().status == 200:
            return
        time.sleep(0.01)


@contextmanager
def served(command: list[str]) -> Iterator[tuple[int, int]]:
    """A server process that says on standard error where it listens: its id and port."""
    with tempfile.TemporaryFile("w+") as said:
        process = subprocess.Popen(command, stderr=said)
        try:
            end = time.monotonic() + 60
            while not (match := re.search(r"127\.0\.0\.1:(\d+)", _read(said))):
                if time.monotonic() > end or process.poll() is not None:
                    raise RuntimeError(_read(said))
                time.sleep(0.05)
            yield process.pid, int(match[1])
        finally:
            process.terminate()
            process.wait(20)


def _read(file: IO[str]) -> str:
    return os.pread(file.fileno(), 1 << 20, 0).decode()


def posted(path: str, review: object) -> bytes:
    """A request as it goes over the wire."""
    body = json.dumps(review).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


def requests(count: int, number: int = 1_000, bridged: bool = False) -> list[bytes]:
    """Reviews of at most `USERS` users, no two alike: each has an uid of its own."""
    times = []
    for n, review in enumerate(reviews(min(count, USERS), number)):
        review["spec"]["uid"] = f"uid-{n}"
        if bridged:
            del review["spec"]["conditionalAuthorization"]
        times.append(posted("/authorize", review))
    return times


async def exchange(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, request: bytes) -> bytes:
    """One request and its reply's body."""
    writer.write(request)
    head = await reader.readuntil(b"\r\n\r\n")
    length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
    assert head.startswith(b"HTTP/1.1 200"), head
    return await reader.readexactly(length)


async def flood(port: int, wanted: list[bytes], number: int) -> None:
    """Many requests over a few connections, each as soon as the last was answered."""

    async def one(offset: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for n in range(number // CONNECTIONS):
            await exchange(reader, writer, wanted[(n * CONNECTIONS + offset) % len(wanted)])
        writer.close()

    await asyncio.gather(*(one(offset) for offset in range(CONNECTIONS)))


def microseconds(servers: list[tuple[int, int]], wanted: list[bytes]) -> list[float]:
    """CPU time of each server (process, port) for one request: the median of some rounds, in turns, after a warm-up."""
    for _, port in servers:
        asyncio.run(flood(port, wanted, WARM_UP))
    latencies: list[list[float]] = [[] for _ in servers]
    for n in range(ROUNDS):
        part = wanted[WARM_UP + n * REQUESTS :][:REQUESTS] or wanted
        for (pid, port), mine in zip(servers, latencies, strict=True):
            before = cpu(pid)
            asyncio.run(flood(port, part, REQUESTS))
            mine.append(cpu(pid) - before)
    return [statistics.median(mine) / REQUESTS * 1e6 for mine in latencies]


@contextmanager
def authorizer(count: int, *options: str) -> Iterator[tuple[int, int]]:
    """`tierwall authorizer` over so many policies: its process and port. Among the options may be other folders."""
    with tempfile.TemporaryDirectory() as folder:
        documents = [
            {"apiVersion": f"{policy.group}/{policy.version}", "kind": policy.kind, **policy.value}
            for policy in policies(count)
        ]
        text = json.dumps({"apiVersion": "v1", "kind": "List", "items": documents})
        Path(folder, "policies.json").write_text(text)
        program = str(Path(sys.executable).parent / "tierwall")
        command = [program, "authorizer", "--policies", folder, "--listen", "127.0.0.1:0", *options]
        with served(command) as (pid, port):
            ready(port)
            yield pid, port


def second_phase(port: int, wanted: list[bytes]) -> list[bytes]:
    """Reviews of the conditions that a server returns."""

    async def ask() -> list[bytes]:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        latencies = []
        for request in wanted:
            chain = json.loads(await exchange(reader, writer, request))["status"].get("conditionsChain")
            verb = json.loads(request.partition(b"\r\n\r\n")[2])["spec"]["resourceAttributes"]["verb"]
            if chain:
                review = {
                    "apiVersion": "authorization.k8s.io/v1alpha1",
                    "kind": "AuthorizationConditionsReview",
                    "request": {
                        "conditionSets": chain,
                        # An answer is taken back only for the verb that it was given to.
                        "operation": OPERATIONS[verb],
                        "object": {"metadata": {"name": "x", "labels": {"env": "dev"}}, "spec": {"class": "dev"}},
                    },
                }
                latencies.append(posted("/conditions", review))
        writer.close()
        return latencies

    return asyncio.run(ask())


def run() -> None:
    """Print one line for each measurement."""
    print(f"authorizer: microseconds of server CPU for one review, load average {os.getloadavg()[0]:.1f}")
    number = WARM_UP + REQUESTS * ROUNDS
    with served([sys.executable, "-c", ECHO]) as echo:

        def show(words: str, server: tuple[int, int], wanted: list[bytes]) -> float:
            bare, value = microseconds([echo, server], wanted)
            print(f"  {words:<52}{value:7.1f}  {value / bare:.2f} x bare ({bare:.1f})")
            return value / bare

        by_count = {}
        for count in (100, 1_000, 10_000):
            with authorizer(count) as server:
                idle(server[0])
                by_count[count] = show(f"{count:,} policies, no two reviews alike", server, requests(count, number))
                if count == 1_000:
                    again = requests(count)
                    show(f"{count:,} policies, reviews that come again", server, again)
                    show(f"{count:,} policies, second phase, kept answers", server, second_phase(server[1], again))
                    # A bit more than a third of the reviews have a conditional answer.
                    unlike = second_phase(server[1], requests(count, 3 * number))
                    show(f"{count:,} policies, second phase, no answer twice", server, unlike)
        print(f"  10,000 policies against 100: {by_count[10_000] / by_count[100]:.2f} x")
        with tempfile.NamedTemporaryFile() as log:
            for words, options in (("bridge", ()), ("bridge and decision log", ("--log", log.name))):
                with authorizer(1_000, "--bridge", "--assume-admission", *options) as server:
                    show(f"1,000 policies, {words}", server, requests(1_000, number, True))
    print(f"  load average {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    run()

"""From one policy saved among 1,000 files to its being in force: `python -m bench edit` (nftables needs root).

nftables: `enforce nft --watch` in a network namespace of its own, from the look at the files to the kernel's answer;
what watching adds is in `bench reload`. Authorizer: a process on loopback that is asked again and
again until it answers as the saved policy says, so its watching is part of it; CPU is all that it spends on an edit,
making the policies ready included.
"""

from __future__ import annotations

import json
import os
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

from bench.api import policies
from bench.authorizer import cpu, idle, posted, served
from bench.network import cluster
from tierwall.cli.collector import CommandLoader
from tierwall.resources import load as loading
from tierwall.resources.file_cache import CLOCK_STEP_NS
from tierwall.serve.files import FileSource

ROUNDS = 21
PODS, NAMESPACES, POLICIES = 599, 100, 1_000


@contextmanager
def saved(objects: list[dict[str, Any]]) -> Iterator[list[Path]]:
    """A folder of a file an object, which have been left alone for a while."""
    with tempfile.TemporaryDirectory() as at:
        files = []
        for number, value in enumerate(objects):
            files.append(Path(at, f"{number:04}.json"))
            files[-1].write_text(json.dumps(value))
        time.sleep(CLOCK_STEP_NS / 1e9 + 0.1)
        yield files


def nftables() -> None:
    """A port of one NetworkPolicy changes."""
    from tierwall.engines.nftables.kernel.conntrack import cut
    from tierwall.engines.nftables.kernel.enforcer import Enforcer
    from tierwall.engines.nftables.kernel.namespaces import NetworkNamespace
    from tierwall.engines.nftables.table.compile import compile_snapshot
    from tierwall.engines.nftables.table.options import TableOptions
    from tierwall.serve import kernel_follower as keeping
    from tierwall.serve.follower import LoadOutcome

    objects = list(cluster(PODS, NAMESPACES))
    at = next(number for number, value in enumerate(objects) if value["kind"] == "NetworkPolicy")
    took: dict[str, list[float]] = {}

    def timed(part: str, work: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            begun = time.perf_counter()
            try:
                return work(*arguments)
            finally:
                took.setdefault(part, []).append(time.perf_counter() - begun)

        return call

    def save() -> None:
        ports = objects[at]["spec"]["ingress"][0]["ports"]
        ports[0]["port"] = 8000 + len(took["apply"])
        files[at].write_text(json.dumps(objects[at]))

    whole: list[float] = []
    namespace = NetworkNamespace()
    with (
        saved(objects) as files,
        namespace.entered(),
        mock.patch.object(loading.Loader, "load", timed("load", loading.Loader.load)),
        mock.patch.object(keeping, "compile_snapshot", timed("compile", compile_snapshot)),
        mock.patch.object(Enforcer, "put", timed("apply", Enforcer.put)),
        mock.patch.object(keeping, "cut", timed("cut", cut)),
    ):
        keeper, source = keeping.KernelFollower(TableOptions(), True), FileSource(CommandLoader([str(files[0].parent)]))
        keeper.begin(source)
        for _ in range(ROUNDS):
            save()
            begun = time.perf_counter()
            load = keeper.next_load(source)
            assert load is not None
            assert keeper.accept(load) is LoadOutcome.TAKEN
            whole.append(time.perf_counter() - begun)
    namespace.close()
    parts = ", ".join(f"{part} {milliseconds(times[1:])}" for part, times in took.items())
    print(f"  nftables, {len(objects):,} files: {milliseconds(whole)} ({parts})")


def authorizer() -> None:
    """One policy takes turns between two users."""
    values = [
        {"apiVersion": f"{policy.group}/{policy.version}", "kind": policy.kind, **policy.value}
        for policy in policies(POLICIES)
    ]
    attributes = {"verb": "get", "version": "v1", "namespace": "dev", "resource": "pods"}
    whole: list[float] = []
    spent: list[float] = []
    with saved(values) as files:
        program = str(Path(sys.executable).parent / "tierwall")
        command = [program, "authorizer", "--policies", str(files[0].parent), "--listen", "127.0.0.1:0"]
        with served(command) as (pid, port), socket.create_connection(("127.0.0.1", port)) as connection:
            idle(pid)
            for number in range(ROUNDS):
                user = f"new-{number % 2}"
                values[0]["spec"]["expression"] = f'request.userInfo.username == "{user}"'
                values[0]["spec"]["effect"] = "Allow"
                review = {
                    "apiVersion": "authorization.k8s.io/v1",
                    "kind": "SubjectAccessReview",
                    "spec": {"user": user, "resourceAttributes": attributes},
                }
                before, begun = cpu(pid), time.perf_counter()
                files[0].write_text(json.dumps(values[0]))
                asked = 0
                while not answer(connection, review)["status"]["allowed"]:
                    asked += 1
                    assert asked < 10_000
                    time.sleep(0.001)
                whole.append(time.perf_counter() - begun)
                idle(pid)
                spent.append(cpu(pid) - before)
    print(f"  authorizer, {len(values):,} files: {milliseconds(whole)}, CPU of an edit {milliseconds(spent)}")


def answer(connection: socket.socket, review: object) -> Any:
    """Ask the authorizer, and return its answer."""
    connection.sendall(posted("/authorize", review))
    received = b""
    while not (end := received.find(b"\r\n\r\n")) + 1 or not received[end + 4 :].endswith(b"}"):
        part = connection.recv(65536)
        assert part, "the authorizer hung up"
        received += part
    return json.loads(received[end + 4 :])


def milliseconds(values: list[float]) -> str:
    """The median, and what most are under."""
    most = sorted(values)[int(len(values) * 0.9)]
    return f"{statistics.median(values) * 1e3:.1f} ms (90 % under {most * 1e3:.1f})"


def run() -> None:
    """Measure and print."""
    print(f"one policy saved to in force, {ROUNDS} edits, medians; load average {os.getloadavg()[0]:.1f}")
    if os.geteuid() == 0:
        nftables()
    authorizer()


if __name__ == "__main__":
    run()

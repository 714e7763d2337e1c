"""Instructions of Envoy for a tool call, strict parsing alone and with a policy: `python -m bench envoy_instructions`.

The last two chains are the policy with a count for every rule (`run --otlp`), and asked by a client that accepts only
JSON, as those of A2A do.

callgrind (of valgrind) counts them, so other programs on the machine do not matter, and only in the thread that serves
requests: the others work by the clock, not for a call. The chains are those of `bench envoy`. Two counts of one
chain differ by a third of a per cent.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from unittest.mock import patch

from bench.envoy import (
    AT_ONCE,
    CALLER,
    TOOLS_PER_CALLER,
    Connection,
    Make,
    call,
    connect,
    head,
    parsing,
    started,
    with_policy,
)
from tierwall.engines.envoy.config.names import MCP, STRICT
from tierwall.engines.envoy.control.process import EnvoyBinary, find_envoy
from tierwall.engines.envoy.probe import standalone
from tierwall.engines.envoy.probe.client import CertificateAuthority
from tierwall.engines.envoy.probe.standalone import StandaloneEnvoy

WARM_UP, REQUESTS = 640, 400
LAST = call(f"tool-{TOOLS_PER_CALLER - 1}")
CHAINS: dict[str, tuple[Make, bytes]] = {
    "parsing only": (parsing(MCP), call("tool-0")),
    "strict parsing only": (parsing(MCP, STRICT), call("tool-0")),
    "10,000 rules": (with_policy(10_000), LAST),
    "10,000 rules, counted": (with_policy(10_000, counts=True), LAST),
    "10,000 rules, only JSON": (
        with_policy(10_000),
        call(f"tool-{TOOLS_PER_CALLER - 1}", accepts="application/json"),
    ),
}


def count(make: Make, data: bytes, folder: Path) -> list[float]:
    """Return the instructions for a call, one at a time and sixteen at once."""
    with ExitStack() as stack:
        backend, _ = started(stack, authorize=False)
        authority = CertificateAuthority()
        envoy = stack.enter_context(StandaloneEnvoy(make(backend, 0, authority)))
        [port] = envoy.ports().values()
        context = authority.context(CALLER)
        connections = [stack.enter_context(connect(port, context)) for _ in range(max(AT_ONCE))]
        send(connections, data, WARM_UP)
        control(envoy.process.pid, "--instr=on")
        counts = []
        for at_once in AT_ONCE:
            send(connections[:at_once], data, 64)
            control(envoy.process.pid, "--zero")
            send(connections[:at_once], data, REQUESTS)
            before = set(folder.iterdir())
            control(envoy.process.pid, "--dump")
            counts.append(max(map(total, set(folder.iterdir()) - before)) / REQUESTS)
        return counts


def total(dump: Path) -> int:
    """Return the instructions in a dump, which is of one thread."""
    totals = re.search(r"(?m)^(?:totals|summary): (\d+)", dump.read_text())
    return int(totals[1]) if totals is not None else 0


def send(connections: list[Connection], data: bytes, requests: int) -> None:
    """Send requests, one on each connection at a time; the backend must answer them."""
    for _ in range(requests // len(connections)):
        for connection in connections:
            connection.sendall(data)
        for connection in connections:
            assert b"x-reached: 1" in head(connection)


def control(pid: int, option: str) -> None:
    """Tell the callgrind of a process to start, forget or write its counts."""
    subprocess.run(["callgrind_control", option, str(pid)], check=True, capture_output=True, timeout=120)


def main() -> None:
    """Count, and print a table."""
    if shutil.which("valgrind") is None:
        sys.exit("bench envoy_instructions needs valgrind")
    with tempfile.TemporaryDirectory() as name:
        folder, envoy = Path(name), find_envoy()
        options = "--tool=callgrind --instr-atstart=no --separate-threads=yes --log-file=/dev/null"
        options += f" --callgrind-out-file={folder}/counted.%p"
        wrapper = folder / "envoy"
        wrapper.write_text(f'#!/bin/sh\nexec valgrind {options} {envoy.path} "$@"\n')
        wrapper.chmod(0o700)
        print(f"{'instructions for a call':<26}{'one at a time':>16}{'sixteen at once':>18}{'of strict parsing':>22}")
        with (
            patch.object(standalone, "find_envoy", lambda: EnvoyBinary(wrapper, envoy.version)),
            patch.object(standalone, "_PATIENCE_S", 300.0),
        ):
            counted = {chain: count(make, data, folder) for chain, (make, data) in CHAINS.items()}
        for chain, counts in counted.items():
            ratios = [mine / strict for mine, strict in zip(counts, counted["strict parsing only"], strict=True)]
            print(f"{chain:<26}{counts[0]:>16,.0f}{counts[1]:>18,.0f}{ratios[0]:>16.3f}{ratios[1]:>6.3f}")


if __name__ == "__main__":
    main()

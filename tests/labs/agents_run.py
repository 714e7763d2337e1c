"""The agents example as a user runs it: `tierwall run` in its own process, the servers of the example, its agents."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import signal
import ssl
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import httpx2
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

from examples.agents import certificates
from tests.labs.envoy_lab import EXAMPLE
from tests.labs.waiting import PATIENCE_S, eventually, unused_port

AGENTS = [("agents", "shopper"), ("agents", "clerk")]
PROGRAM = [sys.executable, "-c", "from tierwall.cli.main import main; main()", "run"]


class Agents:
    """The example in its own folder, with its servers; tests start `tierwall run`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.manifests = folder / "manifests"
        shutil.copytree(EXAMPLE / "manifests", self.manifests)
        keys = folder / "keys"
        keys.mkdir()
        certificates.write(keys, AGENTS)
        self.keys = keys
        # What is read: the paths, or the options of a cluster.
        self.sources = [str(self.manifests), str(keys / "tls.yaml")]
        self.port = unused_port()
        self.http = self.orders = self.reports = 0
        self.runs = 0
        self.log = folder / "decisions.jsonl"

    def command(self, *more: str) -> list[str]:
        backends = {"orders": self.orders, "reports": self.reports}
        endpoints = [f"--endpoint=XBackend/shop/{name}=127.0.0.1:{port}" for name, port in backends.items()]
        return [
            *PROGRAM,
            *self.sources,
            f"--bind=shop/agents:8443=127.0.0.1:{self.port}",
            "--http=127.0.0.1:0",
            f"--decision-log={self.log}",
            "--concurrency=1",
            *endpoints,
            *more,
        ]

    @contextmanager
    def running(self, *more: str, environment: Mapping[str, str] | None = None) -> Iterator[Running]:
        running = self._start(more, environment)
        # It binds the Gateway's port without sharing, so the test cannot reserve the port.
        while "cannot listen" in running.said:
            self.port = unused_port()
            running = self._start(more, environment)
        try:
            eventually(running.is_ready, lambda: running.said)
            yield running
        finally:
            if running.process.poll() is None:
                running.process.send_signal(signal.SIGTERM)
                try:
                    running.process.wait(PATIENCE_S)
                finally:
                    running.process.kill()
                    running.process.wait()

    def _start(self, more: Sequence[str], environment: Mapping[str, str] | None) -> Running:
        self.runs += 1
        log = self.folder / f"run-{self.runs}.log"
        with log.open("wb") as out:
            process = subprocess.Popen(
                self.command(*more),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                env={**os.environ, **(environment or {})},
            )
        running = Running(log, process)
        eventually(lambda: "in force:" in running.said or process.poll() is not None, lambda: running.said)
        return running

    def context(self, agent: str) -> ssl.SSLContext:
        out = ssl.create_default_context(cafile=str(self.keys / "ca.pem"))
        out.load_cert_chain(self.keys / f"{agent}.pem")
        return out

    def decisions(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.log.read_text().splitlines()] if self.log.exists() else []

    def as_agent(self, agent: str, server: str, do: Callable[[Client], Awaitable[None]], mode: Any = "legacy") -> None:
        """Run a function with the official client, connected as an agent."""

        async def main() -> None:
            url = f"https://localhost:{self.port}/{server}/mcp"
            async with (
                httpx2.AsyncClient(verify=self.context(agent), timeout=PATIENCE_S) as http,
                Client(streamable_http_client(url, http_client=http), mode=mode) as client,
            ):
                await do(client)

        asyncio.run(asyncio.wait_for(main(), PATIENCE_S))


class Running:
    """A running `tierwall run`."""

    def __init__(self, log: Path, process: subprocess.Popen[bytes]) -> None:
        self._log = log
        self.process = process

    @property
    def said(self) -> str:
        return self._log.read_text()

    def port(self, words: str) -> int:
        """Return the port that it reported for something."""
        line = re.search(rf"^{words}.*:(\d+)$", self.said, re.MULTILINE)
        assert line is not None, self.said
        return int(line[1])

    def get(self, path: str) -> httpx.Response:
        return httpx.get(f"http://127.0.0.1:{self.port('health and metrics on')}{path}", timeout=PATIENCE_S)

    def is_ready(self) -> bool:
        assert self.process.poll() is None, self.said
        try:
            return self.get("/readyz").status_code == 200
        except httpx.TransportError:
            return False

    @property
    def envoy(self) -> int:
        """Return the process id of its Envoy; Envoy restarts if its port is still taken."""
        eventually(self._children, lambda: self.said)
        return self._children()[0]

    def _children(self) -> list[int]:
        command = ["ps", "-o", "pid=", "--ppid", str(self.process.pid)]
        return [int(pid) for pid in subprocess.run(command, capture_output=True, text=True).stdout.split()]


@contextmanager
def agents_in(folder: Path) -> Iterator[Agents]:
    """Run the servers of the example while the block lasts."""
    new_agents = Agents(folder)
    log = new_agents.folder / "servers.log"
    with log.open("wb") as out:
        command = [sys.executable, str(EXAMPLE / "servers.py")]
        servers = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=out)

    def listening() -> dict[str, str]:
        return dict(re.findall(r"^(\w+) listens on 127\.0\.0\.1:(\d+)$", log.read_text(), re.MULTILINE))

    try:
        eventually(lambda: len(listening()) == 2, log.read_text)
        new_agents.orders, new_agents.reports = (int(listening()[name]) for name in ("orders", "reports"))
        yield new_agents
    finally:
        servers.kill()
        servers.wait()

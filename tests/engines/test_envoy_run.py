"""`tierwall run` as a user runs it: the agents example, the official MCP client, edits, and its end."""

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
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import httpx2
import pytest
from mcp import Client, MCPError
from mcp.client.streamable_http import streamable_http_client

from examples.agents import certificates
from tests import ROOT
from tests.labs.envoy_lab import EXAMPLE, Caller
from tests.labs.waiting import PATIENCE_S, eventually, unused_port
from tierwall.engines.envoy.control.process import EnvoyProcess, find_envoy

pytestmark = pytest.mark.engine
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
        self.port = unused_port()
        self.http = self.orders = self.reports = 0
        self.runs = 0
        self.log = folder / "decisions.jsonl"

    def command(self, *more: str) -> list[str]:
        backends = {"orders": self.orders, "reports": self.reports}
        endpoints = [f"--endpoint=XBackend/shop/{name}=127.0.0.1:{port}" for name, port in backends.items()]
        return [
            *PROGRAM,
            str(self.manifests),
            str(self.keys / "tls.yaml"),
            f"--bind=shop/agents:8443=127.0.0.1:{self.port}",
            "--http=127.0.0.1:0",
            f"--decision-log={self.log}",
            "--concurrency=1",
            *endpoints,
            *more,
        ]

    @contextmanager
    def running(self, *more: str) -> Iterator[Running]:
        running = self._start(*more)
        # It binds the Gateway's port without sharing, so the test cannot reserve the port.
        while "cannot listen" in running.said:
            self.port = unused_port()
            running = self._start(*more)
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

    def _start(self, *more: str) -> Running:
        self.runs += 1
        log = self.folder / f"run-{self.runs}.log"
        with log.open("wb") as out:
            process = subprocess.Popen(self.command(*more), stdin=subprocess.DEVNULL, stdout=out, stderr=out)
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


@pytest.fixture(scope="module")
def agents(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Agents]:
    new_agents = Agents(tmp_path_factory.mktemp("agents"))
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


@pytest.fixture(scope="module")
def running(agents: Agents) -> Iterator[Running]:
    with agents.running() as started:
        yield started


def _exists(pid: int) -> bool:
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False


def _words(result: Any) -> str:
    return " ".join(part.text for part in result.content)


def test_the_official_client_lists_calls_gets_readable_denials_and_ends_its_session(
    agents: Agents, running: Running
) -> None:
    async def shopper(client: Client) -> None:
        assert [tool.name for tool in (await client.list_tools()).tools] == ["find_order", "place_order"]
        assert _words(await client.call_tool("find_order", {"number": 7})) == "order 7: 3 lamps, shipped"
        with pytest.raises(MCPError, match=r"^denied by XAccessPolicy/shop/platform-guard$"):
            await client.call_tool("refund_order", {"number": 7})
        # The session survives a denial.
        assert _words(await client.call_tool("place_order", {"article": "lamp"})) == "ordered 1 of lamp"

    agents.as_agent("shopper", "orders", shopper)
    eventually(
        lambda: any(decision["http"] == "DELETE /orders/mcp" for decision in agents.decisions()),
        "the DELETE in the log",
    )
    ended = next(decision for decision in agents.decisions() if decision["http"] == "DELETE /orders/mcp")
    assert (ended["verdict"], ended["status"]) == ("Allow", 200)


def test_each_agent_gets_what_policies_of_both_levels_allow(agents: Agents, running: Running) -> None:
    async def clerk(client: Client) -> None:
        assert [tool.name for tool in (await client.list_tools()).tools] == ["read_report"]
        assert _words(await client.call_tool("read_report", {"name": "june"})) == "report june: all is well"
        with pytest.raises(MCPError, match="platform-guard"):
            await client.call_tool("delete_report", {"name": "june"})

    async def shopper(client: Client) -> None:
        assert (await client.list_tools()).tools == []
        with pytest.raises(MCPError, match="reports-team"):
            await client.call_tool("read_report", {"name": "june"})

    agents.as_agent("clerk", "reports", clerk)
    agents.as_agent("shopper", "reports", shopper)


def test_a_client_that_starts_with_discovery_works_too(agents: Agents, running: Running) -> None:
    async def shopper(client: Client) -> None:
        assert [tool.name for tool in (await client.list_tools()).tools] == ["find_order", "place_order"]
        assert _words(await client.call_tool("find_order", {"number": 1})) == "order 1: 3 lamps, shipped"

    agents.as_agent("shopper", "orders", shopper, mode="auto")


def test_the_stream_of_a_session_is_open_to_allowed_callers(agents: Agents, running: Running) -> None:
    """GET opens the event stream. Without a session the server refuses, which shows that it was asked."""
    headers = {"accept": "text/event-stream"}
    with httpx.Client(verify=agents.context("shopper"), base_url=f"https://localhost:{agents.port}") as client:
        start = {
            "jsonrpc": "2.0",
            "id": 1,
            "method": "initialize",
            "params": {
                "protocolVersion": "2025-06-18",
                "capabilities": {},
                "clientInfo": {"name": "t", "version": "1"},
            },
        }
        both = {"accept": "application/json, text/event-stream"}
        begun = client.post("/orders/mcp", json=start, headers=both)
        assert begun.status_code == 200
        assert begun.headers["content-type"].startswith("text/event-stream")
        session = {"mcp-session-id": begun.headers["mcp-session-id"]}
        with client.stream("GET", "/orders/mcp", headers={**headers, **session}) as stream:
            assert stream.status_code == 200
            assert stream.headers["content-type"].startswith("text/event-stream")
        assert client.get("/orders", headers=headers).status_code == 403


def test_a_client_without_a_certificate_cannot_connect(agents: Agents, running: Running) -> None:
    context = ssl.create_default_context(cafile=str(agents.keys / "ca.pem"))
    with pytest.raises(httpx.TransportError):
        httpx.get(f"https://localhost:{agents.port}/orders/mcp", verify=context, timeout=PATIENCE_S)


def test_the_decision_log_contains_caller_request_place_verdict_policy_and_rule(
    agents: Agents, running: Running
) -> None:
    caller = Caller(agents.context("clerk"), agents.port)
    assert caller.call("place_order") == "denied by XAccessPolicy/shop/orders-team"
    caller.close()

    def found() -> list[dict[str, Any]]:
        who = "spiffe://cluster.local/ns/agents/sa/clerk"
        return [
            decision
            for decision in agents.decisions()
            if decision.get("tool") == "place_order" and decision["caller"] == who
        ]

    eventually(found, "the decision in the log")
    [logged] = found()
    assert (logged["verdict"], logged["level"], logged["policy"]) == (
        "Deny",
        "Backend",
        "XAccessPolicy/shop/orders-team",
    )
    assert (logged["gateway"], logged["listener"], logged["backend"]) == ("shop/agents", "mcp", "XBackend/shop/orders")
    metrics = running.get("/metrics").text
    policy = 'plane="tool",policy="XAccessPolicy/shop/orders-team"'
    assert f'tierwall_decisions_total{{name="",{policy},rule="",verdict="Deny"}}' in metrics


def test_the_decision_log_and_the_metrics_name_the_rule_that_allowed(agents: Agents, running: Running) -> None:
    caller = Caller(agents.context("shopper"), agents.port)
    caller.call("place_order")
    caller.close()

    def allowed() -> list[dict[str, Any]]:
        return [
            decision
            for decision in agents.decisions()
            if decision.get("tool") == "place_order" and decision["verdict"] == "Allow"
        ]

    eventually(allowed, "the decision in the log")
    last = allowed()[-1]
    assert (last["policy"], last["rule"], last["name"]) == (
        "XAccessPolicy/shop/orders-team",
        "rules[0]",
        "shopper",
    )
    labels = f'name="{last["name"]}",plane="tool",policy="{last["policy"]}",rule="{last["rule"]}",verdict="Allow"'
    assert f"tierwall_decisions_total{{{labels}}}" in running.get("/metrics").text


def test_an_edit_takes_effect_and_an_invalid_policy_closes_its_target(agents: Agents, running: Running) -> None:
    path = agents.manifests / "orders.yaml"
    good = path.read_text()
    caller = Caller(agents.context("shopper"), agents.port)
    passed = "Bad Request: Missing session ID"  # the server's own answer to a call without a session
    assert caller.call("find_order") == passed
    denied = "denied by XAccessPolicy/shop/orders-team"
    path.write_text(good.replace("params: [find_order, place_order]", "params: [place_order]"))
    eventually(lambda: caller.call("find_order") == denied, "the denial")
    path.write_text(good.replace("action: Allow", "action: Alow"))
    eventually(lambda: caller.call("place_order") == denied, "the denial of everything")
    assert re.search(r"orders\.yaml:\d+:\d+: error\[TW104\].*Alow", running.said)
    assert caller.call("find_order") == denied
    assert running.get("/readyz").status_code == 200
    assert running.get("/status").json()["diagnostics"][0]["code"] == "TW104"
    path.write_text(good)
    eventually(lambda: caller.call("find_order") == passed, "the permission")
    caller.close()


def test_a_signal_ends_it_with_its_envoy(agents: Agents, running: Running) -> None:
    """The last test that shares one process: it ends the process."""
    envoy = running.envoy
    assert _exists(envoy)
    running.process.send_signal(signal.SIGTERM)
    assert running.process.wait(PATIENCE_S) == 0
    eventually(lambda: not _exists(envoy), "the end of Envoy")


def test_its_envoy_ends_even_if_it_is_killed(agents: Agents) -> None:
    with agents.running() as started:
        envoy = started.envoy
        os.kill(started.process.pid, signal.SIGKILL)
        started.process.wait(PATIENCE_S)
        eventually(lambda: not _exists(envoy), "the end of Envoy")


def test_fed_envoys_outlive_a_killed_control_plane_and_obey_the_next(agents: Agents) -> None:
    path = agents.manifests / "orders.yaml"
    good = path.read_text()
    loop, process = asyncio.new_event_loop(), None
    caller = Caller(agents.context("shopper"), agents.port)
    guarded = "denied by XAccessPolicy/shop/platform-guard"
    denied = "denied by XAccessPolicy/shop/orders-team"
    try:
        with agents.running("--no-envoy", "--xds=127.0.0.1:0") as first:
            xds = first.port("xDS on")
            process = EnvoyProcess(find_envoy(), "127.0.0.1", xds, "fed", lambda _: None, 1)
            loop.run_until_complete(process.start())
            eventually(lambda: caller.call("refund_order") == guarded, "the first policies")
            os.kill(first.process.pid, signal.SIGKILL)
            first.process.wait(PATIENCE_S)
        for _ in range(20):
            assert caller.call("refund_order") == guarded
            assert not caller.call("find_order").startswith("denied")
        path.write_text(good.replace("params: [find_order, place_order]", "params: [place_order]"))
        with agents.running("--no-envoy", f"--xds=127.0.0.1:{xds}"):
            eventually(lambda: caller.call("find_order") == denied, "the denial")
    finally:
        path.write_text(good)
        caller.close()
        if process is not None:
            loop.run_until_complete(process.stop())
        loop.close()


def test_the_tour_shows_what_is_allowed_and_which_policy_denied_the_rest() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "examples.agents.tour", "--once"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    lines = [re.sub(r"\s+", " ", line.strip()) for line in done.stdout.splitlines()]
    for wanted in (
        "orders: the list shows find_order, refund_order",
        "refund_order DENIED denied by XAccessPolicy/shop/platform-guard",
        "read_report DENIED denied by XAccessPolicy/shop/reports-team",
        "place_order allowed ordered 2 of lamp",
        "clerk XBackend/shop/orders place_order Deny XAccessPolicy/shop/orders-team",
        "clerk XBackend/shop/reports read_report Allow XAccessPolicy/shop/reports-team rules[0]",
    ):
        assert wanted in lines


def test_the_tour_keeps_running_and_ends_everything_with_it(tmp_path: Path) -> None:
    with (tmp_path / "out").open("wb") as out:
        tour = subprocess.Popen(
            [sys.executable, "-u", "-m", "examples.agents.tour", "--stay"], cwd=ROOT, stdout=out, stderr=out
        )
    try:
        eventually(lambda: "It stays up" in (tmp_path / "out").read_text(), (tmp_path / "out").read_text)
        listed = subprocess.run(
            ["ps", "-o", "pid=", "--ppid", str(tour.pid)], capture_output=True, text=True, check=True
        )
        children = [int(pid) for pid in listed.stdout.split()]
        assert len(children) >= 2
        assert tour.poll() is None
    finally:
        tour.send_signal(signal.SIGTERM)
        assert tour.wait(PATIENCE_S) == 0
    eventually(lambda: not any(map(_exists, children)), "the end of what the tour started")

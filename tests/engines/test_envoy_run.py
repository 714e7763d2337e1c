"""`tierwall run` as a user runs it: the agents example, the official MCP client, edits, and its end."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from mcp import Client, MCPError

from tests import ROOT
from tests.labs.agents_run import Agents, Running, agents_in
from tests.labs.envoy_lab import Caller
from tests.labs.waiting import PATIENCE_S, eventually
from tests.randomness import rounds
from tierwall.engines.envoy.control.process import EnvoyProcess, find_envoy

pytestmark = pytest.mark.engine


@pytest.fixture(scope="module")
def agents(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Agents]:
    with agents_in(tmp_path_factory.mktemp("agents")) as new_agents:
        yield new_agents


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


FREEZE = """
apiVersion: agentic.networking.x-k8s.io/v1alpha1
kind: XAccessPolicy
metadata: {name: freeze, namespace: shop}
spec:
  targetRefs: [{group: agentic.networking.x-k8s.io, kind: XBackend, name: orders}]
  action: Allow
  rules:
  - name: find
    authorization: {type: Inline, mcp: {methods: [{name: tools/call, params: [find_order]}]}}
"""


@pytest.mark.storm
def test_rewriting_a_policy_file_in_place_lets_nothing_through(agents: Agents, running: Running) -> None:
    path = agents.manifests / "freeze.yaml"
    path.write_text(FREEZE)
    caller = Caller(agents.context("shopper"), agents.port)
    denied, passed = "denied by XAccessPolicy/shop/freeze", "Bad Request: Missing session ID"
    eventually(lambda: caller.call("place_order") == denied, lambda: running.said)
    assert caller.call("find_order") == passed
    done = threading.Event()

    def rewrite() -> None:
        for number in range(rounds(100)):
            text = f"# {number}{FREEZE}"
            with path.open("w") as file:
                # Truncated, half written, whole: each for long enough to be noticed, and sometimes to count as settled.
                pause = 0.3 if number % 10 == 0 else 0.02
                time.sleep(pause)
                file.write(text[: len(text) // 2])
                file.flush()
                time.sleep(pause)
                file.write(text[len(text) // 2 :])
        done.set()

    thread = threading.Thread(target=rewrite)
    thread.start()
    answers = set()
    while not done.is_set():
        answers.add(caller.call("place_order"))
    thread.join()
    assert answers == {denied}
    # A file that is removed counts: what kept the calls out is this policy alone.
    path.unlink()
    eventually(lambda: caller.call("place_order") == passed, lambda: running.said)
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
        socket = agents.folder / "xds" / "xds.sock"
        with agents.running("--no-envoy", f"--xds=unix:{socket}") as first:
            process = EnvoyProcess(find_envoy(), socket, "fed", lambda _: None, lambda _: None, 1)
            loop.run_until_complete(process.start())
            eventually(lambda: caller.call("refund_order") == guarded, "the first policies")
            os.kill(first.process.pid, signal.SIGKILL)
            first.process.wait(PATIENCE_S)
        for _ in range(20):
            assert caller.call("refund_order") == guarded
            assert not caller.call("find_order").startswith("denied")
        path.write_text(good.replace("params: [find_order, place_order]", "params: [place_order]"))
        with agents.running("--no-envoy", f"--xds=unix:{socket}"):
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
    assert "work-in-progress" not in done.stdout + done.stderr


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

"""Clients of the official SDKs ask joined servers through `tierwall run` (docs/enforce-tools.md#joined-servers)."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx2
import pytest
import yaml
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

from tests import ROOT
from tests.engines.test_envoy_mcp_suite import CLIENT, OLD_CLIENT, SUITE, elicited, node, sampled
from tests.labs.agents_run import PROGRAM, Running
from tests.labs.waiting import PATIENCE_S, eventually, unused_port
from tests.worlds.tool_objects import BASE, gateway, manifest, on_gateway, v1

pytestmark = [pytest.mark.engine, pytest.mark.usefixtures("needs_envoy")]
SERVERS = ("one", "two.b")
# What the servers have that policies grant, besides all that is needed to connect.
TOOLS = ("test_simple_text", "test_input_required_result_elicitation", "test_input_required_result_sampling")
GRANTED = [{"name": "tools/call", "params": list(TOOLS)}, {"name": "prompts"}, {"name": "resources"}]


@pytest.fixture(scope="module")
def port(needs_envoy: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """Run two servers of the official SDK, and a Gateway that joins them behind `/mcp`."""
    folder = tmp_path_factory.mktemp("joined")
    # Servers of the SDK refuse hosts that they do not know; behind an address they see that of the client.
    targets = [{"name": name, "static": {"host": "203.0.113.5", "port": 80}} for name in SERVERS]
    ref = {"group": "agentgateway.dev", "kind": "AgentgatewayBackend", "name": "all"}
    rule = {"matches": [{"path": {"value": "/mcp"}}], "backendRefs": [ref]}
    objects = [
        gateway("gate"),
        manifest("agentgateway.dev/v1alpha1", "AgentgatewayBackend", "all", {"mcp": {"targets": targets}}),
        manifest("gateway.networking.k8s.io/v1", "HTTPRoute", "r", {"parentRefs": [{"name": "gate"}], "rules": [rule]}),
        v1("p", on_gateway("gate"), {"authorization": {"type": "Inline", "mcp": {"methods": GRANTED, **BASE}}}),
    ]
    (folder / "manifests.yaml").write_text(yaml.safe_dump_all(objects))
    asked = unused_port()
    with ExitStack() as stack:
        options = [f"--bind=prod/gate:8080=127.0.0.1:{asked}", "--http=127.0.0.1:0", "--concurrency=1"]
        for name in SERVERS:
            said = folder / name
            out = stack.enter_context(said.open("wb"))
            started(stack, [sys.executable, "-m", "tests.labs.mcp_server"], stdout=out, stderr=subprocess.DEVNULL)
            options.append(f"--endpoint=AgentgatewayBackend/prod/all/{name}=127.0.0.1:{told_port(said)}")
        log = folder / "run.log"
        out = stack.enter_context(log.open("wb"))
        command = [*PROGRAM, str(folder / "manifests.yaml"), *options]
        running = Running(log, started(stack, command, stdout=out, stderr=subprocess.STDOUT))
        eventually(lambda: "health and metrics on" in running.said and running.is_ready(), lambda: running.said)
        yield asked


def told_port(said: Path) -> int:
    """Wait until a server has told its port."""
    eventually(lambda: said.read_text().endswith("\n"), lambda: "no server")
    return int(said.read_text())


def started(stack: ExitStack, command: list[str], **streams: Any) -> subprocess.Popen[bytes]:
    """Start a process that ends with the stack."""
    process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.DEVNULL, **streams)

    def end() -> None:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(PATIENCE_S)
        finally:
            process.kill()
            process.wait()

    stack.callback(end)
    return process


@pytest.mark.parametrize("mode", ["auto", "legacy"])
def test_the_official_client_uses_two_servers_as_one(port: int, mode: Any) -> None:
    async def use() -> tuple[Any, ...]:
        async with (
            httpx2.AsyncClient(timeout=PATIENCE_S) as http_client,
            Client(
                streamable_http_client(f"http://localhost:{port}/mcp", http_client=http_client),
                mode=mode,
                elicitation_callback=elicited,
                sampling_callback=sampled,
            ) as client,
        ):
            texts = [(await client.call_tool(f"{name}_test_simple_text", {})).content[0] for name in SERVERS]
            denied = ""
            try:
                await client.call_tool("one_test_error_handling", {})
            except Exception as error:
                denied = str(error)
            asked = ""
            if mode == "auto":
                asked = str((await client.call_tool("two.b_test_input_required_result_elicitation", {})).content)
            return (
                client.protocol_version,
                sorted(tool.name for tool in (await client.list_tools()).tools),
                len((await client.list_resources()).resources),
                texts,
                denied,
                asked,
            )

    version, tools, resources, texts, denied, asked = asyncio.run(asyncio.wait_for(use(), PATIENCE_S))
    assert version == ("2026-07-28" if mode == "auto" else "2025-11-25")
    assert tools == sorted(f"{server}_{tool}" for server in SERVERS for tool in TOOLS)
    assert resources == 6
    assert [text.text for text in texts] == ["This is a simple text response for testing."] * 2
    assert "denied by XAccessPolicy/prod/p" in denied
    assert "Ada" in asked or mode == "legacy"


@pytest.mark.parametrize(("sdk", "mode"), [("python", "legacy"), ("1", "legacy"), ("2", "legacy"), ("2", "auto")])
@pytest.mark.parametrize("target", SERVERS)
def test_clients_of_other_sdks_use_each_server(port: int, sdk: str, mode: str, target: str, tmp_path: Path) -> None:
    url, runtime = f"http://localhost:{port}/mcp", node()
    typescript = [runtime, str(CLIENT), str(SUITE), sdk, mode, url]
    done = subprocess.run(
        [sys.executable, "-S", str(OLD_CLIENT), url] if sdk == "python" else typescript,
        env={**os.environ, "PYTHONPATH": str(SUITE / "python"), "TARGET": target},
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
    )
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert said["version"] == ("2026-07-28" if mode == "auto" else "2025-11-25")
    assert (said["tools"], said["resources"], said["prompt"]) == (6, 6, 1)
    assert said["text"] == "This is a simple text response for testing."
    assert said["read"] == "This is the content of the static text resource."
    if mode == "auto":
        assert "Ada" in said["elicited"]
        assert "Paris" in said["sampled"]

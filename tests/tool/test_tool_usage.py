"""`tools --from-log`: the calls of a decision log against what callers may call."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from tests import ROOT
from tests.worlds.tool_objects import manifest
from tierwall.cli.main import root
from tierwall.resources.load import load_objects
from tierwall.resources.snapshot import Snapshot
from tierwall.tool.grants import grants
from tierwall.tool.usage import MAX_LINE, CallLog, usage

EXAMPLE = ROOT / "examples" / "tool"
NETWORKING = "agentic.networking.x-k8s.io"
CALLERS = [None, *(f"spiffe://cluster.local/ns/agents/sa/{name}" for name in ("a", "b", "stranger"))]
TOOLS = ("add", "drop", "secret", "unheard")
BACKENDS = ("one", "two", "gone")


def granted(name: str, account: str, *tools: str) -> dict[str, Any]:
    source = {"type": "ServiceAccount", "serviceAccount": {"namespace": "agents", "name": account}}
    methods = [{"name": "tools/call", "params": list(tools)}]
    return {"name": name, "source": source, "authorization": {"type": "Inline", "mcp": {"methods": methods}}}


def world() -> Snapshot:
    listeners = [{"name": "web", "port": 80, "protocol": "HTTP"}]
    objects = [
        manifest("gateway.networking.k8s.io/v1", "Gateway", "gate", {"gatewayClassName": "c", "listeners": listeners})
    ]
    mcp = {"mcp": {"serviceName": "s", "port": 80}}
    objects += [manifest(f"{NETWORKING}/v0alpha0", "XBackend", name, mcp) for name in BACKENDS[:2]]
    refs = [{"group": NETWORKING, "kind": "XBackend", "name": name} for name in BACKENDS[:2]]
    spec: dict[str, Any] = {"parentRefs": [{"name": "gate"}], "rules": [{"backendRefs": refs}]}
    objects.append(manifest("gateway.networking.k8s.io/v1", "HTTPRoute", "r", spec))
    rules = [granted("a", "a", "add", "drop"), granted("b", "b", "secret")]
    spec = {"targetRefs": refs[:1], "action": "Allow", "rules": rules}
    objects.append(manifest(f"{NETWORKING}/v1alpha1", "XAccessPolicy", "p", spec))
    return Snapshot.of(load_objects(objects))


WORLD = world()


def line(caller: str | None, tool: str, backend: str, verdict: str, time: int) -> dict[str, Any]:
    out = {"time": f"2026-01-01T00:00:{time:02}Z", "plane": "tool", "verdict": verdict, "method": "tools/call"}
    out |= {"tool": tool, "gateway": "prod/gate", "listener": "web", "backend": f"XBackend/prod/{backend}"}
    return out if caller is None else {**out, "caller": caller}


CALLS = st.lists(
    st.builds(
        line,
        st.sampled_from(CALLERS),
        st.sampled_from(TOOLS),
        st.sampled_from(BACKENDS),
        st.sampled_from(("Allow", "Deny")),
        st.integers(0, 59),
    ),
    max_size=12,
)
NO_CALLS = st.lists(
    st.sampled_from([b"", b"{", b"[]", b"\xff\xfe", b"x", b"[" * 999, b'{"plane":"tool"}', b"x" * (MAX_LINE + 2)]),
    max_size=4,
)


@given(CALLS, NO_CALLS)
def test_calls_are_counted_and_compared(calls: list[dict[str, Any]], others: list[bytes]) -> None:
    """The reference counts by name, and asks for each caller what it may call."""
    log = CallLog()
    log.read([*others, *(json.dumps(call).encode() + b"\n" for call in calls)])
    used = usage(WORLD, log)
    assert (used.calls, used.skipped) == (len(calls), len(others))
    counts = Counter((call["backend"], call.get("caller"), call["tool"], call["verdict"]) for call in calls)
    wanted = {}
    callers = {call.get("caller") for call in calls} | set(CALLERS[1:3])
    for caller in callers:
        asked = {call["tool"] for call in calls if call.get("caller") == caller}
        for row in grants(WORLD, caller, tools=asked).rows:
            if row.tool != "*" and row.verdict != "Deny":
                wanted[str(row.backend), caller, row.tool] = (0, 0)
    may = set(wanted)
    for backend, caller, tool, _ in counts:
        key = backend, caller, tool
        wanted[key] = (counts[*key, "Allow"], counts[*key, "Deny"])
    shown = {
        (way.way.backend, use.caller, use.tool): (use.allowed, use.denied) for way in used.ways for use in way.uses
    }
    assert shown == wanted
    for way in used.ways:
        called = {call["tool"] for call in calls if call["backend"] == way.way.backend}
        assert set(way.uncalled) == {tool for backend, _, tool in may if backend == way.way.backend} - called
        for use in way.uses:
            times = [
                call["time"]
                for call in calls
                if (call["backend"], call.get("caller"), call["tool"]) == (way.way.backend, use.caller, use.tool)
            ]
            assert use.last == max(times, default="")
            assert (use.permit is None) == (way.way.backend == "XBackend/prod/gone")


def run(*arguments: str, stdin: bytes = b"") -> Any:
    return CliRunner().invoke(root, ["tools", *arguments, "-f", str(EXAMPLE / "manifests")], input=stdin)


def test_a_log_can_be_piped_and_narrowed() -> None:
    text = (EXAMPLE / "decisions.jsonl").read_bytes()
    shown = run("--from-log", "-", "--caller", "agents/shopper", "--backend", "prod/shop-service", stdin=text)
    assert shown.exit_code == 0
    assert "search  2 calls " in shown.stdout
    assert "payment-service" not in shown.stdout
    assert "without an identity" not in shown.stdout
    document = json.loads(run("--from-log", "-", "-o", "json", stdin=text).stdout)
    assert (document["calls"], document["otherLines"]) == (6, 1)
    assert [way["listener"] for way in document["ways"]] == ["agents", "agents", "old"]


def test_hostile_logs(tmp_path: Path) -> None:
    forged = line("spiffe://x/\x1b[2J", "a\nForged: line\u202e", "one", "Allow", 1)
    file = tmp_path / "log"
    file.write_bytes(json.dumps(forged).encode() + b"\n" + b"y" * (3 * MAX_LINE) + b"\n\x00\xff\n")
    shown = run("--from-log", str(file))
    assert shown.exit_code == 0
    assert not {"\x1b", "\u202e"} & set(shown.stdout)
    assert "\nForged" not in shown.stdout


def test_options_that_do_not_go_together() -> None:
    assert run("--from-log", str(EXAMPLE / "decisions.jsonl"), "--all").exit_code == 2
    assert run("--from-log", str(EXAMPLE / "missing.jsonl")).exit_code == 2

"""Lists cut for a caller, as JSON and as event streams, in any pieces; unknown bodies are never shown."""

from __future__ import annotations

import json
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.randomness import examples
from tests.worlds import tool_worlds
from tests.worlds.tool_objects import (
    GATEWAY_API,
    NETWORKING,
    PROTOTYPE,
    Object,
    backend,
    calls,
    cel,
    gateway,
    manifest,
    mcp,
    on_backend,
    on_gateway,
    v1,
)
from tierwall.core.reference import Reference
from tierwall.engines.envoy.config.names import backend_cluster_name, backend_of_cluster, place_of
from tierwall.engines.envoy.control import caller_view, cpu_limit
from tierwall.engines.envoy.control.caller_view import CallerView, DecidedNames, view_of
from tierwall.engines.envoy.control.cpu_limit import CpuLimit
from tierwall.engines.envoy.control.lists import LISTS, ListFilter, Shown
from tierwall.tool.ways import find_way

JSON, EVENTS = "application/json", "text/event-stream; charset=utf-8"


def listing(*names: str, identity: Any = 1) -> dict[str, Any]:
    return {
        "jsonrpc": "2.0",
        "id": identity,
        "result": {"tools": [{"name": name} for name in names], "nextCursor": "c"},
    }


def shown(body: bytes) -> list[str]:
    return [tool["name"] for tool in json.loads(body)["result"]["tools"]]


def may(method: str) -> Callable[[str], bool]:
    return lambda name: method == "tools/call" and name.startswith("a")


def filter_tools(
    body: bytes, content_type: str, may: Shown | None, method: str | None = "tools/list", piece: int = 1 << 30
) -> bytes:
    """Cut a body that arrives in pieces of some size."""
    cut = ListFilter(content_type, method, may)
    pieces = [body[at : at + piece] for at in range(0, len(body), piece)]
    return b"".join([*(cut.feed(part, False) for part in pieces), cut.feed(b"", True)])


def test_only_callable_tools_are_shown_and_the_rest_of_the_answer_stays() -> None:
    body = filter_tools(json.dumps(listing("a", "b", "ab")).encode(), JSON, may)
    assert shown(body) == ["a", "ab"]
    assert json.loads(body)["result"]["nextCursor"] == "c"


@pytest.mark.parametrize(
    ("version", "kind", "spec"),
    [
        (f"{NETWORKING}/v0alpha0", "XBackend", {"mcp": {"serviceName": "s", "port": 80}}),
        ("v1", "Service", {"ports": [{"port": 80}]}),
        ("agentgateway.dev/v1alpha1", "AgentgatewayBackend", {"static": {"host": "pay.example", "port": 80}}),
    ],
)
def test_envoys_name_for_a_backend_leads_to_what_its_callers_may_use(version: str, kind: str, spec: Object) -> None:
    policy = v1("p", on_gateway(), {"authorization": mcp(calls("a"))})
    loaded = tool_worlds.snapshot([gateway(), manifest(version, kind, "pay", spec), policy])
    backend = loaded.find(Reference(kind, "prod", "pay"))
    assert backend is not None
    named = backend_of_cluster(backend_cluster_name(backend, 80), with_group=True)
    view = view_of(loaded, {"gateway": "prod/prod-gateway", "listener": "web", "backend": named}, None)
    assert view is not None
    assert [name for name in ("a", "b") if view.shown("tools/call")(name)] == ["a"]


def test_listeners_and_backends_of_one_name_are_told_apart() -> None:
    """The Gateway and two ListenerSets have a listener `web`, and both groups have an XBackend `pay`."""
    edge = gateway()
    edge["spec"]["allowedListeners"] = {"namespaces": {"from": "All"}}
    ports = {"": 8080, "prod/one/": 9001, "prod/two/": 9002}
    sets = [
        manifest(
            f"{GATEWAY_API}/v1",
            "ListenerSet",
            owner.split("/")[1],
            {
                "parentRef": {"name": "prod-gateway"},
                "listeners": [{"name": "web", "port": port, "protocol": "HTTP"}],
            },
        )
        for owner, port in list(ports.items())[1:]
    ]
    tools = dict(zip(ports, "abc", strict=True))
    by_port = [{"authorization": {**mcp(calls(tools[owner])), "ports": [port]}} for owner, port in ports.items()]
    loaded = tool_worlds.snapshot(
        [
            *(edge, *sets, backend("pay"), backend("pay", PROTOTYPE), v1("ports", on_gateway(), *by_port)),
            v1("all", on_backend("pay"), {"authorization": mcp(calls("a", "b", "c"))}),
            v1("one", on_backend("pay", PROTOTYPE), {"authorization": mcp(calls("b"))}),
        ]
    )
    for group, of_group in ((NETWORKING, "abc"), (PROTOTYPE, "b")):
        [pay] = loaded.of_kind(group, "XBackend")
        named = backend_of_cluster(backend_cluster_name(pay, 80), with_group=True)
        for owner, port in ports.items():
            place = place_of(f"gateway/prod/prod-gateway/{port}/layout", f"{owner}web *")
            view = view_of(loaded, {**place, "backend": named}, None)
            assert view is not None, (group, owner)
            assert view.port == port
            shown = [name for name in "abc" if view.shown("tools/call")(name)]
            assert shown == [name for name in of_group if name == tools[owner]], (group, owner)


@pytest.mark.parametrize("ending", ["\n", "\r\n", "\r"])
def test_events_are_filtered_with_every_line_ending(ending: str) -> None:
    text = ending.join(["event: message", "id: 7", f"data: {json.dumps(listing('a', 'b'))}", "", ""])
    body = filter_tools(text.encode(), EVENTS, may)
    lines = body.decode().split("\n")
    assert lines[:2] == ["event: message", "id: 7"]
    assert shown(lines[2].removeprefix("data: ").encode()) == ["a"]


def test_data_over_several_lines_is_one_message() -> None:
    text = "\n".join(f"data: {line}" for line in json.dumps(listing("a", "b"), indent=1).splitlines()) + "\n\n"
    body = filter_tools(text.encode(), EVENTS, may)
    assert b'"b"' not in body
    assert b'"a"' in body


def test_an_event_without_its_last_empty_line_is_filtered_too() -> None:
    body = filter_tools(f"data: {json.dumps(listing('a', 'b'))}".encode(), EVENTS, may)
    assert b'"b"' not in body


def test_what_is_no_field_of_an_event_is_left_out() -> None:
    whole = json.dumps(listing("a", "b"))
    body = filter_tools(f"{whole}\nDATA: {whole}\n: alive\nretry: 5\ndata\n\n".encode(), EVENTS, may)
    assert body == b": alive\nretry: 5\ndata: \n\n"


@pytest.mark.parametrize("end", ["\0", "\x0b", "\x0c", "\x1c", "\x85", "\u2028", "\u2029"])
@pytest.mark.parametrize("field", ["id", "event", ""])
def test_no_field_is_kept_that_a_client_could_read_as_several_lines(field: str, end: str) -> None:
    hidden = f"{field}: 1{end}data: {json.dumps(listing('a', 'secret'))}\n"
    cut = filter_tools(f"{hidden}id: 2\ndata: {json.dumps(listing('a'))}\n\n".encode(), EVENTS, may)
    assert b"secret" not in cut
    assert cut.startswith(b"id: 2\ndata: ")


def test_messages_without_a_result_stay() -> None:
    note = b'{"jsonrpc":"2.0","method":"notifications/message","params":{}}'
    assert filter_tools(note, JSON, may) == note
    assert filter_tools(b": ping\n\n", EVENTS, may) == b": ping\n\n"


@pytest.mark.parametrize(
    ("body", "content_type"),
    [
        (json.dumps(listing("b")).encode(), "text/html"),
        (json.dumps(listing("b")).encode(), "compressed"),
        (json.dumps([listing("b")]).encode(), JSON),
        (json.dumps({"id": 1, "result": {"Tools": [{"name": "b"}]}}).encode(), JSON),
        (json.dumps({"id": 1, "result": ["b"]}).encode(), JSON),
        (b'{"id": 1, "result": {"tools": [{"name": "b"}]}', JSON),
        (b"data: [" + b"[" * 100_000, EVENTS),
        (b"\xff\xfe b", JSON),
    ],
)
def test_an_unknown_body_is_replaced_by_an_error(body: bytes, content_type: str) -> None:
    out = filter_tools(body, content_type, may)
    assert b'"b"' not in out
    assert b"error" in out


def test_an_unknown_place_shows_nothing() -> None:
    out = filter_tools(json.dumps(listing("a", identity="x")).encode(), JSON, None)
    assert json.loads(out)["id"] == "x"
    assert "error" in json.loads(out)


def test_entries_that_are_not_tools_are_not_shown() -> None:
    message = {"id": 1, "result": {"tools": [{"name": 3}, "a", None, {"title": "a"}, {"name": "a"}]}}
    assert shown(filter_tools(json.dumps(message).encode(), JSON, may)) == ["a"]


def test_a_stream_of_the_server_may_bring_any_list_and_other_results() -> None:
    def stream(message: Any) -> Any:
        body = filter_tools(f"data: {json.dumps(message)}\n\n".encode(), EVENTS, may, None)
        return json.loads(body.removeprefix(b"data: "))

    for kind in LISTS.values():
        entries = [{kind.name: "a"}, {kind.name: "b"}]
        shown = stream({"id": 1, "result": {kind.entries: entries, "x": 1}})["result"]
        assert shown == {kind.entries: entries[:1] if kind.entries == "tools" else [], "x": 1}
    others: tuple[Any, ...] = ({"content": []}, [], None, "tools", {"tasks": [{"name": "b"}]})
    for result in others:
        assert stream({"id": 1, "result": result}) == {"id": 1, "result": result}
    assert "error" in stream([listing("b")])


def test_events_are_passed_on_as_soon_as_they_are_whole() -> None:
    cut = ListFilter(EVENTS, None, may)
    assert cut.feed(b"data: {}\n\nda", False) == b"data: {}\n\n"
    assert cut.feed(b"ta: {}\n", False) == b""
    assert cut.feed(b"\n", False) == b"data: {}\n\n"


def test_what_caches_go_by_is_set_on_every_page_of_the_newest_version() -> None:
    for names in (["a"], ["b"], []):
        page = listing(*names)
        page["result"] |= {"resultType": "complete", "ttlMs": 60000, "cacheScope": "public"}
        result = json.loads(filter_tools(json.dumps(page).encode(), JSON, may))["result"]
        assert (result["ttlMs"], result["cacheScope"], result["nextCursor"]) == (0, "private", "c")
    assert json.loads(filter_tools(json.dumps(listing("a")).encode(), JSON, may)) == listing("a")


@settings(max_examples=examples(300), deadline=None)
@given(
    st.lists(st.text(max_size=5), max_size=6),
    st.sets(st.text(max_size=5)),
    st.booleans(),
    st.integers(1, 40),
    st.sampled_from(["\n", "\r\n", "\r"]),
)
def test_listed_and_callable_tools_are_shown_in_order(
    names: list[str], good: set[str], stream: bool, piece: int, ending: str
) -> None:
    text = json.dumps(listing(*names))
    body = filter_tools(
        f"data: {text}{ending}{ending}".encode() if stream else text.encode(),
        EVENTS if stream else JSON,
        lambda method: good.__contains__,
        piece=piece,
    )
    assert shown(body.removeprefix(b"data: ")) == [name for name in names if name in good]


@given(st.integers(0, 10**6))
@settings(max_examples=examples(60), deadline=None)
def test_names_decided_at_once_are_decided_as_one_by_one(seed: int) -> None:
    world = tool_worlds.World(seed)
    snapshot = tool_worlds.snapshot(world.objects)
    asked = world.question()
    way = find_way(snapshot, asked["gateway"], asked.get("listener"), asked["backend"], [])
    decided: DecidedNames = {}
    for caller in 2 * (None, *tool_worlds.CALLERS) if way is not None else ():
        assert way is not None
        view = CallerView(way, caller if isinstance(caller, str) else None, decided)
        for method in ("tools/call", "prompts/get", "resources/read"):
            is_shown = view.shown(method)
            for name in (*tool_worlds.TOOLS, *tool_worlds.URIS, "other"):
                assert is_shown(name) == view.may(method, name), (seed, caller, method, name)


def test_costly_expressions_end_a_list(monkeypatch: pytest.MonkeyPatch) -> None:
    policy = v1("p", on_gateway(), {"authorization": cel("request.mcp.tool_name.startsWith('a')")})
    loaded = tool_worlds.snapshot([gateway(), backend("pay"), policy])
    view = view_of(loaded, {"gateway": "prod/prod-gateway", "listener": "web", "backend": "XBackend/prod/pay"}, None)
    assert view is not None
    with monkeypatch.context() as slow:
        slow.setattr(caller_view, "CpuLimit", lambda seconds: Spent(after=1))
        is_shown = view.shown("tools/call")
        assert [name for name in ("a", "ab") if is_shown(name)] == ["a"]
    # What is known already costs nothing, so that a client gets further when it asks again.
    is_shown = view.shown("tools/call")
    assert [name for name in ("a", "ab", "b") if is_shown(name)] == ["a", "ab"]


class Spent:
    """A limit that is reached after so many questions."""

    def __init__(self, after: int) -> None:
        self._left = after

    @property
    def is_reached(self) -> bool:
        self._left -= 1
        return self._left < 0


def test_a_limit_counts_the_cpu_of_its_thread_and_not_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    elapsed, spent = iter((0.0, 0.5, 2.0, 9.0)), iter((10.0, 10.9, 11.1))
    monkeypatch.setattr(cpu_limit, "time", SimpleNamespace(perf_counter=elapsed.__next__, thread_time=spent.__next__))
    limit = CpuLimit(1.0)
    # It asks for the CPU only after a second.
    assert [limit.is_reached, limit.is_reached, limit.is_reached] == [False, False, True]

"""MCP of four versions at a real Envoy: the base set, headers that repeat the body, and what denied clients get.

docs/semantics.md#the-base-set, docs/semantics.md#headers-agree-with-the-body,
docs/semantics.md#what-a-denied-client-gets.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.labs.envoy_attacks import BASE, Attacked, behind, call, policy, request
from tests.randomness import examples
from tierwall.tool.protocol import KNOWN_METHODS, encoded_name

Object = dict[str, Any]
NEW, OLD = "2026-07-28", ("2025-11-25", "2025-06-18", "2025-03-26")
META = "io.modelcontextprotocol/"
JSON = {"content-type": "application/json", "accept": "application/json, text/event-stream"}


class Reply(NamedTuple):
    """The answer to a message, and whether it came from the backend."""

    status: int
    reached: bool
    content_type: str
    body: bytes

    @property
    def code(self) -> int:
        return int(json.loads(self.body)["error"]["code"])


def rule(*methods: Object, base: bool = False) -> Object:
    return {"authorization": {"type": "Inline", "mcp": {"methods": list(methods), **(BASE if base else {})}}}


OBJECTS = [
    *(manifest for name in ("base", "tools", "prompts", "resources", "whole", "a2a") for manifest in behind(name)),
    policy(
        "not-about-mcp", "a2a", [{"authorization": {"type": "Inline", "headers": [{"name": "x-env", "value": "prod"}]}}]
    ),
    policy("base-only", "base", [rule(base=True)]),
    policy("some-tools", "tools", [rule({"name": "tools/call", "params": ["add"]})]),
    policy("one-prompt", "prompts", [rule({"name": "prompts/get", "params": ["p"]}), rule(base=True)]),
    policy(
        "some-resources",
        "resources",
        [
            rule({"name": "resources/read", "params": ["file:///{x}"]}, base=True),
            rule({"name": "resources/subscribe", "params": ["file:///a", "file:///b"]}),
        ],
    ),
    policy("all-resources", "whole", [rule({"name": "resources"})]),
]


@pytest.fixture(scope="module")
def running(needs_envoy: None) -> Iterator[Attacked]:
    world = Attacked(OBJECTS)
    yield world
    world.close()


@pytest.fixture
def attacked(running: Attacked) -> Iterator[Attacked]:
    running.recorder.requests.clear()
    yield running
    running.assert_safe()


def message(method: str, params: Object | None = None, identity: Any = 1, version: str | None = None) -> Object:
    """Return a request; in the newest version with what it must say of itself."""
    params = dict(params or {})
    if version == NEW:
        params["_meta"] = {f"{META}protocolVersion": version, f"{META}clientCapabilities": {}}
    return {"jsonrpc": "2.0", "id": identity, "method": method, "params": params}


def headers_of(sent: Object, version: str | None) -> dict[str, str]:
    """Return the headers that a client of a version sends with a message."""
    if version is None:
        return {}
    out = {"MCP-Protocol-Version": version}
    if version == NEW and "method" in sent:
        params = sent.get("params", {})
        name = params.get("name", params.get("uri", params.get("taskId")))
        out |= {"Mcp-Method": sent["method"]} | ({} if name is None else {"Mcp-Name": encoded_name(name)})
    return out


def sent(
    attacked: Attacked,
    body: Object | bytes,
    path: str = "/base",
    version: str | None = None,
    headers: Mapping[str, str] | list[tuple[str, str]] | None = None,
) -> Reply:
    if headers is None:
        headers = headers_of(body, version) if isinstance(body, dict) else {}
    pairs = headers.items() if isinstance(headers, Mapping) else headers
    lines = "".join(f"{name}: {value}\r\n" for name, value in (*JSON.items(), *pairs))
    exchange = attacked.send(request("POST", path, body, lines))
    head, _, answer = exchange.answers[0].partition(b"\r\n\r\n")
    kind = next((line for line in head.lower().split(b"\r\n") if line.startswith(b"content-type:")), b"").decode()
    return Reply(exchange.statuses[0], exchange.reached, kind.removeprefix("content-type:").strip(), answer)


# Base set


@pytest.mark.parametrize("version", [None, *OLD, NEW])
def test_the_base_set_is_one_for_all_versions(attacked: Attacked, version: str | None) -> None:
    for method in ("initialize", "server/discover", "ping", "tools/list", "logging/setLevel", "subscriptions/listen"):
        assert sent(attacked, message(method, version=version), version=version).reached, method
    lists = {"notifications": {"toolsListChanged": True, "promptsListChanged": False, "resourcesListChanged": True}}
    assert sent(attacked, message("subscriptions/listen", lists, version=version), version=version).reached
    for method in ("tools/call", "prompts/get", "prompts/list", "resources/list", "tasks/get", "tasks/list"):
        params = {} if "/list" in method else {"taskId": "t"} if method.startswith("tasks") else {"name": "x"}
        reply = sent(attacked, message(method, params, version=version), version=version)
        assert (reply.reached, reply.status, reply.code) == (False, 200, 403), (method, reply)


@pytest.mark.parametrize("version", [None, *OLD])
@pytest.mark.parametrize("content", [{"result": {}}, {"error": {"code": 1, "message": "no"}}])
def test_answers_to_servers_pass_before_the_newest_version(
    attacked: Attacked, version: str | None, content: Object
) -> None:
    answer = {"jsonrpc": "2.0", "id": 0, **content}
    assert sent(attacked, answer, version=version).reached
    assert not sent(attacked, {**answer, "method": "ping"}, version=version).reached
    both = {"result": None, "error": None}
    assert not sent(attacked, {**answer, **both}, version=version).reached
    assert not sent(attacked, {**both, **answer}, version=version).reached
    assert not sent(attacked, message("__jsonrpc_response", {"name": "add"}), version=version).reached
    # Without the base set they do not pass, and the id, which is the server's, does not come back.
    denied = sent(attacked, answer, "/tools", version)
    assert (denied.reached, denied.status) == (False, 403)
    assert b"{" not in denied.body
    assert b'"id"' not in sent(attacked, answer, "/tools", NEW).body.replace(b'"id":null', b"")


@pytest.mark.parametrize("version", [None, NEW])
def test_subscriptions_ask_for_what_they_name(attacked: Attacked, version: str | None) -> None:
    def passes(path: str, notifications: object) -> bool:
        listen = message("subscriptions/listen", {"notifications": notifications}, version=version)
        return sent(attacked, listen, path, version).reached

    for path, uris, expected in (
        ("/resources", ["file:///a"], True),
        ("/resources", ["file:///c"], False),
        ("/resources", ["file:///a", "file:///b"], True),
        ("/resources", ["file:///b", "file:///a", "file:///b"], True),
        ("/resources", ["file:///a", "file:///c"], False),
        ("/resources", ["file:///c", "file:///a"], False),
        ("/resources", ["file:///a", ""], False),
        ("/resources", ["file:///a"] * 8, True),
        ("/resources", [*["file:///a"] * 7, "file:///c"], False),
        # Envoy compares eight: more need a rule without params.
        ("/resources", ["file:///a"] * 9, False),
        ("/whole", ["file:///a"] * 9, True),
        ("/resources", [], True),
        ("/resources", [7], False),
        ("/resources", ["file:///a", ["file:///b"]], False),
        ("/resources", "file:///a", False),
        ("/resources", {"0": "file:///a"}, False),
        ("/whole", ["file:///a", "file:///b"], True),
        ("/whole", [], False),
        ("/base", ["file:///a"], False),
    ):
        assert passes(path, {"resourceSubscriptions": uris}) is expected, (path, uris)
        assert passes(path, {"resourceSubscriptions": uris, "toolsListChanged": True}) is expected, (path, uris)
    # A list of the notifications' keys, or anything else, is not a form that a rule has judged.
    for strange in ([{"resourceSubscriptions": ["file:///c"]}], ["resourceSubscriptions", ["file:///c"]], "x", 1, True):
        assert not passes("/base", strange), strange
        assert not passes("/resources", strange), strange
    for change in ({"resourceSubscriptions": ["file:///c"]}, ["file:///c"], "true", 1):
        assert not passes("/base", {"toolsListChanged": change}), change
    for changes in (None, {"toolsListChanged": False, "promptsListChanged": None}, {"resourcesListChanged": True}):
        assert passes("/base", changes), changes
    assert passes("/tools", {"taskIds": ["t"]})
    assert not passes("/base", {"taskIds": ["t"]})
    assert not passes("/whole", {"taskIds": ["t"], "resourceSubscriptions": ["file:///a"]})
    assert not passes("/whole", {"everything": True})
    assert not passes("/base", {"resourcesubscriptions": ["file:///a"]})
    assert not passes("/base", {"resourceSubscriptions": ["file:///a"], "toolsListChanged": True})
    escaped = rb'{"jsonrpc":"2.0","id":1,"method":"subscriptions/listen","params":{"notifications":{"x":1}}}'
    escaped = escaped.replace(b'"x":1', rb'"resource\u0053ubscriptions":["file:///\u0061"]')
    assert sent(attacked, escaped, "/resources").reached
    assert not sent(attacked, escaped, "/base").reached


@pytest.mark.parametrize("version", [None, NEW])
def test_completions_need_what_they_complete(attacked: Attacked, version: str | None) -> None:
    def passes(path: str, **params: Any) -> bool:
        return sent(attacked, message("completion/complete", params, version=version), path, version).reached

    prompt, template = {"type": "ref/prompt", "name": "p"}, {"type": "ref/resource", "uri": "file:///{x}"}
    assert passes("/base")
    assert passes("/prompts", ref=prompt)
    assert not passes("/prompts", ref={**prompt, "name": "q"})
    assert not passes("/prompts", ref=template)
    assert not passes("/base", ref=prompt)
    assert passes("/resources", ref=template)
    assert not passes("/resources", ref={**template, "uri": "file:///{y}"})
    assert not passes("/resources", ref={**template, **prompt})
    assert not passes("/whole", ref=template)  # its policy has no base set
    strange_refs: tuple[Any, ...] = ({}, [], "p", None, {"type": "ref/prompt"})
    for strange in strange_refs:
        assert not passes("/prompts", ref=strange), strange
    assert not passes("/prompts", ref={"type": "ref/prompt", "name": "p", "Name": "q"})
    assert not passes("/whole", ref=[template])


def test_tasks_follow_calls(attacked: Attacked) -> None:
    for version in (None, NEW):
        for method in ("tasks/get", "tasks/result", "tasks/update", "tasks/cancel", "tasks/list"):
            task = message(method, {} if method == "tasks/list" else {"taskId": "t-1"}, version=version)
            assert sent(attacked, task, "/tools", version).reached is (method != "tasks/list"), method
            assert not sent(attacked, task, "/prompts", version).reached
    names = [seen.headers.get("mcp-name") for seen in attacked.recorder.requests]
    assert set(names) == {None, "t-1"}


@pytest.mark.parametrize("method", ["tasks/get", "tasks/cancel"])
def test_tasks_of_a2a_do_not_follow_calls(attacked: Attacked, method: str) -> None:
    of_a2a = message(method, {"id": "t-1"})
    denied = sent(attacked, of_a2a, "/tools")
    assert (denied.reached, denied.status, denied.code) == (False, 200, 403)
    assert sent(attacked, of_a2a, "/a2a", headers={"x-env": "prod"}).reached
    assert not sent(attacked, of_a2a, "/a2a").reached


# Headers and body


def test_headers_are_forwarded_as_they_came(attacked: Attacked) -> None:
    for name in ("add", "größe", "=?base64?YWRk?=", "a b", "x" * 100):
        body = message("prompts/get", {"name": name}, version=NEW)
        sent(attacked, body, "/open", NEW)
        reply = sent(attacked, body, "/prompts", NEW)
        assert reply.status == 200, (name, reply)
    body = message("prompts/get", {"name": "p"}, version=NEW)
    plain, encoded = headers_of(body, NEW), f"=?base64?{base64.b64encode(b'p').decode()}?="
    for header in ("p", encoded):
        attacked.recorder.requests.clear()
        assert sent(attacked, body, "/prompts", headers={**plain, "Mcp-Name": header}).reached
        assert [seen.headers["mcp-name"] for seen in attacked.recorder.requests] == [header]


def test_a_needless_empty_name_is_not_forwarded(attacked: Attacked) -> None:
    assert sent(attacked, message("ping"), headers={"Mcp-Name": ""}).reached
    assert ["mcp-name" in seen.headers for seen in attacked.recorder.requests] == [False]


VERSIONS = [[], *([version] for version in (*OLD, NEW, "2027-01-01", "v999.0.0")), [NEW, NEW], [*OLD[:1], NEW]]
VERSIONS += [[f"{OLD[0]}{between}{NEW}"] for between in (", ", "\t", " ")]
NAMES = ["add", "größe", "=?base64?YWRk?=", "a b", "Add"]


def agrees(sent: Object, versions: list[str], method: str | None, name: str | None) -> bool:
    """Whether headers and body agree: the rule of docs/semantics.md#headers-agree-with-the-body."""
    stated = sent["params"].get("_meta", {}).get(f"{META}protocolVersion")
    if len(versions) > 1 or any(re.search(r"[,\s]", version) for version in versions):
        return False
    version = versions[0] if versions else None
    if stated is not None and stated != version:
        return False
    if version == NEW and (method is None or name is None):
        return False
    wanted = sent["params"]["name"]
    plain = wanted.isascii() and not wanted.startswith("=?base64?")
    encoded = f"=?base64?{base64.b64encode(wanted.encode()).decode()}?="
    return method in (None, "prompts/get") and (name is None or name == encoded or (plain and name == wanted))


@given(
    st.sampled_from(NAMES),
    st.sampled_from(VERSIONS),
    st.sampled_from([None, *OLD, NEW, "2027-01-01"]),
    st.sampled_from([None, "prompts/get", "Prompts/Get", "ping"]),
    st.sampled_from([None, *NAMES[:1], *NAMES[2:], *map(encoded_name, NAMES), "=?base64?YWRk", "=?BASE64?YWRk?="]),
)
@settings(max_examples=examples(150), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_headers_agree_with_the_body_in_every_version(
    running: Attacked, wanted: str, versions: list[str], stated: str | None, method: str | None, name: str | None
) -> None:
    meta: Object = {f"{META}clientCapabilities": {}} | (
        {f"{META}protocolVersion": stated} if stated is not None else {}
    )
    body = {"jsonrpc": "2.0", "id": 1, "method": "prompts/get", "params": {"name": wanted, "_meta": meta}}
    headers = [("MCP-Protocol-Version", version) for version in versions]
    headers += [("Mcp-Method", method)] if method is not None else []
    headers += [("Mcp-Name", name)] if name is not None else []
    running.recorder.requests.clear()
    reply = sent(running, body, "/prompts", headers=headers)
    if agrees(body, versions, method, name):
        # No header is a name that the rules take: none of these prompts is granted.
        assert (reply.status, reply.code) == (200, 403)
    else:
        assert (reply.status, reply.code) == (400, -32020)
    assert running.recorder.requests == []


def test_a_name_never_comes_from_a_header(attacked: Attacked) -> None:
    for version in (None, *OLD, "2027-01-01"):
        headers = {} if version is None else {"MCP-Protocol-Version": version}
        assert not sent(attacked, call("rm"), "/tools", headers={**headers, "Mcp-Name": "add"}).reached
        reply = sent(attacked, call("rm"), "/tools", headers=headers)
        assert (reply.status, reply.code) == (200, 403)
    assert attacked.recorder.requests == []


# Denials

IDS = ["1", "0", "-1", "9007199254740993", "123456789012345678901234567890", "1.50", "1E3", "null"]
IDS += ['"a"', '"\\u0061\\n\\"\\\\"', '"größe"', '""', '"\\ud83d\\ude00"', '"%REQ(x)%"', f'"{"x" * 5000}"']


@pytest.mark.parametrize("identity", IDS)
def test_a_denied_request_gets_its_own_id_byte_for_byte(attacked: Attacked, identity: str) -> None:
    for before, after in (("", ""), (" \n", "\t")):
        head = f'{{"jsonrpc":"2.0","id":{before}{identity}{after},"method":"tools/call","params":{{"name":"rm"}}}}'
        reply = sent(attacked, head.encode(), "/tools")
        assert (reply.status, reply.content_type) == (200, "application/json")
        assert f'"id":{identity},'.encode() in reply.body
        wanted = {"code": 403, "message": "denied by XAccessPolicy/prod/some-tools"}
        assert json.loads(reply.body)["error"] == {**wanted, "data": {"policy": "XAccessPolicy/prod/some-tools"}}


def test_an_id_that_is_too_long_for_a_header_is_refused(attacked: Attacked) -> None:
    for length, status in ((9_998, 200), (9_999, 400), (900_000, 400)):
        reply = sent(attacked, message("tools/list", identity="x" * length))
        assert (reply.status, reply.reached) == (status, status == 200)


def test_a_denied_notification_gets_no_message(attacked: Attacked) -> None:
    for version in (None, NEW):
        note = message("notifications/progress", version=version)
        del note["id"]
        reply = sent(attacked, note, "/tools", version)
        assert (reply.reached, reply.status) == (False, 403)
        assert b"{" not in reply.body


def test_a_method_that_no_version_knows_is_not_found(attacked: Attacked) -> None:
    unknown = message("unknown/method", identity="x", version=NEW)
    reply = sent(attacked, unknown, version=NEW)
    assert (reply.reached, reply.status, reply.code) == (False, 404, -32601)
    assert json.loads(reply.body)["id"] == "x"
    # A rule for everything forwards it, and older versions have no such answer.
    assert sent(attacked, unknown, "/open", NEW).reached
    older = sent(attacked, message("unknown/method"), version=OLD[0])
    assert (older.status, older.code) == (200, 403)
    for method in KNOWN_METHODS - {"initialize", "server/discover", "ping", "tools/list", "subscriptions/listen"}:
        params = {"name": "n", "uri": "u", "taskId": "t"} if not method.endswith("list") else {}
        body = message(method, params, version=NEW)
        name = {"tasks": "t", "resources": "u"}.get(method.partition("/")[0], "n") if params else None
        named = method.startswith(("tools/call", "prompts/get", "resources/", "tasks/")) and name is not None
        headers = {"MCP-Protocol-Version": NEW, "Mcp-Method": method} | ({"Mcp-Name": str(name)} if named else {})
        reply = sent(attacked, body, "/base", headers=headers)
        assert reply.reached or (reply.status, reply.code) == (200, 403), (method, reply)


# Callers of A2A


@pytest.mark.parametrize("accept", ["application/json", "text/event-stream", "*/*", "a%REQ(:path)%", None])
@pytest.mark.parametrize("method", ["message/send", "message/stream", "tasks/get", "SendMessage"])
def test_callers_of_a2a_accept_less(attacked: Attacked, accept: str | None, method: str) -> None:
    headers = {} if accept is None else {"accept": accept}
    body = json.dumps(message(method, {"id": "t", "message": {"role": "user", "messageId": "m"}})).encode()

    def send(path: str, **more: str) -> Reply:
        lines = {"content-type": "application/json", **headers, **more}
        exchange = attacked.send(request("POST", path, body, "".join(f"{k}: {v}\r\n" for k, v in lines.items())))
        return Reply(exchange.statuses[0], exchange.reached, "", exchange.answers[0].partition(b"\r\n\r\n")[2])

    assert send("/a2a", **{"x-env": "prod", "x-tierwall-accepted": "x"}).reached
    [arrived] = attacked.recorder.requests
    # Without the header, everything is accepted.
    assert arrived.headers["accept"] == accept or (accept is None and arrived.headers["accept"] == JSON["accept"])
    assert not any(name.startswith("x-tierwall") for name in arrived.headers)
    for path, policy_name in (("/a2a", "not-about-mcp"), ("/tools", "some-tools")):
        if (path, method) != ("/tools", "tasks/get"):
            denied = send(path)
            assert (denied.reached, denied.status, denied.code) == (False, 200, 403)
            assert f"denied by XAccessPolicy/prod/{policy_name}".encode() in denied.body


def test_what_is_refused_does_not_depend_on_what_a_client_accepts(attacked: Attacked) -> None:
    for body in (
        b'[{"jsonrpc":"2.0","id":1,"method":"a"}]',
        b'{"jsonrpc":"2.0","id":1,"method":"a","method":"b"}',
        b"{}",
    ):
        for accept in ("application/json", JSON["accept"]):
            head = f"content-type: application/json\r\naccept: {accept}\r\nx-env: prod\r\n"
            exchange = attacked.send(request("POST", "/a2a", body, head))
            assert (exchange.reached, exchange.statuses[0]) == (False, 400)


@pytest.mark.parametrize("path", ["/a2a", "/tools"])
@pytest.mark.parametrize(
    ("kind", "body"),
    [
        ("application/json", b'{"message":{"messageId":"m","role":"ROLE_USER","parts":[{"text":"hi"}]}}'),
        ("application/a2a+json", b'{"message":{"messageId":"m","role":"ROLE_USER","parts":[{"text":"hi"}]}}'),
        ("application/grpc", b"\x00\x00\x00\x00\x02\x0a\x00"),
    ],
)
def test_a2a_in_other_bindings_is_refused_and_told_why(attacked: Attacked, path: str, kind: str, body: bytes) -> None:
    """Nobody can tell them from a call that cannot be read (docs/tool.md#callers-that-speak-a2a)."""
    head = f"content-type: {kind}\r\naccept: application/json\r\nx-env: prod\r\n"
    exchange = attacked.send(request("POST", f"{path}/message:send", body, head))
    assert not exchange.reached
    assert b"MCP" in exchange.answers[0]
    # A gRPC client reads the status from a header.
    is_grpc = kind == "application/grpc"
    assert exchange.statuses == ((200,) if is_grpc else (400,))
    assert (b"grpc-status: 13" in exchange.answers[0].lower()) is is_grpc


def test_rules_about_http_grant_the_requests_of_a2a_without_a_body(attacked: Attacked) -> None:
    for verb, path in (("GET", "/a2a/tasks/7"), ("DELETE", "/a2a/tasks/7/pushNotificationConfigs/1")):
        assert attacked.send(request(verb, path, b"", "x-env: prod\r\n")).reached
        assert attacked.send(request(verb, path, b"", "x-env: test\r\n")).statuses == (403,)

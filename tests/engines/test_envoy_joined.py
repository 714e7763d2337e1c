"""Several MCP servers behind one path, at a real Envoy (docs/enforce-tools.md#joined-servers)."""

from __future__ import annotations

import base64
import http.client
import json
import socket
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tests.engines.test_envoy_settings import rules
from tests.labs.envoy_lab import lab
from tests.labs.joined_servers import KEYS, Joined, JoinedServer, agentgateway, granting, joined
from tests.labs.waiting import PATIENCE_S, HeldPort
from tests.randomness import examples, seeds
from tests.worlds.tool_objects import BASE, NETWORKING, on_backend, v1
from tierwall.engines.envoy.config.names import OVERRIDE_HEADERS

pytestmark = [pytest.mark.engine, pytest.mark.usefixtures("needs_envoy")]
Object = dict[str, Any]
NEW = "2026-07-28"
META = {"io.modelcontextprotocol/protocolVersion": NEW, "io.modelcontextprotocol/clientCapabilities": {}}
ITEMS = ("pay", "rm", "bank_pay", "hé", 'q"\\uote')
USES = {"tools/list": ("tools/call", "name", "_"), "prompts/list": ("prompts/get", "name", "_")}
USES |= dict.fromkeys(("resources/list",), ("resources/read", "uri", "+"))


@pytest.fixture(scope="module")
def started(needs_envoy: None) -> Iterator[Joined]:
    bank, shop, down = JoinedServer("bank"), JoinedServer("shop.eu"), HeldPort()
    try:
        with lab() as running:
            made = Joined(running, bank, shop, down.number)
            yield made
            made.close()
    finally:
        bank.close()
        shop.close()
        down.close()


@pytest.fixture
def servers(started: Joined) -> Joined:
    """The servers as they were at first."""
    for server in (started.bank, started.shop):
        server.items, server.session, server.version, server.page = (
            list(ITEMS),
            f"{server.name}'s,1:%",
            "2025-11-25",
            100,
        )
        server.results, server.raw, server.is_streaming, server.delay_s = {}, {}, False, 0.0
    started.forget()
    return started


ALL = [{"name": name} for name in ("tools", "prompts", "resources")]
RULES: tuple[Object, ...] = (
    {"name": "tools/call", "params": ["pay"]},
    {"name": "tools/call", "params": ["bank_pay", "rm"]},
    {"name": "tools/call", "params": ["hé"]},
    {"name": "prompts"},
    {"name": "prompts/list"},
    {"name": "resources/list"},
    {"name": "resources/read", "params": ["file:///pay"]},
)
EXPRESSIONS = (
    "mcp.tool.name == 'pay'",
    "mcp.tool.target == 'bank'",
    "mcp.tool.name == 'rm' && mcp.tool.target == 'shop.eu'",
    "mcp.prompt.target == 'bank' || mcp.resource.target == 'shop.eu'",
    "mcp.tool.name.startsWith('bank_')",
    "mcp.resource.name.endsWith('rm')",
    "true",
)


def test_policies_judge_the_names_that_servers_give(servers: Joined) -> None:
    """Lists show what may be used, and what is used reaches its own server under its own name."""
    seen: Counter[str] = Counter()
    for seed in seeds(6):
        dice = Random(seed)
        policies = [granting(*dice.sample(RULES, dice.randint(2, 6)))] if dice.random() < 0.7 else []
        inline = None
        if dice.random() < 0.7:
            texts = dice.sample(EXPRESSIONS, dice.randint(1, 3))
            inline = {"mcp": {"authorization": rules(*texts, action=dice.choice(("Allow", "Deny")))}}
        servers.bank.is_streaming = dice.random() < 0.5
        servers.put(*joined(policies=inline), *policies)
        for method, (use, key, separator) in USES.items():
            asked = servers.ask(method).message
            shown = [entry[key] for entry in asked.get("result", {}).get(KEYS[method][0], [])]
            usable = []
            for server in (servers.bank, servers.shop):
                for item in ITEMS:
                    name = f"file:///{item}" if key == "uri" else item
                    servers.forget()
                    answer = servers.ask(use, {key: f"{server.name}{separator}{name}"})
                    other = servers.shop if server is servers.bank else servers.bank
                    got = [message["params"][key] for message in server.messages]
                    assert other.messages == []
                    is_allowed = b'"result"' in answer.body
                    assert got == ([name] if is_allowed else [])
                    usable += [f"{server.name}{separator}{name}"] if is_allowed else []
            if "result" in asked:
                assert shown == usable, (method, policies, inline)
            seen["all" if len(usable) == 2 * len(ITEMS) else "some" if usable else "none"] += 1
    assert all(seen[kind] for kind in ("all", "some", "none")), seen


def test_two_servers_are_one_for_a_client(servers: Joined) -> None:
    servers.put(*joined())
    params = {
        "protocolVersion": "2025-11-25",
        "capabilities": {"sampling": {}, "roots": {}},
        "clientInfo": {"name": "c"},
    }
    servers.shop.version = "2025-06-18"
    opened = servers.ask("initialize", params, "id-1")
    assert opened.message == {
        "jsonrpc": "2.0",
        "id": "id-1",
        "result": {
            "protocolVersion": "2025-06-18",
            "capabilities": {"tools": {}, "prompts": {}, "resources": {}},
            "instructions": 'bank: I am "bank".\n\nshop.eu: I am "shop.eu".',
            "serverInfo": {"name": "AgentgatewayBackend/shop/all", "version": "1"},
        },
    }
    for server in (servers.bank, servers.shop):
        # Nobody would know which server an answer of the client is for.
        assert server.messages[0]["params"] == {**params, "capabilities": {}}
        assert server.requests[0][":path"] == f"/{server.name}"
        assert server.requests[0]["host"] == f"{server.name}.example"
        assert not any(name.startswith("x-tierwall") for name in server.requests[0])
    session = opened.headers["mcp-session-id"]
    assert servers.ask("notifications/initialized", request=None, mcp_session_id=session)[::2] == (202, b"")
    assert servers.listed("tools/list", mcp_session_id=session)[0] == "bank_pay"
    called = servers.ask("tools/call", {"name": "shop.eu_pay"}, mcp_session_id=session)
    assert called.message["result"]["content"][0]["text"] == "shop.eu"
    assert "mcp-session-id" not in called.headers
    assert servers.ask("ping", mcp_session_id=session).message["result"] == {}
    assert servers.send(None, "DELETE", mcp_session_id=session).status == 200
    for server in (servers.bank, servers.shop):
        assert [each.get("mcp-session-id") for each in server.requests[1:]] == [server.session] * len(
            server.requests[1:]
        )
        assert server.requests[-1][":method"] == "DELETE"
    assert servers.send(None, "GET").status == 405
    assert servers.send(None, "DELETE").status == 405


def test_the_newest_protocol_needs_no_session(servers: Joined) -> None:
    servers.put(*joined(), granting(*ALL))
    for server in (servers.bank, servers.shop):
        server.version, server.session = NEW, None
    heads = {"mcp_protocol_version": NEW}
    result = servers.ask("server/discover", {"_meta": META}, mcp_method="server/discover", **heads).message["result"]
    assert (result["supportedVersions"], result["cacheScope"], result["ttlMs"]) == ([NEW], "private", 0)
    params = {"_meta": META}
    for name in ("pay", "hé", "=?base64?cGF5?="):
        encoded = f"=?base64?{base64.b64encode(f'bank_{name}'.encode()).decode()}?="
        encoded_name = f"=?base64?{base64.b64encode(name.encode()).decode()}?="
        header = f"bank_{name}" if name.isascii() else encoded
        told = {**heads, "mcp_method": "tools/call", "mcp_name": header}
        assert "result" in servers.ask("tools/call", {"name": f"bank_{name}", **params}, **told).message
        assert servers.bank.requests[-1]["mcp-name"] == ("pay" if name == "pay" else encoded_name)
        for wrong in (name if name.isascii() else encoded_name, "bank_rm", "shop.eu_pay"):
            refused = servers.ask("tools/call", {"name": f"bank_{name}", **params}, **{**told, "mcp_name": wrong})
            assert (refused.status, refused.message["error"]["code"]) == (400, -32020)
    # The client falls back to the old protocol if one of the servers is old.
    servers.shop.raw["server/discover"] = (
        404,
        {"content-type": "application/json"},
        b'{"jsonrpc":"2.0","id":7,"error":{"code":-32601,"message":"no"}}',
    )
    old = servers.ask("server/discover", params, mcp_method="server/discover", **heads)
    assert (old.status, old.message["error"]["code"]) == (404, -32601)
    gone = servers.ask(
        "subscriptions/listen", {**params, "notifications": {}}, mcp_method="subscriptions/listen", **heads
    )
    assert (gone.status, gone.message["error"]["code"]) == (404, -32601)


def test_later_pages_come_from_the_servers_that_have_them(servers: Joined) -> None:
    servers.put(*joined())
    servers.bank.page, servers.shop.page, servers.shop.items = 2, 1, ["a", "b"]
    pages: list[list[str]] = []
    params: Object = {}
    while True:
        result = servers.ask("tools/list", params).message["result"]
        pages.append([tool["name"] for tool in result["tools"]])
        if "nextCursor" not in result:
            break
        params = {"cursor": result["nextCursor"]}
    assert pages == [
        ["bank_pay", "bank_rm", "shop.eu_a"],
        ["bank_bank_pay", "bank_hé", "shop.eu_b"],
        ['bank_q"\\uote'],
    ]
    for cursor in ("", "x", "bank", "bank:1,bank:1", "bank:%", "elsewhere:1"):
        answer = servers.ask("tools/list", {"cursor": cursor}).message
        assert answer["error"]["code"] == -32602, cursor


@pytest.mark.parametrize("method", KEYS)
def test_a_cursor_adds_nothing_to_the_message_that_was_judged(servers: Joined, method: str) -> None:
    """Only commas, colons and percent signs are escaped in a joined cursor; a quote would begin another message."""
    servers.put(*joined(), granting(*ALL[1:], {"name": "tools/list"}))
    for end in ("}", ""):
        hidden = f'x"{end},"method":"tools/call","params":{{"name":"rm"' + ("" if end else '},"a":{')
        for encoded in (
            "".join(f"%{ord(char):02x}" for char in hidden),
            "".join(f"%{ord(char):02X}" if char in '",:' else char for char in hidden),
        ):
            answer = servers.ask(method, {"cursor": f"bank:{encoded}"}).message
            assert answer["error"]["code"] == -32602
    for mark in ("%22", "%5c", "%0a", "%00", "%ff", "%2C", "%3A", "%41", "%", "%3%25a"):
        assert servers.ask(method, {"cursor": f"bank:1{mark}"}).message["error"]["code"] == -32602, mark
    assert servers.bank.bodies == []


def test_no_header_changes_what_servers_are_asked(servers: Joined) -> None:
    """Some servers take the method or the path from headers; routes forward none of these."""
    servers.put(*joined())
    opened = servers.ask("initialize", {"capabilities": {}}).headers["mcp-session-id"]
    overrides = {name.replace("-", "_"): "DELETE" for name in OVERRIDE_HEADERS}
    servers.forget()
    for method in (*KEYS, "initialize", "server/discover", "notifications/initialized", "tools/call"):
        params: Object = {"name": "bank_pay"} if method == "tools/call" else {"capabilities": {}}
        servers.ask(method, params, None if method.startswith("notifications") else 7, **overrides, x_kept="1")
    servers.send(None, "DELETE", mcp_session_id=opened, **overrides, x_kept="1")
    for server in (servers.bank, servers.shop):
        assert len(server.requests) >= 8
        assert all(request["x-kept"] == "1" for request in server.requests)
        assert not [request for request in server.requests if {*OVERRIDE_HEADERS} & request.keys()]


def test_no_header_or_trailer_chooses_another_server(servers: Joined) -> None:
    servers.put(*joined(), granting({"name": "tools/call", "params": ["pay"]}))
    forged = {"x_tierwall_target": "bank", "x_tierwall_joined": "bank", "x_tierwall_name": "pay"}
    for name in ("shop.eu_rm", "pay", "rm"):
        assert "error" in servers.ask("tools/call", {"name": name}, **forged).message
    assert servers.bank.bodies == servers.shop.bodies == []
    assert "result" in servers.ask("tools/call", {"name": "shop.eu_pay"}, **forged).message
    message = b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"shop.eu_pay"}}'
    head = b"POST /all HTTP/1.1\r\nhost: localhost\r\naccept: application/json, text/event-stream\r\n"
    head += b"content-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n"
    parts = b"".join(b"1\r\n%c\r\n" % each for each in message)
    with socket.create_connection(("localhost", servers.lab.port), PATIENCE_S) as plain:
        client = servers.lab.context("shopper").wrap_socket(plain, server_hostname="localhost")
        client.sendall(head + parts + b"0\r\nx-tierwall-target: bank\r\nmcp-name: bank_rm\r\n\r\n")
        assert client.recv(12) == b"HTTP/1.1 200"
        client.close()
    assert servers.bank.bodies == []
    assert [json.loads(body)["params"] for body in servers.shop.bodies] == [{"name": "pay"}] * 2
    assert not any("mcp-name" in request for request in servers.shop.requests)


NAMES = ("bank_pay", "bank_rm", "shop.eu_pay", "pay", "bank_", "_pay", "bank", "down_pay", "BANK_pay", "bank _pay")


def test_no_other_tool_runs_than_was_judged(servers: Joined) -> None:
    """Whatever a message looks like, the server gets it as it was, with its own name, or nobody gets it."""
    servers.put(*joined(), granting({"name": "tools/call", "params": ["pay"]}))
    dice = Random(seeds(1)[0])
    sent = passed = 0

    def name() -> str:
        chosen = dice.choice(NAMES)
        text = json.dumps(chosen)
        if dice.random() < 0.2:
            at = dice.randrange(len(chosen))
            text = f'"{chosen[:at]}\\u{ord(chosen[at]):04x}{chosen[at + 1 :]}"'
        return text

    def member() -> str:
        return dice.choice(
            (
                f'"name":{name()}',
                f'"n\\u0061me":{name()}',
                f'"Name":{name()}',
                f'"arguments":{{"note":{name()},"name":{name()}}}',
                f'"arguments":[{name()}]',
                f'"_meta":{{"name":{name()}}}',
                f'"x":[{{"name":{name()}}},{name()}]',
                f'"uri":{name()}',
                f'"ref":{{"name":{name()}}}',
                '"name":1',
                '"arguments":{}',
            )
        )

    for _ in range(examples(700)):
        blank = dice.choice(("", "", "", " ", "\n"))
        params = "{" + ("," + blank).join([f'"name":{name()}', *(member() for _ in range(dice.randrange(3)))]) + "}"
        parts = ['"jsonrpc":"2.0"', '"id":1', f'"method":"{dice.choice(("tools/call",) * 9 + ("tools/list",))}"']
        parts.append(f'"params":{params}')
        parts += [f'"params":{{"name":{name()}}}'] if dice.random() < 0.05 else []
        dice.shuffle(parts)
        text = "{" + ("," + blank).join(parts) + "}" + dice.choice(("",) * 20 + ("}", " {}", "\0"))
        headers = {} if dice.random() < 0.7 else {"mcp_name": json.loads(name())}
        servers.forget()
        servers.send(text.encode(), **headers)
        sent += 1
        for server, prefix in ((servers.bank, "bank_"), (servers.shop, "shop.eu_")):
            for body in server.bodies:
                got, asked = json.loads(body), json.loads(text)
                if got["method"] == "tools/list":
                    continue
                passed += 1
                assert got["params"]["name"] == "pay"
                assert asked["params"].pop("name") == f"{prefix}pay"
                assert got["params"].pop("name") == "pay"
                assert got == asked, text
                assert b'"name"' in body
                assert body.count(b'"method"') == 1
        assert not (servers.bank.bodies and servers.shop.bodies) or '"tools/list"' in text
    assert passed > sent / 30, (sent, passed)


@pytest.mark.parametrize("other", ["XBackend", "AgentgatewayBackend"])
def test_a_message_never_leaves_its_rule(servers: Joined, other: str) -> None:
    """Without its prefix, `Mcp-Name` matches another rule, with policies whose filters this request does not have."""
    backend, route = joined()
    (rule,) = route["spec"]["rules"]
    match = {**rule["matches"][0], "headers": [{"name": "mcp-name", "value": "bank_pay"}]}
    elsewhere, _ = joined("/closed", policies={"mcp": {"authorization": rules("false")}})
    ref = {"group": NETWORKING, "kind": "XBackend", "name": "orders"} if other == "XBackend" else rule["backendRefs"][0]
    ref = {**ref, "name": "closed"} if other != "XBackend" else ref
    route["spec"]["rules"] = [{**rule, "matches": [match]}, {**rule, "backendRefs": [ref]}]
    denying = v1("deny", on_backend("orders"), {"authorization": {"type": "Inline", "mcp": {"methods": [], **BASE}}})
    denying["metadata"]["namespace"] = "shop"
    servers.put(backend, route, elsewhere, denying)
    servers.lab.backend.calls.clear()
    answer = servers.ask("tools/call", {"name": "bank_pay"}, mcp_name="bank_pay")
    assert (answer.status, answer.body) == (500, b"")
    assert servers.bank.messages == servers.shop.messages == []
    assert servers.lab.backend.calls == []


@pytest.mark.parametrize(
    "tools",
    [
        '[{"name":"a","name":"shop.eu_pay"}]',
        '[{"name":"a","n\\u0061me":"shop.eu_pay"}]',
        '[{"name":1}]',
        '[{"title":"a"}]',
        '["a"]',
        '[{"name":"a"}]]',
        '[{"name":"a"},]',
        '[{"name":"a"}],"tools":[{"name":"b"}]',
        '[{"name":"a"}],"\\u0074ools":[{"name":"b"}]',
        '{"name":"a"}',
        "null",
        '[{"name":"a\x01"}]',
        '[{"name":"\\x"}]',
        '[{"name":"a","x":01}]',
        '[{"name":"a","x":tru}]',
        "[" * 200 + "]" * 200,
    ],
)
def test_a_server_cannot_speak_for_another_in_lists(servers: Joined, tools: str) -> None:
    servers.put(*joined("/closed"), *joined("/open", failureMode="FailOpen"))
    servers.bank.results["tools/list"] = f'{{"tools":{tools}}}'
    answer = servers.ask("tools/list", path="/closed").message
    assert "bank does not answer as it should" in answer["error"]["message"]
    assert servers.listed("tools/list", "/open") == [f"shop.eu_{item}" for item in ITEMS]


def test_bytes_that_are_no_text_are_no_list(servers: Joined) -> None:
    servers.put(*joined("/open", failureMode="FailOpen"))
    kind = {"content-type": "application/json"}
    for text in (b"\xff", b"\xc0\xaf", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xe2\x82"):
        body = b'{"jsonrpc":"2.0","id":7,"result":{"tools":[{"name":"a' + text + b'"}]}}'
        servers.bank.raw["tools/list"] = 200, kind, body
        assert servers.listed("tools/list", "/open") == [f"shop.eu_{item}" for item in ITEMS]


PIECES = (
    *(b"0", b"-0", b"01", b"1.", b".5", b"1.50", b"-", b"1e", b"1E+09", b"1e-", b"7", b"true", b"nul", b"NaN", b"null"),
    *(
        b'"',
        b"\\",
        b'"\\u00E9"',
        b'"\\u00g0"',
        b'"\\/"',
        b'"\\x"',
        b'"a\n"',
        b"\x7f",
        b"\x1f",
        b"\t",
        b"\n",
        b" ",
        b"\0",
    ),
    *(b",", b":", b"[", b"]", b"{", b"}", b'"k":', b"[1,2]", b'{"k":[]}', b"", "é€😀".encode(), b'"\xed\x9f\xbf"'),
    *(b'"\xc3"', b'"\xc1\x81"', b'"\xe0\x9f\xbf"', b'"\xed\xa0\x80"', b'"\xf0\x8f\xbf\xbf"', b'"\xf4\x90\x80\x80"'),
)


def test_lists_are_read_as_json_is(servers: Joined) -> None:
    """Show what Python reads as JSON, and nothing else."""
    servers.put(*joined("/open", failureMode="FailOpen"))
    servers.shop.items = ["a"]
    dice = Random(seeds(1)[0])

    def refused(text: str) -> Any:
        raise ValueError(text)

    def is_json(body: bytes) -> bool:
        try:
            json.loads(body.decode(), parse_constant=refused)
        except ValueError:
            return False
        return True

    seen: Counter[bool] = Counter()
    for _ in range(examples(150)):
        value = json.dumps(dice.choice(([1.5, "é", {}], {"k": [[], "\n", None]}, "a\u20ac", -12, True))).encode()
        at = dice.randrange(len(value) + 1)
        value = value[:at] + dice.choice(PIECES) + value[at + dice.randrange(4) :]
        body = b'{"jsonrpc":"2.0","id":7,"result":{"tools":[{"name":"a","x":[' + value + b"]}]}}"
        servers.bank.raw["tools/list"] = 200, {"content-type": "application/json"}, body
        wanted = ["bank_a"] * is_json(body) + ["shop.eu_a"]
        assert servers.listed("tools/list", "/open") == wanted, body
        seen[len(wanted) > 1] += 1
    assert min(seen.values()) > examples(150) / 10, seen


def test_a_server_that_is_down_leaves_others_alone_where_it_may(servers: Joined) -> None:
    names = ("down", "shop.eu")
    servers.put(*joined("/open", names, failureMode="FailOpen"), *joined("/closed", names))
    opened = servers.ask("initialize", {"capabilities": {}}, path="/open")
    session = opened.headers["mcp-session-id"]
    assert opened.message["result"]["instructions"] == 'shop.eu: I am "shop.eu".'
    assert servers.listed("tools/list", "/open", mcp_session_id=session)[0] == "shop.eu_pay"
    for path in ("/open", "/closed"):
        answer = servers.ask("tools/call", {"name": "shop.eu_pay"}, path=path).message
        assert answer["result"]["content"][0]["text"] == "shop.eu"
    lost = servers.ask("tools/call", {"name": "down_pay"}, path="/open", mcp_session_id=session).message
    assert lost["error"]["message"] == "this session has no part at down: begin another one"
    for method in ("initialize", "tools/list"):
        answer = servers.ask(method, {"capabilities": {}}, path="/closed").message
        assert answer["error"] == {"code": -32603, "message": "down does not answer as it should"}


def test_a_slow_server_is_waited_for_once(servers: Joined) -> None:
    import time

    servers.put(*joined("/slow", failureMode="FailOpen"))
    servers.bank.delay_s = 8
    began = time.monotonic()
    assert servers.listed("tools/list", "/slow")[0] == "shop.eu_pay"
    assert 4.5 < time.monotonic() - began < 8
    began = time.monotonic()
    assert servers.listed("tools/list", "/slow")[0] == "shop.eu_pay"
    assert "result" in servers.ask("tools/call", {"name": "shop.eu_pay"}, path="/slow").message
    assert time.monotonic() - began < 3


def test_what_a_client_must_act_on_is_passed_on(servers: Joined) -> None:
    servers.put(*joined())
    session = servers.ask("initialize", {"capabilities": {}}).headers["mcp-session-id"]
    servers.shop.raw["tools/list"] = 404, {}, b""
    assert servers.ask("tools/list", mcp_session_id=session).status == 404
    servers.shop.raw["tools/list"] = 401, {"www-authenticate": 'Bearer resource_metadata="/x"'}, b""
    answer = servers.ask("tools/list")
    assert (answer.status, answer.headers["www-authenticate"]) == (401, 'Bearer resource_metadata="/x"')
    for wrong in ("x", "bank:a%0ab,shop.eu:c", "bank", "bank:a,bank:b", "bank:a:b"):
        assert servers.ask("tools/list", mcp_session_id=wrong).status == 404
        assert "error" in servers.ask("tools/call", {"name": "bank_pay"}, mcp_session_id=wrong).message
    assert not any("a\nb" in str(each) for each in servers.bank.requests)


def test_what_names_no_server_reaches_none(servers: Joined) -> None:
    servers.put(*joined())
    for method, params in (
        ("tools/call", {"name": "pay"}),
        ("tools/call", {"name": "elsewhere_pay"}),
        ("tools/call", {}),
        ("resources/subscribe", {"uri": "bank+file:///a"}),
        ("tasks/get", {"taskId": "bank+1"}),
        ("logging/setLevel", {"level": "info"}),
        ("anything/else", {"name": "bank_pay"}),
    ):
        assert servers.ask(method, params).message["error"]["code"] in (-32601, -32602), method
    answers = b'{"jsonrpc":"2.0","id":1,"result":{}}'
    assert servers.send(answers).status == 400
    assert servers.bank.requests == servers.shop.requests == []
    for ref, at_server in (({"name": "bank_pay"}, {"name": "pay"}), ({"uri": "bank+x:{a}"}, {"uri": "x:{a}"})):
        assert "result" in servers.ask("completion/complete", {"ref": ref, "argument": {}}).message
        assert servers.bank.messages.pop()["params"]["ref"] == at_server


def test_a_single_server_may_have_a_prefix(servers: Joined) -> None:
    servers.put(*joined("/one", ("bank",), prefixMode="Always"), granting({"name": "tools/call", "params": ["pay"]}))
    assert servers.listed("tools/list", "/one") == ["bank_pay"]
    assert "result" in servers.ask("tools/call", {"name": "bank_pay"}, path="/one").message
    assert servers.bank.messages[-1]["params"]["name"] == "pay"


def test_the_log_has_the_names_that_clients_use(servers: Joined) -> None:
    servers.put(*joined("/open"), granting({"name": "tools/call", "params": ["pay"]}))
    servers.ask("tools/call", {"name": "bank_pay"}, path="/open")
    servers.ask("tools/call", {"name": "shop.eu_rm"}, path="/open")
    servers.ask("prompts/get", {"name": "shop.eu_rm"}, path="/open")
    servers.ask("server/discover", path="/open")
    backend = "AgentgatewayBackend/shop/open"

    def told() -> list[tuple[str, str | None]]:
        logged = [each for each in servers.lab.decisions if each["backend"] == backend]
        return [(each["verdict"], each.get("tool")) for each in logged[-4:]]

    wanted = [("Allow", "bank_pay"), ("Deny", "shop.eu_rm"), ("Deny", "shop.eu_rm"), ("Allow", None)]
    assert servers.lab.comes(lambda: told() == wanted), told()


@pytest.mark.parametrize(("number", "is_shown"), [(20_000, True), (60_000, False)])
def test_lists_may_be_long_but_not_without_end(servers: Joined, number: int, is_shown: bool) -> None:
    """Envoy does nothing else while a script joins lists."""
    servers.put(*joined("/open", failureMode="FailOpen"))
    tools = [{"name": f"tool-{each}", "inputSchema": {"type": "object"}} for each in range(number)]
    servers.bank.results["tools/list"] = json.dumps({"tools": tools})
    assert len(servers.listed("tools/list", "/open")) == len(ITEMS) + number * is_shown


def test_what_a_server_lists_takes_little_memory_while_others_are_waited_for(servers: Joined) -> None:
    """A list of two MiB may have seven hundred thousand entries; eight such took a gigabyte."""
    servers.put(*joined("/closed"))
    entries = b"{}," * ((2 << 20) // 3 - 100)
    body = b'{"jsonrpc":"2.0","id":7,"result":{"tools":[' + entries + b"{}]}}"
    servers.bank.raw["tools/list"] = 200, {"content-type": "application/json"}, body
    servers.shop.delay_s = 2

    def peak() -> int:
        lines = Path(f"/proc/{servers.lab.process.pid}/status").read_text().splitlines()
        return int(next(line for line in lines if line.startswith("VmHWM")).split()[1])

    before = peak()

    def listed(_: int) -> int:
        context = servers.lab.context("shopper")
        client = http.client.HTTPSConnection("localhost", servers.lab.port, context=context, timeout=PATIENCE_S)
        headers = {"accept": "application/json, text/event-stream", "content-type": "application/json"}
        client.request("POST", "/closed", b'{"jsonrpc":"2.0","id":7,"method":"tools/list"}', headers)
        code = int(json.loads(client.getresponse().read())["error"]["code"])
        client.close()
        return code

    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(listed, range(8))) == {-32603}
    assert peak() - before < 400_000


SETS = {"set": [{"name": "a", "value": "b"}]}
NOT_FOR_ALL: list[tuple[Object, str]] = [
    ({"filters": [{"type": "RequestHeaderModifier", "requestHeaderModifier": SETS}]}, "a change of headers"),
    ({"filters": [{"type": "URLRewrite", "urlRewrite": {"hostname": "a.example"}}]}, "a change of the host"),
    ({"prefixMode": "Never"}, "prefixMode: Never"),
    ({"names": ("bank", "bank")}, "two MCP targets of one name"),
]


@pytest.mark.parametrize(("change", "words"), NOT_FOR_ALL)
def test_what_would_not_hold_for_every_server_is_refused(servers: Joined, change: Object, words: str) -> None:
    servers.put(*joined(**change))
    assert servers.ask("tools/list").status == 500
    assert servers.ask("tools/call", {"name": "bank_pay"}).status == 500
    in_force = servers.lab.controller.in_force
    assert in_force is not None
    said = [diagnostic.message for diagnostic in in_force.diagnostics]
    assert any(words in message for message in said), said
    assert servers.bank.requests == []


def test_each_server_gets_its_own_credentials_alone(servers: Joined) -> None:
    backend, route = joined()
    bank, _ = (target["static"] for target in backend["spec"]["mcp"]["targets"])
    bank["policies"] = {"auth": {"key": "for-the-bank"}}
    servers.put(backend, route)
    token = "Bearer of-the-client"
    opened = servers.ask("initialize", {"capabilities": {}}, authorization=token)
    for method in ("tools/list", "server/discover"):
        servers.ask(method, authorization=token)
    servers.ask("notifications/initialized", None, None, authorization=token)
    for name in ("bank_pay", "shop.eu_pay"):
        assert "result" in servers.ask("tools/call", {"name": name}, authorization=token).message
    servers.send(None, "DELETE", mcp_session_id=opened.headers["mcp-session-id"], authorization=token)
    for server, wanted in ((servers.bank, "Bearer for-the-bank"), (servers.shop, "Bearer of-the-client")):
        assert len(server.requests) == 6
        assert {request["authorization"] for request in server.requests} == {wanted}


def test_settings_that_one_server_alone_has_are_refused(servers: Joined) -> None:
    """Its route would turn on a filter that the first route of a request did not have."""
    ref = {"group": "agentgateway.dev", "kind": "AgentgatewayBackend", "name": "all", "sectionName": "bank"}
    asks = {"extAuth": {"backendRef": {"name": "orders", "port": 80}, "http": {}}}
    service = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "orders", "namespace": "shop"}}
    service["spec"] = {"ports": [{"port": 80}]}
    servers.put(*joined(), service, agentgateway("AgentgatewayPolicy", "asks", {"targetRefs": [ref], "backend": asks}))
    assert servers.ask("tools/call", {"name": "bank_pay"}).status == 500
    assert servers.ask("tools/call", {"name": "shop.eu_pay"}).status == 500
    assert servers.bank.messages == servers.shop.messages == []

"""Attacks over HTTP/2: no frames, however odd, bring a denied tool to the backend, which records everything."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise

import pytest
from hyperframe.frame import ContinuationFrame, DataFrame, Frame, HeadersFrame

from tests.labs.envoy_attacks import (
    AGENT,
    GATEWAY_API,
    JSON_HEADERS,
    NETWORKING,
    SECRET,
    Attacked,
    behind,
    call,
    calls,
    chunked,
    policy,
    request,
)
from tests.labs.envoy_lab import PATH, Lab, lab
from tests.labs.envoy_lab import policy as lab_policy
from tests.labs.http2_client import JSON, PREFACE, Answer, Header, Http2, post
from tests.labs.waiting import eventually
from tests.worlds.tool_objects import manifest
from tierwall.engines.envoy.config import connection_manager

pytestmark = [pytest.mark.engine, pytest.mark.usefixtures("needs_envoy")]

HEAD = '{"jsonrpc":"2.0","id":1,"method":"tools/call","params":'
OK, BAD = json.dumps(call("add")).encode(), json.dumps(call(SECRET)).encode()
TRAILERS: list[Header] = [("x-checksum", "1")]
OURS = ("caller", "method", "name", "uri", "path", "gateway", "backend", "id", "unknown-method", "listens", "absent")
EVERY = ("/mcp", "/named", "/old", "/asks")
EXPRESSIONS = {
    "presence": "has(request.mcp.arguments.approved) && request.mcp.arguments.other == 1",
    "capitals": "request.headers['X-Env'] == 'prod'",
}
RULE_ON_HOST = {"authorization": {"type": "Inline", "hosts": ["good.test"]}}


@pytest.fixture(scope="module")
def running() -> Iterator[Attacked]:
    more = [*behind("hosts"), policy("hosts", "hosts", [RULE_ON_HOST])]
    for name, text in EXPRESSIONS.items():
        rule = {"authorization": {"type": "CEL", "cel": {"expression": text}}}
        more += [*behind(name), policy(name, name, [rule])]
    more += [*behind("words"), policy("words", "words", [calls("ädd", "日本")])]
    more += [*behind("shared"), *behind("split"), *behind("moved")]
    routes = {each["metadata"]["name"]: each["spec"]["rules"][0] for each in more if each["kind"] == "HTTPRoute"}
    routes["shared"]["filters"] = [{"type": "CORS", "cors": {"allowOrigins": ["https://app.test"]}}]
    routes["split"]["backendRefs"] += routes["shared"]["backendRefs"]
    redirect = {"hostname": "other.test", "path": {"type": "ReplaceFullPath", "replaceFullPath": "/new"}}
    routes["moved"]["filters"] = [{"type": "RequestRedirect", "requestRedirect": redirect}]
    del routes["moved"]["backendRefs"]
    world = Attacked(more)
    yield world
    world.close()


@pytest.fixture
def attacked(running: Attacked) -> Iterator[Attacked]:
    running.recorder.requests.clear()
    yield running
    assert running.leaked() == []
    with Http2(running.port) as client:
        assert client.ask(post("/mcp", OK), OK).reached


def with_certificate(attacked: Attacked, caller: str = AGENT) -> Http2:
    return Http2(attacked.tls_port, attacked.authority.context(caller), "127.0.0.1")


def alone(attacked: Attacked, headers: list[Header], *pieces: bytes, trailers: Sequence[Header] = ()) -> Answer:
    """Send a request on its own connection, which the peer may close; return the answer."""
    with Http2(attacked.port) as client:
        return client.ask(headers, *pieces, trailers=trailers)


def in_pieces(client: Http2, headers: list[Header], *pieces: bytes) -> Answer:
    """Send a request in pieces that are read one after the other; return the answer."""
    stream = client.open()
    client.frames(client.headers(stream, headers))
    for number, piece in enumerate(pieces):
        client.round_trip()
        client.frames(client.data(stream, piece, end=number == len(pieces) - 1))
    client.wait([stream])
    return client.answers[stream]


def like(method: str, path: str, *more: Header, host: str = "gate.test") -> list[Header]:
    return [(":method", method), *post(path, host=host)[1:], *more]


def test_what_is_allowed_arrives_and_the_secret_tool_does_not(attacked: Attacked) -> None:
    with Http2(attacked.port) as client, with_certificate(attacked) as agent:
        assert client.ask(post("/mcp", OK), OK).reached
        assert agent.ask(post("/old", OK), OK).reached
        for path in EVERY:
            for who in (client, agent):
                answer = who.ask(post(path, BAD), BAD)
                assert answer.status == 200
                assert "denied by XAccessPolicy" in json.loads(answer.body)["error"]["message"]


def test_the_record_would_show_a_leak(running: Attacked) -> None:
    alone(running, post("/open", BAD), BAD)
    assert running.leaked()


MESSAGES = (
    f'{HEAD}{{"name":"add","name":"{SECRET}"}}}}',
    f'{HEAD}{{"name":"{SECRET}","name":"add"}}}}',
    f'{HEAD}{{"name":"add"}},"params":{{"name":"{SECRET}"}}}}',
    f'{{"jsonrpc":"2.0","id":1,"method":"ping","method":"tools/call","params":{{"name":"{SECRET}"}}}}',
    f'{HEAD}{{"name":"add","Name":"{SECRET}"}}}}',
    f'{HEAD}{{"name":"add","\\u006eame":"{SECRET}"}}}}',
    f'{HEAD}{{"name":"add"}},"param\u017f":{{"name":"{SECRET}"}}}}',
    f"[{BAD.decode()}]",
    f"{OK.decode()}{BAD.decode()}",
    f"{OK.decode()}\n{BAD.decode()}",
    f"{OK.decode()},{BAD.decode()}",
    f'{HEAD}{{"name":"add","arguments":{{"x":"}}{{"}}}}}}{BAD.decode()}',
    f'{HEAD}{{"name":"add","arguments":{{"x":"{{\\""}}}}}},"y":{BAD.decode()}}}',
    f'{HEAD}{{"name":"{SECRET}"}}}}',
)


@pytest.mark.parametrize("number", range(len(MESSAGES)))
def test_every_split_into_two_frames(attacked: Attacked, number: int) -> None:
    body = MESSAGES[number].encode()
    with Http2(attacked.port) as client, with_certificate(attacked) as agent:
        for at in range(1, len(body)):
            assert in_pieces(client, post("/mcp"), body[:at], body[at:]).refused, at
        for at in range(1, len(body), 7):
            assert in_pieces(client, post("/named"), body[:at], body[at:]).refused, at
            assert in_pieces(agent, post("/old"), body[:at], body[at:]).refused, at
            assert in_pieces(agent, post("/asks"), body[:at], body[at:]).refused, at


@pytest.mark.parametrize("tail", [BAD, b"," + BAD, b"\n" + BAD, b"x", b"\0" + BAD, b"[" + BAD + b"]", b'"' + BAD, b"}"])
def test_data_after_the_message_that_arrives_later(attacked: Attacked, tail: bytes) -> None:
    spaced = OK + b" \r\n\t"
    with Http2(attacked.port) as client:
        for message in (OK, spaced):
            assert in_pieces(client, post("/mcp"), message, tail).refused
            assert in_pieces(client, post("/mcp"), message[:40], message[40:], tail).refused
            assert in_pieces(client, post("/arguments"), message, tail).refused
        assert in_pieces(client, post("/mcp"), OK, b" \r\n\t").reached


def test_a_message_of_many_small_frames_arrives_complete(attacked: Attacked) -> None:
    body = json.dumps(call("日本", {"long": "ä" * 300}), ensure_ascii=False).encode()
    with Http2(attacked.port) as client:
        assert client.ask(post("/words", body), *(body[at : at + 1] for at in range(len(body)))).reached
        for at in range(30, 110):
            assert in_pieces(client, post("/words"), body[:at], body[at:]).reached, at
    assert all(request.body == body for request in attacked.recorder.requests)
    assert len(attacked.recorder.requests) == 81
    attacked.recorder.requests.clear()


def test_frames_without_data(attacked: Attacked) -> None:
    assert alone(attacked, post("/mcp", OK), OK, b"").reached
    for path in EVERY:
        for pieces in ((b"",), (b"", BAD), (BAD, b""), (BAD[:50], b"", BAD[50:]), (b"", b"", b"", BAD)):
            assert alone(attacked, post(path), *pieces).refused
    with with_certificate(attacked) as agent:
        assert agent.ask(post("/old"), b"").refused


def test_padded_data_and_headers_in_continuations(attacked: Attacked) -> None:
    for body, arrives in ((OK, True), (BAD, False)):
        with Http2(attacked.port) as client:
            stream = client.open()
            block = client.headers(stream, post("/mcp", body)).data
            frames: list[Frame] = [HeadersFrame(stream, block[:5])]
            frames += [ContinuationFrame(stream, block[at : at + 20]) for at in range(5, len(block), 20)]
            frames[-1].flags.add("END_HEADERS")
            frames += [DataFrame(stream, body, flags=["PADDED", "END_STREAM"], pad_length=200)]
            client.frames(*frames)
            client.wait()
            assert client.answers[stream].reached is arrives


@pytest.mark.parametrize("path", ["/mcp", "/named", "/old", "/asks", "/agents"])
def test_bodies_that_end_with_trailers(attacked: Attacked, path: str) -> None:
    with with_certificate(attacked) as agent:
        for length in (0, 1, 30, 50, 60, 85, len(BAD) - 2, len(BAD) - 1):
            assert agent.ask(post(path), BAD[:length], trailers=TRAILERS).refused, length
        assert agent.ask(post(path), trailers=TRAILERS).refused
        pieces = [BAD[at : at + 1] for at in range(len(BAD))]
        for those in ([BAD], pieces):
            # This agent may call everything there.
            assert agent.ask(post(path), *those, trailers=TRAILERS).reached is (path == "/agents")
    attacked.recorder.requests = [request for request in attacked.recorder.requests if request.path != "/agents"]
    head = f"POST {path} HTTP/1.1\r\nHost: gate.test\r\n{JSON_HEADERS}Transfer-Encoding: chunked\r\n\r\n".encode()
    for length in (1, 50, len(BAD) - 1, len(BAD)):
        attacked.send(head + chunked(BAD[:length], end=b"0\r\nX-Checksum: 1\r\n\r\n"))


def test_repeated_keys_before_trailers(attacked: Attacked) -> None:
    twice = OK.replace(b'"name": "add"', b'"name": "add", "name": "%s"' % SECRET.encode())
    folded = OK.replace(b'"name": "add"', b'"name": "add", "Name": "%s"' % SECRET.encode())
    behind = OK + BAD
    assert len({twice, folded, behind, OK}) == 4
    for body in (twice, folded, behind):
        for at in range(1, len(body), 7):
            for path in ("/mcp", "/old"):
                assert alone(attacked, post(path), body[:at], body[at:], trailers=TRAILERS).refused, (body, at)


def test_a_complete_message_may_have_trailers_that_are_not_forwarded(attacked: Attacked) -> None:
    assert alone(attacked, post("/mcp"), OK, trailers=[("mcp-name", SECRET), *TRAILERS]).reached
    [arrived] = attacked.recorder.requests
    assert arrived.body == OK
    assert SECRET not in str(arrived)
    attacked.recorder.requests.clear()


def test_trailers_that_name_another_tool(attacked: Attacked) -> None:
    for name in ("mcp-name", "mcp-method", ":path", "content-length", "host", *(f"x-tierwall-{fact}" for fact in OURS)):
        for path in EVERY:
            alone(attacked, post(path), OK, trailers=[(name, SECRET)])
            assert alone(attacked, post(path), BAD, trailers=[(name, "add")]).refused
        alone(attacked, like("GET", "/mcp"), trailers=[(name, SECRET)])
    head = f"POST /mcp HTTP/1.1\r\nHost: gate.test\r\n{JSON_HEADERS}Transfer-Encoding: chunked\r\n\r\n".encode()
    attacked.send(head + chunked(OK, end=f"0\r\nMcp-Name: {SECRET}\r\nX-Tierwall-Name: {SECRET}\r\n\r\n".encode()))


@pytest.mark.parametrize("method", ["GET", "DELETE", "HEAD", "OPTIONS", "PUT", "PATCH", "post", "PoSt", "FOO", "PRI"])
def test_other_methods_that_carry_bodies(attacked: Attacked, method: str) -> None:
    session = ("mcp-session-id", "s")
    with Http2(attacked.port) as client, with_certificate(attacked) as agent:
        for path in (*EVERY, "/agents"):
            for who in (client, agent):
                # Together with the headers, in separate frames, and with trailers: Envoy reads each differently.
                assert who.ask(like(method, path, session), BAD).refused
                assert who.ask(like(method, path, session, ("content-length", str(len(BAD)))), BAD).refused
                assert in_pieces(who, like(method, path, session), BAD[:50], BAD[50:]).refused
                assert in_pieces(who, like(method, path, session), BAD, b"").refused
                assert who.ask(like(method, path, session), BAD, trailers=TRAILERS).refused
                assert who.ask(like(method, path, session), b"1").refused


def test_the_stream_and_the_end_of_a_session_pass(attacked: Attacked) -> None:
    with Http2(attacked.port) as client:
        assert client.ask(like("GET", "/mcp")).reached
        assert client.ask(like("DELETE", "/mcp", ("mcp-session-id", "s"))).reached
        assert client.ask(like("GET", "/mcp"), b"").reached
    assert [request.method for request in attacked.recorder.requests] == ["GET", "DELETE", "GET"]


PSEUDO: tuple[list[Header], ...] = (
    [(":Method", "POST"), *post("/mcp")[1:]],
    [(":METHOD", "POST"), (":method", "POST"), *post("/mcp")[1:]],
    [(":method", "GET"), *post("/mcp")],
    [*post("/mcp")[:4], (":path", "/open"), *JSON],
    [*post("/open")[:4], (":path", "/mcp"), *JSON],
    [*post("/mcp"), (":path", "/open")],
    [*post("/open"), (":path", "/mcp")],
    [*post("/mcp")[:4], (":Path", "/open"), *JSON],
    [*post("/mcp")[:4], (":authority", "other.test"), *JSON],
    [*post("/mcp")[:4], (":tool", "add"), *JSON],
    [*post("/mcp")[:4], (":status", "200"), *JSON],
    [*post("/mcp")[:4], ("", "x"), *JSON],
    post("/mcp")[:3],
    post("/mcp")[1:],
    [header for header in post("/mcp") if header[0] != ":scheme"],
    [header for header in post("/mcp") if header[0] != ":authority"],
)


@pytest.mark.parametrize("number", range(len(PSEUDO)))
def test_misspelled_repeated_or_missing_pseudo_headers(attacked: Attacked, number: int) -> None:
    assert alone(attacked, PSEUDO[number], BAD).refused
    assert alone(attacked, PSEUDO[number], OK).refused


def test_a_host_beside_the_authority(attacked: Attacked) -> None:
    good, evil = ("host", "good.test"), ("host", "evil.test")
    bare = [header for header in post("/hosts") if header[0] != ":authority"]
    assert alone(attacked, post("/hosts", host="good.test"), OK).reached
    assert alone(attacked, [*bare, good], OK).reached
    alone(attacked, [*post("/hosts", host="good.test"), evil], OK)
    alone(attacked, [*post("/hosts", host="good.test"), evil, evil], OK)
    for headers in (
        [*post("/hosts", host="evil.test"), good],
        [*bare, good, evil],
        [*bare, evil, good],
        [*bare, evil],
        bare,
    ):
        assert alone(attacked, headers, BAD).refused
    for host in (
        "evil@good.test",
        "good.test@evil",
        "good.test/",
        "good.test#",
        "good.test.",
        "good.test,evil",
        "",
        " ",
    ):
        assert alone(attacked, post("/hosts", host=host), BAD).refused, host
    # Policies and the backend saw the same single host.
    assert {request.headers["host"] for request in attacked.recorder.requests} == {"good.test"}


def test_a_host_beside_an_absolute_target(attacked: Attacked) -> None:
    def send(target: str, host: str, body: bytes) -> None:
        head = f"POST {target} HTTP/1.1\r\nHost: {host}\r\n{JSON_HEADERS}Content-Length: {len(body)}\r\n\r\n"
        attacked.send(head.encode() + body)

    send("http://good.test/hosts", "evil.test", OK)
    send("http://evil.test/hosts", "good.test", BAD)
    send("/hosts", "good.test\r\nHost: evil.test", BAD)
    send("/hosts", "evil.test\r\nHost: good.test", BAD)
    assert [request.headers["host"] for request in attacked.recorder.requests] == ["good.test"]


@pytest.mark.parametrize(
    "path",
    [
        "",
        "*",
        "mcp",
        "?/mcp",
        "#/mcp",
        "http://gate.test/mcp",
        "//mcp",
        "/./mcp",
        "/.//mcp",
        "/open/../mcp",
        "/open/.%2e/mcp",
        "/open/%2e%2e/mcp",
        "/open\\..\\mcp",
        "/open/..\\mcp",
        "/open/..%5cmcp",
        "/open%2f..%2fmcp",
        "/open/..;/mcp",
        "/open;/../mcp",
        "/open/%00/../../mcp",
        "/open/..\x7f/mcp",
        "/mcp#/open",
        "/open#/../mcp",
        "/open?/../../mcp",
        "/open /../mcp",
        "/open HTTP/1.1",
        "/open\tx",
        "/open\r\nmcp-name: x",
        "/open\0",
        "/op\xe9n",
        "/%6dcp",
        "/MCP",
        "/mcp%3fx",
        "/mcp;x",
    ],
)
def test_path_tricks(attacked: Attacked, path: str) -> None:
    for method in ("POST", "GET"):
        alone(attacked, [(":method", method), (":path", path.encode("latin-1")), *post("")[1:3], *JSON], BAD)
    for arrived in attacked.recorder.requests:
        # An unprotected path may be called, but only if no server could read it as a protected path.
        assert re.fullmatch(r"/open(/[a-z]+)*(\?.*)?", arrived.path), arrived.path
    attacked.recorder.requests.clear()


@pytest.mark.parametrize(
    "method", ["", "POST ", " POST", "POST\t", "POST /mcp HTTP/1.1", "GET /mcp", "P\xd6ST", "CONNECT"]
)
def test_invalid_methods(attacked: Attacked, method: str) -> None:
    for path in ("/mcp", "/open"):
        alone(attacked, [(":method", method.encode("latin-1")), *post(path)[1:]], BAD)
    assert attacked.recorder.requests == []


@pytest.mark.parametrize(
    "value", ["0", "5", str(len(BAD) - 1), str(len(BAD) + 1), "-1", f"+{len(BAD)}", "0x6d", "9" * 23]
)
def test_lengths_that_disagree_with_the_data(attacked: Attacked, value: str) -> None:
    hidden = request("POST", "/open", BAD)
    for body in (OK, BAD, OK + hidden):
        if value != str(len(body)):
            assert alone(attacked, post("/mcp", None, ("content-length", value)), body).refused
    both = [("content-length", str(len(OK))), ("content-length", value)]
    assert alone(attacked, post("/mcp", None, *both), OK).refused
    assert attacked.recorder.requests == []


def test_connection_headers_cannot_split_a_message(attacked: Attacked) -> None:
    for header in (
        ("transfer-encoding", "chunked"),
        ("transfer-encoding", "identity"),
        ("connection", "close"),
        ("connection", "mcp-name"),
        ("keep-alive", "timeout=5"),
        ("proxy-connection", "close"),
        ("upgrade", "h2c"),
        ("upgrade", "websocket"),
        ("te", "gzip"),
        ("te", "trailers, chunked"),
    ):
        assert alone(attacked, post("/mcp", None, header), BAD).refused
        assert alone(attacked, post("/mcp", None, header), chunked(OK) + request("POST", "/mcp", BAD)).refused
        alone(attacked, post("/mcp", None, header), OK)
    assert alone(attacked, post("/mcp", None, ("te", "trailers")), OK).reached
    assert alone(attacked, post("/mcp", None, ("te", "trailers")), BAD).refused
    for arrived in attacked.recorder.requests:
        assert arrived.body == OK
        assert not {"upgrade", "keep-alive", "proxy-connection"} & arrived.headers.keys()


def test_names_and_values_that_would_split_lines(attacked: Attacked) -> None:
    for name, value in (
        ("Mcp-Name", SECRET),
        ("mcp_name", SECRET),
        ("mcp-name ", SECRET),
        ("mcp-name:", SECRET),
        ("x", f"y\r\nmcp-name: {SECRET}"),
        ("x", f"y\nmcp-name: {SECRET}"),
        ("x", f"y\0{SECRET}"),
        (f"x: y\r\nmcp-name: {SECRET}\r\nz", "1"),
    ):
        assert alone(attacked, post("/mcp", None, (name, value)), OK).refused
    assert attacked.recorder.requests == []


@pytest.mark.parametrize("name", [*(f"x-tierwall-{fact}" for fact in OURS), "mcp-name", "mcp-method"])
def test_clients_cannot_send_tierwalls_own_headers(attacked: Attacked, name: str) -> None:
    values = ("add", "tools/call", "ping", "tools/list", AGENT, "/mcp", "", "0", "XAccessPolicy/prod/lists")
    for path in (*EVERY, "/agents", "/arguments"):
        with Http2(attacked.port) as client:
            for value in values:
                assert client.ask(post(path, None, (name, value)), BAD).refused
                assert client.ask(post(path, None, (name, value), (name, SECRET)), BAD).refused
        header = "".join(f"{name}: {value}\r\n{name.title()}: {value}\r\n" for value in values)
        assert attacked.post(call(SECRET), path, JSON_HEADERS + header).refused
    # They do not reach a backend either, protected or not.
    for path in ("/mcp", "/open"):
        alone(attacked, post(path, OK, (name, "forged")), OK)
        alone(attacked, like("GET", path, (name, "forged")))
    for arrived in attacked.recorder.requests:
        assert arrived.headers.get(name) != "forged" or (arrived.path == "/open" and name.startswith("mcp-"))


@pytest.mark.parametrize("path", ["/mcp", "/agents", "/open", "/shared", "/split", "/moved", "/nowhere"])
def test_tierwalls_own_headers_reach_no_backend_on_any_route(attacked: Attacked, path: str) -> None:
    """Whatever follows the prefix, and whatever the route does: forward, choose a backend, redirect, answer 404."""
    names = [
        *(f"x-tierwall-{fact}" for fact in OURS),
        "x-tierwall-",
        "x-tierwall-new",
        "x-tierwall-reached",
        "x-tierwall-a-b",
    ]
    headers: list[Header] = [header for name in names for header in ((name, "forged"), (name, ""), (name, "forged"))]
    lines = "".join(
        f"{spelling}: forged\r\n" for name in names for spelling in (name, name.upper(), name.title(), "X-TIERWALL-x")
    )
    origin = ("origin", "https://app.test")
    with with_certificate(attacked) as agent:
        answers = [agent.ask(post(path, OK, *headers, origin), OK)]
        answers.append(agent.ask(post(path, OK, *headers), OK, trailers=[("x-tierwall-name", "forged")]))
        answers.append(agent.ask(like("GET", path, *headers, ("mcp-session-id", "s"))))
        agent.ask(like("OPTIONS", path, *headers, origin, ("access-control-request-method", "POST")))
    plain = attacked.post(call("add"), path, JSON_HEADERS + lines)
    attacked.send(request("GET", path, b"", lines))
    expected = {"/moved": 302, "/nowhere": 404}.get(path, 200)
    assert {answer.status for answer in answers} == {expected}
    assert plain.statuses == ((200,) if path == "/agents" else (expected,))
    assert len(attacked.recorder.requests) >= (0 if path in ("/moved", "/nowhere") else 3)
    for arrived in attacked.recorder.requests:
        assert [name for name in arrived.headers if name.startswith("x-tierwall")] == []
        assert "forged" not in " ".join((arrived.path, *arrived.headers.values()))
    for answer in answers:
        assert "forged" not in " ".join(answer.headers.values())


def test_clients_cannot_choose_the_policies(attacked: Attacked) -> None:
    """Routes name the policies of a request in headers. A client that knows all these names gains nothing."""
    text = b"".join(listener.SerializeToString() for listener in attacked.resources.listeners.values())
    names = sorted(set(re.findall(rb"(?<![0-9a-f])[0-9a-f]{16}(?:/http)?(?![0-9a-f])", text)))
    assert len(names) > 10
    with Http2(attacked.port) as client:
        for name in names:
            for path in EVERY:
                for header in ("x-tierwall-gateway", "x-tierwall-backend"):
                    assert client.ask(post(path, None, (header, name.decode())), BAD).refused


def test_a_header_that_no_request_has(attacked: Attacked) -> None:
    """An expression that must fail reads a header that is always absent: a client that sends it changes nothing."""
    body = json.dumps(call(SECRET, {"other": 1})).encode()
    for value in ("", "true", "prod", "x"):
        for path in ("/presence", "/capitals"):
            for header in ("x-tierwall-absent", "X-Tierwall-Absent"):
                assert alone(attacked, post(path, None, (header.lower(), value)), body).refused
                assert attacked.post(body, path, f"{JSON_HEADERS}{header}: {value}\r\n").refused
    assert attacked.post(call("add", {"approved": "yes", "other": 1}), "/presence").reached


def test_frames_after_the_end_of_a_stream(attacked: Attacked) -> None:
    builds: tuple[Callable[[Http2, int], list[Frame]], ...] = (
        lambda client, stream: [client.data(stream, OK, end=True), client.data(stream, BAD, end=True)],
        lambda client, stream: [
            client.data(stream, OK, end=True),
            client.headers(stream, post("/mcp")),
            client.data(stream, BAD),
        ],
        lambda client, stream: [client.headers(stream, post("/open")), client.data(stream, BAD, end=True)],
        lambda client, stream: [
            client.data(stream, OK),
            client.headers(stream, TRAILERS),
            client.data(stream, BAD, end=True),
        ],
        lambda client, stream: [
            client.data(stream, OK, end=True),
            client.headers(stream, [("mcp-name", SECRET)], end=True),
        ],
    )
    for build in builds:
        with Http2(attacked.port) as client:
            stream = client.open()
            client.frames(client.headers(stream, post("/mcp")), *build(client, stream))
            client.wait()
    with Http2(attacked.port) as client:
        stream = client.open()
        client.frames(client.headers(stream, post("/mcp"), end=True), client.data(stream, BAD, end=True))
        client.wait()
        assert client.answers[stream].refused
    with Http2(attacked.port) as client:
        assert client.ask(post("/mcp"), OK).reached
        client.frames(client.data(1, BAD, end=True))
        assert client.ask(post("/mcp"), BAD).refused
    assert all(request.body == OK for request in attacked.recorder.requests)


def test_tunnels(attacked: Attacked) -> None:
    inside = request("POST", "/mcp", BAD)
    there = f"127.0.0.1:{attacked.recorder.address.port}"
    tunnels: list[list[Header]] = [
        [(":method", "CONNECT"), (":authority", there)],
        [(":method", "CONNECT"), (":authority", "gate.test")],
    ]
    tunnels += [
        [(":method", "CONNECT"), (":protocol", protocol), *post(path)[1:4]]
        for protocol in ("websocket", "connect-udp", "connect-tcp")
        for path in ("/mcp", "/open")
    ]
    for headers in tunnels:
        with Http2(attacked.port) as client:
            stream = client.open()
            client.frames(client.headers(stream, headers), client.data(stream, inside))
            client.wait([stream])
            assert client.answers[stream].refused
    for target in (there, "gate.test:80", "/mcp"):
        attacked.send(f"CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n".encode() + inside)
    assert attacked.recorder.requests == []


@pytest.mark.parametrize("what", ["h2c", "websocket", "H2C, websocket", "TLS/1.2"])
def test_upgrades_of_http_1(attacked: Attacked, what: str) -> None:
    settings = "HTTP2-Settings: AAMAAABkAAQAoAAAAAIAAAAA\r\n"
    with Http2(attacked.port) as client:
        frames = client.headers(1, post("/mcp")).serialize() + client.data(1, BAD, end=True).serialize()
    for connection in ("Upgrade", "Upgrade, HTTP2-Settings"):
        headers = f"{JSON_HEADERS}Connection: {connection}\r\nUpgrade: {what}\r\n{settings}"
        for after in (b"", PREFACE + b"\0\0\0\4\0\0\0\0\0" + frames, request("POST", "/mcp", BAD)):
            for first in (request("POST", "/mcp", OK, headers), request("GET", "/open", b"", headers)):
                attacked.send(first + after)
            answer = attacked.send(request("POST", "/mcp", BAD, headers) + after)
            assert 101 not in answer.statuses
            assert answer.refused
    assert all("upgrade" not in request.headers for request in attacked.recorder.requests)


def test_streams_of_several_callers_are_kept_apart(attacked: Attacked) -> None:
    """Many streams with mixed frames: each gets the verdict for its own caller and tool."""
    other = "spiffe://cluster.local/ns/prod/sa/other"
    with with_certificate(attacked) as agent, with_certificate(attacked, other) as stranger:
        expected: dict[tuple[Http2, int], bool] = {}
        bodies: dict[tuple[Http2, int], bytes] = {}
        for number in range(40):
            for who in (agent, stranger):
                body = (OK, BAD)[number % 2]
                stream = who.open()
                path = ("/old", "/mcp", "/named")[number % 3]
                who.frames(who.headers(stream, post(path)))
                bodies[who, stream] = body
                expected[who, stream] = body is OK and (path != "/old" or who is agent)
        cuts = [0, 10, 45, 70, 90, 200]
        for first, last in pairwise(cuts):
            for (who, stream), body in bodies.items():
                if body[first:last]:
                    who.frames(who.data(stream, body[first:last], end=last >= len(body)))
        agent.wait()
        stranger.wait()
        assert {key: key[0].answers[key[1]].reached for key in expected} == expected
        assert len(attacked.recorder.requests) == sum(expected.values())


@pytest.fixture(scope="module")
def shop() -> Iterator[Lab]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(connection_manager, "MAX_REQUEST_SECONDS", 2)
        with lab() as running:
            yield running


def test_a_revocation_applies_to_an_open_connection(shop: Lab) -> None:
    def ask(tool: str) -> tuple[list[Header], bytes]:
        body = json.dumps(call(tool)).encode()
        return post(PATH, body, host="localhost"), body

    def is_allowed(answer: Answer) -> bool:
        return "result" in json.loads(answer.body)

    shop.publish([lab_policy("gate", "half", "allowed")])
    shop.programmed()
    shop.until_ready(shop.caller(), "half")
    with Http2(shop.port, shop.context("shopper")) as client:
        assert is_allowed(client.ask(*ask("half")))
        shop.publish([lab_policy("gate", "allowed", created=2)])
        shop.programmed()
        before = len(shop.backend.calls)
        assert not is_allowed(client.ask(*ask("half")))
        assert is_allowed(client.ask(*ask("allowed")))
        assert shop.backend.calls[before:] == ["allowed"]
        assert not client.closed


def test_requests_cannot_be_held_back_until_after_a_revocation(shop: Lab) -> None:
    """The policies in force at its start decide on a request, so a request must end, however it is kept alive."""
    shop.publish([lab_policy("gate", "half", "allowed", created=4)])
    shop.programmed()
    shop.until_ready(shop.caller(), "half")
    body = json.dumps(call("half")).encode()
    with Http2(shop.port, shop.context("shopper")) as client:
        streams = [client.open() for _ in range(20)]
        for stream in streams:
            client.frames(client.headers(stream, post(PATH, host="localhost")))
        client.round_trip()
        shop.publish([lab_policy("gate", "allowed", created=5)])
        shop.programmed()
        calls_before = shop.backend.calls.count("half")
        rounds = 0
        while not all(client.answers[stream].is_over for stream in streams):
            for stream in streams:
                client.frames(client.data(stream, b" "))
            client.poll(streams, 0.1)
            rounds += 1
            assert rounds < 200
        assert {client.answers[stream].status for stream in streams} == {408}
        for stream in streams:
            client.frames(client.data(stream, body, end=True))
        client.round_trip()
        assert shop.backend.calls.count("half") == calls_before


def test_the_log_names_the_backend_of_a_denied_request(shop: Lab) -> None:
    """One of two backends of a route denies. Envoy chooses the backend before it asks policies."""
    group = "agentic.networking.x-k8s.io"
    spare = manifest(f"{group}/v0alpha0", "XBackend", "spare", {"mcp": {"serviceName": "spare", "port": 80}})
    closed = lab_policy("closed", "nothing", on="XBackend")
    closed["spec"]["targetRefs"][0]["name"] = "spare"
    refs = [{"group": group, "kind": "XBackend", "name": name} for name in ("orders", "spare")]
    rules = [{"matches": [{"path": {"value": "/either"}}], "backendRefs": refs}]
    either = manifest(f"{GATEWAY_API}/v1", "HTTPRoute", "either", {"parentRefs": [{"name": "agents"}], "rules": rules})
    for route in (spare, either):
        route["metadata"]["namespace"] = "shop"
    shop.publish([lab_policy("gate", "half", "allowed"), spare, either, closed])
    shop.programmed()
    shop.until_ready(shop.caller(), "half")
    body = json.dumps(call("half")).encode()
    with Http2(shop.port, shop.context("shopper")) as client:
        answers = [client.ask(post("/either", body, host="localhost"), body) for _ in range(40)]
    allowed = sum("result" in json.loads(answer.body) for answer in answers)

    def logged() -> list[tuple[str, str]]:
        decisions = [decision for decision in shop.decisions if decision["http"] == "POST /either"]
        return sorted((decision["backend"], decision["verdict"]) for decision in decisions)

    wanted = [("XBackend/shop/orders", "Allow")] * allowed + [("XBackend/shop/spare", "Deny")] * (40 - allowed)
    eventually(lambda: logged() == wanted, logged)
    assert 0 < allowed < 40


def test_the_log_says_why_a_script_refused_a_request(shop: Lab) -> None:
    """In the words that the client gets."""
    looks = lab_policy("gate")
    looks["apiVersion"] = f"{NETWORKING}/v1alpha1"
    looks["spec"]["action"] = "Allow"
    header, all_calls = {"name": "X-Env", "value": "prod"}, {"methods": [{"name": "tools/call"}]}
    looks["spec"]["rules"][0]["authorization"] = {"type": "Inline", "headers": [header], "mcp": all_calls}
    shop.publish([looks])
    shop.programmed()
    body = json.dumps(call("half")).encode()
    strange = body.replace(b'"name"', b'"name": "x", "Name"')
    with Http2(shop.port, shop.context("shopper")) as client:
        for headers, sent in (
            (post(PATH, strange, host="localhost"), strange),
            ([*post(PATH, body, host="localhost"), ("mcp-method", "ping")], body),
            ([(name, value if value != "POST" else "PUT") for name, value in post(PATH, body, host="localhost")], body),
            ([*post(PATH, body, host="localhost"), ("x-env", "prod"), ("x-env", "test")], body),
        ):
            assert not client.ask(headers, sent).reached

    def logged() -> list[str]:
        return [decision["rule"] for decision in shop.decisions if "lua_response" in str(decision.get("rule"))]

    wanted = (
        "a key could be read as another key",
        "Mcp-Method is not the method of the message",
        "there is a body",
        "there are several `x-env`",
    )
    eventually(lambda: logged()[-4:] == [f"lua_response[{why}]" for why in wanted], logged)

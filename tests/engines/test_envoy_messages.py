"""Message reading: what reaches a backend is one line that every reader reads the same way, and nothing denied.

A strict reader (`tests.reference.message`) says which arguments must pass and which must not.
"""

from __future__ import annotations

import json
import random
import unicodedata
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import pytest

from tests.labs.envoy_attacks import SECRET, Attacked, call, chunked, request
from tests.labs.http2_client import Http2, post
from tests.randomness import examples, rounds, seeds
from tests.reference import message as reference
from tierwall.engines.envoy.config.mcp import character_lines

HEAD = '{"jsonrpc":"2.0","id":1,"method":"tools/call","params":'
INNER = json.dumps(call(SECRET))
# The most that HTTP/2 lets a client send in a frame. The client of these tests never waits for a window: a message must
# stay below 64 KiB.
FRAME = 16_384
BREAKS = ("\n", "\r", "\v", "\f", "\x1c", "\x1d", "\x1e", "\x85", "\u2028", "\u2029")


class Outcome(NamedTuple):
    """Whether a message was refused, and the body that reached the backend."""

    refused: bool
    forwarded: bytes | None


@pytest.fixture(scope="module")
def running(needs_envoy: None) -> Iterator[Attacked]:
    world = Attacked()
    yield world
    world.close()


@pytest.fixture
def attacked(running: Attacked) -> Iterator[Attacked]:
    running.recorder.requests.clear()
    yield running
    running.recorder.requests.clear()
    running.assert_safe()


def with_arguments(arguments: str, tool: str = "add") -> str:
    return f'{HEAD}{{"name":"{tool}","arguments":{arguments}}}}}'


def sent(attacked: Attacked, bodies: Sequence[str | bytes], path: str = "/mcp") -> list[Outcome]:
    """Send messages, many at once, and return what happened to each."""
    out: list[Outcome] = []
    data = [body if isinstance(body, bytes) else body.encode() for body in bodies]
    for first in range(0, len(data), 2000):
        with Http2(attacked.port) as client:
            for start in range(first, min(first + 2000, len(data)), 50):
                part = data[start : start + 50]
                attacked.recorder.requests.clear()
                streams = [
                    client.start(
                        post(path, body, ("x-number", str(number))),
                        [body[at : at + FRAME] for at in range(0, len(body), FRAME)] or [b""],
                    )
                    for number, body in enumerate(part)
                ]
                client.wait(streams)
                assert not client.closed
                arrived = {int(seen.headers["x-number"]): seen.body for seen in attacked.recorder.requests}
                for number, stream in enumerate(streams):
                    answer = client.answers[stream]
                    assert answer.refused is (number not in arrived), (part[number], answer)
                    out.append(Outcome(answer.refused, arrived.get(number)))
    return out


def assert_one_line(forwarded: bytes, body: bytes) -> None:
    """Check that a message was forwarded in one line, whoever splits it, and that it still says the same."""
    assert len(forwarded.decode().splitlines()) == 1
    assert forwarded.splitlines() == [forwarded]
    assert json.loads(forwarded) == json.loads(body)


def is_readable(arguments: str | bytes) -> bool:
    """Whether readers agree on arguments, as the reference says."""
    data = arguments if isinstance(arguments, bytes) else arguments.encode(errors="surrogatepass")
    try:
        reference.read(b'{"params":{"arguments":' + data + b"}}")
    except (ValueError, RecursionError):
        return False
    return True


# Arguments that all readers read the same way. An empty list, null and texts are for the server to refuse.
READABLE = [
    *("{}", "{ }", "[]", "null", '"text"', "[1]", '{"a":{}}', '{"a":[]}', '{"a":[{}]}', '{"a":[[],[]]}', '{"a":""}'),
    *('{"a":true,"b":false,"c":null}', '{"a":0}', '{"a":-0}', '{"a":-1}', '{"a":10}', '{"a":1.5}', '{"a":-0.0}'),
    *('{"a":1e3}', '{"a":1E+3}', '{"a":1e-3}', '{"a":0e0}', '{"a":1.25e10}', '{"a":123456789012345678901234567890}'),
    *('{"a":1e-400}', '{"a":[0,1,10,100,1000,10000]}', '{"a":[-1,-10,0.5,-0.5e-5]}', '{"a":1 , "b" : 2}'),
    *('{\t"a"\t:\t1\t}', '{"a":"\x7f"}', '{"a":"\\u0000"}', '{"a":"\\n\\r\\t\\b\\f\\/\\\\\\""}', '{"a":"\\u001f"}'),
    *('{"a":"\\ud83d\\ude00"}', '{"a":"\U0001f600"}', '{"a":"\\uffff"}', '{"a":"\uffff"}', '{"a":"ä日本😀"}'),
    *('{"a":"{\\"b\\":1}"}', '{"a":"}{"}', '{"a":"\\\\"}', '{"a":"\\\\\\""}', '{"a":"\\\\\\\\"}', '{"a":",:[]{}"}'),
    *('{"a":1,"A":2}', '{"a":1,"a ":2}', '{"a":1," a":2}', '{"a":{"b":1},"b":{"a":1}}', '{"a":{"a":{"a":1}}}'),
    *('{"a":[{"b":1},{"b":2}]}', '{"a":{"b":1},"c":{"b":2}}', '{"a\\u0000":1,"a":2}', '{"\\n":1,"\\t":2}'),
    *('{"ä":1,"ö":2,"ü":3,"ß":4,"ss":5}', '{"größe":1,"groesse":2,"grosse":3}', '{"日":1,"本":2}', '{"é":1,"e":2}'),
    *('{"ﬁle":1,"path":2}', '{"①":1,"②":2}', '{"ж":1,"Ж":2}', '{"가":1,"나":2}', '{"가":1,"각":2}', '{"ガ":1,"カ":2}'),
    *('{"😀":1,"😁":2}', '{"x²":1,"x³":2}', '{"ı":1,"i":2}', '{"а":1,"a":2}', '{"Ω":1,"ω":2}', '{"a\u200b":1,"a":2}'),
    *('{"_meta":1,"params":2,"method":3,"name":4,"Name":5}', '{"name":"x","arguments":{"name":"y"}}'),
    *(f'{{"a":{"[" * 80}{"]" * 80}}}', '{"a":' * 80 + "1" + "}" * 80),
    "{" + ",".join(f'"key{number}":{number}' for number in range(500)) + "}",
    "{" + ",".join(f'"ключ{number}":{number}' for number in range(100)) + "}",
    json.dumps({"a": "x" * 40_000, "b": ["y" * 100] * 100}),
    json.dumps({"k" * 5000: 1, "k" * 5001: 2}),
]

# Arguments that are not JSON, or that two readers may read differently.
UNREADABLE = [
    # Numbers and words.
    *('{"a":01}', '{"a":-01}', '{"a":00}', '{"a":+1}', '{"a":1.}', '{"a":.5}', '{"a":-}', '{"a":-.5}', '{"a":1e}'),
    *('{"a":1e+}', '{"a":1.e5}', '{"a":--1}', '{"a":1-}', '{"a":1+1}', '{"a":0x10}', '{"a":1_000}', '{"a":1e400}'),
    *('{"a":-1e400}', f'{{"a":{"9" * 400}}}', '{"a":NaN}', '{"a":Infinity}', '{"a":-Infinity}', '{"a":nan}'),
    *('{"a":tru}', '{"a":truee}', '{"a":True}', '{"a":TRUE}', '{"a":nul}', '{"a":None}', '{"a":undefined}'),
    *('{"a":falsee}', '{"a":t}', '{"a":truefalse}', '{"a":1true}', '{"a":true1}', '{"a":1 2}', '{"a":1.5.5}'),
    # Structure.
    *('{"a":}', '{"a"}', '{"a":1,}', '{,"a":1}', "{,}", '{"a":[1,]}', '{"a":[,1]}', '{"a":[,]}', '{"a":[1,,2]}'),
    *('{"a":1 "b":2}', '{"a":[1 2]}', '{"a":["b" "c"]}', '{"a":"b" "c"}', '{"a":[1}}', '{"a":{1]}', '{"a"::1}'),
    *('{"a":1:2}', '{"a":["b":1]}', '{"a":{"b"}}', '{"a";1}', '{"a"=1}', "{1:2}", "{null:1}", "{[]:1}", "{{}:1}"),
    *("{a:1}", "{'a':1}", "{\"a\":'b'}", '{"a":b}', '{"a":1}}', '{"a":1]', '{"a":1', '{"a":"b}', '{"a":1}/**/'),
    *('{"a":1/**/}', '{"a":1}//', '{/**/"a":1}', '#\n{"a":1}', '{"a":1;}', '{"a":(1)}', '{"a":`b`}', '{"a":@b}'),
    *("", " ", ",", ":", "}", "]", "{", "[", '"', "\\", "{}{}", "{},{}", "[][]", "1 1", '"a""b"', "{}1", "{}null"),
    f'{{"a":{"[" * 120}{"]" * 120}}}',
    '{"a":' * 5000 + "1" + "}" * 5000,
    # Strings.
    *(f'{{"a":"x{chr(number)}y"}}' for number in range(32)),
    *(f'{{"a{chr(number)}":1}}' for number in (0, 1, 9, 10, 13, 27, 31)),
    *(f'{{"a":{chr(number)}1}}' for number in (0, 1, 8, 11, 12, 27, 31, 127, 160, 0x85, 0x2028, 0x3000, 0xFEFF)),
    *('{"a":"\\x41"}', '{"a":"\\v"}', '{"a":"\\0"}', '{"a":"\\a"}', '{"a":"\\\'"}', '{"a":"\\ "}', '{"a":"\\\n"}'),
    *('{"a":"\\u"}', '{"a":"\\u00"}', '{"a":"\\u00g0"}', '{"a":"\\U0041"}', '{"a":"\\u{41}"}', '{"a":"\\u 041"}'),
    *('{"a":"\\u+041"}', '{"a":"\\u-041"}', '{"a":"\\u004"}', '{"a":"\\"}', '{"a":\\u0041}', '{\\u0022a":1}'),
    *('{"a":"\\ud800"}', '{"a":"\\udc00"}', '{"a":"\\ud800x"}', '{"a":"\\ud800\\u0041"}', '{"a":"\\ud800\\ud800"}'),
    *('{"a":"\\ude00\\ud83d"}', '{"\\ud800":1}', '{"a":"\\ud83d\\\\ude00"}', '{"a":"\\ud83d\\n"}'),
    # Keys.
    *('{"":1}', '{"a":{"":1}}', '{"a":[{"":1}]}', '{"a":[[{"b":{"":[]}}]]}'),
    *(
        f'{{"a":{first},"a":{second}}}'
        for first in ("1", "[]", "{}", "null")
        for second in ("1", "[]", "{}", "[1]", '"b"')
    ),
    *('{"a":1,"b":2,"a":[]}', '{"a":{"b":1,"b":[]}}', '{"a":[{"b":1,"b":2}]}', '{"a":[[{"b":[],"b":[]}]]}'),
    *('{"a":[],"\\u0061":[]}', '{"\\u0061":1,"a":[]}', '{"a/b":[],"a\\/b":[]}', '{"\\t":[],"\\u0009":[]}'),
    *('{"\\ud83d\\ude00":[],"\U0001f600":1}', '{"\\u00e4":[],"ä":1}', '{"a":1,"b":{"a":1},"a":[]}'),
    *('{"x":[{"a":1},{"b":1,"c":{},"b":[]}]}', '{"x":{"y":{"z":[[[{"a":[],"q":1,"a":[]}]]]}}}'),
    "{" + ",".join(f'"key{number}":[]' for number in range(300)) + ',"key7":[]}',
    "{" + ",".join(f'"key{number}":[]' for number in range(300)) + ',"key299":[]}',
    f'{{"{"k" * 5000}":1,"{"k" * 5000}":[]}}',
    *(
        '{"ﬁle":1,"file":2}',
        '{"file":[],"ﬁle":[]}',
        '{"ｆｉｌｅ":1,"file":2}',
        '{"\u212a":1,"K":2}',
        '{"\u212b":1,"Å":2}',
    ),
    *('{"Å":1,"A\u030a":2}', '{"ä":1,"a\u0308":2}', '{"\\u00e4":1,"a\\u0308":2}', '{"ſ":1,"s":2}', '{"²":1,"2":2}'),
    *('{"①":1,"1":2}', '{"½":1,"1\u20442":2}', '{"\u00a0":1," ":2}', '{"…":1,"...":2}', '{"Ⅳ":1,"IV":2}'),
    *(
        '{"가":1,"\u1100\u1161":2}',
        '{"각":1,"가\u11a8":2}',
        '{"ガ":1,"カ\u3099":2}',
        '{"ｶﾞ":1,"ガ":2}',
        '{"㍿":1,"株式会社":2}',
    ),
    *(
        '{"\ufa1b":1,"福":2}',
        '{"\U0002f800":1,"丽":2}',
        '{"\U0001d400":1,"A":2}',
        '{"\ufdfa":1,"صلى الله عليه وسلم":2}',
    ),
    *('{"a\u0323\u0307":1,"a\u0307\u0323":2}', '{"ạ\u0307":1,"ȧ\u0323":2}', '{"\u0344":1,"\u0308\u0301":2}'),
    *(
        '{"\U0001ccd6":1,"A":2}',
        '{"x":{"y":[{"ﬀ":1,"ff":2}]}}',
        '{"\\ufb01le":[],"file":[]}',
        '{"\u1e9b\u0323":1,"ṩ":2}',
    ),
]


def test_there_are_many_forms() -> None:
    assert len(READABLE) + len(UNREADABLE) > 300
    assert [form for form in READABLE if not is_readable(form)] == []
    # Unicode versions before 16 do not know this letter.
    known = [
        form for form in UNREADABLE if "\U0001ccd6" not in form or unicodedata.normalize("NFKC", "\U0001ccd6") == "A"
    ]
    assert [form for form in known if is_readable(form)] == []


@pytest.mark.engine
def test_arguments_that_all_readers_read_the_same_way_pass(attacked: Attacked) -> None:
    bodies = [with_arguments(form) for form in READABLE]
    for body, outcome in zip(bodies, sent(attacked, bodies), strict=True):
        assert outcome.forwarded == body.encode(), body[:300]


@pytest.mark.engine
@pytest.mark.parametrize("path", ["/mcp", "/arguments", "/asks", "/agents"])
def test_arguments_that_readers_may_read_differently_do_not(attacked: Attacked, path: str) -> None:
    forms = [form.encode() for form in UNREADABLE]
    forms += [b'{"a":"' + bad + b'"}' for bad in NOT_UTF_8] + [b'{"' + bad + b'":1}' for bad in NOT_UTF_8]
    head, tail = with_arguments("@").encode().split(b"@")
    for form, outcome in zip(forms, sent(attacked, [head + form + tail for form in forms], path), strict=True):
        assert outcome.refused, form[:300]


NOT_UTF_8 = [
    *(b"\x80", b"\xbf", b"\xc0\xaf", b"\xc1\x81", b"\xc3", b"\xc3(", b"\xe0\x80\xaf", b"\xe2\x82", b"\xe2(\xa1"),
    *(b"\xed\xa0\x80", b"\xed\xbf\xbf", b"\xf0\x80\x80\xaf", b"\xf0\x90\x80", b"\xf4\x90\x80\x80", b"\xf5\x80\x80\x80"),
    *(b"\xf8\x88\x80\x80\x80", b"\xfe", b"\xff", b"\xc3\xc3\xa4", b"\xa4\xc3", b"\xe4", b"\xff\xfe", b"\x00"),
]


@pytest.mark.engine
def test_bytes_that_are_not_utf_8_at_every_split(attacked: Attacked) -> None:
    """The MCP filter refuses them, also where a character is in two frames."""
    for bad in NOT_UTF_8:
        for form in (b'{"a":"@"}', b'{"@":1}', b'{"a":[{"b":["x@y",1]}],"c":"\xc3\xa4"}', b'"@"'):
            head, tail = with_arguments("@").encode().split(b"@")
            body = head + form.replace(b"@", bad) + tail
            with Http2(attacked.port) as client:
                for cut in range(body.index(bad) - 2, body.index(bad) + len(bad) + 3):
                    stream = client.open()
                    client.frames(client.headers(stream, post("/mcp")), client.data(stream, body[:cut]))
                    client.round_trip()
                    client.frames(client.data(stream, body[cut:], end=True))
                    client.wait([stream])
                    assert client.answers[stream].refused, (body, cut)


@pytest.mark.engine
@pytest.mark.parametrize(
    "message",
    [
        *(
            f'{HEAD}{{"name":"add","arguments":{{}},"arguments":{other}}}}}'
            for other in ("[]", "{}", "null", "[1]", "1")
        ),
        *(f'{HEAD}{{"name":"add","arguments":[],"arguments":{other}}}}}' for other in ("[]", "{}", "null", "[1]", "1")),
        *(f'{HEAD}{{"name":"add","x":[],"x":{other}}}}}' for other in ("[]", "{}", "1", '"y"')),
        *(f'{HEAD}{{"name":"add","_meta":{{"x":[],"x":{other}}}}}}}' for other in ("[]", "{}", "1", '"y"')),
        *(f'{HEAD}{{"name":"add"}},"x":[],"x":{other}}}' for other in ("[]", "{}", "1", '"y"')),
        *(f'{HEAD}{{"name":"add"}},"x":{{"y":[],"y":{other}}}}}' for other in ("[]", "{}", "1", '"y"')),
        f'{HEAD}{{"name":"add","x":[],"\\u0078":[]}}}}',
        f'{HEAD}{{"name":"add"}},"x":[],"\\u0078":[]}}',
        f'{HEAD}{{"name":"add"}},"params":[]}}',
        f'{HEAD}{{"name":"add","name":[]}}}}',
        '{"jsonrpc":"2.0","id":1,"id":[],"method":"tools/call","params":{"name":"add"}}',
        '{"jsonrpc":"2.0","jsonrpc":[],"id":1,"method":"tools/call","params":{"name":"add"}}',
        '{"jsonrpc":"2.0","id":1,"method":"tools/call","method":[],"params":{"name":"add"}}',
        '{"jsonrpc":"2.0","id":1,"result":{},"result":[]}',
        *(
            f'{{"jsonrpc":"2.0","id":{bad},"method":"tools/list"}}'
            for bad in ("{}", "[]", "true", '{"a":1}', "[1]", "01")
        ),
        '{"jsonrpc":"2.0","id":1,"method":"__jsonrpc_response","params":{"name":"add"}}',
        '{"jsonrpc":"2.0","id":1,"method":"__jsonrpc\\u005fresponse","params":{"name":"add"}}',
        '{"jsonrpc":2.0,"id":1,"method":"tools/list"}',
        '{"jsonrpc":"2.0","id":1,"method":"tools/list",}',
        '\ufeff{"jsonrpc":"2.0","id":1,"method":"tools/list"}',
        '"tools/list"',
        "null",
        "1",
    ],
)
@pytest.mark.parametrize("path", ["/asks", "/mcp", "/arguments"])
def test_messages_that_readers_may_read_differently(attacked: Attacked, path: str, message: str) -> None:
    assert attacked.post(message, path).refused


@pytest.mark.engine
def test_messages_of_every_honest_form_pass(attacked: Attacked) -> None:
    bodies = [
        *(
            f'{{"jsonrpc":"2.0","id":{number},"method":"tools/list"}}'
            for number in ("1", '"x"', "null", "-1", "1.5", "0", "9007199254740993", '"ä"', f'"{"x" * 500}"')
        ),
        '{"method":"tools/list","id":1,"jsonrpc":"2.0"}',
        '{"params":{"_meta":{"progressToken":1}},"method":"tools/list","id":1,"jsonrpc":"2.0"}',
        '{"jsonrpc":"2.0","method":"notifications/initialized"}',
        '{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{"cursor":"x","more":[1,2]},"extra":{"a":1}}',
        '{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{}}}',
    ]
    for body, outcome in zip(bodies, sent(attacked, bodies), strict=True):
        assert outcome.forwarded == body.encode(), body


@pytest.mark.engine
@pytest.mark.parametrize("path", ["/mcp", "/asks"])
def test_messages_of_several_lines_become_one(attacked: Attacked, path: str) -> None:
    """A server behind a pipe may read each line as a message of its own."""
    tool = {"/mcp": "tools/call", "/asks": "tools/list"}[path]
    message = {"jsonrpc": "2.0", "id": 1, "method": tool, "params": {"name": "add", "arguments": {"a": [1, {"b": ""}]}}}
    compact = json.dumps(message)
    bodies = [
        *(compact + end for end in ("\n", "\r\n", "\r", " \n\n", "\n ", "\t\r\n")),
        *(start + compact for start in ("\n", "\r\n\r\n", " \r")),
        json.dumps(message, indent=2),
        json.dumps(message, indent="\t").replace("\n", "\r\n"),
        json.dumps(message, indent=0).replace("\n", "\r"),
        compact.replace(" ", "\n"),
        # A whole message on its own line.
        compact.replace("[1,", f"\n{INNER.replace(SECRET, 'other')}\n,\n[1,")
        .replace('"a": \n', '"x":\n')
        .replace("\n,\n[1,", '\n,"a":\n[1,'),
        *(compact.replace('""', f'"x{char}y"') for char in BREAKS if ord(char) >= 0x85),
        *(compact.replace('"a"', f'"a{char}y"') for char in BREAKS if ord(char) >= 0x85),
        compact.replace('""', '"\u2028\u2029\x85ä\\u2028\\\\"') + "\r\n",
        json.dumps(message, indent=2).replace('""', '"' + "\u2028" * 3000 + '"'),
    ]
    for body, outcome in zip(bodies, sent(attacked, bodies, path), strict=True):
        assert outcome.forwarded is not None, body[:300]
        assert_one_line(outcome.forwarded, body.encode())


@pytest.mark.engine
def test_several_lines_in_pieces_and_over_http_1(attacked: Attacked) -> None:
    body = json.dumps(call("add", {"a": "x\u2028y" * 50, "b": [1, 2]}), indent=2, ensure_ascii=False).encode()
    head, length = request("POST", "/mcp", body).split(b"\r\n\r\n")[0], b"Content-Length: %d" % len(body)
    chunks = head.replace(length, b"Transfer-Encoding: chunked") + b"\r\n\r\n"
    small = [body[at : at + 7] for at in range(0, len(body), 7)]
    for data in (head + b"\r\n\r\n" + body, chunks + chunked(body), chunks + chunked(*small)):
        assert attacked.send(data).reached
    assert attacked.send(head + b"\r\n\r\n" + body + request("POST", "/mcp", call("add")), answers=2).statuses == (
        200,
        200,
    )
    with Http2(attacked.port) as client:
        assert client.ask(post("/mcp"), *small).reached
        assert client.ask(post("/mcp"), *small, trailers=[("x-checksum", "1")]).reached
    arrived = [seen for seen in attacked.recorder.requests if b"2028" in seen.body]
    assert len(arrived) == 6
    for seen in arrived:
        assert_one_line(seen.body, body)


@pytest.mark.engine
def test_an_inner_message_on_a_line_of_its_own_is_never_a_line(attacked: Attacked) -> None:
    """Arguments may hold any text, also a call of a denied tool, but no reader may take it for a message."""
    inner = INNER.replace('"', '\\"')
    bodies = [
        with_arguments(f'{{"a":\n{INNER}\n}}'),
        with_arguments(f'{{"a":[\r\n{INNER}\r\n]}}'),
        with_arguments(f"\n{INNER}\n"),
        *(with_arguments(f'{{"a":"x{char}{inner}{char}"}}') for char in BREAKS),
        *(with_arguments(f'{{"a":{char}{INNER}{char}}}') for char in BREAKS),
        f"{with_arguments('{}')}\n{INNER}",
        f"{INNER}\n{with_arguments('{}')}",
    ]
    for body, outcome in zip(bodies, sent(attacked, bodies), strict=True):
        if outcome.forwarded is not None:
            assert_one_line(outcome.forwarded, body.encode())
    # Those three are honest: the denied tool is only data.
    assert [outcome.refused for outcome in sent(attacked, bodies[:3])] == [False] * 3
    attacked.recorder.requests.clear()


def decomposed_characters() -> list[str]:
    return [
        chr(code)
        for code in (*range(0xD800), *range(0xE000, 0x110000))
        if unicodedata.normalize("NFKD", chr(code)) != chr(code)
    ]


def test_the_table_of_decompositions_is_that_of_unicode() -> None:
    """The table may be newer than Python's, but characters that Python knows never change."""
    text = character_lines("decompositions.txt")
    lines = text.splitlines()
    table = {line[0]: line[1:] for line in lines}
    assert len(table) == len(lines) > 6900
    assert "]=]" not in text
    for code in (*range(0x80, 0xD800), *range(0xE000, 0x110000)):
        character = chr(code)
        if unicodedata.category(character) == "Cn" or 0xAC00 <= code <= 0xD7A3:
            continue
        whole = unicodedata.normalize("NFKD", character)
        expected = whole if whole != character else "" if unicodedata.combining(character) else None
        assert table.get(character) == expected, hex(code)


def test_the_table_of_case_foldings_is_that_of_unicode() -> None:
    lines = character_lines("case_foldings.txt").splitlines()
    table = {line[0]: line[1:] for line in lines}
    assert len(table) == len(lines) > 900
    for code in (*range(0x80, 0xD800), *range(0xE000, 0x110000)):
        character = chr(code)
        if unicodedata.category(character) != "Cn" and unicodedata.normalize("NFKD", character) == character:
            folded = unicodedata.normalize("NFKD", character.casefold())
            assert table.get(character, character) == folded, hex(code)


@pytest.mark.engine
def test_keys_in_other_letters_where_rules_read_arguments(attacked: Attacked) -> None:
    """Some servers ignore case, in any alphabet. Where no rule looks, such keys pass."""
    pairs = [("путь", "ПУТЬ"), ("größe", "GRÖSSE"), ("größe", "Größe"), ("ὁδός", "ὉΔΌΣ"), ("é", "E\u0301"), ("ｋ", "K")]
    pairs += [("ճանապարհ", "ՃԱՆԱՊԱՐՀ"), ("\U00010428", "\U00010400"), ("a\u200b", "A"), ("ı", "I"), ("İ", "i")]
    for path, tool, is_refused in (("/arguments", "read", True), ("/mcp", "add", False)):
        bodies = [
            with_arguments(json.dumps({"path": "/data/x", first: 1, second: []}, ensure_ascii=escapes), tool)
            for first, second in pairs
            for escapes in (True, False)
        ]
        for body, outcome in zip(bodies, sent(attacked, bodies, path), strict=True):
            assert outcome.refused is is_refused, body
    names = ["größe", "gre", "путь", "цель", "日", "月", "ß", "s", "é", "e", "key"]
    honest = with_arguments(json.dumps({"path": "/data/x", **dict.fromkeys(names, 1)}, ensure_ascii=False), "read")
    assert [outcome.refused for outcome in sent(attacked, [honest], "/arguments")] == [False]


@pytest.mark.engine
def test_keys_cannot_keep_envoy_busy(attacked: Attacked) -> None:
    """Comparing keys beyond ASCII takes time, so there is a limit for each message and for marks in a row."""
    honest = [
        json.dumps({f"ключ{number}日本語": number for number in range(2000)}, ensure_ascii=False),
        json.dumps({"a": [{"größe": number, "länge": 1} for number in range(5000)]}, ensure_ascii=False),
        json.dumps({"a" + "\u0308\u0301" * 15: 1}, ensure_ascii=False),
    ]
    costly = [
        json.dumps({"\ufdfa" * 30_000: 1}, ensure_ascii=False),
        json.dumps({f"{number}" + "\ufdfa" * 100: 1 for number in range(400)}, ensure_ascii=False),
        json.dumps({"a" + "\u0345\u0300" * 16: 1}, ensure_ascii=False),
        json.dumps({"a" + "\u0345\u0300" * 20_000: 1}, ensure_ascii=True),
    ]
    assert [attacked.post(with_arguments(form)).reached for form in honest] == [True] * 3
    assert [attacked.post(with_arguments(form)).refused for form in costly] == [True] * 4


@pytest.mark.engine
def test_every_character_that_nfkc_changes(attacked: Attacked) -> None:
    characters = [char for char in decomposed_characters() if not 0xAC00 <= ord(char) <= 0xD7A3 or ord(char) % 41 == 0]
    assert len(characters) > 5800
    # Six pairs in each message, of which only one is alike.
    bodies = []
    for number, char in enumerate(characters):
        other = unicodedata.normalize("NFKC", char) if number % 2 else unicodedata.normalize("NFKD", char)
        other = other if other != char else unicodedata.normalize("NFKD", char)
        keys = [json.dumps(key, ensure_ascii=number % 3 == 0) for key in (f"x{char}y", "other", f"x{other}y")]
        bodies.append(with_arguments("{" + ",".join(f"{key}:[]" for key in keys) + "}"))
    for char, outcome in zip(characters, sent(attacked, bodies), strict=True):
        assert outcome.refused, hex(ord(char))
    distinct = list({reference.alike(char): char for char in reversed(characters)}.values())
    parts = [distinct[at : at + 400] for at in range(0, len(distinct), 400)]
    objects = [json.dumps({f"{char}z": 1 for char in part}, ensure_ascii=False) for part in parts]
    for outcome in sent(attacked, [with_arguments(text) for text in objects]):
        assert not outcome.refused


KEY_PARTS = [
    *("a", "b", "K", "s", "i", "file", "ﬁle", "ﬁ", "fi", "\u212a", "ſ", "ä", "a\u0308", "\u0308", "\u0301", "\u0323"),
    *("가", "\u1100", "\u1161", "\u11a8", "ガ", "ｶ", "ﾞ", "カ", "\u3099", "①", "1", "½", "\u2044", "2", "日", "\ufa1b"),
    *(
        "福",
        "\U0001d400",
        "A",
        "Å",
        "\u212b",
        "\u030a",
        "\u1e9b",
        "\u0344",
        "\U0001f600",
        "ж",
        "й",
        "и",
        "\u0306",
        "\u00a0",
    ),
    *(" ", "\u1ebf", "\u0302", "e", "ô", "\u0344\u0301", "\U0001d15e", "\U00011935", "\u0f77", "\ufb2c", "ש"),
]


@pytest.mark.engine
def test_random_keys_are_alike_exactly_if_the_reference_says_so(attacked: Attacked) -> None:
    random_keys = random.Random(seeds(1)[0])
    objects, expected = [], []
    for _ in range(examples(3000)):
        keys = ["".join(random_keys.choices(KEY_PARTS, k=random_keys.choice((1, 1, 2, 3)))) for _ in range(4)]
        if random_keys.random() < 0.5:
            keys[3] = unicodedata.normalize(random_keys.choice(("NFC", "NFD", "NFKC", "NFKD")), keys[0])
        texts = (json.dumps(key, ensure_ascii=random_keys.random() < 0.3) for key in keys)
        objects.append("{" + ",".join(f"{text}:[]" for text in texts) + "}")
        expected.append(len({reference.alike(key) for key in keys}) < 4)
        if len({unicodedata.normalize("NFKC", key) for key in keys}) < 4:
            assert expected[-1]
    outcomes = sent(attacked, [with_arguments(text) for text in objects])
    for text, is_alike, outcome in zip(objects, expected, outcomes, strict=True):
        assert outcome.refused is is_alike, text
    assert 300 < sum(expected) < len(expected) - 300


TOKENS = [
    *(
        "{",
        "}",
        "[",
        "]",
        ",",
        ":",
        '"',
        "\\",
        " ",
        "\n",
        "\r",
        "\t",
        "\0",
        "\x1f",
        "\x7f",
        "'",
        "/",
        "#",
        "\u2028",
        "\x85",
    ),
    *(
        "true",
        "false",
        "null",
        "nul",
        "-",
        "+",
        ".",
        "e",
        "E",
        "0",
        "1",
        "12",
        "-0",
        "1.5",
        "1e5",
        "01",
        "1e400",
        "NaN",
    ),
    *('""', '"a"', '"b"', '"a":', '"b":', '"a":[]', '"ﬁ":1', '"fi":1', '"\\u0061":', '"\\ud83d\\ude00"', '"\\ud800"'),
    *("\\n", "\\u0041", "\\x", "\\/", "ä", "a\u0308", "日", "\U0001f600", "\ufeff", "{}", "[]", '{"a":1}', "[1,2]"),
    *('"arguments":', '"name":', f'"{SECRET}"', '"name":"add"', '"params":', '"method":', '"result":', '"id":'),
]
BYTES = [b"\x80", b"\xc0", b"\xff", b"\xe2", b"\xed\xa0\x80", b"\xf4\x90\x80\x80"]


def random_value(source: random.Random, depth: int) -> str:
    """Return a value, most often of JSON."""
    kind = source.random()
    if depth > 4 or kind < 0.35:
        return source.choice(
            ["1", "-0.5e3", "0", "true", "null", '"a"', '"\\n"', '"ä"', "[]", "{}", '"\\ud83d\\ude00"', "12"]
        )
    blank = source.choice(["", "", "", " ", "\n", "\r\n  ", "\t"])
    values = [random_value(source, depth + 1) for _ in range(source.choice((0, 1, 2, 3)))]
    if kind < 0.6:
        return "[" + blank + f",{blank}".join(values) + "]"
    keys = [source.choice(["a", "b", "c", "d", "name", "\\u0061", "ä", "a\u0308", "ﬁ", "fi", "日"]) for _ in values]
    return "{" + f",{blank}".join(f'"{key}"{blank}:{value}' for key, value in zip(keys, values, strict=True)) + "}"


def mutated(source: random.Random, data: bytes) -> bytes:
    """Return a text with a few random changes."""
    for _ in range(source.choice((0, 0, 1, 1, 2, 3))):
        at = source.randrange(len(data) + 1)
        until = min(len(data), at + source.choice((0, 0, 1, 1, 3)))
        new = source.choice(BYTES) if source.random() < 0.05 else source.choice(TOKENS).encode()
        if source.random() < 0.2 and data:
            start = source.randrange(len(data))
            new = data[start : start + source.randrange(20)]
        data = data[:at] + new + data[until:]
    return data


@pytest.mark.engine
@pytest.mark.parametrize("seed", seeds(4))
def test_random_arguments_pass_exactly_if_the_reference_reads_them(attacked: Attacked, seed: int) -> None:
    source = random.Random(seed)
    head, tail = with_arguments("@").encode().split(b"@")
    forms = [mutated(source, random_value(source, 0).encode()) for _ in range(2500)]
    bodies = [head + form + tail for form in forms]
    passed = 0
    for form, body, outcome in zip(forms, bodies, sent(attacked, bodies), strict=True):
        if is_readable(form) and has_one_place(body):
            assert not outcome.refused, body
        if not outcome.refused:
            passed += 1
            check_forwarded(outcome, body)
    assert 500 < passed < 2000


def has_one_place(body: bytes) -> bool:
    """Whether a message has nothing but these arguments: changes may have added members around them."""
    value = json.loads(body)
    return set(value) == {"jsonrpc", "id", "method", "params"} and set(value["params"]) == {"name", "arguments"}


def check_forwarded(outcome: Outcome, body: bytes) -> None:
    """Check that readers agree on a message that passed: it calls the tool that is allowed."""
    assert outcome.forwarded is not None
    value = reference.read(body)
    assert_one_line(outcome.forwarded, body)
    assert value["method"] != "tools/call" or value["params"]["name"] == "add", body


@pytest.mark.engine
@pytest.mark.parametrize("seed", seeds(4))
def test_random_messages_pass_only_if_the_reference_reads_them(attacked: Attacked, seed: int) -> None:
    source = random.Random(1000 + seed)
    bodies = []
    for _ in range(2500):
        name = source.choice(["add", "add", SECRET])
        arguments = random_value(source, 2)
        blank = source.choice(["", "", " ", "\n"])
        members = [f'"name":{blank}"{name}"', f'"arguments":{blank}{arguments}', '"_meta":{"a":[]}']
        source.shuffle(members)
        top = ['"jsonrpc":"2.0"', '"id":1', '"method":"tools/call"', f'"params":{blank}{{{",".join(members)}}}']
        source.shuffle(top)
        bodies.append(mutated(source, ("{" + f",{blank}".join(top) + "}" + source.choice(["", "\n"])).encode()))
    passed = 0
    for body, outcome in zip(bodies, sent(attacked, bodies), strict=True):
        if not outcome.refused:
            passed += 1
            check_forwarded(outcome, body)
    assert passed > 300


@pytest.mark.engine
@pytest.mark.storm
def test_keys_do_not_fill_the_memory(attacked: Attacked) -> None:
    before = attacked.memory()
    for number in range(rounds(40)):
        long = json.dumps({f"{number:06}" + "x" * 900_000: 1})
        many = json.dumps({f"{number:06}-{key}": [] for key in range(20_000)})
        for form in (long, many):
            assert attacked.post(with_arguments(form, tool=SECRET)).refused
    assert attacked.memory() < before + 100_000

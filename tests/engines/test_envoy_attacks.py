"""Attacks on the gateway: no request, however odd, brings a denied tool to the backend, which records everything."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Iterator

import pytest

from tests.labs.envoy_attacks import AGENT, JSON_HEADERS, SECRET, Attacked, call, chunked, request
from tests.needs import unavailable
from tests.randomness import rounds
from tierwall.core.diagnostics import InputError
from tierwall.engines.envoy.probe.recorder import REACHED

pytestmark = pytest.mark.engine

HEAD = '{"jsonrpc":"2.0","id":1,"method":"tools/call","params":'
FILLER = "x" * 9000
OK = '{"name":"add","arguments":{}}'
BAD = f'{{"name":"{SECRET}","arguments":{{}}}}'


@pytest.fixture(scope="module")
def running() -> Iterator[Attacked]:
    try:
        world = Attacked()
    except InputError as error:
        unavailable(str(error))
    yield world
    world.close()


@pytest.fixture
def attacked(running: Attacked) -> Iterator[Attacked]:
    running.recorder.requests.clear()
    yield running
    running.assert_safe()


def test_what_is_allowed_arrives_and_the_secret_tool_does_not(attacked: Attacked) -> None:
    assert attacked.post(call("add")).reached
    assert attacked.post(call(SECRET)).refused
    assert attacked.post(call("read", {"path": "/data/x"}), "/arguments").reached
    assert attacked.post(call("read", {"path": f"/etc/{SECRET}"}), "/arguments").refused
    assert attacked.post(call("sum"), "/named").reached


def test_the_record_would_show_a_leak(running: Attacked) -> None:
    running.post(call(SECRET), "/open")
    assert running.leaked()


@pytest.mark.parametrize(
    "params",
    [
        f'{{"name":"add","name":"{SECRET}","arguments":{{}}}}',
        f'{{"name":"{SECRET}","name":"add","arguments":{{}}}}',
        f'{{"name":"add","arguments":{{}},"name":"{SECRET}"}}',
        f'{{"name":"add","\\u006eame":"{SECRET}"}}',
    ],
)
def test_duplicate_names_within_8_kib(attacked: Attacked, params: str) -> None:
    assert attacked.post(f"{HEAD}{params}}}").refused


@pytest.mark.parametrize("size", [8 << 10, 64 << 10, 900 << 10])
def test_duplicate_names_after_8_kib(attacked: Attacked, size: int) -> None:
    filler = "x" * size
    assert attacked.post(f'{HEAD}{{"name":"add","arguments":{{"a":"{filler}"}},"name":"{SECRET}"}}}}').refused


@pytest.mark.parametrize("filler", ["", FILLER])
def test_duplicate_params_and_methods(attacked: Attacked, filler: str) -> None:
    pad = f'"x":"{filler}",'
    assert attacked.post(f'{HEAD}{OK},{pad}"params":{BAD}}}').refused
    assert attacked.post(f'{HEAD}{BAD},{pad}"params":{OK}}}').refused
    message = f'{{"jsonrpc":"2.0","id":1,"method":"ping",{pad}"method":"tools/call","params":{BAD}}}'
    assert attacked.post(message).refused


def test_duplicate_arguments_that_a_rule_reads(attacked: Attacked) -> None:
    for arguments in (
        f'{{"path":"/data/x","path":"/{SECRET}"}}',
        f'{{"path":"/{SECRET}","path":"/data/x"}}',
        f'{{"path":"/data/x","Path":"/{SECRET}"}}',
        f'{{"path":"/data/x","\\u0070ath":"/{SECRET}"}}',
    ):
        assert attacked.post(f'{HEAD}{{"name":"read","arguments":{arguments}}}}}', "/arguments").refused
    twice = f'{{"name":"read","arguments":{{"path":"/data/x"}},"arguments":{{"path":"/{SECRET}"}}}}'
    assert attacked.post(f"{HEAD}{twice}}}", "/arguments").refused


def test_batches(attacked: Attacked) -> None:
    assert attacked.post([call("add"), call(SECRET)]).refused
    assert attacked.post([call(SECRET)]).refused
    assert attacked.post(f"[[{json.dumps(call(SECRET))}]]").refused
    assert attacked.post(f"{HEAD}[{OK},{BAD}]}}").refused


@pytest.mark.parametrize(
    "method",
    [
        *(
            "Tools/Call",
            "TOOLS/CALL",
            " tools/call",
            "tools/call ",
            "tools/call\\u0000",
            "tools/call\\n",
            "tools\\t/call",
        ),
        *("tools/call\u00a0", "tools/call\\u00a0", "tools/call\u200b", "tool\u017f/call", "tool\\u017f/call"),
    ],
)
def test_case_variants_of_methods(attacked: Attacked, method: str) -> None:
    for path in ("/mcp", "/named", "/old", "/asks"):
        assert attacked.post(f'{{"jsonrpc":"2.0","id":1,"method":"{method}","params":{BAD}}}', path).refused


def test_methods_with_escapes_are_unescaped(attacked: Attacked) -> None:
    for method in ("tools\\/call", "tools\\u002fcall", "\\u0074ools/call"):
        for path in ("/mcp", "/named"):
            assert attacked.post(f'{{"jsonrpc":"2.0","id":1,"method":"{method}","params":{BAD}}}', path).refused
        assert attacked.post(f'{{"jsonrpc":"2.0","id":1,"method":"{method}","params":{OK}}}').reached


def test_case_variants_of_tools(attacked: Attacked) -> None:
    for name in (SECRET.upper(), SECRET.title(), f" {SECRET}", f"{SECRET} ", f"add\\n{SECRET}", f"add\\u0000{SECRET}"):
        assert attacked.post(f'{HEAD}{{"name":"{name}"}}}}').refused


def test_unicode_escapes(attacked: Attacked) -> None:
    escaped = "".join(f"\\u{ord(char):04x}" for char in SECRET)
    assert attacked.post(f'{HEAD}{{"name":"{escaped}"}}}}').refused
    assert attacked.post(f'{HEAD}{{"name":"{escaped}"}}}}', "/named").refused
    keys = (
        f'{{"\\u006a\\u0073onrpc":"2.0","id":1,"\\u006dethod":"tools/call","p\\u0061rams":{{"n\\u0061me":"{SECRET}"}}}}'
    )
    assert attacked.post(keys).refused
    assert attacked.post(keys, "/named").refused


@pytest.mark.parametrize(
    "content_type",
    [
        "text/plain",
        "application/jsonx",
        "application/json-rpc",
        "multipart/form-data; boundary=x",
        "application/x-www-form-urlencoded",
        "",
        "text/plain, application/json",
    ],
)
def test_wrong_content_types(attacked: Attacked, content_type: str) -> None:
    header = f"Content-Type: {content_type}\r\n" if content_type else ""
    for path in ("/mcp", "/named", "/old", "/asks"):
        accept = "Accept: application/json, text/event-stream\r\n"
        assert attacked.post(call(SECRET), path, header + accept).refused
        assert attacked.post(call(SECRET), path, header).refused


def test_charsets_that_hide_a_second_name(attacked: Attacked) -> None:
    hidden = f'{HEAD}{{"name":"add","x":"+ACIALAAi-name+ACI-:+ACI-{SECRET}+ACI-"}}}}'
    for charset in ("utf-7", "utf-16", "utf-16le", "ibm037", "UTF-32"):
        header = JSON_HEADERS.replace("application/json\r\n", f"application/json; charset={charset}\r\n", 1)
        assert attacked.post(hidden, headers=header).refused
        assert attacked.post(json.dumps(call(SECRET)).encode("utf-16"), headers=header).refused
        assert attacked.post(call(SECRET), "/named", header).refused


def test_compressed_bodies(attacked: Attacked) -> None:
    body = gzip.compress(json.dumps(call(SECRET)).encode())
    for path in ("/mcp", "/named", "/asks"):
        for encoding in ("gzip", "deflate", "br", "GZIP"):
            assert attacked.post(body, path, f"{JSON_HEADERS}Content-Encoding: {encoding}\r\n").refused
            assert attacked.post(call(SECRET), path, f"{JSON_HEADERS}Content-Encoding: {encoding}\r\n").refused


def test_chunked_bodies(attacked: Attacked) -> None:
    data = json.dumps(call(SECRET)).encode()
    head = f"POST /mcp HTTP/1.1\r\nHost: gate.test\r\n{JSON_HEADERS}Transfer-Encoding: chunked\r\n\r\n".encode()
    assert attacked.send(head + chunked(*(data[at : at + 1] for at in range(len(data))))).refused
    assert attacked.send(head + chunked(data)).refused
    ok = json.dumps(call("add")).encode()
    assert attacked.send(head + chunked(ok, data)).refused
    assert attacked.send(head + chunked(ok, b"\n", data)).refused
    trailer = f"0\r\nMcp-Name: {SECRET}\r\n\r\n".encode()
    assert attacked.send(head + chunked(ok, end=trailer)).reached
    extended = b"%x;%b\r\n%b\r\n" % (len(ok), SECRET.encode(), ok)
    assert attacked.send(head + extended + b"0\r\n\r\n").reached


def test_truncated_bodies(attacked: Attacked) -> None:
    data = json.dumps(call(SECRET)).encode()
    head = f"POST /mcp HTTP/1.1\r\nHost: gate.test\r\n{JSON_HEADERS}".encode()
    for path in (b"/mcp", b"/named", b"/asks"):
        tricked = head.replace(b"/mcp", path, 1)
        assert attacked.send(tricked + b"Content-Length: 5000\r\n\r\n" + data, hang_up=True).refused
        assert attacked.send(tricked + b"Content-Length: %d\r\n\r\n" % (len(data) - 20) + data).refused
        assert attacked.send(
            tricked + b"Transfer-Encoding: chunked\r\n\r\n" + chunked(data, end=b""), hang_up=True
        ).refused
        assert attacked.send(tricked + b"Transfer-Encoding: chunked\r\n\r\n%x\r\n" % 5000 + data, hang_up=True).refused


def test_data_after_the_message(attacked: Attacked) -> None:
    ok, bad = json.dumps(call("add")), json.dumps(call(SECRET))
    for body in (
        f"{ok}{bad}",
        f"{ok}\n{bad}",
        f"{ok},{bad}",
        f"{ok}\0{bad}",
        f"\ufeff{bad}",
        f"{bad}{ok}",
        f"//{ok}\n{bad}",
    ):
        assert attacked.post(body).refused, body


def test_data_after_the_message_in_a_later_chunk(attacked: Attacked) -> None:
    head = f"POST /mcp HTTP/1.1\r\nHost: gate.test\r\n{JSON_HEADERS}Transfer-Encoding: chunked\r\n\r\n".encode()
    bad = json.dumps(call(SECRET))
    # Braces, brackets and quotes inside strings: a parser that counts them without reading strings goes wrong.
    for text in ("", "{", "}", "[{", "{{", '\\"{', "\\\\", '\\\\\\"{', '\\":{\\"', "\\u0022{"):
        ok = f'{HEAD}{{"name":"add","arguments":{{"a":"{text}"}}}}}}'
        assert attacked.post(ok).reached, text
        for rest in (bad, f'{{"a":"}}"}}{bad}', f'"}}}}"{bad}', f"]{bad}", "]", "}", "\0", "\ufeff"):
            assert attacked.send(head + chunked(ok.encode(), rest.encode())).refused, (text, rest)


def test_bodies_beyond_the_limit(attacked: Attacked) -> None:
    late = f'{HEAD}{{"name":"add","arguments":{{"a":"{"x" * (1 << 20)}"}}}},"z":{BAD}}}'
    assert attacked.post(late).refused
    assert attacked.post(late, "/named").refused


def test_lenient_json(attacked: Attacked) -> None:
    for params in (
        f"{{'name':'{SECRET}'}}",
        f'{{name:"{SECRET}"}}',
        f'{{"name":"{SECRET}",}}',
        f'{{"name":/*"add"*/"{SECRET}"}}',
        f'{{"name":["{SECRET}"]}}',
        f'{{"name":{{"name":"{SECRET}"}}}}',
        f'"{SECRET}"',
        f'["{SECRET}"]',
    ):
        assert attacked.post(f"{HEAD}{params}}}").refused, params
    deep = f'{HEAD}{{"name":"{SECRET}","arguments":{"[" * 5000}{"]" * 5000}}}}}'
    assert attacked.post(deep).refused


@pytest.mark.parametrize(
    "path",
    [
        "/open/../mcp",
        "/open/./../mcp",
        "/open//../mcp",
        "//mcp",
        "/%6dcp",
        "/mcp/",
        "/mcp/x",
        "/mcp?x=1",
        "/mcp;x",
        "/mcp%3fx",
        "/open/%2e%2e/mcp",
        "/open/..%2fmcp",
        "/open%2f..%2fmcp",
        "/open/..%5cmcp",
        "/open/..;/mcp",
        "/open/..;a=b/mcp",
        "/open/%2e%2e;/mcp",
        "/open/%2E.;a=b/mcp",
        "/MCP",
        "http://other.test/mcp",
        "/mcp#/open",
        "/open#/../mcp",
        "/mcp%00/open",
    ],
)
def test_path_tricks(attacked: Attacked, path: str) -> None:
    attacked.post(call(SECRET), path)
    for arrived in attacked.recorder.requests:
        # An unprotected path may be called, but only if no server could read it as a protected path.
        assert re.fullmatch(r"/open(/[a-z]+)*", arrived.path), arrived.path
    attacked.recorder.requests.clear()


@pytest.mark.parametrize("method", ["GET", "DELETE", "HEAD", "OPTIONS", "PUT", "PATCH", "get", "FOO"])
def test_other_methods_that_carry_bodies(attacked: Attacked, method: str) -> None:
    headers = f"{JSON_HEADERS}Mcp-Session-Id: s\r\n"
    for path in ("/mcp", "/named", "/old", "/asks"):
        assert attacked.send(request(method, path, call(SECRET), headers)).refused
        head = f"{method} {path} HTTP/1.1\r\nHost: gate.test\r\n{headers}Transfer-Encoding: chunked\r\n\r\n".encode()
        assert attacked.send(head + chunked(json.dumps(call(SECRET)).encode())).refused


def test_the_stream_and_the_end_of_a_session_pass(attacked: Attacked) -> None:
    for method in ("GET", "DELETE"):
        head = f"{method} /mcp HTTP/1.1\r\nHost: gate.test\r\nAccept: text/event-stream\r\nMcp-Session-Id: s\r\n\r\n"
        assert attacked.send(head.encode()).reached


@pytest.mark.parametrize("name", ["X-HTTP-Method-Override", "X-Method-Override", "X-HTTP-Method"])
def test_method_override_headers(attacked: Attacked, name: str) -> None:
    assert attacked.send(request("GET", "/mcp", call(SECRET), f"{JSON_HEADERS}{name}: POST\r\n")).refused
    assert attacked.send(request("POST", "/mcp", call(SECRET), f"{JSON_HEADERS}{name}: GET\r\n")).refused
    assert attacked.send(request("POST", "/mcp", call("add"), f"{JSON_HEADERS}{name}: DELETE\r\n")).reached
    assert [name.lower() in request.headers for request in attacked.recorder.requests] == [False]


@pytest.mark.parametrize("name", ["X-Original-URL", "X-Rewrite-URL"])
def test_path_override_headers(attacked: Attacked, name: str) -> None:
    assert attacked.send(request("POST", "/mcp", call(SECRET), f"{JSON_HEADERS}{name}: /open\r\n")).refused
    attacked.send(request("POST", "/mcp", call("add"), f"{JSON_HEADERS}{name}: /named\r\n"))
    assert [name.lower() in request.headers for request in attacked.recorder.requests] == [False]


@pytest.mark.parametrize("name", ["Mcp-Name", "mcp-name", "MCP-NAME", "Mcp_Name", "X-Tierwall-Name"])
def test_headers_that_disagree_with_the_body(attacked: Attacked, name: str) -> None:
    forged = attacked.post(call("add"), headers=f"{JSON_HEADERS}{name}: {SECRET}\r\n")
    # A client's value of an internal header is removed; whatever servers may go by must agree.
    assert forged.refused is not name.startswith("X-")
    attacked.post(call("add"), headers=f"{JSON_HEADERS}{name}: add\r\n{name}: {SECRET}\r\n")
    assert attacked.post(call(SECRET), headers=f"{JSON_HEADERS}{name}: add\r\n").refused
    assert attacked.post(call(SECRET), headers=f"{JSON_HEADERS}Mcp-Method: ping\r\nX-Tierwall-Method: ping\r\n").refused
    ping = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
    assert attacked.post(ping, headers=f"{JSON_HEADERS}Mcp-Method: tools/call\r\n").refused
    assert attacked.post(ping, headers=f"{JSON_HEADERS}Mcp-Method: ping\r\n{name}: {SECRET}\r\n").refused is not (
        name.startswith("X-")
    )
    assert {request.headers.get("mcp-name") for request in attacked.recorder.requests} <= {None, "add"}
    assert {request.headers.get("mcp-method") for request in attacked.recorder.requests} <= {None, "ping"}


@pytest.mark.parametrize(
    "message",
    [
        f'{HEAD}{{"name":"add","Name":"{SECRET}"}}}}',
        f'{HEAD}{{"Name":"{SECRET}","name":"add"}}}}',
        f'{HEAD}{{"name":"add","NAME":"{SECRET}"}}}}',
        f'{HEAD}{{"name":"add","N\\u0061me":"{SECRET}"}}}}',
        f'{HEAD}{{"name":"add"," name":"{SECRET}"}}}}',
        f'{HEAD}{{"name":"add","name\\u0000":"{SECRET}"}}}}',
        f'{HEAD}{{"name":"add","name\\t":"{SECRET}"}}}}',
        f'{HEAD}{{"name":"add","\\tname":"{SECRET}"}}}}',
        f'{HEAD}{{"name":"add","name ":"{SECRET}"}}}}',
        f'{HEAD}{{"name":"add","name\u00a0":"{SECRET}"}}}}',
        f'{HEAD}{{"name":"add","\\u200bname":"{SECRET}"}}}}',
        f'{HEAD}{OK},"Params":{BAD}}}',
        f'{HEAD}{OK},"param\u017f":{BAD}}}',
        f'{HEAD}{OK},"param\\u017f":{BAD}}}',
        f'{HEAD}{OK},"\\u0050arams":{BAD}}}',
        f'{{"jsonrpc":"2.0","id":1,"method":"ping","Method":"tools/call","params":{BAD}}}',
        f'{{"jsonrpc":"2.0","id":1,"method":"ping","METHOD":"tools/call","PARAMS":{BAD}}}',
    ],
)
def test_keys_that_a_lenient_parser_would_fold(attacked: Attacked, message: str) -> None:
    assert attacked.post(message).refused


# Envoy accepts more than JSON. In each case, `?` is a key or string that some server may read as another.
MORE_THAN_JSON = [
    *(
        "'Name'",
        "Name",
        '"Name"\f',
        '"Name"\v',
        '"n\\x61me"',
        '"n\\141me"',
        '"name\\v"',
        '"name\\0"',
        '"n\\\name"',
        '"nam\\e"',
    ),
    *('"\uff4eame"', '"\\uff4eame"', '"\u207fame"', '"nam\u0435"', '"\\u006eame\\u200b"', '"name\u2060"'),
]


@pytest.mark.parametrize("key", MORE_THAN_JSON)
def test_keys_that_are_not_json_or_not_ascii(attacked: Attacked, key: str) -> None:
    upper = key.replace("n", "p", 1).replace("N", "P", 1).replace("ame", "arams")
    for message in (
        f'{HEAD}{{"name":"add",{key}:"{SECRET}"}}}}',
        f'{HEAD}{{{key}:"{SECRET}","name":"add"}}}}',
        f"{HEAD}{OK},{upper}:{BAD}}}",
        f'{HEAD}{{"name":"add","a":\'"\',{key}:"{SECRET}","b":\'"\'}}}}',
    ):
        assert attacked.post(message).refused, message


@pytest.mark.parametrize("key", ["'result'", "result", '"result"\f', "'error'", '"re\\sult"', '"r\\x65sult"'])
def test_responses_that_are_not_json(attacked: Attacked, key: str) -> None:
    for path in ("/asks", "/some"):
        assert attacked.post(f"{HEAD}{BAD},{key}:{{}}}}", path).refused
        assert attacked.post(
            f'{{"jsonrpc":"2.0","id":1,"result":{{}},"method"\f:"tools/call","params":{BAD}}}', path
        ).refused


@pytest.mark.parametrize(
    "empty", ['"":{}', '"":{"a":1}', '"_meta":{"":{}}', '"arguments":{"":{}}', '"arguments":{"a":{"":{}}}']
)
def test_empty_keys_after_which_envoy_loses_its_position(attacked: Attacked, empty: str) -> None:
    for path in ("/some", "/mcp", "/named", "/asks"):
        assert attacked.post(f'{HEAD}{{{empty},"name":"{SECRET}"}}}}', path).refused
    read = f'{{"jsonrpc":"2.0","id":1,"method":"resources/read","params":{{{empty},"uri":"file:///{SECRET}"}}}}'
    assert attacked.post(read, "/some").refused


def test_dots_in_keys(attacked: Attacked) -> None:
    for path in ("/mcp", "/named", "/some"):
        for more in ('"x.name":"add"', '"params.name":"add"', '"x":{"y.name":"add"}', '".name":"add"', '"name.":"add"'):
            assert attacked.post(f'{HEAD}{{"name":"{SECRET}",{more}}}}}', path).refused
            assert attacked.post(f'{HEAD}{{{more},"name":"{SECRET}"}}}}', path).refused
            assert attacked.post(f"{HEAD}{BAD},{more.replace('name', 'params.name')}}}", path).refused


@pytest.mark.parametrize(
    "name",
    [
        *(
            f'["{SECRET}"]',
            f'{{"a":"{SECRET}"}}',
            f'[["{SECRET}"]]',
            f'"{SECRET}\\u0000x"',
            f'"{SECRET}\\n"',
            f'"{SECRET} "',
        ),
        *(
            f'"{SECRET}\n"',
            f'" {SECRET}"',
            f'"{SECRET}\u00a0"',
            f'"\\u200b{SECRET}"',
            f'"\\x{ord(SECRET[0]):x}{SECRET[1:]}"',
        ),
        *(f"'{SECRET}'", f'"{SECRET}\\v"', f'"{SECRET}\x85"', f'"{SECRET}\\u0085"', f'"{SECRET}\ufe0f"'),
    ],
)
def test_names_that_are_not_plain_strings(attacked: Attacked, name: str) -> None:
    for path in ("/mcp", "/named", "/some", "/asks"):
        assert attacked.post(f'{HEAD}{{"name":{name}}}}}', path).refused
        assert attacked.post(f'{HEAD}{{"name":{name}}}}}', path, f"{JSON_HEADERS}Mcp-Name: add\r\n").refused


@pytest.mark.parametrize("params", [f'["{SECRET}",{{}}]', f"[{BAD}]", f"[[{BAD}]]", f'"{SECRET}"', f'[ "{SECRET}"]'])
def test_positional_parameters(attacked: Attacked, params: str) -> None:
    for path in ("/mcp", "/named", "/some", "/asks"):
        assert attacked.post(f"{HEAD}{params}}}", path).refused
        # Envoy accepts a repeated key if its value is a list.
        assert attacked.post(f'{HEAD}{params},"params":{OK}}}', path).refused
        assert attacked.post(f'{HEAD}{OK},"params":{params}}}', path).refused
    read = f'{{"jsonrpc":"2.0","id":1,"method":"resources/read","params":["file:///{SECRET}"]}}'
    assert attacked.post(read, "/some").refused


@pytest.mark.parametrize("method", ['["tools/call"]', "[1]", "[]", '[{"a":1}]'])
def test_methods_repeated_as_lists(attacked: Attacked, method: str) -> None:
    for both in (f'"method":"tools/list","method":{method}', f'"method":{method},"method":"tools/list"'):
        for path in ("/mcp", "/some", "/asks", "/named"):
            assert attacked.post(f'{{"jsonrpc":"2.0","id":1,{both},"params":{BAD}}}', path).refused


@pytest.mark.parametrize("other", ['[{"path":"/etc/x"}]', '["/etc/x"]', '"{\\"path\\":\\"/etc/x\\"}"', "[1]"])
def test_positional_arguments(attacked: Attacked, other: str) -> None:
    good = '"arguments":{"path":"/data/x"}'
    for both in (f'{good},"arguments":{other}', f'"arguments":{other},{good}'):
        assert attacked.post(f'{HEAD}{{"name":"read",{both}}}}}', "/arguments").refused


def test_empty_parameters_pass(attacked: Attacked) -> None:
    for params in ("{}", "[]", "[ ]", "null", '{"_meta":{}}'):
        message = f'{{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{params}}}'
        assert attacked.post(message, "/asks").reached, params


@pytest.mark.storm
def test_names_do_not_fill_the_memory(attacked: Attacked) -> None:
    before = attacked.memory()
    for number in range(rounds(150)):
        assert attacked.post(call(f"{number:06}" + "x" * 900_000)).refused
    assert attacked.memory() < before + 100_000


@pytest.mark.parametrize(
    "parameters",
    [
        *("charset=utf-8; charset=utf-7", 'x="charset=utf-8"; charset=utf-7', 'charset="utf-8;";charset=utf-7'),
        *("Charset=UTF8; charset=utf-16", "charset*=utf-8''utf-7", "charset*=utf-7", "charset*0=utf-7", "charset="),
    ],
)
def test_repeated_or_odd_charsets(attacked: Attacked, parameters: str) -> None:
    hidden = f'{HEAD}{{"name":"add","x":"+ACIALAAi-name+ACI-:+ACI-{SECRET}+ACI-"}}}}'
    header = JSON_HEADERS.replace("application/json\r\n", f"application/json; {parameters}\r\n", 1)
    assert attacked.post(hidden, headers=header).refused


def test_plain_charsets_pass(attacked: Attacked) -> None:
    for parameters in ("charset=utf-8", "charset=UTF-8", 'Charset="utf8"', "profile=x"):
        header = JSON_HEADERS.replace("application/json\r\n", f"application/json; {parameters}\r\n", 1)
        assert attacked.post(call("add"), headers=header).reached, parameters


@pytest.mark.parametrize(
    "key",
    [
        '"Path"',
        '"path\u00a0"',
        '"path\\u00a0"',
        '"\\ufeffpath"',
        '"\uff50ath"',
        "Path",
        "'Path'",
        '"Path"\f',
        '"p\\x61th"',
    ],
)
def test_arguments_that_fold_to_the_same_key(attacked: Attacked, key: str) -> None:
    for arguments in (f'"path":"/data/x",{key}:"/etc/{SECRET}"', f'{key}:"/etc/{SECRET}","path":"/data/x"'):
        assert attacked.post(f'{HEAD}{{"name":"read","arguments":{{{arguments}}}}}}}', "/arguments").refused


def test_arguments_in_any_language_pass(attacked: Attacked) -> None:
    for more in (
        {"\u65e5": 1, "\u6708": 2},
        {"gr\u00f6\u00dfe": 1, "gre": 2},
        {"\U0001f600": 1, "\U0001f601": {"a b": [1.5e3]}},
    ):
        message = call("read", {"path": "/data/x", **more})
        assert attacked.post(message, "/arguments").reached
        assert attacked.post(json.dumps(message, ensure_ascii=False), "/arguments").reached
        assert attacked.post(json.dumps(message, indent=2).replace("\n", "\r\n"), "/arguments").reached


@pytest.mark.parametrize(
    "also", ['"result":{}', '"error":{"code":1,"message":"x"}', '"result":null', '"r\\u0065sult":{}']
)
@pytest.mark.parametrize("path", ["/mcp", "/named", "/old", "/asks"])
def test_calls_that_look_like_responses(attacked: Attacked, path: str, also: str) -> None:
    for message in (
        f"{HEAD}{BAD},{also}}}",
        f'{{"jsonrpc":"2.0",{also},"id":1,"method":"tools/call","params":{BAD}}}',
        f'{{"jsonrpc":"2.0",{also},"id":1,"m\\u0065thod":"tools/call","params":{BAD}}}',
        f'{{"jsonrpc":"2.0",{also},"id":1,"Method":"tools/call","params":{BAD}}}',
    ):
        assert attacked.post(message, path).refused


def test_responses_to_the_server_pass_if_only_calls_are_checked(attacked: Attacked) -> None:
    for also in ('"result":{"method":"x"}', '"error":{"code":1,"message":"method"}'):
        assert attacked.post(f'{{"jsonrpc":"2.0","id":1,{also}}}', "/asks").reached


def test_arguments_may_have_any_key(attacked: Attacked) -> None:
    assert attacked.post(call("add", {"Name": "x", "PARAMS": {"method": 1, "Method": 2}})).reached


def test_pipelined_requests(attacked: Attacked) -> None:
    ok, bad = request("POST", "/mcp", call("add")), request("POST", "/mcp", call(SECRET))
    get = b"GET /mcp HTTP/1.1\r\nHost: gate.test\r\n\r\n"
    for order in ((ok, bad), (bad, ok), (ok, ok, bad, ok), (get, bad), (ok, bad, get)):
        got = attacked.send(b"".join(order), answers=len(order))
        arrived = [REACHED.encode() in answer for answer in got.answers]
        # After a denial Envoy may close the connection; until then it answers every request.
        assert arrived == [message is not bad for message in order][: len(arrived)]
        assert len(arrived) > order.index(bad)
        assert got.closed or len(arrived) == len(order)


def test_smuggled_requests(attacked: Attacked) -> None:
    hidden = request("POST", "/mcp", call(SECRET))
    ok = json.dumps(call("add")).encode()
    head = f"POST /mcp HTTP/1.1\r\nHost: gate.test\r\n{JSON_HEADERS}".encode()
    for lengths in (
        b"Content-Length: %d\r\nTransfer-Encoding: chunked\r\n" % len(ok),
        b"Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\nContent-Length: %d\r\n" % len(ok),
        b"Transfer-Encoding : chunked\r\nContent-Length: %d\r\n" % len(ok),
        b"Transfer-Encoding: xchunked\r\nContent-Length: %d\r\n" % len(ok),
        b"Content-Length: %d\r\nContent-Length: %d\r\n" % (len(ok), len(ok + hidden)),
        b"Content-Length: +%d\r\n" % len(ok),
    ):
        for body in (ok, chunked(ok)):
            got = attacked.send(head + lengths + b"\r\n" + body + hidden, answers=2)
            assert (got.statuses, got.closed) == ((400,), True), lengths
    get = b"GET /mcp HTTP/1.1\r\nHost: gate.test\r\nContent-Length: %d\r\n\r\n" % len(hidden)
    assert attacked.send(get + hidden).refused
    assert attacked.recorder.requests == []


def test_identities_without_a_trusted_certificate(attacked: Attacked) -> None:
    for name in ("X-Tierwall-Caller", "X-Forwarded-Client-Cert"):
        header = f"{JSON_HEADERS}{name}: {AGENT}\r\n{name}: URI={AGENT}\r\n"
        assert attacked.post(call(SECRET), "/agents", header).refused
        assert attacked.send(request("GET", "/agents", b"", header)).refused


def test_an_authorizer_that_does_not_answer(attacked: Attacked) -> None:
    assert attacked.post(call(SECRET), "/asks").refused
    assert attacked.post({"jsonrpc": "2.0", "id": 1, "method": "tools/list"}, "/asks").reached

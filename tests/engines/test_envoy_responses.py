"""Lists are cut to their reader, and streams end with their permission or tell changed lists, at a real Envoy."""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from tests.labs.envoy_lab import NETWORKING, PATH, Backend, Caller, Lab, lab, policy
from tests.labs.waiting import PATIENCE_S
from tests.worlds.tool_objects import manifest
from tierwall.engines.envoy.config.options import SocketAddress

pytestmark = [pytest.mark.engine, pytest.mark.usefixtures("needs_envoy")]
Object = dict[str, Any]
NEW = "2026-07-28"


@pytest.fixture(scope="module")
def running(needs_envoy: None) -> Iterator[Lab]:
    with lab() as started:
        yield started


def allowing(*methods: Object, account: str = "shopper", base: bool = True) -> Object:
    """Return a policy that allows an agent these methods."""
    option = {"mcpBaseProtocolMethodsOption": "MATCH_BASE_PROTOCOL_METHODS"} if base else {}
    source = {"type": "ServiceAccount", "serviceAccount": {"namespace": "agents", "name": account}}
    rule = {
        "name": "it",
        "source": source,
        "authorization": {"type": "Inline", "mcp": {"methods": list(methods), **option}},
    }
    target = {"group": NETWORKING, "kind": "XBackend", "name": "orders"}
    return {
        "apiVersion": f"{NETWORKING}/v1alpha1",
        "kind": "XAccessPolicy",
        "metadata": {"name": "reader", "namespace": "shop"},
        "spec": {"action": "Allow", "targetRefs": [target], "rules": [rule]},
    }


SOME = (
    {"name": "tools/call", "params": ["allowed"]},
    {"name": "prompts"},
    {"name": "resources/list"},
    {"name": "resources/templates/list"},
    {"name": "resources/read", "params": ["file:///a", "file:///{x}"]},
)
LISTS = {
    "tools/list": ("tools", "name", ["allowed", "forbidden"], ["allowed"]),
    "prompts/list": ("prompts", "name", ["p", "q"], ["p", "q"]),
    "resources/list": ("resources", "uri", ["file:///a", "file:///b"], ["file:///a"]),
    "resources/templates/list": ("resourceTemplates", "uriTemplate", ["file:///{x}", "file:///{y}"], ["file:///{x}"]),
}


def in_force(running: Lab, *policies: Object) -> Caller:
    running.publish(list(policies))
    running.programmed()
    running.backend.replies.clear()
    running.backend.headers.clear()
    running.backend.events, running.backend.page = b"data: {}\n\n", None
    return running.caller()


def result(key: str, name: str, names: list[str], **more: Any) -> bytes:
    # A schema must stay as it is written, numbers included.
    entries = ",".join(f'{{"{name}": {json.dumps(each)}, "schema": {{"maximum": 1.50e400}}}}' for each in names)
    further = "".join(f", {json.dumps(name)}: {json.dumps(value)}" for name, value in more.items())
    return f'{{"jsonrpc": "2.0", "id": 1, "result": {{"{key}": [{entries}]{further}}}}}'.encode()


@pytest.mark.parametrize("events", [False, True])
def test_every_list_is_cut_page_by_page(running: Lab, events: bool) -> None:
    caller = in_force(running, allowing(*SOME))
    for method, (key, name, names, shown) in LISTS.items():
        body = result(key, name, names, nextCursor="", ttlMs=60000, cacheScope="public", resultType="complete")
        kind = "text/event-stream" if events else "application/json"
        cached = {"etag": 'W/"1"', "cache-control": "public", "last-modified": "Wed, 18 Nov 2026 00:00:00 GMT"}
        body = b": hello\n\nid: 1\ndata: " + body + b"\n\n" if events else body
        running.backend.replies[method] = {"content-type": kind, **cached}, body
        answer, text = asked(running, method)
        if events:
            text = text.partition(b"data: ")[2]
        cut = json.loads(text)["result"]
        assert [entry[name] for entry in cut[key]] == shown
        assert text.count(b"1.50e400") == len(shown)
        assert (cut["nextCursor"], cut["ttlMs"], cut["cacheScope"]) == ("", 0, "private")
        assert answer.getheader("cache-control") == "private, no-cache"
        assert answer.getheader("etag") is answer.getheader("last-modified") is None
    assert not any("if-none-match" in headers for headers in running.backend.headers)
    assert caller.call("allowed") == "allowed"


def asked(running: Lab, method: str) -> tuple[http.client.HTTPResponse, bytes]:
    """Ask for a list as a client that has seen one."""
    connection = http.client.HTTPSConnection(
        "localhost", running.port, context=running.context("shopper"), timeout=PATIENCE_S
    )
    headers = {"content-type": "application/json", "accept": "application/json, text/event-stream"}
    headers |= {"if-none-match": 'W/"1"', "accept-encoding": "gzip"}
    connection.request("POST", PATH, json.dumps({"jsonrpc": "2.0", "id": 1, "method": method}), headers)
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    return answer, body


def test_older_versions_get_no_fields_about_caches(running: Lab) -> None:
    in_force(running, allowing(*SOME))
    running.backend.replies["tools/list"] = {"content-type": "application/json"}, result("tools", "name", ["allowed"])
    assert json.loads(asked(running, "tools/list")[1])["result"].keys() == {"tools"}


def test_a_list_of_twenty_thousand_tools_is_cut(running: Lab) -> None:
    in_force(running, allowing({"name": "tools/call", "params": ["tool-7", "tool-19999"]}))
    tools = [{"name": f"tool-{number}", "description": "x" * 40} for number in range(20_000)]
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "result": {"tools": tools}}).encode()
    assert len(body) > 1_300_000
    for kind, text in (("application/json", body), ("text/event-stream", b"data: " + body + b"\n\n")):
        running.backend.replies["tools/list"] = {"content-type": kind}, text
        answer, text = asked(running, "tools/list")
        assert answer.status == 200
        cut = json.loads(text.removeprefix(b"data: "))["result"]["tools"]
        assert [tool["name"] for tool in cut] == ["tool-7", "tool-19999"]


def test_a_list_on_a_stream_of_the_server_is_cut(running: Lab) -> None:
    caller = in_force(running, allowing(*SOME))
    listed = result("tools", "name", ["allowed", "forbidden"])
    running.backend.events = b'data: {"jsonrpc":"2.0","method":"notifications/x"}\n\nid: 7\ndata: ' + listed + b"\n\n"
    for notifications in (None, {"toolsListChanged": True}):
        with caller.open(notifications) as stream:
            lines = [stream.readline() for _ in range(4)]
        assert lines[0] == b'data: {"jsonrpc":"2.0","method":"notifications/x"}\n'
        assert lines[2] == b"id: 7\n"
        assert [tool["name"] for tool in json.loads(lines[3].removeprefix(b"data: "))["result"]["tools"]] == ["allowed"]


def ends(stream: http.client.HTTPResponse) -> bool:
    """Whether a stream ends before the test loses patience."""
    try:
        return stream.readline() == b""
    except TimeoutError:
        return False
    except (http.client.HTTPException, OSError):
        return True


BOTH = ["file:///a", "file:///b"]


@pytest.mark.parametrize(
    "notifications",
    [None, {"toolsListChanged": True}, {"resourceSubscriptions": BOTH[:1]}, {"resourceSubscriptions": BOTH}],
)
def test_a_stream_ends_with_the_permission_that_opened_it(running: Lab, notifications: Object | None) -> None:
    subscribing = {"name": "resources/subscribe", "params": BOTH}
    caller = in_force(running, allowing(subscribing))
    with caller.open(notifications) as stream, caller.open(notifications) as other:
        for opened in (stream, other):
            assert opened.status == 200
            assert (opened.readline(), opened.readline()) == (b"data: {}\n", b"\n")
        # A change that does not concern them leaves them open.
        running.publish([allowing(subscribing, {"name": "resources/unsubscribe"})])
        running.programmed()
        with pytest.raises(TimeoutError):
            wait_for_line(other)
        if notifications == {"resourceSubscriptions": BOTH}:
            running.publish([allowing({"name": "resources/subscribe", "params": BOTH[:1]})])
        else:
            running.publish([allowing({"name": "tools"}, account="clerk")])
        assert ends(stream)
    # A client that comes back at once finds the stream closed, whether its proxy has the new policies or not.
    with caller.open(notifications) as again:
        assert again.status == 403 or b'"error"' in again.read()


@pytest.mark.parametrize("notifications", [None, {"toolsListChanged": True}])
def test_a_stream_from_before_the_first_policy_ends_with_it(running: Lab, notifications: Object | None) -> None:
    caller = in_force(running)
    elsewhere = allowing({"name": "tools"}, account="clerk")
    elsewhere["spec"]["targetRefs"] = [{"group": NETWORKING, "kind": "XBackend", "name": "another"}]
    with caller.open(notifications) as stream:
        assert (stream.readline(), stream.readline()) == (b"data: {}\n", b"\n")
        running.publish([elsewhere])
        running.programmed()
        with pytest.raises(TimeoutError):
            wait_for_line(stream)
        running.publish([allowing({"name": "tools"}, account="clerk")])
        assert ends(stream)


def test_a_stream_goes_on_where_a_setting_would_refuse_it_now(running: Lab) -> None:
    """Settings judge a request when it begins (docs/semantics.md#streams-end-with-their-permission)."""
    caller = in_force(running, allowing())
    ref = {"group": "gateway.networking.k8s.io", "kind": "Gateway", "name": "agents"}
    nobody = {"action": "Require", "policy": {"matchExpressions": ["false"]}}
    spec = {"targetRefs": [ref], "traffic": {"authorization": nobody}}
    with caller.open() as stream:
        assert (stream.readline(), stream.readline()) == (b"data: {}\n", b"\n")
        setting = manifest("agentgateway.dev/v1alpha1", "AgentgatewayPolicy", "nobody", spec, "shop")
        running.publish([allowing(), setting])
        running.programmed()
        with pytest.raises(TimeoutError):
            wait_for_line(stream)
        with caller.open() as again:
            assert again.status == 403


@pytest.mark.parametrize("headers", [{}, {"mcp-session-id": "s"}, {"mcp-protocol-version": "2025-06-18"}])
def test_streams_of_services_end_with_the_first_policy_if_they_speak_mcp(headers: dict[str, str]) -> None:
    backend = Backend()
    ends_at = SocketAddress("127.0.0.1", backend.port)
    try:
        with lab(endpoints={"Service/shop/orders": ends_at}) as running:
            straight = [_straight(manifest) for manifest in running.fixed]
            running.fixed[:] = [*straight, manifest("v1", "Service", "orders", {"ports": [{"port": 80}]}, "shop")]
            caller = in_force(running)
            context = running.context("shopper")
            with closing(http.client.HTTPSConnection("localhost", running.port, context=context, timeout=20)) as client:
                client.request("GET", PATH, headers={"accept": "text/event-stream", **headers})
                stream = client.getresponse()
                assert (stream.readline(), stream.readline()) == (b"data: {}\n", b"\n")
                running.publish([policy("guard", "allowed")])
                running.programmed()
                if headers:
                    assert ends(stream)
                else:
                    # It may be any page.
                    with pytest.raises(TimeoutError):
                        wait_for_line(stream)
            assert caller.call("forbidden") == "denied by XAccessPolicy/shop/guard"
    finally:
        backend.close()


def _straight(resource: Object) -> Object:
    """Return a resource with the Service in the place of the XBackend."""
    if resource["kind"] != "HTTPRoute":
        return resource
    of_service = {"name": "orders", "port": 80}
    rules = [{**rule, "backendRefs": [of_service]} for rule in resource["spec"]["rules"]]
    return {**resource, "spec": {**resource["spec"], "rules": rules}}


def test_a_subscription_that_its_judge_refuses_gets_an_error_with_its_id(
    running: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    caller = in_force(running, allowing())
    # The control plane knows of a revocation that the proxy does not know of yet.
    monkeypatch.setattr(running.responses, "_view_of", lambda place, identity: None)
    with caller.open({"toolsListChanged": True}) as answer:
        error = {"code": 403, "message": "denied by policy"}
        assert (answer.status, json.loads(answer.read())) == (200, {"jsonrpc": "2.0", "id": 1, "error": error})
    with caller.open() as answer:
        assert (answer.status, answer.read()) == (403, b"denied by policy\n")


def notified(category: str, identity: object = None) -> bytes:
    """Return the line of a stream that tells a changed list."""
    tag = (
        f',"params":{{"_meta":{{"io.modelcontextprotocol/subscriptionId":{json.dumps(identity)}}}}}' if identity else ""
    )
    return f'data: {{"jsonrpc":"2.0","method":"notifications/{category}/list_changed"{tag}}}\n'.encode()


EVERY_LIST = {f"{category}ListChanged": True for category in ("tools", "prompts", "resources")}


@pytest.mark.parametrize("notifications", [None, EVERY_LIST])
def test_a_stream_that_stays_tells_which_lists_have_changed(running: Lab, notifications: Object | None) -> None:
    reading = {"name": "resources/read", "params": ["file:///a"]}
    caller, identity = in_force(running, allowing(reading)), notifications and 1
    with caller.open(notifications) as stream:
        assert (stream.readline(), stream.readline()) == (b"data: {}\n", b"\n")
        running.publish([allowing(reading, {"name": "tools/call", "params": ["allowed"]})])
        assert (stream.readline(), stream.readline()) == (notified("tools", identity), b"\n")
        running.publish([allowing({"name": "prompts"})])
        assert [stream.readline() for _ in range(6)][::2] == [
            notified(category, identity) for category in ("prompts", "resources", "tools")
        ]
        # The permissions of others are not the caller's business.
        both = allowing({"name": "prompts"})
        [of_clerk] = allowing({"name": "tools"}, account="clerk")["spec"]["rules"]
        both["spec"]["rules"].append({**of_clerk, "name": "of-clerk"})
        running.publish([both])
        with pytest.raises(TimeoutError):
            wait_for_line(stream)


def test_a_subscription_is_told_only_what_it_asked_for(running: Lab) -> None:
    caller = in_force(running, allowing())
    with caller.open({"toolsListChanged": False, "promptsListChanged": True}) as stream:
        assert (stream.readline(), stream.readline()) == (b"data: {}\n", b"\n")
        running.publish([allowing({"name": "tools"}, {"name": "prompts"})])
        assert (stream.readline(), stream.readline()) == (notified("prompts", 1), b"\n")
        with pytest.raises(TimeoutError):
            wait_for_line(stream)


def test_a_stream_that_was_silent_tells_changed_lists_with_its_first_event(running: Lab) -> None:
    caller = in_force(running, allowing())
    running.backend.events, running.backend.may_speak = b": alive\n\n", threading.Event()
    with caller.open() as stream:
        running.publish([allowing({"name": "tools"})])
        running.programmed()
        running.backend.may_speak.set()
        assert [stream.readline() for _ in range(3)] == [b": alive\n", b"\n", notified("tools")]


def wait_for_line(stream: http.client.HTTPResponse) -> None:
    """Wait a moment for a line of a stream; TimeoutError if it is open and silent."""
    raw: Any = stream.fp.raw
    raw._sock.settimeout(0.5)
    raise AssertionError(f"the stream is not silent: {stream.readline()!r}")


def test_a_stream_that_no_policy_guards_passes_as_it_is(running: Lab) -> None:
    caller = in_force(running)
    running.backend.events = b"data: no json\n\n"
    with caller.open() as stream:
        assert stream.readline() == b"data: no json\n"


def test_a_compressed_stream_is_not_shown(running: Lab) -> None:
    caller = in_force(running, allowing())
    described = {"content-type": "text/event-stream", "content-encoding": "gzip", "content-length": "4"}
    running.backend.page = 200, described, b"list"
    with caller.open() as answer:
        assert answer.status == 502
        assert answer.read() == b"the stream is compressed, so lists in it cannot be cut\n"


@pytest.mark.parametrize("status", [200, 204, 304, 404, 405])
def test_a_get_that_opens_no_stream_is_answered_as_it_is(running: Lab, status: int) -> None:
    caller = in_force(running, allowing())
    body = b"" if status in (204, 304) else b'{"resource": "all of it"}' * 5000
    described = {"content-type": "application/json", "content-length": str(len(body))} if body else {}
    running.backend.page = status, {"www-authenticate": "Bearer scope=a", **described}, body
    with caller.open() as answer:
        assert (answer.status, answer.read(), answer.headers["www-authenticate"]) == (status, body, "Bearer scope=a")
